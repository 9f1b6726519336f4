"""In which order a scheduler's methods are called, and how often: what is refused, and what is
warned of."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from simshuffle.errors import InputError, Problem, SimshuffleWarning


def check_epoch(epoch: int, epochs_done: int, *, under_way: bool) -> None:
    """See that ``epoch`` is the one to be scheduled next.

    Raises:
        InputError: it is not, or another one is ``under_way``.
    """
    if under_way:
        rule = "cannot be scheduled while another one is under way"
        remedy = "Call clean_local_storage() at the end of every epoch."
        raise InputError(Problem("epoch", rule, str(epoch), remedy), "scheduler")
    if epoch != epochs_done + 1:
        rule = f"must be {epochs_done + 1}: epochs are numbered from 1, one after the other"
        remedy = "Use for epoch in range(1, epochs + 1)."
        raise InputError(Problem("epoch", rule, str(epoch), remedy), "scheduler")


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
        raise InputError(Problem("state", rule, shown, remedy), "scheduler")
    if held and "held" not in state:
        rule = "must say how long each rank has had its samples"
        raise InputError(Problem("state", rule, f"{', '.join(state)}", remedy), "scheduler")


def need_rest(call: str, *, under_way: bool) -> None:
    """See that no epoch is under way.

    Raises:
        InputError: one is.
    """
    if under_way:
        rule, remedy = "must be called between epochs", "Call clean_local_storage() first."
        raise InputError(Problem(call, rule, "", remedy), "scheduler")


def need_epoch(call: str, *, under_way: bool) -> None:
    """See that an epoch is under way.

    Raises:
        InputError: none is.
    """
    if not under_way:
        rule, remedy = "needs an epoch that is scheduled", "Call scheduling(epoch) first."
        raise InputError(Problem(call, rule, "", remedy), "scheduler")


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
