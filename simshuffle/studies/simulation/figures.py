"""The figure of a sweep: the time of an epoch over one axis, a line for each combination of the
others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from simshuffle.results.style import COLUMN_INCHES, STYLE

COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB")
"""P. Tol's bright scheme, which colour-blind people can tell apart."""
MARKERS = "osD^vP*X"
MOST_LINES = 12
"""Lines of one figure; more cannot be told apart."""
WIDE_RANGE = 8.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""


def sweep_figure(summary: pd.DataFrame, axes: Mapping[str, Mapping[str, Any]]) -> Figure:
    """The time of the last epoch, mean and 95 % interval over seeds, as a figure of one paper
    column.

    Args:
        summary: of a sweep: label, its axes, epoch, measure, seeds, mean, low, high.
        axes: for each axis whether it holds ``numbers``.
    """
    table = summary[summary["measure"] == "epoch_s"]
    table = table[table["epoch"] == table.groupby("label")["epoch"].transform("max")]
    across = _across(table, axes)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN_INCHES, 2.6), layout="constrained")
        FigureCanvasAgg(figure)
        ax = figure.subplots()
        names = [name for name in axes if name != across]
        groups = list(table.groupby(names, sort=False, dropna=False)) if names else [((), table)]
        places = table[across].drop_duplicates() if across else pd.Series([""])
        for number, (values, rows) in enumerate(groups[:MOST_LINES]):
            texts = (_named(name, value) for name, value in zip(names, values, strict=True))
            _line(ax, rows, across, axes, places, number, ", ".join(texts))
        _label(ax, across, axes, places, table)
        if names:
            figure.legend(loc="outside upper center", ncols=2, frameon=False, handlelength=1.8)
        if len(groups) > MOST_LINES:
            ax.set_title(f"{MOST_LINES} of {len(groups)} lines; sweep.parquet has all", fontsize=6)
        return figure


def _across(table: pd.DataFrame, axes: Mapping[str, Mapping[str, Any]]) -> str:
    """The axis that is drawn from left to right: ranks, else the one with most numbers, else the
    first one; '' if there is none."""
    numbers = [name for name, axis in axes.items() if axis["numbers"]]
    if "world_size" in numbers:
        return "world_size"
    return max(numbers, key=lambda name: table[name].nunique(), default=next(iter(axes), ""))


def _named(name: str, value: Any) -> str:
    return f"{name.rsplit('.', 1)[-1].replace('_', ' ')} {value:g}" if _is(value) else str(value)


def _is(value: Any) -> bool:
    return isinstance(value, int | float | np.number)


def _line(
    ax: Any,
    rows: pd.DataFrame,
    across: str,
    axes: Mapping[str, Mapping[str, Any]],
    places: pd.Series[Any],
    number: int,
    label: str,
) -> None:
    """One combination of the other axes: a line over numbers, points over texts."""
    if across and axes[across]["numbers"]:
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
    across: str,
    axes: Mapping[str, Mapping[str, Any]],
    places: pd.Series[Any],
    table: pd.DataFrame,
) -> None:
    ax.set_ylabel("time per epoch (s)")
    top, least = float(table["high"].fillna(table["mean"]).max()), float(table["mean"].min())
    if least > 0 and top / least >= WIDE_RANGE:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda y, _: f"{y:g}"))
    else:
        ax.set_ylim(0, 1.08 * top if top > 0 else 1.0)
    if not across:
        ax.set_xticks([])
        return
    ax.set_xlabel({"world_size": "GPUs"}.get(across, axes[across]["key"]))
    if not axes[across]["numbers"]:
        ax.set_xticks(range(len(places)), [str(value) for value in places], rotation=20, ha="right")
        return
    values = sorted(float(value) for value in places)
    if values[0] > 0 and values[-1] / values[0] >= WIDE_RANGE:
        ax.set_xscale("log")
        ax.minorticks_off()
        if len(values) <= 8:
            ax.set_xticks(values, [f"{value:g}" for value in values])
