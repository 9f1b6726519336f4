"""MosaicML Streaming 0.13.0 with its own loader and workers; the state of rank 0 is given to all.

Each node has its own names in shared memory and its own folder for locks, as if it were a machine.
"""

import fcntl
import hashlib
import importlib.machinery
import sys
import tempfile
import types
from pathlib import Path

import torch
from torch import distributed

# a stand-in for torchvision, which is built for few versions of torch: the library's data sets of
# images, which have no part in this, have it as a base
for part in ("", ".datasets", ".datasets.vision", ".transforms", ".transforms.functional"):
    module = types.ModuleType(f"torchvision{part}")
    module.__spec__, module.__path__ = importlib.machinery.ModuleSpec(module.__name__, None), []
    module.VisionDataset = module.StandardTransform = module.to_tensor = object
    sys.modules[module.__name__] = module

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # noqa: E402
from streaming.base.shared import memory  # noqa: E402

KIND = "mosaicml_streaming"
SETTINGS = [
    {},
    {"persistent_workers": True},
    {"of": {"shuffle_algo": "naive"}},
    {"of": {"shuffle_algo": "py1s"}},
    {"of": {"shuffle_algo": "py1br", "num_canonical_nodes": 12, "shuffle_block_size": 7}},
    {"of": {"num_canonical_nodes": 2, "shuffle_block_size": 30}, "persistent_workers": True},
    {"of": {"partition_algo": "orig"}},
    {"of": {"shuffle_algo": "py2s", "num_canonical_nodes": 4}},
]
KEPT = 0.5
_Memory = memory.BuiltinSharedMemory


class Loader(StreamingDataLoader):
    """Says what a worker said, without the traceback."""

    def __iter__(self):
        try:
            yield from super().__iter__()
        except Exception as error:
            last = str(error).strip().splitlines()[-1]
            raise type(error)(last.removeprefix(f"{type(error).__name__}: ")) from error


def make(run):
    """The loader of a rank."""
    node, given = run.rank // run.ranks, run.law.get("of", {})
    mine = f"{hashlib.sha256(run.folder.encode()).hexdigest()[:8]}_{node}_"
    tempfile.tempdir = str(Path(run.folder) / f"locks{node}")
    memory.BuiltinSharedMemory = lambda name, *more: _Memory(mine + name, *more)
    if run.world_size > 1:
        distributed.init_process_group("gloo", rank=run.rank, world_size=run.world_size)
    if run.rank % run.ranks == 0:  # what killed ranks left; as clean_stale_shared_memory
        Path(tempfile.tempdir).mkdir(exist_ok=True)
        for stale in [*Path("/dev/shm").glob(f"{mine}*"), *Path(tempfile.tempdir).glob("0*")]:
            stale.unlink(missing_ok=True)
    if run.world_size > 1:
        distributed.barrier()
    dataset = StreamingDataset(
        local=str(_written(run)),
        shuffle=True,
        shuffle_seed=run.seed,
        batch_size=run.batch_size,
        **{key: value for key, value in given.items() if key != "kind"},
    )
    return Loader(
        dataset,
        batch_size=run.batch_size,
        num_workers=run.workers,
        collate_fn=lambda samples: torch.tensor([sample["number"] for sample in samples]),
        persistent_workers=run.law.get("persistent_workers", False),
    )


def _written(run):
    """The set, which the first rank that comes writes."""
    folder = Path(run.folder) / f"mds-{'-'.join(map(str, run.samples))}"
    with (Path(run.folder) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            begin = 0
            with MDSWriter(out=str(folder), columns={"number": "int"}) as out:
                for size in run.samples:
                    for number in range(begin, begin + size):
                        out.write({"number": number})
                    begin += size
                    out.flush_shard()
                    out._reset_cache()
    return folder


def state(loader):
    """What rank 0 saves."""
    return loader.state_dict()


def resume(run, states):
    """The loader again; the first rank of a node loads before the others, because those who load at
    the same time sometimes fail: one sees the shared memory of another before it has its size."""
    loader = make(run)
    for first in (True, False):
        if first == (run.rank % run.ranks == 0):
            loader.load_state_dict(states[0])
        if run.world_size > 1:
            distributed.barrier()
    return loader
