"""Megatron-Bridge 0.3.1: `PYTHONPATH` has the unpacked wheel; its samplers need torch alone."""

import importlib.util
import sys
from pathlib import Path

import torch

KIND = "megatron"
SETTINGS = [
    {"dataloader_type": "single"},
    {"dataloader_type": "cyclic", "data_sharding": True},
    {"dataloader_type": "cyclic", "data_sharding": False},
    {"dataloader_type": "batch"},
]
FILE = "megatron/bridge/data/samplers.py"
spec = importlib.util.spec_from_file_location(
    "samplers", next(Path(place) / FILE for place in sys.path if (Path(place) / FILE).exists())
)
samplers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(samplers)


class Numbers(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, number):
        return number


class Counted:
    """Training, which counts what all ranks consume."""

    def __init__(self, run, consumed):
        self.consumed, self.together = consumed, run.batch_size * run.world_size
        self.loader = samplers.build_pretraining_data_loader(
            Numbers(sum(run.samples)),
            consumed,
            run.law["dataloader_type"],
            run.batch_size,
            run.workers if run.workers > 1 else 0,
            run.law.get("data_sharding", True),
            pin_memory=False,
            data_parallel_rank=run.rank,
            data_parallel_size=run.world_size,
            global_batch_size=self.together,
        )

    def __iter__(self):
        for batch in self.loader:
            self.consumed += self.together
            yield batch


def make(run):
    return Counted(run, 0)


def state(loader):
    return loader.consumed


def resume(run, states):
    return Counted(run, states[0])
