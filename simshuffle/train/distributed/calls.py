"""What a scheduler is given, and in which order its methods are called: what is refused, and what
is warned of."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Sampler

from simshuffle.errors import InputError, SimshuffleWarning, refuse
from simshuffle.exchange import TrainedExchange
from simshuffle.spec.record import Spec
from simshuffle.spec.validation import validated
from simshuffle.train.distributed.transport import TRANSPORTS, TransportName
from simshuffle.train.emulate import plain_record
from simshuffle.train.training import Training


class Arguments(Spec):
    """The arguments of a scheduler that are records."""

    strategy: TrainedExchange
    training: Training
    transport: TransportName


def read_arguments(
    fraction: float | None, strategy: Any, batch_size: int, drop_last: bool, transport: str
) -> Arguments:
    """The arguments of a scheduler, as it takes them.

    Raises:
        InputError: there is neither a fraction nor a strategy, or both; or one is not valid.
    """
    if (fraction is None) == (strategy is None):
        remedy = "Give fraction=Q for partial local shuffle, or strategy=."
        refuse("strategy", "either a fraction or a strategy is needed", "", remedy, "scheduler")
    if transport not in TRANSPORTS:
        rule = f"must be one of {', '.join(TRANSPORTS)}"
        refuse("transport", rule, repr(transport), "Use 'isend'.", "scheduler")
    if strategy is None:
        raw: Any = {"kind": "partial_local_shuffle", "exchange_fraction": fraction}
    else:
        raw = plain_record(strategy, "strategy", "scheduler")
    training = {"local_batch_size": batch_size, "drop_last": drop_last}
    chosen, problems = validated(
        {"strategy": raw, "training": training, "transport": transport}, Arguments
    )
    if problems or chosen is None:
        named = _NAMES if strategy is not None else {**_NAMES, _FRACTION: "fraction"}
        told = [replace(each, path=named.get(each.path, each.path)) for each in problems]
        raise InputError(told, "scheduler")
    return chosen


_NAMES = {"training.local_batch_size": "batch_size", "training.drop_last": "drop_last"}
_FRACTION = "strategy.exchange_fraction"
"""What a scheduler calls the values of its records."""


def loader_warning(
    loader: DataLoader[Any], sampler: Sampler[int], batch_size: int, drop_last: bool
) -> str:
    """In what ``loader`` differs from its scheduler, which then counts other iterations; '' if in
    nothing.

    Raises:
        InputError: it does not give what is scheduled.
    """
    found = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if found is not sampler:
        remedy = "Make it with sampler=scheduler.sampler."
        refuse(
            "loader",
            "must give what is scheduled",
            f"a {type(found).__name__}",
            remedy,
            "scheduler",
        )
    given = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    wanted = {"batch_size": batch_size, "drop_last": drop_last}
    differ = [name for name in wanted if loader.batch_size and given[name] != wanted[name]]
    return "; ".join(
        f"{name} is {given[name]} in the loader, {wanted[name]} in the scheduler: make them alike"
        for name in differ
    )


def check_epoch(epoch: int, epochs_done: int, *, under_way: bool) -> None:
    """See that ``epoch`` is the one to be scheduled next.

    Raises:
        InputError: it is not, or another one is ``under_way``.
    """
    if under_way:
        rule = "cannot be scheduled while another one is under way"
        remedy = "Call clean_local_storage() at the end of every epoch."
        refuse("epoch", rule, str(epoch), remedy, "scheduler")
    if epoch != epochs_done + 1:
        rule = f"must be {epochs_done + 1}: epochs are numbered from 1, one after the other"
        remedy = "Use for epoch in range(1, epochs + 1)."
        refuse("epoch", rule, str(epoch), remedy, "scheduler")


def check_state(state: Mapping[str, Any], num_samples: int, world_size: int, *, held: bool) -> None:
    """See that ``state`` is the checkpoint of a run on so many samples and ranks, which says how
    long samples were ``held`` where the strategy asks.

    Raises:
        InputError: it is not.
    """
    owner, remedy = np.asarray(state["owner"]), "Use the checkpoint of this run."
    if owner.shape != (num_samples,) or int(owner.max()) >= world_size:
        shown = f"{len(owner)} samples, {int(owner.max()) + 1} ranks"
        rule = "must be of the same samples and ranks"
        refuse("state", rule, shown, remedy, "scheduler")
    if held and "held" not in state:
        rule = "must say how long each rank has had its samples"
        refuse("state", rule, ", ".join(state), remedy, "scheduler")


def need_rest(call: str, *, under_way: bool) -> None:
    """See that no epoch is under way.

    Raises:
        InputError: one is.
    """
    if under_way:
        refuse(
            call,
            "must be called between epochs",
            "",
            "Call clean_local_storage() first.",
            "scheduler",
        )


def need_epoch(call: str, *, under_way: bool) -> None:
    """See that an epoch is under way.

    Raises:
        InputError: none is.
    """
    if not under_way:
        refuse(
            call,
            "needs an epoch that is scheduled",
            "",
            "Call scheduling(epoch) first.",
            "scheduler",
        )


def count_warning(begun: int, iterations: int, batch_size: int) -> str:
    """What is wrong with an exchange that was begun so often in an epoch; '' if nothing is. It may
    be left to the end of the epoch altogether."""
    if begun in {0, iterations}:
        return ""
    return (
        f"communicate() was called {begun} times in an epoch of {iterations} iterations, local"
        f" batches of {batch_size}. Give DataLoader and Scheduler the same batch_size, and call it"
        " once in every iteration; what is left over is exchanged at the end of the epoch, where"
        " nothing hides it."
    )


def tell(message: str, stacklevel: int) -> None:
    """Warn with ``message``; ``stacklevel`` as of `warnings.warn`, from the caller on."""
    warnings.warn(message, SimshuffleWarning, stacklevel=stacklevel + 1)
