"""LitData 0.2.76 with its own loader and workers, each rank with what rank 0 saved."""

import fcntl
import os
from pathlib import Path

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


class Loader(StreamingDataLoader):
    """Says what a worker said, without the traceback."""

    def __iter__(self):
        try:
            yield from super().__iter__()
        except Exception as error:
            last = str(error).strip().splitlines()[-1]
            raise type(error)(last.removeprefix(f"{type(error).__name__}: ")) from error


def make(run):
    """The loader of a rank; the names of its variables are those of Lightning."""
    given = run.law.get("of", {})
    # the library takes a path for a parallel file system by its name
    folder = _written(run, "vast" if given.get("kind") == "litdata_window" else "local")
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


def _written(run, kind):
    """The set, which the first rank that comes writes, while it does not know its number."""
    folder = Path(run.folder) / kind / "-".join(map(str, run.samples))
    with (Path(run.folder) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            out, begin = BinaryWriter(str(folder), chunk_bytes=1 << 30), 0
            for size in run.samples:
                for number in range(begin, begin + size):
                    out.add_item(number, number)
                begin += size
                out.write_chunk(on_done=True)
                out._min_index = out._max_index = None
            out.done()
            out._merge_no_wait()  # `merge` waits for what all ranks wrote
    return folder


def state(loader):
    """What a rank saves."""
    return loader.state_dict()


def resume(run, states):
    """The loader again."""
    loader = make(run)
    loader.load_state_dict(states[0])
    return loader
