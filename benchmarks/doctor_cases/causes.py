"""Causes that can be put into a script: what each changes, sick and mended, in random strength.

A strength is a share of the loop. Costs of single operations are rough; the gain is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import indent

from benchmarks.doctor_cases.kinds import KINDS
from benchmarks.doctor_cases.recipe import Recipe, Setting

MAPPED = list(KINDS)  # data sets with __getitem__
VECTORS = [kind for kind in MAPPED if kind != "text"]  # samples are numbers, not tokens
ALL = [*MAPPED, "remote", "shards"]
EVERY = 12  # steps between evaluations or checkpoints; divides the steps of an epoch
Edit = Callable[[Recipe, float, bool], None]


@dataclass(frozen=True)
class Cause:
    """A cause, the data that it suits, and what it changes in a recipe.

    ``edit(recipe, budget_us, sick)`` changes slots; ``budget_us`` is what a batch may cost more.
    """

    name: str
    key: str
    place: str
    kinds: tuple[str, ...]
    edit: Edit
    workers: tuple[int, ...] = (0, 1, 2)
    hides: str = "cores"  # behind steps: see `budget_us_of`
    is_computed: bool = True  # whether the host's speed of Python makes it longer


@dataclass(frozen=True)
class StepCost:
    """Rough cost of a batch's step on one core: fixed, and of 64 samples at a width, in us."""

    fixed_us: float
    width: int
    us: float
    power: float
    adam_us: float = 200.0  # of the optimizer, at this width


STEP_COSTS = {
    "mlp": StepCost(200, 768, 2900, 2.0, adam_us=4000),
    "conv": StepCost(550, 24, 4400, 2.0),
    "lstm": StepCost(400, 192, 6700, 1.7),
    "transformer": StepCost(700, 96, 6900, 1.3),
}


def step_us(setting: Setting) -> float:
    """Return the rough time of a batch's step without any wait, in us."""
    cost = STEP_COSTS[setting.model]
    width_factor = (setting.width / cost.width) ** cost.power
    optimizer_us = 0 if setting.optimizer == "SGD" else cost.adam_us * width_factor
    batch_us = cost.us * width_factor * setting.batch / 64
    reference_us = cost.fixed_us + batch_us + optimizer_us / setting.accumulate
    return setting.step_factor * reference_us


def budget_us_of(cause: Cause, setting: Setting, strength: float) -> float:
    """Return the cost of a batch, in us, by which a cause takes ``strength`` of the loop.

    What workers do hides behind steps: on two cores at once, or on as many workers as wait, or
    one after the other. A cost that hides wholly delays only by coming all at once, and is half
    of the steps at least: prefetched batches hide some of it. Of what is computed the cost is
    that on the host which the costs of operations are of.
    """
    step = step_us(setting) / (setting.work_factor if cause.is_computed else 1.0)
    if cause.hides == "wholly":
        return step * (1 + strength) / 2
    if cause.hides == "never" or setting.workers == 0:
        return step * strength / (1 - strength)
    at_once = {"cores": min(2, setting.workers), "workers": setting.workers, "one": 1}
    return at_once[cause.hides] * step / (1 - strength)


def repeats(budget_us: float, cost_us: float, low: int = 1) -> int:
    """Return how many operations of this cost fit into a budget."""
    return max(low, round(budget_us / cost_us))


# --------------------------------------------------------------------------- in the data set


def option(name: str, amount: str, cost_us: float, low: int) -> Edit:
    """Return an edit that switches an option of the kind, with an amount both forms have."""

    def edit(recipe: Recipe, budget_us: float, sick: bool) -> None:
        recipe.options[amount] = repeats(budget_us / recipe.setting.batch, cost_us, low)
        if sick:
            recipe.options[name] = 1

    return edit


def decode_images(recipe: Recipe, budget_us: float, sick: bool) -> None:
    # 0.009 us a pixel
    recipe.options["pixels"] = int(
        min(900, max(48, (budget_us / recipe.setting.batch / 0.009) ** 0.5))
    )
    recipe.options["large"] = int(sick)


def tokenise_late(recipe: Recipe, budget_us: float, sick: bool) -> None:
    recipe.options["words"] = repeats(budget_us / recipe.setting.batch, 0.17, 16)
    recipe.options["late"] = int(sick)


def vocabulary_anew(recipe: Recipe, budget_us: float, sick: bool) -> None:
    recipe.options["anew" if sick else "was_anew"] = 1


def parse_lines(recipe: Recipe, budget_us: float, sick: bool) -> None:
    if sick:
        recipe.options["parse"] = repeats(budget_us / recipe.setting.batch, 25)


def python_transform(recipe: Recipe, budget_us: float, sick: bool) -> None:
    passes = repeats(budget_us / recipe.setting.batch, 22)
    recipe.imports.add("import numpy as np")
    loop = f"""
    class Smooth:
        def __call__(self, x):
            values = x.tolist()
            for _ in range({passes}):
                pairs = zip(values, values[1:] + values[:1])
                values = [(a + b) / 2 for a, b in pairs]  #! transform
            return np.array(values, np.float32)
    """
    spectrum = f"""
    class Smooth:
        def __init__(self):
            self.gain = ((1 + np.exp(2j * np.pi * np.arange(129) / 256)) / 2) ** {passes}

        def __call__(self, x):
            return np.fft.irfft(np.fft.rfft(x) * self.gain, 256).astype(np.float32)
    """
    recipe.helpers.append(loop if sick else spectrum)
    recipe.work = "x = self.transform(x)" + ("  #! transform" if sick else "")
    recipe.init = "self.transform = Smooth()"


def filter_transform(recipe: Recipe, budget_us: float, sick: bool) -> None:
    times = repeats(budget_us / recipe.setting.batch, 14, 2)
    recipe.imports.add("import numpy as np")
    sick_line = "x = np.convolve(x, self.kernel, mode='same')  #! transform"
    body = (
        f"for _ in range({times}):\n    {sick_line}"
        if sick
        else "x = np.convolve(x, self.kernel, mode='same')"
    )
    recipe.helpers.append(
        "class Blur:\n    def __init__(self):\n        self.kernel = np.ones(9, np.float32) / 9\n\n"
        "    def __call__(self, x):\n" + indent(body, " " * 8) + "\n        return x"
    )
    recipe.work = "x = self.transform(np.asarray(x))" + (
        "  #! transform" if sick else ""
    )
    recipe.init = "self.transform = Blur()"


def slow_sample(recipe: Recipe, budget_us: float, sick: bool) -> None:
    # one sample in 14 batches has all the cost of 14 batches
    setting = recipe.setting
    period = min(14, setting.epoch_batches) * setting.batch
    times = repeats(budget_us * period / setting.batch, 20, 2)
    recipe.imports.add("import numpy as np")
    recipe.init = (
        f"self.length = [{times if sick else 1} if index % {period} == 7 else 1"
        f" for index in range({setting.samples})]"
    )
    guilty = "  #! slow sample" if sick else ""
    recipe.work = (
        "signal = np.asarray(x)\nfor _ in range(self.length[index]):\n"
        f"    signal = np.sort(np.fft.irfft(np.fft.rfft(signal), 256)){guilty}\n"
        "x = signal.astype(np.float32)"
    )


def lock(recipe: Recipe, budget_us: float, sick: bool) -> None:
    seconds = round(budget_us / recipe.setting.batch / 1e6, 6)
    recipe.imports |= {"import fcntl", "import time", "from pathlib import Path"}
    read = f"time.sleep({seconds})  # the device answers"
    recipe.work = (
        'with (FOLDER / "device.lock").open("w") as device:\n'
        "    fcntl.flock(device, fcntl.LOCK_EX)  #! lock\n"
        f"    {read}"
        if sick
        else read
    )


# --------------------------------------------------------------------------- in loader and collate


def collate(recipe: Recipe, budget_us: float, sick: bool) -> None:
    recipe.loader["collate_fn"] = "collate"
    passes = repeats(budget_us / recipe.setting.batch, 16)
    recipe.helpers.append(
        f"""
        def collate(batch):
            rows = [x.tolist() for x, _ in batch]
            for _ in range({passes}):
                rows = [[value * 1.0 for value in row] for row in rows]  #! collate
            x = torch.tensor(rows, dtype=batch[0][0].dtype)
            return x, torch.tensor([label for _, label in batch])
        """
        if sick
        else """
        def collate(batch):
            x = torch.stack([x for x, _ in batch])
            return x, torch.tensor([label for _, label in batch])
        """
    )


def no_workers(recipe: Recipe, budget_us: float, sick: bool) -> None:
    # work that must be done for every sample, and that a worker can do beside the steps
    times = repeats(budget_us / recipe.setting.batch, 11)
    recipe.imports.add("import numpy as np")
    recipe.work = (
        f"x = np.asarray(x)\nfor scale in range(1, {times + 1}):\n"
        "    x = x + np.sin(np.fft.irfft(np.fft.rfft(x) / scale, 256)) / scale\n"
        "x = x.astype(np.float32)"
    )
    if sick:
        recipe.loader["num_workers"] = "0"
        recipe.loader["guilty"] = "workers"
    else:
        recipe.loader |= {"num_workers": "1", "persistent_workers": "True"}


def workers_anew(recipe: Recipe, budget_us: float, sick: bool) -> None:
    if sick:
        recipe.loader.pop("persistent_workers", None)
        recipe.loader["guilty"] = "workers anew"


def epoch_start(recipe: Recipe, budget_us: float, sick: bool) -> None:
    # 0.02 us a number of the permutation
    setting = recipe.setting
    numbers = repeats(budget_us * setting.epoch_batches, 0.02, 10_000)
    recipe.loader.pop("shuffle", None)
    recipe.loader["sampler"] = "Shuffled()"
    pool = numbers if sick else setting.samples
    recipe.helpers.append(
        f"""
        class Shuffled:
            def __len__(self):
                return {setting.samples}

            def __iter__(self):
                order = torch.randperm({pool}){"  #! epoch start" if sick else ""}
                return iter(order[order < {setting.samples}].tolist())
        """
    )


def loader_dips(recipe: Recipe, budget_us: float, sick: bool) -> None:
    setting = recipe.setting
    recipe.options["shard_batches"] = setting.epoch_batches // 2
    # 30 us to compress a kB
    recipe.options["passes"] = repeats(budget_us, 30 * setting.batch)
    recipe.options["long"] = int(sick)


def slow_worker(recipe: Recipe, budget_us: float, sick: bool) -> None:
    if sick:
        recipe.options["slow_us"] = round(budget_us * recipe.setting.workers)


def latency(recipe: Recipe, budget_us: float, sick: bool) -> None:
    recipe.options["delay_us"] = repeats(budget_us / recipe.setting.batch, 1, 150)
    recipe.options["single"] = int(sick)


def bandwidth(recipe: Recipe, budget_us: float, sick: bool) -> None:
    # a batch of 8 bytes a number takes the budget, however many workers fetch
    recipe.options["rate_kb"] = round(recipe.setting.batch * 256 * 8 / budget_us * 1000)
    recipe.options["wide"] = int(sick)


# --------------------------------------------------------------------------- in the loop


def copy(recipe: Recipe, budget_us: float, sick: bool) -> None:
    # 0.9 us a kB to widen and to come back
    kilobytes = recipe.setting.batch * 1.024
    recipe.options["repeats"] = min(60, repeats(budget_us, 0.9 * kilobytes, 2))
    recipe.before_step = (
        "x = x.to('cpu', torch.float64)  #! copy\nx = x[:, :256].to(torch.float32)"
        if sick
        else "x = x[:, :256].to(torch.float64).to(torch.float32)"
    )


def evaluate(recipe: Recipe, budget_us: float, sick: bool) -> None:
    setting = recipe.setting
    # a batch of an evaluation takes a third of a step
    batches = repeats(budget_us * EVERY * setting.accumulate, step_us(setting) / 3)
    guilty = "  #! loop dips" if sick else ""
    tokens = (
        "torch.randint(0, 1000, (%d, 16))"
        if setting.kind == "text"
        else "torch.rand(%d, 256)"
    )
    recipe.helpers.append(
        f"""
        @torch.no_grad()
        def evaluate(model, held_out):
            hits = 0
            for _ in range({batches}):
                hits += int((model(held_out).argmax(1) == 0).sum()){guilty}
            return hits
        """
    )
    recipe.setup += "held_out = " + tokens % setting.batch
    period = EVERY if sick else 100_000
    recipe.after_step += (
        f"if step % {period} == 0:\n    evaluate(model, held_out){guilty}\n"
    )


def checkpoint(recipe: Recipe, budget_us: float, sick: bool) -> None:
    # 0.6 us to write a kB
    numbers = repeats(budget_us * EVERY * recipe.setting.accumulate, 0.6 / 256, 10_000)
    guilty = "  #! loop dips" if sick else ""
    recipe.imports |= {"from pathlib import Path"}
    recipe.setup += f"averages = torch.zeros({numbers})"
    recipe.after_step += (
        f"if step % {EVERY if sick else 100_000} == 0:\n"
        '    state = {"model": model.state_dict(), "averages": averages}\n'
        f'    torch.save(state, FOLDER / "last.pt"){guilty}\n'
    )


def gil(recipe: Recipe, budget_us: float, sick: bool) -> None:
    share = min(0.95, budget_us / (budget_us + step_us(recipe.setting)) + 0.2)
    pause = round(0.02 * (1 - share), 4) if sick else 1.0
    recipe.imports |= {"import threading", "import time"}
    recipe.helpers.append(
        f"""
        def watch(history):
            while True:
                deadline = time.perf_counter() + 0.02
                total = 0
                while time.perf_counter() < deadline:
                    total += sum(value * value for value in range(2000)){"  #! gil" if sick else ""}
                history[:] = [total]
                time.sleep({pause})
        """
    )
    recipe.setup += "threading.Thread(target=watch, args=([],), daemon=True).start()"


def cores(recipe: Recipe, budget_us: float, sick: bool) -> None:
    recipe.threads = 4 if sick else 1


def kinds(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ANEW = "done anew"
CAUSES = [
    Cause("decode", "decode_images", "data", kinds("images"), decode_images),
    Cause(
        "decode", "decode_npz", "data", kinds("npz"), option("packed", "frames", 1.6, 4)
    ),
    Cause("transform", "python_transform", "work", tuple(VECTORS), python_transform),
    Cause("transform", "filter_transform", "work", tuple(VECTORS), filter_transform),
    Cause(
        "sample code", "iloc", "data", kinds("csv"), option("iloc", "columns", 1.0, 2)
    ),
    Cause("sample code", "parse_lines", "data", kinds("strings"), parse_lines),
    Cause("sample code", "tokenise_late", "data", kinds("text"), tokenise_late),
    Cause(
        ANEW, "archive_anew", "data", kinds("archive"), option("anew", "members", 8, 8)
    ),
    Cause(
        ANEW, "database_anew", "data", kinds("sqlite"), option("anew", "tables", 5, 3)
    ),
    Cause(
        ANEW,
        "labels_anew",
        "data",
        kinds("json_labels"),
        option("anew", "entries", 0.12, 100),
    ),
    Cause(ANEW, "vocabulary_anew", "data", kinds("text"), vocabulary_anew),
    Cause(
        "opens",
        "many_files",
        "data",
        kinds("npy"),
        option("many_files", "parts", 90, 3),
    ),
    Cause(
        "slow sample",
        "slow_sample",
        "work",
        tuple(VECTORS),
        slow_sample,
        (1, 2),
        "never",
    ),
    Cause(
        "lock", "lock", "work", tuple(VECTORS), lock, (3, 4), "one", is_computed=False
    ),
    Cause("collate", "collate", "collate", tuple(ALL), collate),
    Cause("workers", "no_workers", "work", tuple(VECTORS), no_workers, (0,), "never"),
    Cause(
        "workers anew",
        "workers_anew",
        "loader",
        tuple(MAPPED),
        workers_anew,
        (1, 2, 3),
        "never",
    ),
    Cause(
        "epoch start",
        "epoch_start",
        "loader",
        tuple(MAPPED),
        epoch_start,
        (0, 1),
        "never",
    ),
    Cause(
        "loader dips",
        "loader_dips",
        "data",
        kinds("shards"),
        loader_dips,
        (1,),
        "wholly",
    ),
    Cause(
        "slow worker",
        "slow_worker",
        "data",
        kinds("shards"),
        slow_worker,
        (2, 3),
        "one",
        is_computed=False,
    ),
    Cause(
        "latency",
        "latency",
        "data",
        kinds("remote"),
        latency,
        (0, 1, 2),
        "workers",
        is_computed=False,
    ),
    Cause(
        "bandwidth",
        "bandwidth",
        "data",
        kinds("remote"),
        bandwidth,
        (1, 2, 3),
        "one",
        is_computed=False,
    ),
    Cause("copy", "copy", "loop", kinds("memory"), copy, (0, 1), "never"),
    Cause(
        "loop dips",
        "evaluate",
        "loop",
        tuple(ALL),
        evaluate,
        (0, 1),
        "never",
        is_computed=False,
    ),
    Cause("loop dips", "checkpoint", "loop", tuple(ALL), checkpoint, (0, 1), "never"),
    Cause("gil", "gil", "loop", tuple(ALL), gil, (0, 1), "never", is_computed=False),
    Cause(
        "cores",
        "cores",
        "loop",
        tuple(ALL),
        cores,
        (1, 2, 3),
        "never",
        is_computed=False,
    ),
]
