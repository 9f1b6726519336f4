"""Sources that torchdata's nodes sample by weights."""

from itertools import islice

import numpy as np
from torch.utils.data import DistributedSampler
from torchdata.nodes import Batcher, Loader, MapStyleWrapper, MultiNodeWeightedSampler

KIND = "torchdata_nodes"
SETTINGS = [
    {"of": {}},
    {"of": {"stopping": "ALL_DATASETS_EXHAUSTED"}},
    {"of": {"stopping": "FIRST_DATASET_EXHAUSTED"}},
    {"of": {"stopping": "CYCLE_FOREVER", "steps": 9}},
    {"of": {"weights": [0.2, 0.5, 0.3]}},
    {"of": {"weights": [2.0, 1.0, 1.0], "stopping": "ALL_DATASETS_EXHAUSTED"}},
]


class Mixed:
    def __init__(self, run, done=0):
        of = run.law["of"]
        weights = of.get("weights", [0.7, 0.3])
        shards = np.array_split(np.arange(len(run.samples)), len(weights))
        ends = np.cumsum([sum(np.array(run.samples)[own]) for own in shards]).tolist()
        nodes = {}
        for name, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            source = range(first, end)
            ranks = {"num_replicas": run.world_size, "rank": run.rank}
            sampler = DistributedSampler(source, seed=run.seed, **ranks)
            nodes[str(name)] = MapStyleWrapper(source, sampler)
        more = {"stop_criteria": of["stopping"]} if "stopping" in of else {}
        weights = {str(name): weight for name, weight in enumerate(weights)}
        mixed = MultiNodeWeightedSampler(nodes, weights, seed=run.seed, **more)
        self.loader = Loader(Batcher(mixed, run.batch_size, drop_last=False))
        self.steps, self.done = of.get("steps"), done

    def __iter__(self):
        steps = self.steps and self.steps - self.done
        self.done = 0
        return islice(iter(self.loader), steps)


make = Mixed


def state(loader):
    return loader.loader.state_dict()


def resume(run, states):
    loader = Mixed(run, run.step)
    loader.loader.load_state_dict(states[run.rank % len(states)])
    return loader
