"""Errors of the laws where machines were measured, by mechanism and number of ranks.

An error is ln(measured / predicted) of the time in a predicted row of the validation, or
of the time that its rate stands for (validation/data/residuals.csv). A prediction takes
its model's error from the rows: rows of its own mechanism count fully, others a tenth;
rows of another number of ranks less by exp(-|log2 ratio| / 2); a set of n rows counts
sqrt(n) times as much as a row. A set is left out when its own rows are judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from simshuffle.spec.arrays import Floats
from simshuffle.spec.library import shipped_folder

RELATED, WIDTH = 0.1, 2.0
"""Weight of another mechanism, and the number of times that ranks double while weights
fall by a factor e. Of thirty pairs, the score over all sets, each left out in its turn,
is best at 0.1 and 8, by 3 %, with wider intervals (`benchmarks/residuals.py --scores`).
"""
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
    """Errors of predictions, a row for each predicted value of the validation.

    Columns are set, mechanism (of `MECHANISMS`), ranks, residual, ln(measured /
    predicted), and repeats: half the range of what was measured, as a logarithm; nan
    where one value was published.
    """

    rows: pd.DataFrame

    def quantiles(
        self, mechanism: str, ranks: float, shares: Floats, without: str = ""
    ) -> Floats:
        """Return (n,) natural logarithms of factors on a prediction, below which the
        ``shares`` (n,), 0 to 1, of rows lie.

        Rows are weighted as the module says: those of other mechanisms count too, so an
        unknown mechanism is no error. No factor is beyond the largest error of a row.
        Rows of the set ``without`` are left out; '' leaves out none.
        """
        rows = self.rows[self.rows["set"] != without]
        size = rows["set"].map(rows["set"].value_counts()).to_numpy(float)
        mechanism_weight = np.where(rows["mechanism"] == mechanism, 1.0, RELATED)
        doublings = np.abs(np.log2(rows["ranks"].to_numpy(float) / ranks))
        weight = mechanism_weight * np.exp(-doublings / WIDTH) / np.sqrt(size)
        values = rows["residual"].to_numpy(float)
        order = np.argsort(values, kind="stable")
        cumulative_weight = np.cumsum(weight[order]) - weight[order] / 2
        return np.asarray(
            np.interp(shares, cumulative_weight / weight.sum(), values[order])
        )

    def ends(self, mechanism: str, ranks: float, without: str = "") -> Floats:
        """Return (2,) the `quantiles` at the ends of a 90 % interval, as natural
        logarithms of factors on a prediction.
        """
        return self.quantiles(mechanism, ranks, np.array(ENDS), without)

    def chance(self, mechanism: str) -> float:
        """Return the standard deviation of the natural logarithm between repetitions of
        a measurement.

        It is the median of half the range of the rows of the mechanism that were
        measured several times, divided by `HALF_RANGE_IN_DEVIATIONS`. The median is
        over all such rows where the mechanism has fewer than `MIN_ROWS`.
        """
        all_spreads = self.rows["repeats"].dropna()
        mechanism_spread = all_spreads[
            self.rows.loc[all_spreads.index, "mechanism"] == mechanism
        ]
        return (
            float(
                (
                    mechanism_spread
                    if len(mechanism_spread) >= MIN_ROWS
                    else all_spreads
                ).median()
            )
            / HALF_RANGE_IN_DEVIATIONS
        )


MIN_ROWS = 5
"""Rows that a spread rests on."""
HALF_RANGE_IN_DEVIATIONS = 1.45
"""Half the expected range of eight to nine values over their standard deviation
(Tippett, Biometrika 17, 1925: 2.85 and 2.97 for the range): as many epochs as most rows
have.
"""


@cache
def residuals() -> Residuals:
    """Return the residuals that come with simshuffle: one object for all callers."""
    return Residuals(
        pd.read_csv(shipped_folder("validation") / "data" / "residuals.csv")
    )
