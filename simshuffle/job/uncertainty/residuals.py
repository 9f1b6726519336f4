"""What the laws have missed where machines were measured: ln(measured / predicted) of the predicted
rows of the validation (validation/data/residuals.csv), by mechanism and number of ranks.

A prediction takes its model's error from them: rows of its own mechanism count fully, others a
tenth; those of another number of ranks less by exp(-|log2 ratio| / 2); a set of n rows sqrt(n)
times one. A set is left out when its own rows are judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from simshuffle.spec.arrays import Floats
from simshuffle.spec.library import shipped

RELATED, WIDTH = 0.1, 2.0
"""Weight of another mechanism, and the number of times that ranks double while weights fall by a
factor e; chosen among nine pairs by the score over all sets, each set left out in its turn."""
ENDS = (0.05, 0.95)
"""Shares of what was measured that lie below the ends of a 90 % interval."""
MECHANISMS = {
    "step": "compute and gradients of data-parallel training",
    "divided": "compute and communication of training divided otherwise than by data",
    "communication": "a collective alone",
    "messages": "an all-to-all alone",
    "files": "opening files of a shared file system",
    "together": "known jobs that share a file system",
    "bandwidth": "reading from storage at its bandwidth",
    "links": "flows on links alone",
    "policies": "simulations of others, repeated",
}


@dataclass(frozen=True)
class Residuals:
    """Rows with columns set, mechanism, ranks, residual, and repeats: half the range of what was
    measured, as a logarithm; nan where one value was published."""

    rows: pd.DataFrame

    def quantiles(self, mechanism: str, ranks: float, shares: Floats, without: str = "") -> Floats:
        """(n,) logarithms of factors on a prediction, below which lie the ``shares`` (n,) of what
        was measured; rows of the set ``without`` left out."""
        rows = self.rows[self.rows["set"] != without]
        size = rows["set"].map(rows["set"].value_counts()).to_numpy(float)
        like = np.where(rows["mechanism"] == mechanism, 1.0, RELATED)
        apart = np.abs(np.log2(rows["ranks"].to_numpy(float) / ranks))
        weight = like * np.exp(-apart / WIDTH) / np.sqrt(size)
        values = rows["residual"].to_numpy(float)
        order = np.argsort(values, kind="stable")
        below = np.cumsum(weight[order]) - weight[order] / 2
        return np.asarray(np.interp(shares, below / weight.sum(), values[order]))

    def ends(self, mechanism: str, ranks: float, without: str = "") -> Floats:
        """(2,) the `quantiles` at the ends of a 90 % interval."""
        return self.quantiles(mechanism, ranks, np.array(ENDS), without)

    def chance(self, mechanism: str) -> float:
        """Standard deviation of the logarithm from one time to the next: the median over rows of
        the mechanism, or all where it has none, that were measured several times."""
        spread = self.rows["repeats"].dropna()
        own = spread[self.rows.loc[spread.index, "mechanism"] == mechanism]
        return float((own if len(own) >= FEWEST else spread).median()) / REACH


FEWEST = 5
"""Rows that a spread rests on."""
REACH = 1.45
"""Half the expected range of eight to nine values over their standard deviation (Tippett,
Biometrika 17, 1925: 2.85 and 2.97 for the range): as many epochs as most rows have."""


@cache
def residuals() -> Residuals:
    """Those that come with simshuffle."""
    return Residuals(pd.read_csv(shipped("validation") / "data" / "residuals.csv"))
