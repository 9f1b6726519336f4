"""A WebDataset, which has no state: what a user keeps is the number of the epoch."""

import tarfile
from io import BytesIO

import webdataset as wds
from files import written
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
        names = sorted(map(str, written(run, _write).iterdir()))
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


def _write(folder, shards):
    """A file of nothing for each sample, named after it."""
    folder.mkdir(parents=True)
    for shard, samples in enumerate(shards):
        with tarfile.open(folder / f"{shard:03}.tar", "w") as tar:
            for sample in samples:
                tar.addfile(tarfile.TarInfo(f"{sample}.txt"), BytesIO())


def make(run):
    return Loader(run)


def state(loader):
    return loader.epoch


def resume(run, states):
    return Loader(run)
