"""Exchange that is shown against exchange that is hidden."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simshuffle.figures.kinds import RUNS, Given, Kind, nothing
from simshuffle.figures.runs import last_epochs, wide
from simshuffle.results.style import COLOURS, STYLE, legend_above, line_height, new_figure
from simshuffle.studies.hidden_fraction.figures import hiding_figure
from simshuffle.studies.hidden_fraction.tables import NAMES
from simshuffle.studies.simulation.figures import HIDDEN, WHISKER, in_lines

ROW_INCHES = 0.24


def draw(given: Sequence[Given]) -> Figure:
    """A bar for each run, or a line for each way of carrying the exchange out."""
    if _of_hiding(given):
        return hiding_figure(given[0].result.tables)
    rows = table(given)
    names = [in_lines(run, whole=True) for run in rows["run"]]
    lines = sum(max(1.0, 0.75 * (1 + name.count("\n"))) for name in names)
    with matplotlib.rc_context(STYLE):
        figure = new_figure(ROW_INCHES * line_height() * lines + 0.45)
        ax = figure.subplots()
        y = np.arange(len(rows))
        colour = COLOURS["EXCHANGE"]
        ax.barh(y, rows["exposed_s"], 0.62, color=colour)
        behind: dict[str, Any] = {**HIDDEN, "edgecolor": colour}
        ax.barh(y, rows["hidden_s"], 0.62, left=rows["exposed_s"], **behind)
        half = (rows["high"] - rows["low"]) / 2
        if half.notna().any():
            ax.errorbar(rows["exposed_s"], y, xerr=half.fillna(0.0), linestyle="", **WHISKER)
        ax.set_yticks(y, names)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_xlim(left=0)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("exchange per epoch and rank (s)")
        ax.spines[["top", "right", "left"]].set_visible(False)
        handles: list[Patch | Line2D] = [
            Patch(facecolor=colour, label="shown"),
            Patch(label="hidden behind other work", **behind),
        ]
        if half.notna().any():
            text = "95 % interval of what is shown"
            handles.append(Line2D([], [], color=WHISKER["color"], linewidth=0.8, label=text))
        legend_above(figure, handles)
        return figure


def table(given: Sequence[Given]) -> pd.DataFrame:
    """Of runs: seconds shown, with their interval, seconds hidden, and their share. Of a search for
    the largest hidden Q: that, by way and ranks."""
    if _of_hiding(given):
        limits = given[0].result.tables["limits"]
        columns = ["way", "world_size", "iterations", "exchange_fraction", "baseline_s"]
        return limits[[*columns, "bottleneck"]].assign(way=limits["way"].map(NAMES))
    found = last_epochs(given)
    keys = ["run", "world_size"]
    whole = wide(found, "exchange_total_s", keys)["exchange_total_s"]
    rows = wide(found, "exchange_exposed_s", keys).rename(
        columns={"exchange_exposed_s": "exposed_s"}
    )
    rows.insert(3, "hidden_s", (whole - rows["exposed_s"]).clip(lower=0.0))
    rows.insert(4, "share_hidden", rows["hidden_s"] / whole)
    rows = rows[whole > 0].reset_index(drop=True)
    if rows.empty:
        rule = "needs runs that exchange samples"
        raise nothing(rule, given, "Simulate partial_local_shuffle, or an importance exchange.")
    return rows


def _of_hiding(given: Sequence[Given]) -> bool:
    return given[0].result.study.kind == "hiding"


KIND = Kind((*RUNS, "hiding"), draw, table, together=RUNS)
