"""Simulations in parallel processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from simshuffle.errors import SimulationError

Given = TypeVar("Given")
Made = TypeVar("Made")
Progress = Callable[[float], None]
"""Called with the share of the work that is done, from 0 to 1."""


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def outcomes(
    function: Callable[[Given], Made],
    arguments: Sequence[Given],
    processes: int | None = None,
    progress: Progress | None = None,
) -> list[Made]:
    """``function`` of each of ``arguments``, in their order.

    Args:
        function: of a module, so that other processes find it; what it is given and returns can be
            pickled.
        arguments: the costly ones first, if they differ.
        processes: at once; None for one on each usable core. With one, everything is done in this
            process.
        progress: told of the progress, if given.

    Raises:
        SimulationError: a process ended by itself. What ``function`` raises is raised here; the
            processes are stopped then.
    """
    count = min(processes or usable_cores(), len(arguments))
    made: dict[int, Made] = {}
    for number, outcome in (
        _alone(function, arguments) if count <= 1 else _together(function, arguments, count)
    ):
        made[number] = outcome
        if progress is not None:
            progress(len(made) / len(arguments))
    return [made[number] for number in range(len(arguments))]


def _alone(
    function: Callable[[Given], Made], arguments: Sequence[Given]
) -> Iterator[tuple[int, Made]]:
    yield from ((number, function(argument)) for number, argument in enumerate(arguments))


def _together(
    function: Callable[[Given], Made], arguments: Sequence[Given], count: int
) -> Iterator[tuple[int, Made]]:
    with _executor(count) as pool:
        futures: dict[Future[Made], int] = {
            pool.submit(function, argument): number for number, argument in enumerate(arguments)
        }
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except BrokenProcessPool:
                hint = "The system does that when memory runs out: give fewer --processes."
                raise SimulationError(
                    f"A process of the simulations ended by itself. {hint}"
                ) from None


@contextmanager
def _executor(count: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh interpreters, for compiled kernels must not be shared through a fork; they are stopped
    at once if anything is raised."""
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        count, mp_context=multiprocessing.get_context("spawn"), initializer=_ignore_interrupts
    )
    try:
        yield pool
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal; the first one stops the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
