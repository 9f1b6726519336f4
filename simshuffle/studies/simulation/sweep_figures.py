"""The figure of a sweep: a measure over one axis, a line for each combination of the
others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from simshuffle.results.style import STYLE, legend_above, new_figure
from simshuffle.studies.simulation.measure import WHOLE_EPOCH, measure_name
from simshuffle.studies.simulation.tables import Axis

COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB")
"""P. Tol's bright scheme, which colour-blind people can tell apart."""
MARKERS = "osD^vP*X"
MOST_LINES = 12
"""Lines of one figure; more cannot be told apart."""
LETTER = 0.025
"""Share of an axis that a letter below it takes."""
NARROW = 0.9
"""Share of the largest value that the smallest is at least where an axis leaves out 0, so that
lines can be told apart."""
WIDE_RANGE = 8.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
FEW_POWERS = 100.0
"""The same, up to which it has numbers between powers of ten."""


def sweep_figure(summary: pd.DataFrame, axes: Sequence[Axis], measure: str = WHOLE_EPOCH) -> Figure:
    """A measure of the last epoch, mean and 95 % interval over seeds, as a figure of one paper
    column.

    Args:
        summary: of a sweep: label, its axes, epoch, measure, seeds, mean, low, high.
        axes: of the sweep, in their order.
        measure: one of the summary.
    """
    table = summary[summary["measure"] == measure]
    keys = ["label", *(axis["name"] for axis in axes)]
    table = table[table["epoch"] == table.groupby(keys)["epoch"].transform("max")]
    across = _across(table, axes)
    by_name = {axis["name"]: axis for axis in axes}
    with matplotlib.rc_context(STYLE):
        figure = new_figure(2.3)
        ax = figure.subplots()
        names = [axis["name"] for axis in axes if axis["name"] != across]
        groups = list(table.groupby(names, sort=False, dropna=False)) if names else [((), table)]
        places = table[across].drop_duplicates() if across else pd.Series([""])
        for number, (values, rows) in enumerate(groups[:MOST_LINES]):
            label = _common(rows, across) or ", ".join(map(_text, names, values))
            _line(ax, rows, across, by_name.get(across), places, number, label)
        ax.set_ylabel(measure_name(measure))
        _label(ax, by_name.get(across), places, table)
        legend_above(figure)
        if len(groups) > MOST_LINES:
            ax.set_title(f"{MOST_LINES} of {len(groups)} lines; sweep.parquet has all", fontsize=6)
        return figure


def _across(table: pd.DataFrame, axes: Sequence[Axis]) -> str:
    """The axis that is drawn from left to right: ranks, else the one with most numbers, else the
    first one; '' if there is none."""
    numbers = [axis["name"] for axis in axes if axis["numbers"]]
    if "world_size" in numbers:
        return "world_size"
    return max(
        numbers, key=lambda name: table[name].nunique(), default=axes[0]["name"] if axes else ""
    )


def _common(rows: pd.DataFrame, across: str) -> str:
    """What the labels of a line have in common when the axis from left to right is taken out of
    them; '' if they differ in more."""
    texts = set()
    for label, value in zip(rows["label"], rows[across] if across else rows["label"], strict=True):
        words = [word for word in label.split() if word not in {f"@{value}", f"{across}={value}"}]
        if across.endswith("exchange_fraction"):
            words = [word.removesuffix(f"-{value:g}") for word in words]
        texts.add(" ".join(words))
    return texts.pop() if len(texts) == 1 else ""


def _text(name: str, value: Any) -> str:
    number = isinstance(value, int | float | np.number)
    key = name.rsplit(".", 1)[-1].replace("_", " ")
    return f"{key} {value:g}" if number else f"{key} {value}"


def _line(
    ax: Any,
    rows: pd.DataFrame,
    across: str,
    axis: Axis | None,
    places: pd.Series[Any],
    number: int,
    label: str,
) -> None:
    """One combination of the other axes: a line over numbers, points over texts."""
    if axis and axis["numbers"]:
        rows = rows.sort_values(across)
        x, style = rows[across].to_numpy(float), "-"
    else:
        x = np.array([list(places).index(value) for value in rows[across]] if across else [0.0])
        style = ""
    mean = rows["mean"].to_numpy(float)
    reach = np.nan_to_num(np.stack([mean - rows["low"], rows["high"] - mean]).astype(float))
    ax.errorbar(
        x,
        mean,
        yerr=reach,
        linestyle=style,
        marker=MARKERS[number % len(MARKERS)],
        color=COLOURS[number % len(COLOURS)],
        markersize=3,
        linewidth=1,
        capsize=2,
        label=label or None,
    )


def _label(
    ax: Any,
    axis: Axis | None,
    places: pd.Series[Any],
    table: pd.DataFrame,
) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    top, least = float(table["high"].fillna(table["mean"]).max()), float(table["mean"].min())
    if least > 0 and top / least >= WIDE_RANGE:
        ax.set_yscale("log")
        if top / least < FEW_POWERS:
            # powers of ten alone would leave one or two numbers on the axis
            ax.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
            ax.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        ax.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda y, _: f"{y:g}"))
    elif least < NARROW * top or top <= 0:
        ax.set_ylim(0, 1.08 * top if top > 0 else 1.0)
    if axis is None:
        ax.set_xticks([])
        return
    ax.set_xlabel({"world_size": "GPUs"}.get(axis["name"], axis["key"]))
    if not axis["numbers"]:
        ax.set_xticks(range(len(places)), [str(value) for value in places], rotation=20, ha="right")
        return
    values = sorted(float(value) for value in places)
    if values[0] > 0 and values[-1] / values[0] >= WIDE_RANGE:
        ax.set_xscale("log")
        ax.minorticks_off()
    texts = [f"{value:g}" for value in values]
    on_axis = np.log(values) if ax.get_xscale() == "log" else np.array(values)
    room = max(map(len, texts)) * LETTER * np.ptp(on_axis)
    shown = [len(values) - 1]
    for number in range(len(values) - 2, -1, -1):
        if on_axis[shown[-1]] - on_axis[number] >= room:
            shown.append(number)
    shown.reverse()
    ax.set_xticks([values[number] for number in shown], [texts[number] for number in shown])
