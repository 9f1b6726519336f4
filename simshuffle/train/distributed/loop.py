"""The local batches of an epoch, with the exchange around them: the authors' calls as one loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from simshuffle.errors import InputError, Problem

if TYPE_CHECKING:
    from simshuffle.train.distributed.scheduler import Scheduler
    from simshuffle.train.distributed.transport import Pair


def batches(scheduler: Scheduler, epoch: int, loader: DataLoader[Any]) -> Iterator[Any]:
    """What ``loader`` gives in an epoch; see `Scheduler.epoch`."""
    schedule = scheduler.strategy.exchange_schedule
    overlap = schedule is not None and schedule.overlap
    scheduler.scheduling(epoch)
    pending: Pair = ([], [])
    for batch in loader:
        yield batch
        scheduler.synchronize(*pending)
        pending = scheduler.communicate()
        if not overlap:
            scheduler.synchronize(*pending)
            pending = ([], [])
    scheduler.synchronize(*pending)
    scheduler.clean_local_storage()


def loader_of(scheduler: Scheduler) -> DataLoader[Any]:
    """A loader of what ``scheduler`` schedules, in this process."""
    return DataLoader(
        scheduler.dataset,
        batch_size=scheduler.batch_size,
        sampler=scheduler.sampler,
        drop_last=scheduler.drop_last,
    )


def loader_warning(scheduler: Scheduler, loader: DataLoader[Any]) -> str:
    """In what ``loader`` differs from ``scheduler``, which then counts other iterations; '' if in
    nothing.

    Raises:
        InputError: it does not give what is scheduled.
    """
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if sampler is not scheduler.sampler:
        rule = "must give what is scheduled"
        shown = f"a {type(sampler).__name__}"
        remedy = "Make it with sampler=scheduler.sampler."
        raise InputError(Problem("loader", rule, shown, remedy), "scheduler")
    given = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    wanted = {"batch_size": scheduler.batch_size, "drop_last": scheduler.drop_last}
    differ = [name for name in wanted if loader.batch_size and given[name] != wanted[name]]
    return "; ".join(
        f"{name} is {given[name]} in the loader, {wanted[name]} in the scheduler: make them alike"
        for name in differ
    )
