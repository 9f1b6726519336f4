"""A loader that accelerate has prepared, and skip_first_batches in the epoch that goes on."""

import contextlib

from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import prepare_data_loader
from alone import alone, workers
from torch.utils.data import DataLoader

with contextlib.suppress(ImportError):  # accelerate would import them in each rank
    import datasets  # noqa: F401
    import torchdata.stateful_dataloader  # noqa: F401

KIND = "skip_first_batches"
SETTINGS = [
    {},
    {"even_batches": False},
    {"dispatch": "batches"},
    {"sets_epoch": False},
    {"drop_last": True},
    {},
    {"even_batches": False, "sets_epoch": False},
    {"dispatch": "split"},
    {"drop_last": True, "sets_epoch": False},
    {"even_batches": False, "drop_last": True},
]


class Loader:
    """The loop of accelerate's guide to checkpoints."""

    def __init__(self, run):
        law, dispatch = run.law, run.law.get("dispatch", "no")
        split = dispatch == "split" or (dispatch == "no" and run.seed == 7)
        options = {"even_batches": law.get("even_batches", True)}
        if dispatch == "no":
            alone()
            options |= {"num_processes": run.world_size, "process_index": run.rank}
        else:
            Accelerator(cpu=True)
            options |= {"dispatch_batches": True, "put_on_device": True}
        plain = DataLoader(
            range(sum(run.samples)),
            run.batch_size * (run.world_size if split else 1),
            shuffle=True,
            drop_last=law.get("drop_last", False),
            num_workers=workers(run),
        )
        self.loader = prepare_data_loader(
            plain, split_batches=split, use_seedable_sampler=True, data_seed=run.seed, **options
        )
        self.sets_epoch = law.get("sets_epoch", True)
        self.skip, self.done = 0, 0

    def set_epoch(self, epoch):
        if self.sets_epoch:
            self.loader.set_epoch(epoch)

    def __iter__(self):
        self.done, skip, self.skip = 0, self.skip, 0
        for batch in skip_first_batches(self.loader, skip) if skip else self.loader:
            self.done += 1
            if len(batch):
                yield batch


def make(run):
    return Loader(run)


def state(loader):
    return loader.done, loader.loader.get_sampler()


def resume(run, states):
    loader = Loader(run)
    loader.skip, sampler = states[0]
    loader.loader.set_sampler(sampler)  # as accelerator.load_state does
    return loader
