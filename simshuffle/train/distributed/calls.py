"""What a scheduler is given, and the order of its calls: what is refused, and warned of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch.utils.data import DataLoader

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Floats
from simshuffle.spec.record import Spec
from simshuffle.train.distributed.dataset import ShardSampler
from simshuffle.train.distributed.transport import TRANSPORTS
from simshuffle.train.emulate import records_of
from simshuffle.train.training import Training
from simshuffle.workload.exchange import TrainedExchange
from simshuffle.workload.exchange.epochs import Epochs, EpochState


class Arguments(Spec):
    """The arguments of a scheduler that are records."""

    strategy: TrainedExchange
    training: Training


def read_arguments(
    fraction: float | None, strategy: Any, batch_size: int, drop_last: bool, transport: str
) -> Arguments:
    """The arguments of a scheduler, as it takes them; or raise InputError, as where there is
    neither a fraction nor a strategy, or both."""
    if (fraction is None) == (strategy is None):
        remedy = "Give fraction=Q for partial local shuffle, or strategy=."
        refuse("strategy", "either a fraction or a strategy is needed", "", remedy, "scheduler")
    if transport not in TRANSPORTS:
        rule = f"must be one of {', '.join(TRANSPORTS)}"
        refuse("transport", rule, repr(transport), "Use 'isend'.", "scheduler")
    called = {"training.local_batch_size": "batch_size", "training.drop_last": "drop_last"}
    if strategy is None:
        strategy = {"kind": "partial_local_shuffle", "exchange_fraction": fraction}
        called["strategy.exchange_fraction"] = "fraction"
    training = {"local_batch_size": batch_size, "drop_last": drop_last}
    return records_of(Arguments, "scheduler", called, strategy=strategy, training=training)


def read_weights(weights: ArrayLike, num_samples: int) -> Floats:
    """The weights (N,) by which samples are drawn, or raise InputError."""
    found = np.asarray(weights, np.float64)
    remedy = "For balanced classes: 1 / np.bincount(labels)[labels]."
    if found.shape != (num_samples,):
        rule = f"must be a number for each of the {num_samples} samples"
        refuse("weights", rule, f"shape {found.shape}", remedy, "scheduler")
    wrong = found[~(np.isfinite(found) & (found >= 0))]
    if len(wrong):
        rule = "must be finite and not negative"
        refuse("weights", rule, f"{wrong[0]}", remedy, "scheduler")
    return found


def loader_warning(
    loader: DataLoader[Any], sampler: ShardSampler, batch_size: int, drop_last: bool
) -> str:
    """In what ``loader`` differs from its scheduler, which then counts other iterations; '' if in
    nothing. Raises InputError if it does not give what is scheduled."""
    found = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if found is not sampler:
        remedy = "Make it with sampler=scheduler.sampler; weights go into Scheduler(weights=)."
        rule = "must give what is scheduled"
        refuse("loader", rule, f"a {type(found).__name__}", remedy, "scheduler")
    given = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    wanted = {"batch_size": batch_size, "drop_last": drop_last}
    differ = [name for name in wanted if loader.batch_size and given[name] != wanted[name]]
    return "; ".join(
        f"{name} is {given[name]} in the loader, {wanted[name]} in the scheduler: make them alike"
        for name in differ
    )


def check_epoch(epoch: int, epochs_done: int, *, under_way: bool) -> None:
    """See that ``epoch`` is the one to be scheduled next, none being under way; or raise
    InputError."""
    if under_way:
        rule = "cannot be scheduled while another one is under way"
        remedy = "Call clean_local_storage() at the end of every epoch."
        refuse("epoch", rule, str(epoch), remedy, "scheduler")
    if epoch != epochs_done + 1:
        rule = f"must be {epochs_done + 1}: epochs are numbered from 1, one after the other"
        remedy = "Use for epoch in range(1, epochs + 1)."
        refuse("epoch", rule, str(epoch), remedy, "scheduler")


def steps_done(steps: int | None, counted: int, sampler: ShardSampler) -> int:
    """How many iterations were done since the epoch was scheduled: those that are given, or else
    were counted; or raise InputError where samples were taken, and nothing was counted."""
    if steps is None and not counted and sampler.place > sampler.begin:
        rule = "are not known: neither epoch() was used nor communicate() called"
        refuse("steps", rule, "None", "Give state_dict(steps) those that are done.", "scheduler")
    return counted if steps is None else steps


def check_rest(state: EpochState, now: Epochs, *, weighted: bool) -> None:
    """See that the rest of an epoch is drawn by weights for those alone who began it, or raise
    InputError."""
    was, are = ((of.world_size, of.batch_size) for of in (state, now))
    if weighted and state.steps and was != are:
        rule = f"must be {are[0]} with batches of {are[1]}: what is drawn by weights has no rest"
        remedy = "Go on with as many, or save between epochs."
        refuse("state.world_size", rule, f"{was[0]} with {was[1]}", remedy, "scheduler")


def need(call: str, *, epoch: bool, under_way: bool) -> None:
    """See that an ``epoch`` is ``under_way``, or that none is, or raise InputError."""
    if epoch and not under_way:
        remedy = "Call scheduling(epoch) first."
        refuse(call, "needs an epoch that is scheduled", "", remedy, "scheduler")
    if under_way and not epoch:
        remedy = "Call clean_local_storage() first."
        refuse(call, "must be called between epochs", "", remedy, "scheduler")


def count_warning(begun: int, iterations: int, batch_size: int) -> str:
    """What is wrong with an exchange that was begun so often in so many iterations; '' if nothing
    is."""
    if begun in {0, iterations}:
        return ""
    return (
        f"communicate() was called {begun} times in an epoch of {iterations} iterations, local"
        f" batches of {batch_size}. Give DataLoader and Scheduler the same batch_size, and call it"
        " once in every iteration; what is left over is exchanged at the end of the epoch, where"
        " nothing hides it."
    )
