"""A WebDataset, which has no state: what a user keeps is the number of the epoch."""

import contextlib
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

import webdataset as wds
from torch.utils.data import DataLoader

KIND = "webdataset"
SETTINGS = [
    {"of": {"detshuffle": True, "buffer_size": 12, "initial": 4}},
    {"of": {"kind": "webdataset_resampled", "samples": 20, "buffer_size": 8, "initial": 3}},
    {
        "of": {"detshuffle": True, "shard_shuffle": 3, "buffer_size": 30, "initial": 10},
        "counted_by": "stage",
    },
    {
        "of": {"kind": "webdataset_resampled", "samples": 17, "buffer_size": 8, "initial": 3},
        "counted_by": "stage",
    },
    {
        "of": {"detshuffle": True, "buffer_size": 12, "initial": 4},
        "counted_by": "stage",
        "persistent_workers": True,
    },
    {
        "of": {"kind": "webdataset_resampled", "samples": 23, "buffer_size": 8, "initial": 3},
        "counted_by": "stage",
        "persistent_workers": True,
    },
]


class Loader:
    """A rank's loader."""

    def __init__(self, run):
        self.run, self.epoch, self.counted = run, run.epoch, None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        user = self.run.law.get("counted_by", "user") == "user"
        if user or self.counted is None:
            self.counted = self._made(self.run.seed + (self.epoch if user else 0))
        return iter(self.counted)

    def _made(self, seed):
        run, law = self.run, self.run.law
        of = law["of"]
        names = _tar_files(Path(run.folder), run.samples)
        mixed = wds.detshuffle(of["buffer_size"], of["initial"], seed=seed)
        if of["kind"] == "webdataset_resampled":
            shards = wds.ResampledShards(names, seed=seed, deterministic=True)
            data = wds.DataPipeline(shards, wds.tarfile_to_samples(), mixed)
            data = data.with_epoch(of["samples"])
        else:
            data = wds.WebDataset(
                names,
                shardshuffle=of.get("shard_shuffle", 100),
                detshuffle=True,
                nodesplitter=wds.split_by_node,
                seed=seed,
            ).compose(mixed)
        return DataLoader(
            data,
            batch_size=run.batch_size,
            num_workers=run.workers if run.workers > 1 else 0,
            collate_fn=lambda rows: [int(row["__key__"]) for row in rows],
            persistent_workers=law.get("persistent_workers", False) and run.workers > 1,
        )


def _tar_files(folder, sizes):
    """A shard for each size: a file of nothing for each sample, named after it."""
    made = folder / "-".join(map(str, sizes))
    if not made.exists():
        half = Path(tempfile.mkdtemp(dir=folder))
        first = 0
        for shard, size in enumerate(sizes):
            with tarfile.open(half / f"{shard:03}.tar", "w") as tar:
                for sample in range(first, first + size):
                    tar.addfile(tarfile.TarInfo(f"{sample}.txt"), BytesIO())
            first += size
        with contextlib.suppress(OSError):  # another rank was faster
            half.rename(made)
    return sorted(str(path) for path in made.iterdir())


def make(run):
    return Loader(run)


def state(loader):
    return loader.epoch


def resume(run, states):
    return Loader(run)
