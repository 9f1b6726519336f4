"""torchdata's StatefulDataLoader over torch's DistributedSampler or its own."""

from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

KIND = "stateful_dataloader"
SETTINGS = [
    {},
    {"stateful_sampler": True},
    {"in_process": True},
    {"snapshot_every_n_steps": 3},
    {"stateful_sampler": True, "snapshot_every_n_steps": 3},
    {"stateful_sampler": True, "in_process": True},
]


class Loader(StatefulDataLoader):
    def set_epoch(self, epoch):
        self.sampler.set_epoch(epoch)


def make(run):
    law, data = run.law, range(sum(run.samples))
    kind = StatefulDistributedSampler if law.get("stateful_sampler") else DistributedSampler
    return Loader(
        data,
        run.batch_size,
        sampler=kind(data, run.world_size, run.rank, seed=run.seed),
        num_workers=0 if law.get("in_process") else run.workers,
        snapshot_every_n_steps=law.get("snapshot_every_n_steps", 1),
    )


def state(loader):
    return loader.state_dict()


def resume(run, states):
    loader = make(run)
    loader.load_state_dict(states[run.rank] if run.rank < len(states) else states[0])
    return loader
