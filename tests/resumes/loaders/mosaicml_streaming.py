"""MosaicML Streaming 0.13.0 with its own loader and workers; the state of rank 0 is given to all.

Each node has its own names in shared memory and its own folder for locks, as if it were a machine.
"""

import hashlib
import tempfile
from pathlib import Path

import torch
from files import Plain, without_torchvision, written
from torch import distributed

without_torchvision()

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


class Loader(Plain, StreamingDataLoader):
    """That of the library."""


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
        local=str(written(run, _write)),
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


def _write(folder, shards):
    with MDSWriter(out=str(folder), columns={"number": "int"}) as out:
        for shard in shards:
            for number in shard:
                out.write({"number": number})
            out.flush_shard()
            out._reset_cache()


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
