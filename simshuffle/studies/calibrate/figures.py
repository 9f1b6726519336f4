"""The figure of a calibration, from its table of residuals alone. Sized for one column of a
two-column paper."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, MaxNLocator, NullFormatter

from simshuffle.results.style import STYLE, legend_above, new_figure

COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#AA3377", "#66CCEE", "#000000")
_LAWS = tuple(zip(COLOURS, ("o", "s", "^", "D", "v", "P", "X"), strict=True))
Styles = Mapping[str, tuple[str, str]]
"""Colour and marker of each law."""
UNITS = {"s": "time", "B/s": "bandwidth", "1/s": "files/s"}
"""Axis labels by unit, in the order of the rows of the figure."""


def residuals_figure(residuals: pd.DataFrame) -> Figure:
    """Fitted against measured values on the left, and the relative error on the right; a row for
    each unit, a colour for each law.

    Args:
        residuals: the table `simshuffle.studies.calibrate.tables.RESIDUALS`. Rows that were not
            fitted are hollow.
    """
    units = [unit for unit in UNITS if (residuals["unit"] == unit).any()]
    styles = dict(zip(dict.fromkeys(residuals["law"]), cycle(_LAWS)))
    rows = max(len(units), 1)
    with matplotlib.rc_context(STYLE):
        figure = new_figure(1.7 * rows)
        axes = figure.subplots(rows, 2, squeeze=False)
        for (left, right), unit in zip(axes, units, strict=False):
            of = residuals[residuals["unit"] == unit]
            against(of, styles, left)
            errors(of, styles, right)
            left.set(xlabel=f"measured {UNITS[unit]}", ylabel=f"fitted {UNITS[unit]}")
            right.set(xlabel=f"measured {UNITS[unit]}", ylabel="relative error (%)")
        handles = [_handle(law, color=colour, marker=of) for law, (colour, of) in styles.items()]
        if not residuals["used"].all():
            handles.append(_handle("not fitted", color="#888888", marker="o", fillstyle="none"))
        legend_above(figure, handles)
        return figure


def _handle(label: str, **style: Any) -> Line2D:
    return Line2D([], [], linestyle="", markersize=3.5, label=label, **style)


def against(residuals: pd.DataFrame, styles: Styles, ax: Axes) -> Axes:
    """Fitted against measured values, both logarithmic, with the line where they are equal; returns
    ``ax``."""
    _points(ax, residuals, residuals["fitted"], styles)
    ends = _ends(residuals)
    ax.plot(ends, ends, "-", color="#888888", linewidth=0.7, zorder=0)
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    _few_ticks(ax, ends, _unit(residuals), both=True)
    return ax


def errors(residuals: pd.DataFrame, styles: Styles, ax: Axes) -> Axes:
    """Relative error (%) against the measured value; returns ``ax``."""
    percent = 100 * residuals["relative"]
    _points(ax, residuals, percent, styles)
    ends = _ends(residuals)
    ax.axhline(0.0, color="#888888", linewidth=0.7, zorder=0)
    highest = max(float(percent.abs().max()) * 1.15, 0.1)
    ax.set(xscale="log", xlim=ends, ylim=(-highest, highest))
    _few_ticks(ax, ends, _unit(residuals), both=False)
    return ax


def _points(ax: Axes, residuals: pd.DataFrame, heights: pd.Series, styles: Styles) -> None:
    for (law, used), of in residuals.groupby(["law", "used"], sort=False):
        colour, marker = styles[str(law)]
        face = colour if used else "none"
        shape: dict[str, Any] = {"marker": marker, "markersize": 3, "linestyle": ""}
        shape |= {"markerfacecolor": face, "markeredgecolor": colour, "markeredgewidth": 0.7}
        ax.plot(of["measured"], heights[of.index], **shape)


def _ends(residuals: pd.DataFrame) -> tuple[float, float]:
    """Of the axes of values, with some room."""
    values = residuals[["measured", "fitted"]].to_numpy(float)
    return float(values.min()) / 1.3, float(values.max()) * 1.3


def _unit(residuals: pd.DataFrame) -> str:
    unit = str(residuals["unit"].iloc[0])
    return "" if unit == "1/s" else unit  # a prefix before "1/s" would read as a number


def _few_ticks(ax: Axes, ends: tuple[float, float], unit: str, *, both: bool) -> None:
    """Few ticks an axis, with prefixes; 1, 2 and 5 where there are less than two decades, and round
    numbers where there is less than half a one. Slanted, so that neighbours do not touch."""
    narrow = np.log10(ends[1] / ends[0]) < 1.7
    ticks = [tick for tick in MaxNLocator(3).tick_values(*ends) if ends[0] <= tick <= ends[1]]
    for axis in (ax.xaxis, ax.yaxis) if both else (ax.xaxis,):
        axis.set_major_locator(
            FixedLocator(ticks)
            if ends[1] < 5 * ends[0]
            else LogLocator(subs=(1, 2, 5) if narrow else (1,), numticks=4)
        )
        axis.set_major_formatter(EngFormatter(unit=unit))
        axis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="x", labelrotation=40)
    ax.spines[["top", "right"]].set_visible(False)
