"""Where the seconds of an epoch go."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from simshuffle.figures.kinds import RUNS, Given, Kind
from simshuffle.figures.runs import shown
from simshuffle.results import report
from simshuffle.results.report import Booking
from simshuffle.studies.simulation.figures import breakdown_figure
from simshuffle.studies.simulation.study import labels_of


def _booking(given: Sequence[Given]) -> Booking:
    """That of the results, if they agree."""
    found = {labels_of(of.result.meta) for of in given}
    return found.pop() if len(found) == 1 else "cause"


def draw(given: Sequence[Given]) -> Figure:
    """A bar for each run's last epoch."""
    of = shown(given)
    return breakdown_figure(of.breakdown, of.epochs, _booking(given), of.epoch_half, of.about)


def table(given: Sequence[Given]) -> pd.DataFrame:
    """Seconds of each run's last epoch by label, and of waiting."""
    of = shown(given)
    last = of.epochs[of.epochs["epoch"] == of.epochs.groupby("run")["epoch"].transform("max")]
    parts = report.shown(of.breakdown, _booking(given))
    rows = []
    for row in last.to_dict("records"):
        own = parts[(parts["run"] == row["run"]) & (parts["epoch"] == row["epoch"])]
        sums = own[~own["waiting"]].groupby("label", sort=False)["seconds"].sum()
        half = 0.0
        if of.epoch_half is not None:
            half = float(of.epoch_half.loc[(row["run"], row["epoch"])])
        rows.append(
            {
                "run": row["run"],
                "ranks": row["world_size"],
                **{f"{label}_s": float(value) for label, value in sums.items()},
                "waiting_s": float(own.loc[own["waiting"], "seconds"].sum()),
                "epoch_s": row["epoch_s"],
                "low": row["epoch_s"] - half if half else float("nan"),
                "high": row["epoch_s"] + half if half else float("nan"),
            }
        )
    return pd.DataFrame(rows)


KIND = Kind(RUNS, draw, table, together=RUNS)
