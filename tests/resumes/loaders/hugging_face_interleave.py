"""Sources that are interleaved by datasets, under a StatefulDataLoader of torchdata."""

import numpy as np
from datasets import Dataset, IterableDataset, interleave_datasets
from datasets.distributed import split_dataset_by_node
from datasets.utils import logging
from torchdata.stateful_dataloader import StatefulDataLoader

KIND = "hugging_face_interleave"
SETTINGS = [
    {"of": {"stopping": "first_exhausted"}},
    {"of": {"stopping": "first_exhausted", "weights": [0.2, 0.5, 0.3]}},
    {"of": {"stopping": "first_exhausted", "drawn": False}},
    {"of": {"stopping": "first_exhausted", "streamed": False}},
    {
        "of": {
            "stopping": "first_exhausted",
            "weights": [2.0, 1.0, 1.0],
            "drawn": False,
            "streamed": False,
        }
    },
    {"of": {"stopping": "all_exhausted"}},
    {"of": {"stopping": "all_exhausted", "weights": [0.2, 0.5, 0.3]}},
    {"of": {"stopping": "all_exhausted", "drawn": False}},
    {"of": {"stopping": "all_exhausted", "streamed": False}},
    {
        "of": {
            "stopping": "all_exhausted",
            "weights": [2.0, 1.0, 1.0],
            "drawn": False,
            "streamed": False,
        }
    },
    {"of": {"stopping": "all_exhausted_without_replacement"}},
    {"of": {"stopping": "all_exhausted_without_replacement", "weights": [0.2, 0.5, 0.3]}},
    {"of": {"stopping": "all_exhausted_without_replacement", "drawn": False}},
    {"of": {"stopping": "all_exhausted_without_replacement", "streamed": False}},
    {
        "of": {
            "stopping": "all_exhausted_without_replacement",
            "weights": [2.0, 1.0, 1.0],
            "drawn": False,
            "streamed": False,
        }
    },
]
logging.set_verbosity_error()


def generated(shards, begin):
    for shard in shards:
        for number in range(begin[shard], begin[shard + 1]):
            yield {"number": number}


class Loader:
    def __init__(self, run):
        of = run.law["of"]
        begin = np.concatenate([[0], np.cumsum(run.samples)]).tolist()
        weights = of.get("weights", [0.7, 0.3])
        shards = np.array_split(np.arange(len(run.samples)), len(weights))
        shards = [own.tolist() for own in shards]
        if of.get("streamed", True):
            sources = [
                IterableDataset.from_generator(
                    generated, gen_kwargs={"shards": own, "begin": tuple(begin)}
                )
                for own in shards
            ]
        else:
            sources = [
                Dataset.from_dict({"number": list(range(begin[own[0]], begin[own[-1] + 1]))})
                for own in shards
            ]
        mixed = interleave_datasets(
            sources,
            probabilities=(np.array(weights) / np.sum(weights)).tolist()
            if of.get("drawn", True)
            else None,
            seed=run.seed,
            stopping_strategy=of.get("stopping", "first_exhausted"),
        )
        self.data = split_dataset_by_node(mixed, rank=run.rank, world_size=run.world_size)
        self.loader = StatefulDataLoader(
            self.data,
            batch_size=run.batch_size,
            num_workers=run.workers if run.workers > 1 else 0,
            collate_fn=lambda rows: [row["number"] for row in rows],
        )

    def set_epoch(self, epoch):
        if hasattr(self.data, "set_epoch"):
            self.data.set_epoch(epoch)

    def __iter__(self):
        return iter(self.loader)


make = Loader


def state(loader):
    return loader.loader.state_dict()


def resume(run, states):
    loader = Loader(run)
    loader.loader.load_state_dict(states[run.rank % len(states)])
    return loader
