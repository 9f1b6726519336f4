"""A remedy with its loss and its time, and the front of remedies that no other one
beats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simshuffle.extensions.learning.accuracy.sensitivity import LossEstimate


@dataclass(frozen=True)
class RemedyEstimate:
    """A remedy with its loss and its time, before it is compared with others."""

    name: str  # names the remedy in tables
    kind: str  # one of `tables.KINDS`
    # samples that its statistics rest on; None without running statistics, or if impossible
    n: float | None
    loss: LossEstimate | None  # against global shuffle; None where it cannot be had
    own_points: float | None = None  # points against global shuffle with the remedy
    # s that a warm epoch is longer, below 0 shorter; None where costs are not known
    added_s: float | None = None
    note: str = ""  # says what the law leaves out
    outside: str = ""  # inputs that were never tried, in words
    is_choosable: bool = True  # whether it may be chosen


def loss_columns(loss: LossEstimate | None) -> dict[str, Any]:
    """Return a loss as the columns loss_points, low_points and high_points of a row,
    None where there is no loss.
    """
    names = ("loss_points", "low_points", "high_points")
    return dict(zip(names, loss or (None,) * len(names), strict=True))


def front_names(remedies: list[RemedyEstimate]) -> set[str]:
    """Return the names of the remedies on the front.

    No other remedy of the same network loses less in no more time, or as little in
    less. Remedies that may not be chosen, or have no time or no loss, are not on it.
    """
    costs = {
        remedy.name: (remedy.added_s, remedy.loss.points)
        for remedy in remedies
        if remedy.is_choosable
        and remedy.added_s is not None
        and remedy.loss is not None
    }

    def beats(rival: tuple[float, float], cost: tuple[float, float]) -> bool:
        """Return whether a rival's seconds and points are both no larger, and one is
        smaller.
        """
        return rival != cost and rival[0] <= cost[0] and rival[1] <= cost[1]

    return {
        name
        for name, cost in costs.items()
        if not any(beats(rival, cost) for rival in costs.values())
    }
