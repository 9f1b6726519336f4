"""What the figures have in common: what is said below them, axes, and how strategies look."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from simshuffle.results.style import letters, new_figure

MUCH_LONGER = 4.0
"""Axes of time are logarithmic where the longest takes so many times as long as the shortest."""
HOUR = 3600.0


def time_unit(longest: float) -> tuple[float, str]:
    """Seconds of the unit that times are shown in, and its name."""
    return (HOUR, "h") if longest >= 2 * HOUR else (60.0, "min") if longest >= 600 else (1.0, "s")


def framed(height: float, meta: Mapping[str, Any]) -> Figure:
    """An empty figure with scale and schedule below what will be drawn."""
    schedules = " and ".join(meta.get("schedules", []))
    said = f"Scale: {meta['rule']}." + (
        f" Schedule of the exchange: {schedules}." if schedules else ""
    )
    lines = textwrap.wrap(said, letters(76), break_on_hyphens=False)
    figure = new_figure(height + 0.11 * len(lines))
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=6, color="#555555")
    return figure


def time_axis(ax: Axes, totals: pd.Series[float], unit: float) -> None:
    """From 0; or logarithmic where some settings take much longer than others."""
    if totals.max() > MUCH_LONGER * totals.min():
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(
            LogLocator(
                subs=(1, 2, 3, 5, 7) if totals.max() < 10 * ax.get_xlim()[0] * unit else (1, 2, 5)
            )
        )
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_locator(NullLocator())
    else:
        ax.set_xlim(0, 1.03 * totals.max() / unit)


def places_across(
    ax: Axes, values: pd.Series[float], text: Callable[[float], str], apart: float = 0.3
) -> list[float]:
    """Where points stand from left to right, in powers of ten, with ticks; a 0 stands left of all
    others.

    Args:
        ax: whose ticks are set.
        values: (n,) at least 0.
        text: of a tick.
        apart: least distance of ticks, of that from the lowest to the highest value.
    """
    some = values[values > 0]
    if some.empty:
        ax.set_xticks([0.0], ["none"])
        return [0.0] * len(values)
    low, high = np.log10(float(some.min())), np.log10(float(some.max()))
    none = low - max(0.4 * (high - low), 0.1)
    ticks = {float(np.log10(value)): text(value) for value in _round(some, apart)}
    if (values == 0).any():
        ticks[none] = "none"
    ax.set_xticks(sorted(ticks), [ticks[at] for at in sorted(ticks)])
    return [float(np.log10(value)) if value > 0 else none for value in values]


def _round(values: pd.Series[float], apart: float) -> list[float]:
    """Few values for ticks: round ones between the ends that are far apart, or the ends."""
    low, high = float(values.min()), float(values.max())
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    best = sorted({low, high}) if high > 1.5 * low else [low]
    for every, steps in ((3, (1,)), (2, (1,)), (1, (1,)), (1, (1, 3)), (1, (1, 2, 5))):
        powers = range(first - first % every, last + 1, every)
        found = [s * 10.0**p for p in powers for s in steps if low <= s * 10.0**p <= high]
        if len(found) > 2 and np.diff(np.log10(found)).min() > apart * np.log10(high / low):
            best = found
    return best
