"""A set of Hugging Face's datasets that is streamed, and what saves its state. For torchtitan,
`PYTHONPATH` has its unpacked wheel, or it is installed without what it needs."""

import pickle
import sys
from itertools import accumulate
from pathlib import Path
from types import ModuleType, SimpleNamespace

from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node
from datasets.iterable_dataset import ArrowExamplesIterable, ExamplesIterable
from pyarrow import table
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

KIND = "hugging_face"
SETTINGS = [
    {"of": {"buffer_size": 12}},
    {"of": {"buffer_size": 1, "max_buffer_input_shards": 1}},
    {"of": {"buffer_size": 9, "max_buffer_input_shards": 2}},
    {"of": {"buffer_size": 20, "max_buffer_input_shards": 3, "formatted": True}},
    {"of": {"buffer_size": 8, "max_buffer_input_shards": 1, "formatted": True}, "states": "first"},
    {"of": {"buffer_size": 9, "max_buffer_input_shards": 1}, "states": "first"},
    {
        "of": {"buffer_size": 12, "max_buffer_input_shards": 2, "formatted": True},
        "through": "dataset",
    },
    {
        "of": {"buffer_size": 6, "max_buffer_input_shards": 2},
        "through": "dataset",
        "states": "first",
        "set_epoch": False,
    },
    {"of": {"buffer_size": 7, "max_buffer_input_shards": 1}, "set_epoch": False},
    {
        "of": {"buffer_size": 10, "max_buffer_input_shards": 2, "formatted": True},
        "through": "torchtitan",
    },
]
TORCHTITAN = "torchtitan/components/dataloader.py"
"""Of its wheel 0.3.0: the one file that keeps the state, without the rest of it."""


def _torchtitan():
    """The class of the file, which needs of its package a base and a logger."""
    for name in ("torchtitan", "torchtitan.config", "torchtitan.tools", "torchtitan.tools.logging"):
        sys.modules.setdefault(name, ModuleType(name))
    sys.modules["torchtitan.config"].Configurable = type("Configurable", (), {"Config": object})
    sys.modules["torchtitan.tools.logging"].logger = SimpleNamespace(warning=print)
    module = ModuleType("torchtitan.components.dataloader")
    sys.modules[module.__name__] = module
    path = next(
        Path(place) / TORCHTITAN for place in sys.path if (Path(place) / TORCHTITAN).exists()
    )
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module.ParallelAwareDataloader


class Loader:
    """A rank's loader, whose epoch is set as the library says it should be."""

    def __init__(self, run):
        self.law = {"through": "stateful_dataloader", "states": "own", "set_epoch": True, **run.law}
        self.data = split_dataset_by_node(_streamed(run), run.rank, run.world_size)
        given = {
            "batch_size": run.batch_size,
            "num_workers": run.workers if run.workers > 1 else 0,
            "collate_fn": lambda rows: [int(row["sample"]) for row in rows],
        }
        if self.law["through"] == "torchtitan":
            self.loader = _torchtitan()(self.data, run.rank, run.world_size, **given)
        elif self.law["through"] == "dataset":
            self.loader = DataLoader(self.data, **given)
        else:
            self.loader = StatefulDataLoader(self.data, **given)
        self.stateful = self.data if self.law["through"] == "dataset" else self.loader

    def set_epoch(self, epoch):
        if self.law["set_epoch"]:
            self.data.set_epoch(epoch)

    def __iter__(self):
        return iter(self.loader)


def _streamed(run):
    order = {key: value for key, value in run.law["of"].items() if key != "kind"}
    formatted = order.pop("formatted", False)
    ends = list(accumulate(run.samples, initial=0))

    def examples(shards):
        for shard in shards:
            for sample in range(ends[shard], ends[shard + 1]):
                yield sample, {"sample": sample}

    def tables(shards):
        for shard in shards:
            yield shard, table({"sample": list(range(ends[shard], ends[shard + 1]))})

    shards = {"shards": list(range(len(run.samples)))}
    kind = ArrowExamplesIterable if formatted else ExamplesIterable
    made = IterableDataset(kind(tables if formatted else examples, shards))
    made = made.shuffle(seed=run.seed, **order)
    return made.with_format("numpy") if formatted else made


def make(run):
    return Loader(run)


def state(loader):
    return pickle.dumps(loader.stateful.state_dict())


def resume(run, states):
    loader = Loader(run)
    loader.set_epoch(run.epoch)
    if loader.law["through"] == "torchtitan":
        saved = {key: value for each in states for key, value in pickle.loads(each).items()}
        loader.stateful.load_state_dict(saved)
        return loader
    of = run.rank if loader.law["states"] == "own" else 0
    if of < len(states):
        loader.stateful.load_state_dict(pickle.loads(states[of]))
    return loader
