"""The 90 % interval of every prediction, from the errors of other sets."""

from __future__ import annotations

import numpy as np
import pandas as pd

COLUMNS = ("interval_low", "interval_high")
ENDS = (0.05, 0.95)
"""The quantiles of measured / predicted at which the interval ends."""


def intervals(results: pd.DataFrame) -> pd.DataFrame:
    """The 90 % interval of every row, `COLUMNS` in the row's unit, with the index of ``results``:
    a table with the columns set, use, measured and predicted. Empty (nan) where nothing is
    predicted, or no other set has rows that were predicted and measured.

    The ends are the `ENDS` of measured / predicted over the predicted rows of all other sets, each
    set with the same weight. No row of its own set counts.
    """
    out = pd.DataFrame(np.nan, index=results.index, columns=list(COLUMNS))
    ratio = results["measured"] / results["predicted"]
    judged = (results["use"] == "predict") & (ratio > 0) & np.isfinite(ratio)
    for name in results["set"].unique():
        others = judged & (results["set"] != name)
        if not others.any():
            continue
        sets = results.loc[others, "set"]
        weight = 1.0 / sets.map(sets.value_counts()).to_numpy(float)
        order = np.argsort(of := ratio[others].to_numpy(float), kind="stable")
        share = np.cumsum(weight[order]) / weight.sum()
        own = results["set"] == name
        for column, end in zip(COLUMNS, ENDS, strict=True):
            place = min(int(np.searchsorted(share, end - 1e-12)), len(of) - 1)
            out.loc[own, column] = results.loc[own, "predicted"] * of[order][place]
    return out
