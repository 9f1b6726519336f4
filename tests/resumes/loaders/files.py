"""What loaders of data sets in files have in common."""

import fcntl
import importlib.machinery
import sys
import types
from itertools import accumulate, pairwise
from pathlib import Path


def written(run, write, kind="set"):
    """A set in a folder, which the first rank that comes has written: ``write(folder, shards)``,
    each shard the numbers of its samples."""
    folder = Path(run.folder) / kind / "-".join(map(str, run.samples))
    with Path(run.folder, "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            ends = list(accumulate(run.samples, initial=0))
            write(folder, [range(*pair) for pair in pairwise(ends)])
    return folder


class Plain:
    """A loader that says what a worker said, without the traceback."""

    def __iter__(self):
        try:
            yield from super().__iter__()
        except Exception as error:
            last = str(error).strip().splitlines()[-1]
            raise type(error)(last.removeprefix(f"{type(error).__name__}: ")) from error


def without_torchvision():
    """A stand-in for it, which is built for few versions of torch: data sets of images of MosaicML
    Streaming, which have no part in this, have it as a base."""
    for part in ("", ".datasets", ".datasets.vision", ".transforms", ".transforms.functional"):
        module = types.ModuleType(f"torchvision{part}")
        module.__spec__, module.__path__ = importlib.machinery.ModuleSpec(module.__name__, None), []
        module.VisionDataset = module.StandardTransform = module.to_tensor = object
        sys.modules[module.__name__] = module
