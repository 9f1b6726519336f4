"""When every rank did what in an epoch: marks of its clock, and the tables that come of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.results.timeline import phase_rows

Floats = NDArray[np.float64]
PHASES = ("io", "forward", "backward", "allreduce", "exchange", "update", "exchange")
"""What an iteration goes through, as the simulator's timeline names it
(`simshuffle.results.timeline.PHASES`)."""
_COLUMNS = {"forward": (1,), "backward": (2,), "update": (3, 5), "exchange": (4, 6)}
"""Which of them make up each time of the iterations table."""


@dataclass(frozen=True)
class Marks:
    """When one rank did what in an epoch: s of its own clock.

    Attributes:
        begin: of the epoch.
        measured: importance was measured, if it was.
        bounds: (iterations, 8) when the first and each following of `PHASES` began, and when the
            last ended.
        end: of the last exchange.
    """

    begin: float
    measured: float
    bounds: Floats
    end: float

    def flat(self) -> Floats:
        """All in one array, by which ranks tell one another."""
        return np.concatenate([[self.begin, self.measured, self.end], self.bounds.ravel()])


def timeline_rows(epoch: int, every: Floats) -> list[dict[str, NDArray[Any]]]:
    """Rows of the timeline, given the marks (M, n) of all ranks; without bytes."""
    ranks, bounds = len(every), _bounds(every).swapaxes(0, 1)
    measured = every[None, :, :2]
    last = np.stack([bounds[-1, :, -1], every[:, 2]], axis=-1)[None]
    parts = (
        (["importance"], measured, True),
        (list(PHASES), bounds, False),
        (["exchange"], last, True),
    )
    return [
        phase_rows(epoch, names, at, np.zeros((len(at), ranks, len(names))), final=final)
        for names, at, final in parts
    ]


def _bounds(every: Floats) -> Floats:
    """(M, iterations, 8), from marks as `Marks.flat` has them."""
    return every[:, 3:].reshape(len(every), -1, len(PHASES) + 1)


def iteration_seconds(every: Floats) -> list[dict[str, float]]:
    """The times of each iteration in s, means over the ranks; of the marks (M, n) of all."""
    took = np.diff(_bounds(every), axis=-1).mean(axis=0)  # (iterations, 7)
    # the wait for the last exchange belongs to the last iteration
    took[-1, -1] += (every[:, 2] - _bounds(every)[:, -1, -1]).mean()
    return [
        {f"{name}_s": float(row[list(parts)].sum()) for name, parts in _COLUMNS.items()}
        for row in took
    ]


def epoch_seconds(every: Floats) -> tuple[float, float]:
    """Of the measuring of importance, and of the epoch in all, s: means over the ranks."""
    return float((every[:, 1] - every[:, 0]).mean()), float((every[:, 2] - every[:, 0]).mean())
