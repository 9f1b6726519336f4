"""LitData 0.2.76 with its own loader and workers, each rank with what rank 0 saved."""

import os

from files import Plain, written
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.writer import BinaryWriter

KIND = "litdata"
SETTINGS = [
    {},
    {"of": {"kind": "litdata_full", "drop_last": True}},
    {"of": {"kind": "litdata_full", "drop_last": False}},
    {"of": {"kind": "litdata_window"}},
    {"of": {"kind": "litdata_window", "drop_last": True, "window": 2}},
    {"of": {"kind": "litdata_window", "drop_last": False}},
    {"of": {"kind": "litdata_full", "drop_last": True, "item_shuffle_window": 4}},
    {"of": {"kind": "litdata_window", "drop_last": False, "item_shuffle_window": 0}},
]
KEPT = 0.3


class Loader(Plain, StreamingDataLoader):
    """That of the library."""


def make(run):
    """The loader of a rank; the names of its variables are those of Lightning."""
    given = run.law.get("of", {})
    # the library takes a path for a parallel file system by its name
    folder = written(run, _write, "vast" if given.get("kind") == "litdata_window" else "local")
    os.environ.update(
        GLOBAL_RANK=str(run.rank),
        NNODES=str(run.nodes),
        LITDATA_POSIX_SHUFFLE_WINDOW=str(given.get("window", 16)),
        LITDATA_POSIX_MAX_WORKERS="0",  # as many as asked for, whatever memory there is
    )
    dataset = StreamingDataset(
        str(folder),
        shuffle=True,
        seed=run.seed,
        drop_last=given.get("drop_last"),
        item_shuffle_window=given.get("item_shuffle_window"),
    )
    return Loader(dataset, batch_size=run.batch_size, num_workers=run.workers)


def _write(folder, shards):
    """By a rank that does not know its number yet."""
    out = BinaryWriter(str(folder), chunk_bytes=1 << 30)
    for shard in shards:
        for number in shard:
            out.add_item(number, number)
        out.write_chunk(on_done=True)
        out._min_index = out._max_index = None
    out.done()
    out._merge_no_wait()  # `merge` waits for what all ranks wrote


def state(loader):
    """What a rank saves."""
    return loader.state_dict()


def resume(run, states):
    """The loader again."""
    loader = make(run)
    loader.load_state_dict(states[0])
    return loader
