"""Which settings no other one beats: the Pareto front over storage, time, requests and accuracy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

CRITERIA = {
    "storage": "storage_nbytes",
    "time": "total_s",
    "requests": "total_requests",
    "accuracy": "accuracy",
}
"""What settings are compared in, and the column: all better if smaller but accuracy."""


def pareto(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows no other row dominates: is nowhere larger and somewhere smaller. Equal rows do not
    dominate each other.

    Args:
        costs: (n, criteria), each better if smaller. A row with a NaN is not on the front and
            dominates none.

    Returns:
        (n,).
    """
    return np.asarray(~np.isnan(costs).any(axis=1) & ~_dominates(costs).any(axis=0))


def _dominates(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(n, n): [i, j] if row i is nowhere larger than row j, and somewhere smaller."""
    no_larger = (costs[:, None, :] <= costs[None, :, :]).all(axis=2)
    smaller = (costs[:, None, :] < costs[None, :, :]).any(axis=2)
    return np.asarray(no_larger & smaller)


def _costs(settings: pd.DataFrame) -> NDArray[np.float64]:
    """(n, criteria), each better if smaller."""
    return settings[list(CRITERIA.values())].assign(accuracy=-settings["accuracy"]).to_numpy(float)


def on_front(settings: pd.DataFrame) -> NDArray[np.bool_]:
    """For each row of the table of settings whether it is on the front: little storage per host,
    little time, few requests, high mean accuracy."""
    return pareto(_costs(settings))


@dataclass(frozen=True)
class Beaten:
    """A setting that is not on the front, ``by`` which one that is, and the criteria in which that
    one is ``better``; in all others they are equal."""

    setting: str
    by: str
    better: tuple[str, ...]


def beaten(settings: pd.DataFrame) -> list[Beaten]:
    """Every setting that another one beats, each by the one on the front that takes the least time
    of those that beat it.

    Args:
        settings: columns `SETTING_COLUMNS`; what was not simulated is passed over.
    """
    costs, names = _costs(settings), settings["setting"].tolist()
    beats = _dominates(costs) & pareto(costs)[:, None]
    out = []
    for place in np.flatnonzero(beats.any(axis=0)):
        by = min(np.flatnonzero(beats[:, place]), key=lambda other: costs[other][1])
        smaller = costs[by] < costs[place]
        better = tuple(name for name, less in zip(CRITERIA, smaller, strict=True) if less)
        out.append(Beaten(names[place], names[by], better))
    return out
