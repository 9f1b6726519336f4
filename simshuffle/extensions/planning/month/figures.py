"""The figure of a month, from tables alone: goodput by period of checkpoints, and the
days beside training.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from simshuffle.extensions.planning.month.tables import MEANINGS
from simshuffle.report.chart import (
    Axis,
    Chart,
    Look,
    Mark,
    Marker,
    Panel,
    in_rows,
    log_axis,
    stack_rows,
)
from simshuffle.report.style import BRIGHT
from simshuffle.study.study import Tables

COLOURS = (
    "#228833",
    "#BBCC33",
    "#CCBB44",
    "#EE6677",
    "#AA3377",
    "#4477AA",
    "#66CCEE",
    "#99DDFF",
)
PART_COLOURS = dict(zip(MEANINGS.values(), (*COLOURS, "#BBBBBB"), strict=True))
MARKERS: Mapping[str, tuple[Marker, str]] = {
    "used": ("o", "used"),
    "best": ("s", "best of the search"),
    "daly": ("^", "Daly's"),
}
MINUTE = 60.0


def month_chart(tables: Tables) -> Chart:
    """Draw the goodput of each run by its period, and a bar of its shares, from tables
    ``periods`` and ``parts``.
    """
    runs = list(dict.fromkeys(tables["parts"]["run"]))
    has_many_runs = len(runs) > 1
    looks = {
        f"of {run}": Look(run if has_many_runs else "", BRIGHT[index % len(BRIGHT)])
        for index, run in enumerate(runs)
    }
    points = {
        name: Look(label, "#000000", marker=marker, size=3.2)
        for name, (marker, label) in MARKERS.items()
    }
    shares = {name: Look(name, colour) for name, colour in PART_COLOURS.items()}
    panels = [_goodput_panel(tables["periods"]), _days_panel(tables["parts"], runs)]
    caption = (
        "Goodput over the training between two checkpoints (band: 90 % of the seeds), and the days"
        " that are not training, by cause."
    )
    return Chart(panels, 2.3 + 0.28 * len(runs), looks | points | shares, caption)


def _goodput_panel(periods: pd.DataFrame) -> Panel:
    """Draw the goodput (%) of each run over its period of checkpoints (min, log axis).

    The periods of `MARKERS` have points. Lines at the 5 % and 95 % quantiles of the
    seeds are drawn only where there is a single run.
    """
    rows = periods.assign(x=periods["period_s"] / MINUTE, look="of " + periods["run"])
    rows = rows.assign(
        y=100 * rows["goodput"], low=100 * rows["low"], high=100 * rows["high"]
    )
    sorted_rows = rows.sort_values(["run", "x"], kind="stable")
    marked_rows = rows[rows["which"].isin([*MARKERS])]
    marked_rows = marked_rows.assign(look=marked_rows["which"])
    marks = [
        Mark("line", sorted_rows),
        Mark("line", sorted_rows, y="low", look=Look("", "#BBBBBB", width=0.5)),
        Mark("line", sorted_rows, y="high", look=Look("", "#BBBBBB", width=0.5)),
        Mark("point", marked_rows),
    ]
    if rows["run"].nunique() > 1:  # bands would hide one another
        marks = [marks[0], marks[3]]
    low = float(rows["x"].min())
    high = float(rows["x"].max())
    x = log_axis("training between two checkpoints (min)", low, high)
    return Panel(marks, x, Axis("goodput (%)", high=100.0), weight=2.0)


def _days_panel(parts: pd.DataFrame, runs: list[str]) -> Panel:
    """Draw a bar for each of ``runs``, in this order: shares of all days (%) without
    training.

    Categories that take no time are left out.
    """
    rows = parts[(parts["share"] > 0) & (parts["part"] != MEANINGS["training"])]
    rows = rows.assign(percent=100 * rows["share"], look=rows["part"])
    rows = stack_rows(
        rows.assign(y=rows["run"].map(runs.index)), "run", "percent", ("x", "x2")
    )
    x = Axis("share of all days that is no training (%)", low=0.0)
    return Panel([Mark("bar", rows)], x, in_rows(runs))
