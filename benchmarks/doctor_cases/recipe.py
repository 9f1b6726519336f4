"""Training scripts as slots of lines, and the text made of these slots.

A line that ends with ``#! NAME`` is guilty of the cause NAME; the text has it without this mark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from textwrap import dedent, indent

GUILTY = re.compile(r"\s+#! (?P<cause>[a-z -]+)$")
FEATURES = 256  # numbers of a sample, 16 x 16


@dataclass(frozen=True)
class HostSpeed:
    """Times that this host takes for the steps, and for Python, of the host of `causes`."""

    step_factor: float = 1.0
    work_factor: float = 1.0


@dataclass(frozen=True)
class Setting:
    """The parts of a training that no cause changes by itself."""

    kind: str
    model: str
    width: int
    optimizer: str
    shape: str
    batch: int
    epoch_batches: int
    accumulate: int
    workers: int
    prefetch: int
    dataset_name: str
    step_factor: float = 1.0  # `HostSpeed` of the host that runs the script
    work_factor: float = 1.0

    @property
    def samples(self) -> int:
        return self.batch * self.epoch_batches

    @property
    def steps_of_epoch(self) -> int:
        return self.epoch_batches // self.accumulate


@dataclass
class Recipe:
    """Lines of one script by slot; causes edit them before the text is made."""

    setting: Setting
    options: dict[str, int] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)
    helpers: list[str] = field(default_factory=list)
    init: str = ""
    read: str = ""
    work: str = ""
    rows: str = ""
    batch_read: str = ""
    store: str = ""
    setup: str = ""
    prepare: str = ""
    before_step: str = ""
    after_step: str = ""
    loader: dict[str, str] = field(default_factory=dict)
    threads: int = 1

    def __post_init__(self) -> None:
        self.loader = {
            "batch_size": str(self.setting.batch),
            "drop_last": "True",
            "num_workers": str(self.setting.workers),
        }
        if self.setting.kind != "shards":
            self.loader["shuffle"] = "True"
        if self.setting.workers:
            self.loader["persistent_workers"] = "True"
            self.loader["prefetch_factor"] = str(self.setting.prefetch)


@dataclass(frozen=True)
class Script:
    """The text of a script and its guilty lines by cause."""

    text: str
    guilty: dict[str, tuple[int, ...]]


def block(lines: str, depth: int) -> str:
    """Return lines at a depth of indentation, without those that are empty."""
    text = indent(dedent(lines).strip("\n"), "    " * depth)
    return text + "\n" if text.strip() else ""


def script_of(recipe: Recipe) -> Script:
    """Make the text of a script, and note its guilty lines."""
    dataset = map_dataset(recipe) if not recipe.rows else iterable_dataset(recipe)
    imports = {"import torch", "from torch import nn", *recipe.imports}
    kind = "IterableDataset, get_worker_info" if recipe.rows else "Dataset"
    imports.add(f"from torch.utils.data import DataLoader, {kind}")
    parts = [
        "\n".join(sorted(imports, key=lambda line: (line.startswith("from"), line)))
        + "\n",
        "FOLDER = Path(__file__).resolve().parent\n",
        *(dedent(helper).strip("\n") + "\n" for helper in recipe.helpers),
        dataset,
        model_text(recipe.setting),
        loop_text(recipe),
    ]
    guilty: dict[str, list[int]] = {}
    lines = []
    for number, line in enumerate("\n\n".join(parts).splitlines(), 1):
        match = GUILTY.search(line)
        if match:
            guilty.setdefault(match["cause"], []).append(number)
        lines.append(GUILTY.sub("", line))
    return Script(
        "\n".join(lines) + "\n", {name: tuple(rows) for name, rows in guilty.items()}
    )


def map_dataset(recipe: Recipe) -> str:
    """Return the class of a data set with ``__getitem__``."""
    return (
        f"class {recipe.setting.dataset_name}(Dataset):\n"
        "    def __init__(self):\n"
        + block(recipe.init, 2)
        + f"\n    def __len__(self):\n        return {recipe.setting.samples}\n"
        + ("\n    def __getitem__(self, index):\n" + block(recipe.read, 2))
        + block(recipe.work, 2)
        + "        return torch.as_tensor(x), label\n"
        + ("\n" + block(recipe.batch_read, 1) if recipe.batch_read else "")
    )


def iterable_dataset(recipe: Recipe) -> str:
    """Return the class of a data set that walks shards, divided among workers."""
    return (
        f"class {recipe.setting.dataset_name}(IterableDataset):\n"
        "    def __init__(self):\n"
        + block(recipe.init, 2)
        + "\n"
        + block(
            """
            def __iter__(self):
                info = get_worker_info()
                paths = self.paths[info.id :: info.num_workers] if info else self.paths
                for path in paths:
            """,
            1,
        )
        + block(recipe.rows, 3)
        + block(recipe.work, 4)
        + "                yield torch.as_tensor(x), label\n"
    )


MODELS = {
    "mlp": """
        nn.Linear(256, {width}), nn.ReLU(), nn.Linear({width}, {width}), nn.ReLU(),
        nn.Linear({width}, 10),
    """,
    "conv": """
        nn.Unflatten(1, (1, 16, 16)), nn.Conv2d(1, {width}, 3, padding=1), nn.ReLU(),
        nn.Conv2d({width}, {width}, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear({width} * 64, 10),
    """,
    "lstm": "Recurrent({width}),",
    "transformer": """
        nn.Unflatten(1, (16, 16)), nn.Linear(16, {width}),
        nn.TransformerEncoderLayer({width}, 4, 2 * {width}, dropout=0.0, batch_first=True),
        nn.Flatten(), nn.Linear(16 * {width}, 10),
    """,
}
RECURRENT = """
class Recurrent(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lstm = nn.LSTM(16, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        hidden, _ = self.lstm(x.unflatten(1, (16, 16)))
        return self.head(hidden[:, -1])


"""


def model_text(setting: Setting) -> str:
    """Return the function that builds the network."""
    tokens = "nn.Embedding(1000, 16), nn.Flatten(),\n" if setting.kind == "text" else ""
    layers = tokens + dedent(MODELS[setting.model].format(width=setting.width)).strip(
        "\n"
    )
    return (
        (RECURRENT.lstrip("\n") if setting.model == "lstm" else "")
        + "def build():\n    return nn.Sequential(\n"
        + indent(layers, " " * 8)
        + "\n    )\n"
    )


def step_text(recipe: Recipe) -> str:
    """Return the lines of a step, from the batch on."""
    accumulate = recipe.setting.accumulate
    loss = "loss = nn.functional.cross_entropy(model(x), y)"
    after_update = "step += 1\n" + dedent(recipe.after_step).strip("\n")
    if accumulate == 1:
        backward = "optimizer.zero_grad()\nloss.backward()\noptimizer.step()"
        update = f"{loss}\n{backward}\n{after_update}\n"
    else:
        update = (
            f"{loss} / {accumulate}\nloss.backward()\nbatches += 1\n"
            f"if batches % {accumulate} == 0:\n"
            + indent(
                f"optimizer.step()\noptimizer.zero_grad()\n{after_update}\n", "    "
            )
        )
    before_update = dedent(recipe.before_step).strip("\n")
    return (before_update + "\n" if before_update else "") + update


def loop_text(recipe: Recipe) -> str:
    """Return ``main`` and, where the loop has a function of its own, ``fit``."""
    setting = recipe.setting
    arguments = ", ".join(f"{name}={value}" for name, value in recipe.loader.items())
    begin = (
        f"torch.manual_seed(0)\ntorch.set_num_threads({recipe.threads})"
        + ("  #! cores" if recipe.threads > 1 else "")
        + f"\ndata = {setting.dataset_name}()\n"
        + wrapped_loader(arguments, recipe.loader)
        + f"model = build()\noptimizer = torch.optim.{setting.optimizer}(model.parameters(), "
        "lr=0.01)\n"
    )
    setup = dedent(recipe.setup).strip("\n")
    loop = (
        setup + "\n" if setup else ""
    ) + "step = batches = 0\nfor epoch in range(10000):\n"
    loop += "    for x, y in loader:\n" + indent(step_text(recipe), " " * 8)
    if setting.shape == "fit":
        main = begin + "fit(model, loader, optimizer)\n"
        body = "def fit(model, loader, optimizer):\n" + block(loop, 1)
        body += "\n\ndef main():\n" + block(main, 1)
    else:
        body = "def main():\n" + block(begin + loop, 1)
    lines = (body + '\n\nif __name__ == "__main__":\n    main()').splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def wrapped_loader(arguments: str, loader: dict[str, str]) -> str:
    """Return the line that makes the loader, guilty where a cause lies in its arguments."""
    guilty = loader.get("guilty")
    arguments = ", ".join(
        part for part in arguments.split(", ") if "guilty" not in part
    )
    return (
        f"loader = DataLoader(data, {arguments})"
        + (f"  #! {guilty}" if guilty else "")
        + "\n"
    )
