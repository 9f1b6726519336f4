"""A parameter that was fitted, with its interval, as a table and back; and what the laws that fit
them share: what each rests on, residuals, notes, curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simshuffle.extensions.calibration.calibrate.fit import Floats, pooled_half_widths
from simshuffle.extensions.calibration.calibrate.tables import DIMENSIONS, PARAMETERS, RESIDUALS
from simshuffle.job.scenario.calibrated import QUANTITIES
from simshuffle.spec.units import Dimension, readable

DIGITS = 5
"""Significant digits of what is written; no measurement is as exact as that."""

Points = tuple[tuple[float, float], ...]
"""A curve: places and values, ascending."""
Value = float | Points
_SAME = {"key": str, "residual": float, "rows": int, "source": str, "note": str, "model": str}
"""Columns of the table that are attributes, and their types."""
_ENDS = ((0, "low"), (1, "high"))
Over = dict[str, tuple[float, float]]
"""Lowest and highest of each quantity that something was measured over."""


@dataclass(frozen=True)
class Parameter:
    """A parameter that was fitted."""

    key: str  # dotted key of a scenario; or, where ``usable`` is False, a name for people
    value: Value  # SI value, or the points of a curve
    # ends of the interval of 95 %, like ``value``; None where the points are too few for one
    low: Value | None
    high: Value | None
    dimension: Dimension | None  # of the values; None for a pure number
    over: Over  # what it was measured over, from the lowest to the highest: keys of `QUANTITIES`
    # mean of \\|fitted / measured - 1\\| over the rows; nan if nothing is left over
    residual: float
    rows: int  # how many rows it comes from
    source: str  # files and tool
    note: str = ""  # what a reader must know
    model: str = ""  # the only model that it holds for; '' for all
    usable: bool = True  # whether a scenario has that key; what has none is for people

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


def parameters_table(parameters: Iterable[Parameter]) -> pd.DataFrame:
    """The table `PARAMETERS`: a row for each point of a curve, and one for a single value."""
    rows = []
    for number, p in enumerate(parameters, 1):
        row: dict[str, Any] = {name: getattr(p, name) for name in _SAME}
        row |= {f"{name}_{end}": ends[k] for name, ends in p.over.items() for k, end in _ENDS}
        unit = p.dimension.unit if p.dimension else ""
        row |= {"number": number, "unit": unit, "in_scenario": p.usable, "place": math.nan}
        values = {"value": p.value, "low": p.low, "high": p.high}
        for at in range(len(p.value) if isinstance(p.value, tuple) else 1):
            for name, value in values.items():
                if isinstance(value, tuple):
                    row["place"], row[name] = value[at]
                else:
                    row[name] = math.nan if value is None else value
            rows.append(dict(row))
    return PARAMETERS.framed(rows)


def parameters_of(table: pd.DataFrame) -> list[Parameter]:
    """The parameters of a table `PARAMETERS`."""
    return [_parameter(rows) for _, rows in table.groupby("number", sort=True)]


def _parameter(rows: pd.DataFrame) -> Parameter:
    first, places = rows.iloc[0], rows["place"].tolist()

    def value(column: str) -> Any:
        values = rows[column].tolist()
        if math.isnan(values[0]):
            return None
        return values[0] if math.isnan(places[0]) else tuple(zip(places, values, strict=True))

    over = {name: tuple(float(first[f"{name}_{end}"]) for _, end in _ENDS) for name in QUANTITIES}
    return Parameter(
        value=value("value"),
        low=value("low"),
        high=value("high"),
        dimension=DIMENSIONS.get(first["unit"]),
        over={name: (low, high) for name, (low, high) in over.items() if not math.isnan(low)},
        usable=bool(first["in_scenario"]),
        **{name: as_type(first[name]) for name, as_type in _SAME.items()},
    )


# ----------------------------------------------------------------------------------- what laws find

COLUMNS = {
    "world_size": "ranks",
    "hosts": "hosts",
    "clients": "ranks",
    "local_batch_size": "batch",
    "message_size": "nbytes",
    "file_size": "nbytes",
}
"""The column of the measurements that has each quantity."""


@dataclass
class Findings:
    """What the laws have found so far."""

    parameters: list[Parameter] = field(default_factory=list)
    residuals: list[pd.DataFrame] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def take(self, other: Findings) -> None:
        """Take over what another law has found."""
        self.parameters += other.parameters
        self.residuals += other.residuals
        self.notes += other.notes

    def add(
        self,
        rows: pd.DataFrame,
        error: float,
        over: Sequence[str],
        key: str,
        estimate: tuple[Value, Value, Value],
        dimension: Dimension | None,
        note: str = "",
        *,
        model: str = "",
        name: str = "",
        count: int | None = None,
        source: str = "",
    ) -> None:
        """What was fitted to ``rows`` of the measurements, as of `Parameter`.

        Args:
            rows, error, key, dimension, note, model: see there.
            over: quantities that it was measured over.
            estimate: the value and the ends of its interval, which it has not where one is nan.
            name: of what no scenario has a key for.
            count, source: its rows, and files and tool; by default those of ``rows``.
        """
        value, *ends = estimate
        finite = all(np.isfinite(np.ravel(end)).all() for end in ends)
        low, high = ends if finite else (None, None)
        spans = {quantity: span(rows[COLUMNS[quantity]]) for quantity in over}
        basis = spans, error, len(rows) if count is None else count, source or sources(rows)
        found = (name or key, value, low, high, dimension, *basis, note, model, not name)
        self.parameters.append(Parameter(*found))

    def compare(
        self,
        rows: pd.DataFrame,
        law: str,
        unit: str,
        measured: Floats,
        fitted: Floats,
        used: Any = True,
    ) -> None:
        """Add a table `RESIDUALS`; ``rows`` gives the columns that it has in common with the
        measurements."""
        relative = fitted / measured - 1
        out = rows.assign(
            law=law, unit=unit, measured=measured, fitted=fitted, relative=relative, used=used
        )
        self.residuals.append(out[list(RESIDUALS.columns)].reset_index(drop=True))


def sources(rows: pd.DataFrame) -> str:
    """Files and tool of the rows, such as 'a.txt, b.txt (nccl-tests)'."""
    return f"{', '.join(dict.fromkeys(rows['source']))} ({', '.join(dict.fromkeys(rows['tool']))})"


def groups(table: pd.DataFrame, *columns: str) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """The rows of each combination of values in ``columns``, ascending, with those values."""
    for key, rows in table.groupby(list(columns), sort=True):
        yield tuple(key) if isinstance(key, tuple) else (key,), rows


def span(values: Any) -> tuple[float, float]:
    """Lowest and highest of some values."""
    return float(np.min(values)), float(np.max(values))


def sentences(*notes: str) -> str:
    """Those notes that say something, as one."""
    return "; ".join(filter(None, notes))


def mean_error(measured: Floats, fitted: Floats | float) -> float:
    """Mean of \\|fitted / measured - 1\\|."""
    return float(np.abs(fitted / measured - 1).mean())


class LogCurve(NamedTuple):
    """Points of a curve with the ends of their intervals (nan where the rows are too few), and the
    mean relative error of the rows about them."""

    points: Points
    low: Points
    high: Points
    error: float


def log_curve(x: Floats, y: Floats) -> LogCurve:
    """A point for each distinct ``x``: the geometric mean of its ``y``; (n,) positive.

    The spread of the logarithms within a place, pooled over all places, gives the intervals (t
    distribution, rows - places degrees of freedom).
    """
    logs = np.log(y)
    places, index, counts = np.unique(x, return_inverse=True, return_counts=True)
    means = np.bincount(index, logs) / counts
    left = logs - means[index]
    half = pooled_half_widths(left, counts)

    def points(values: Floats) -> Points:
        return tuple(zip(places.tolist(), np.exp(values).tolist(), strict=True))

    error = float(np.abs(np.expm1(-left)).mean())
    return LogCurve(points(means), points(means - half), points(means + half), error)
