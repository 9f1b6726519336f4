"""What a fit gives: parameters with intervals, and the residuals of each row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.calibrate.fit import Floats, pooled_half_widths

DIGITS = 5
"""Significant digits of what is written; no measurement is as exact as that."""

Points = tuple[tuple[float, float], ...]
"""A curve: places and values, ascending."""
Value = float | Points
Ends = tuple[float | None, float | None]
"""Of an interval; None for both where there is none."""

RESIDUAL_COLUMNS = {
    "source": "name of the file",
    "line": "line of the file; 0 for a value drawn from several",
    "tool": "as in the measurements",
    "operation": "as in the measurements",
    "law": "what was fitted",
    "ranks": "as in the measurements",
    "hosts": "as in the measurements, or as the law took them",
    "nbytes": "as in the measurements; gradients of a model",
    "model": "as in the measurements",
    "unit": "of measured and fitted: s, B/s or 1/s",
    "measured": "what was measured",
    "fitted": "what the law gives",
    "relative": "fitted / measured - 1",
    "used": "whether the row was fitted; others are predicted (--fit-up-to) or were left out",
}
"""Columns of the table of residuals, with their meaning."""


@dataclass(frozen=True)
class Parameter:
    """A parameter that was fitted.

    Attributes:
        key: dotted key of a scenario; or, where ``usable`` is False, a name for people.
        value: SI value, or the points of a curve.
        low, high: ends of the interval of 95 %, like ``value``; None where the points are too few
            for one.
        dimension: of the values; None for a pure number.
        over: what it was measured over, from the lowest to the highest: world_size, hosts,
            message_size, clients, file_size, ...
        residual: mean of \\|fitted / measured - 1\\| over the rows; nan if nothing is left over.
        rows: how many rows it comes from.
        source: files and tool.
        note: what a reader must know.
        model: the only model that it holds for; '' for all.
        usable: whether a scenario has that key; what has none is for people.
    """

    key: str
    value: Value
    low: Value | None
    high: Value | None
    dimension: Dimension | None
    over: dict[str, tuple[float, float]]
    residual: float
    rows: int
    source: str
    note: str = ""
    model: str = ""
    usable: bool = True

    def plain(self, value: Value | None) -> Any:
        """``value`` as a scenario file holds it: text with a unit, a number, or the points of a
        curve; None stays None."""
        if value is None:
            return None
        if isinstance(value, tuple):
            place = Dimension.NBYTES if "message_size" in self.over else None
            points = {_text(x, place): _text(y, self.dimension) for x, y in value}
            return {"points": points, "interpolation": "log"}
        return _text(value, self.dimension)


def _text(value: float, dimension: Dimension | None) -> Any:
    if dimension is not None:
        return readable(value, dimension, DIGITS)
    return int(value) if float(value).is_integer() else float(f"{value:.{DIGITS}g}")


@dataclass
class Findings:
    """What the laws have found so far."""

    parameters: list[Parameter] = field(default_factory=list)
    residuals: list[pd.DataFrame] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Take over what another law has found."""
        self.parameters += other.parameters
        self.residuals += other.residuals
        self.notes += other.notes


def interval(low: float, high: float) -> Ends:
    """Both ends, or None for both where one is no number."""
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)


def residuals(
    rows: pd.DataFrame, law: str, unit: str, measured: Floats, fitted: Floats, used: Any
) -> pd.DataFrame:
    """A table with the columns `RESIDUAL_COLUMNS`; ``rows`` gives the columns that it has in common
    with the measurements."""
    out = rows.assign(
        law=law,
        unit=unit,
        measured=measured,
        fitted=fitted,
        relative=fitted / measured - 1,
        used=used,
    )
    return out[list(RESIDUAL_COLUMNS)].reset_index(drop=True)


def mean_error(measured: Floats, fitted: Floats) -> float:
    """Mean of \\|fitted / measured - 1\\|."""
    return float(np.abs(fitted / measured - 1).mean())


def sources(rows: pd.DataFrame) -> str:
    """Files and tool of the rows, such as 'a.txt, b.txt (nccl-tests)'."""
    return f"{', '.join(dict.fromkeys(rows['source']))} ({', '.join(dict.fromkeys(rows['tool']))})"


def span(values: Any) -> tuple[float, float]:
    """Lowest and highest of some values."""
    return float(np.min(values)), float(np.max(values))


def unusable(parameter: Parameter, note: str) -> Parameter:
    """The same for people only, with the reason."""
    return replace(parameter, usable=False, note=note)


@dataclass(frozen=True)
class LogCurve:
    """Points of a curve with their intervals (None where the rows are too few), and the mean
    relative error of the rows about them."""

    points: Points
    low: Points | None
    high: Points | None
    error: float


def log_curve(x: Floats, y: Floats) -> LogCurve:
    """A point for each distinct ``x``: the geometric mean of its ``y``.

    The spread of the logarithms within a place, pooled over all places, gives the intervals (t
    distribution, rows - places degrees of freedom).

    Args:
        x, y: (n,) positive.
    """
    logs = np.log(y)
    places, index, counts = np.unique(x, return_inverse=True, return_counts=True)
    means = np.bincount(index, logs) / counts
    left = logs - means[index]
    half = pooled_half_widths(left, counts)

    def points(values: Floats) -> Points:
        return tuple(zip(places.tolist(), np.exp(values).tolist(), strict=True))

    known = bool(np.isfinite(half).all())
    low, high = (points(means + sign * half) if known else None for sign in (-1, 1))
    return LogCurve(points(means), low, high, float(np.abs(np.expm1(-left)).mean()))
