"""Which settings no other one beats: the Pareto front over storage, time and accuracy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def pareto(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows no other row dominates: is nowhere larger and somewhere smaller. Equal rows do not
    dominate each other.

    Args:
        costs: (n, criteria), each better if smaller. A row with a NaN is not on the front and
            dominates none.

    Returns:
        (n,).
    """
    known = ~np.isnan(costs).any(axis=1)
    # [i, j]: i is nowhere larger than j
    no_larger = (costs[:, None, :] <= costs[None, :, :]).all(axis=2)
    smaller = (costs[:, None, :] < costs[None, :, :]).any(axis=2)
    dominated = (no_larger & smaller).any(axis=0)
    return np.asarray(known & ~dominated)


def on_front(settings: pd.DataFrame) -> NDArray[np.bool_]:
    """For each row of the table of settings whether it is on the front: little storage per host,
    little time, high mean accuracy."""
    costs = settings[["storage_nbytes", "total_s"]].assign(lost=-settings["accuracy"])
    return pareto(costs.to_numpy(np.float64))
