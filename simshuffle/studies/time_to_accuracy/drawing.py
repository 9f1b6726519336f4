"""What the figures have in common: what is said below them, and axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.results.chart import Axis, log_axis

MUCH_LONGER = 4.0
"""Axes of time are logarithmic where the longest takes so many times as long as the shortest."""
HOUR = 3600.0


def time_unit(longest: float) -> tuple[float, str]:
    """Seconds of the unit that times are shown in, and its name."""
    return (HOUR, "h") if longest >= 2 * HOUR else (60.0, "min") if longest >= 600 else (1.0, "s")


def note(meta: Mapping[str, Any]) -> str:
    """Scale and schedule, which stand below what is drawn."""
    schedules = " and ".join(meta.get("schedules", []))
    said = f" Schedule of the exchange: {schedules}." if schedules else ""
    return f"Scale: {meta['rule']}.{said}"


def time_axis(title: str, totals: pd.Series[float], least: float) -> Axis:
    """From 0; or logarithmic from ``least`` on where some settings take much longer than others.

    Args:
        title: with the unit.
        totals: of the settings, in it.
        least: the shortest time that is shown.
    """
    if totals.max() > MUCH_LONGER * totals.min():
        return log_axis(title, 0.85 * least, 1.15 * totals.max())
    return Axis(title, low=0.0, high=1.03 * totals.max())


def places_across(
    title: str,
    values: pd.Series[float],
    text: Callable[[float], str],
    apart: float = 0.3,
    room: float = 0.12,
) -> tuple[pd.Series[float], Axis]:
    """Where points stand from left to right, in powers of ten, and the axis; a 0 stands left of all
    others.

    Args:
        title: of the axis.
        values: (n,) at least 0.
        text: of a tick.
        apart: least distance of ticks, of that from the lowest to the highest value.
        room: on both sides, of the same.
    """
    some = values[values > 0]
    if some.empty:
        return values * 0.0, Axis(title, ticks={0.0: "none"}, small=True)
    low, high = np.log10(float(some.min())), np.log10(float(some.max()))
    none = low - max(0.4 * (high - low), 0.1)
    ticks = {float(np.log10(value)): text(value) for value in _round(some, apart)}
    if (values == 0).any():
        ticks[none] = "none"
    places = values.where(values > 0, 10.0**none).map(np.log10)
    aside = room * float(places.max() - places.min()) or 0.05
    ends: Any = {"low": float(places.min()) - aside, "high": float(places.max()) + aside}
    return places, Axis(title, ticks=dict(sorted(ticks.items())), small=True, **ends)


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
