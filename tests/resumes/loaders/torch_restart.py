"""A plain DataLoader over torch's DistributedSampler, of which nothing but the epoch is saved."""

from alone import workers
from torch.utils.data import DataLoader, DistributedSampler

KIND = "restart"
NEEDS = "torch 2.13.0"
SETTINGS = [{"of": {"kind": "distributed_sampler"}}]


class Loader(DataLoader):
    def set_epoch(self, epoch):
        self.sampler.set_epoch(epoch)


def make(run):
    data = range(sum(run.samples))
    sampler = DistributedSampler(data, run.world_size, run.rank, seed=run.seed)
    return Loader(data, run.batch_size, sampler=sampler, num_workers=workers(run))


def state(loader):
    return None


def resume(run, states):
    return make(run)
