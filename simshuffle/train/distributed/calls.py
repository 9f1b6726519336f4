"""Checks of a scheduler's arguments and of the order of its calls: what is refused, and
what is warned of.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch.utils.data import DataLoader

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Floats
from simshuffle.spec.record import Spec
from simshuffle.train.distributed.dataset import ShardDataset, ShardSampler, checksum
from simshuffle.train.distributed.group import check_equal
from simshuffle.train.distributed.transport import TRANSPORTS
from simshuffle.train.emulate import read_records
from simshuffle.train.training import Training
from simshuffle.workload.exchange import TrainedExchange
from simshuffle.workload.exchange.epochs import Epochs, EpochState


class Arguments(Spec):
    """Arguments of a scheduler that are records."""

    strategy: TrainedExchange
    training: Training


def read_arguments(
    fraction: float | None,
    strategy: Any,
    batch_size: int,
    drop_last: bool,
    transport: str,
) -> Arguments:
    """Return the strategy and training that the arguments of a scheduler describe.

    Raises:
        InputError: an argument is not valid; there is neither a fraction nor a
            strategy, or both.
    """
    if (fraction is None) == (strategy is None):
        remedy = "Give fraction=Q for partial local shuffle, or strategy=."
        refuse(
            "strategy",
            "either a fraction or a strategy is needed",
            "",
            remedy,
            "scheduler",
        )
    if transport not in TRANSPORTS:
        rule = f"must be one of {', '.join(TRANSPORTS)}"
        refuse("transport", rule, repr(transport), "Use 'isend'.", "scheduler")
    # problems name the arguments of the scheduler, not keys of these records
    argument_of_key = {
        "training.local_batch_size": "batch_size",
        "training.drop_last": "drop_last",
    }
    if strategy is None:
        strategy = {"kind": "partial_local_shuffle", "exchange_fraction": fraction}
        argument_of_key["strategy.exchange_fraction"] = "fraction"
    training = {"local_batch_size": batch_size, "drop_last": drop_last}
    return read_records(
        Arguments, "scheduler", argument_of_key, strategy=strategy, training=training
    )


REMEDIES = {
    "samples": "Give every rank the same dataset.",
    "partition": "Give every rank the same partition, seed and targets.",
    "plan": "This should not happen: the ranks' versions of numpy or simshuffle differ.",
}
"""Remedies for ranks that differ, by the name of the value."""


def check_arguments_equal(
    dataset: ShardDataset,
    arguments: Arguments,
    transport: str,
    weights: ArrayLike | None,
) -> None:
    """Raise InputError on all ranks if they gave a scheduler different arguments.
    Collective.

    Args:
        dataset: whose samples are shuffled.
        arguments: strategy and training.
        transport: its name.
        weights: (N,) by which samples are drawn, or None.
    """
    weights_mark = "none"
    if weights is not None:
        # float64 seen as int64, bit by bit
        weights_mark = checksum(np.asarray(weights, float).view(int))
    values = {
        "samples": len(dataset),
        "seed": dataset.seed,
        "partition": repr(dataset.partition),
        "transport": transport,
        "batch_size": arguments.training.local_batch_size,
        "strategy": repr(arguments.strategy),
        "drop_last": arguments.training.drop_last,
        "weights": weights_mark,
    }
    check_equal(
        dataset.ranks, {name: str(value) for name, value in values.items()}, REMEDIES
    )


def read_weights(weights: ArrayLike, num_samples: int) -> Floats:
    """Return the weights (N,) by which samples are drawn, as float64; zeros pass.

    Raises:
        InputError: there is not one for each sample, or one is negative or not finite.
    """
    values = np.asarray(weights, np.float64)
    remedy = "For balanced classes: 1 / np.bincount(labels)[labels]."
    if values.shape != (num_samples,):
        rule = f"must be a number for each of the {num_samples} samples"
        refuse("weights", rule, f"shape {values.shape}", remedy, "scheduler")
    wrong = values[~(np.isfinite(values) & (values >= 0))]
    if len(wrong):
        rule = "must be finite and not negative"
        refuse("weights", rule, f"{wrong[0]}", remedy, "scheduler")
    return values


def loader_difference(
    loader: DataLoader[Any], sampler: ShardSampler, batch_size: int, drop_last: bool
) -> str:
    """Return in what ``loader`` differs from its scheduler, which then counts other
    iterations; '' if in nothing.

    Of a loader without a batch_size, as with a batch sampler of its own, only the
    sampler is compared.

    Raises:
        InputError: the loader does not use the scheduler's ``sampler``.
    """
    loader_sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if loader_sampler is not sampler:
        remedy = "Use sampler=scheduler.sampler in the loader; weights go into Scheduler(weights=)."
        rule = "must use the sampler of the scheduler"
        refuse(
            "loader", rule, f"a {type(loader_sampler).__name__}", remedy, "scheduler"
        )
    in_loader = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    in_scheduler = {"batch_size": batch_size, "drop_last": drop_last}
    return "; ".join(
        f"{name} is {in_loader[name]} in the loader, {value} in the scheduler: make both equal"
        for name, value in in_scheduler.items()
        if loader.batch_size and in_loader[name] != value
    )


def check_epoch(epoch: int, epochs_done: int, *, under_way: bool) -> None:
    """Raise InputError unless ``epoch`` is the one to be scheduled next, and none is
    under way.
    """
    if under_way:
        rule = "cannot be scheduled while another one is under way"
        remedy = "Call clean_local_storage() at the end of every epoch."
        refuse("epoch", rule, str(epoch), remedy, "scheduler")
    if epoch != epochs_done + 1:
        rule = f"must be {epochs_done + 1}: epochs are numbered from 1, one after the other"
        remedy = "Use for epoch in range(1, epochs + 1)."
        refuse("epoch", rule, str(epoch), remedy, "scheduler")


def steps_done(steps: int | None, counted: int, sampler: ShardSampler) -> int:
    """Return how many iterations were done since the epoch was scheduled.

    Args:
        steps: as the caller gives them, returned unchecked; None for those ``counted``.
        counted: by the scheduler's calls.
        sampler: says whether samples were taken.

    Raises:
        InputError: samples were taken, and nothing was counted.
    """
    if steps is None and not counted and sampler.place > sampler.begin:
        rule = "are not known: the script neither used epoch() nor called communicate()"
        refuse(
            "steps",
            rule,
            "None",
            "Pass the finished steps: state_dict(steps).",
            "scheduler",
        )
    return counted if steps is None else steps


def check_remaining_weights(
    state: EpochState, current: Epochs, *, weighted: bool
) -> None:
    """Raise InputError if the rest of an epoch that is drawn by weights would go to
    another number of ranks, or to batches of another size.

    Args:
        state: saved by the ranks that began the epoch.
        current: the epochs of the ranks that go on.
        weighted: whether samples are drawn by weights.
    """
    saved_shape = (state.world_size, state.batch_size)
    current_shape = (current.world_size, current.batch_size)
    if weighted and state.steps and saved_shape != current_shape:
        rule = (
            f"must be {current_shape[0]} with batches of {current_shape[1]}: an epoch that is drawn"
            " by weights cannot be divided anew"
        )
        remedy = "Go on with the saved ranks and batches, or save between epochs."
        value = f"{saved_shape[0]} with {saved_shape[1]}"
        refuse("state.world_size", rule, value, remedy, "scheduler")


def check_epoch_state(call: str, *, needs_epoch: bool, under_way: bool) -> None:
    """Raise InputError if a ``call`` needs an epoch and none is ``under_way``, or the
    other way round.
    """
    if needs_epoch and not under_way:
        remedy = "Call scheduling(epoch) first."
        refuse(call, "needs an epoch that is scheduled", "", remedy, "scheduler")
    if under_way and not needs_epoch:
        remedy = "Call clean_local_storage() first."
        refuse(call, "must be called between epochs", "", remedy, "scheduler")


def exchange_count_message(num_begun: int, iterations: int, batch_size: int) -> str:
    """Return the text of a warning of an exchange that was not begun once in every
    iteration; '' if it was, or never.

    Args:
        num_begun: calls of ``communicate`` in the epoch.
        iterations: of the epoch.
        batch_size: b, of the scheduler.
    """
    if num_begun in {0, iterations}:
        return ""
    return (
        f"communicate() was called {num_begun} times in an epoch of {iterations} iterations, local"
        f" batches of {batch_size}. Give DataLoader and Scheduler the same batch_size, and call"
        " communicate() once in every iteration. The samples left over are exchanged at the end of"
        " the epoch, where no training hides the exchange."
    )
