"""The figure of a calibration, from its table of residuals alone. Sized for one column of a
two-column paper."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from simshuffle.results.style import COLUMN_INCHES, STYLE

COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#AA3377", "#66CCEE", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
UNITS = {"s": "time", "B/s": "bandwidth", "1/s": "files/s"}
"""Axis labels by unit, in the order of the rows of the figure."""


def residuals_figure(residuals: pd.DataFrame) -> Figure:
    """Fitted against measured values on the left, and the relative error on the right; a row for
    each unit, a colour for each law.

    Args:
        residuals: columns `simshuffle.studies.calibrate.parameter.RESIDUAL_COLUMNS`. Rows that were
            not fitted are hollow.
    """
    units = [unit for unit in UNITS if (residuals["unit"] == unit).any()]
    laws = list(dict.fromkeys(residuals["law"]))
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(COLUMN_INCHES, 1.7 * max(len(units), 1) + 0.3 + 0.07 * len(laws)),
            layout="constrained",
        )
        FigureCanvasAgg(figure)
        axes = figure.subplots(max(len(units), 1), 2, squeeze=False)
        for (left, right), unit in zip(axes, units, strict=False):
            of = residuals[residuals["unit"] == unit]
            against(of, laws, left)
            errors(of, laws, right)
            left.set(xlabel=f"measured {UNITS[unit]}", ylabel=f"fitted {UNITS[unit]}")
            right.set(xlabel=f"measured {UNITS[unit]}", ylabel="relative error (%)")
        handles = [
            Line2D(
                [],
                [],
                linestyle="",
                markersize=3.5,
                marker=MARKERS[n % len(MARKERS)],
                color=COLOURS[n % len(COLOURS)],
                label=law,
            )
            for n, law in enumerate(laws)
        ]
        if not residuals["used"].all():
            handles.append(
                Line2D(
                    [],
                    [],
                    linestyle="",
                    markersize=3.5,
                    marker="o",
                    color="#888888",
                    fillstyle="none",
                    label="not fitted",
                )
            )
        figure.legend(
            handles=handles,
            ncols=2,
            loc="outside upper center",
            frameon=False,
            handletextpad=0.2,
            columnspacing=1.0,
        )
        return figure


def against(residuals: pd.DataFrame, laws: list[str], ax: Axes) -> Axes:
    """Fitted against measured values, both logarithmic, with the line where they are equal; returns
    ``ax``."""
    for law, rows in residuals.groupby("law", sort=False):
        number = laws.index(str(law))
        _points(ax, rows, "fitted", number)
    values = residuals[["measured", "fitted"]].to_numpy(float)
    ends = values[np.isfinite(values)].min() / 1.3, values[np.isfinite(values)].max() * 1.3
    ax.plot(ends, ends, "-", color="#888888", linewidth=0.7, zorder=0)
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    _few_ticks(ax, ends, _unit(residuals), both=True)
    return ax


def errors(residuals: pd.DataFrame, laws: list[str], ax: Axes) -> Axes:
    """Relative error (%) against the measured value; returns ``ax``."""
    percent = residuals.assign(percent=100 * residuals["relative"])
    for law, rows in percent.groupby("law", sort=False):
        _points(ax, rows, "percent", laws.index(str(law)))
    values = residuals[["measured", "fitted"]].to_numpy(float)
    ends = values[np.isfinite(values)].min() / 1.3, values[np.isfinite(values)].max() * 1.3
    ax.axhline(0.0, color="#888888", linewidth=0.7, zorder=0)
    highest = max(float(percent["percent"].abs().max()) * 1.15, 0.1)
    ax.set(xscale="log", xlim=ends, ylim=(-highest, highest))
    _few_ticks(ax, ends, _unit(residuals), both=False)
    return ax


def _points(ax: Axes, rows: pd.DataFrame, column: str, number: int) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    for used, of in rows.groupby("used"):
        style: dict[str, Any] = {"markersize": 3, "markeredgecolor": colour, "markeredgewidth": 0.7}
        ax.plot(
            of["measured"],
            of[column],
            linestyle="",
            marker=marker,
            markerfacecolor=colour if used else "none",
            **style,
        )


def _unit(residuals: pd.DataFrame) -> str:
    unit = str(residuals["unit"].iloc[0])
    return "" if unit == "1/s" else unit  # a prefix before "1/s" would read as a number


def _few_ticks(ax: Axes, ends: tuple[float, float], unit: str, *, both: bool) -> None:
    """Few ticks an axis, with prefixes; 1, 2 and 5 where there are less than two decades. Slanted,
    so that neighbours do not touch."""
    narrow = np.log10(ends[1] / ends[0]) < 1.7
    for axis in (ax.xaxis, ax.yaxis) if both else (ax.xaxis,):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,), numticks=4))
        axis.set_major_formatter(EngFormatter(unit=unit))
        axis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="x", labelrotation=40)
    ax.spines[["top", "right"]].set_visible(False)
