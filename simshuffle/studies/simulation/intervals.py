"""Means and intervals of a sweep over its seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from simshuffle.studies.simulation.tables import NOT_MEASURED, SUMMARY

LEVEL = 0.95
"""Of the intervals."""


def summary(sweep: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """Mean and 95 % interval of every measure over the seeds: one row for each combination of the
    axes, epoch and measure.

    mean ± t s / √n, with the sample's standard deviation s over n seeds and the 97.5th percentile t
    of Student's distribution of n − 1 degrees of freedom (Student, 'The probable error of a mean',
    Biometrika 6, 1908). The seeds are taken as independent draws from a normal distribution.

    Args:
        sweep: columns of the table ``sweep``.
        axes: names of its axes.
    """
    keys = ["label", *axes, "epoch"]
    measures = [name for name in sweep.columns if name not in {*keys, *NOT_MEASURED}]
    groups = sweep.groupby(keys, sort=False, dropna=False)[measures]
    mean, spread, seeds = groups.mean(), groups.std(ddof=1), groups.size().to_numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = np.where(seeds > 1, stdtrit(seeds - 1, 0.5 + LEVEL / 2) / np.sqrt(seeds), np.nan)
    half = spread.to_numpy() * reach[:, None]
    centre = mean.to_numpy()
    index = mean.index.to_frame(index=False)
    count = len(measures)
    table = index.loc[np.repeat(np.arange(len(index)), count)].reset_index(drop=True)
    table["measure"] = np.tile(np.array(measures, object), len(index))
    table["seeds"] = np.repeat(seeds, count)
    table["mean"] = centre.ravel()
    table["low"] = (centre - half).ravel()
    table["high"] = (centre + half).ravel()
    return table[[*keys[:-1], *SUMMARY.columns]]
