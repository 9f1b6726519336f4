"""torchdata's StatefulDataLoader over the sampler of torchft; a node is a replica group."""

from torchdata.stateful_dataloader import StatefulDataLoader
from torchft.data import DistributedSampler

KIND = "torchft"
SETTINGS = [
    {"replica_groups": 4, "in_process": True},
    {"replica_groups": 4},
    {"replica_groups": 6, "in_process": True},
    {"replica_groups": 6, "in_process": True, "snapshot_every_n_steps": 4},
]


class Loader(StatefulDataLoader):
    def set_epoch(self, epoch):
        self.sampler.set_epoch(epoch)


def make(run):
    data = range(sum(run.samples))
    sampler = DistributedSampler(
        data,
        replica_rank=run.rank // run.ranks,
        num_replica_groups=run.law["replica_groups"],
        group_rank=run.rank % run.ranks,
        num_replicas=run.ranks,
        seed=run.seed,
    )
    return Loader(
        data,
        run.batch_size,
        sampler=sampler,
        num_workers=0 if run.law.get("in_process") else run.workers,
        snapshot_every_n_steps=run.law.get("snapshot_every_n_steps", 1),
    )


def state(loader):
    return loader.state_dict()


def resume(run, states):
    loader = make(run)
    if run.rank < len(states):
        loader.load_state_dict(states[run.rank])
    return loader
