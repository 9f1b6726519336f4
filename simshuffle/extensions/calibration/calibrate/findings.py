"""Parameters that were fitted, as records and as a table, and helpers that all laws
share.

The helpers find what a parameter rests on, its residuals, its notes, and the points of
a curve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simshuffle.extensions.calibration.calibrate.fit import Floats, pooled_half_widths
from simshuffle.extensions.calibration.calibrate.tables import (
    DIMENSIONS,
    PARAMETERS,
    RESIDUALS,
)
from simshuffle.job.scenario.calibrated import QUANTITIES
from simshuffle.spec.units import Dimension, readable

DIGITS = 5
"""Significant digits of what is written; no measurement is as exact as that."""

Points = tuple[tuple[float, float], ...]
"""The points of a curve, as (x, y) with ascending x."""
Value = float | Points
_TYPE_OF_COLUMN = {
    "key": str,
    "residual": float,
    "rows": int,
    "source": str,
    "note": str,
    "model": str,
}
"""Columns of the table that are attributes, and their types."""
_SPAN_ENDS = ((0, "low"), (1, "high"))
Spans = dict[str, tuple[float, float]]
"""Lowest and highest of each quantity that something was measured over."""


@dataclass(frozen=True)
class Parameter:
    """A parameter that was fitted, with its interval and what it rests on."""

    key: str  # dotted key of a scenario; a name for people where ``usable`` is False
    value: Value  # SI value, or the points of a curve
    # ends of the interval of 95 %, like ``value``; None where the points are too few for one
    low: Value | None
    high: Value | None
    dimension: Dimension | None  # of the values; None for a pure number
    over: Spans  # what it was measured over, from the lowest to the highest: keys of `QUANTITIES`
    # mean of \\|fitted / measured - 1\\| over the rows; nan if nothing is left over
    residual: float
    rows: int  # how many rows it comes from
    source: str  # files and tool
    note: str = ""  # what a reader must know
    model: str = ""  # the only model that it holds for; '' for all
    usable: bool = True  # whether a scenario has that key; what has none is for people

    def value_in_scenario(self, value: Value | None) -> Any:
        """Return ``value`` as a scenario file holds it; None stays None.

        It is text with a unit, a number, or for a curve a mapping of 'points' (y by x)
        and 'interpolation'. The x are bytes with a unit if the parameter was measured
        over message_size, else numbers.
        """
        if value is None:
            return None
        if isinstance(value, tuple):
            x_dimension = Dimension.NBYTES if "message_size" in self.over else None
            points = {
                number_in_scenario(x, x_dimension): number_in_scenario(
                    y, self.dimension
                )
                for x, y in value
            }
            return {"points": points, "interpolation": "log"}
        return number_in_scenario(value, self.dimension)


def number_in_scenario(value: float, dimension: Dimension | None) -> Any:
    """Return a number with its unit as text, or a pure number, rounded to `DIGITS`
    digits; a pure whole number stays as it is.
    """
    if dimension is not None:
        return readable(value, dimension, DIGITS)
    return int(value) if float(value).is_integer() else float(f"{value:.{DIGITS}g}")


def parameters_table(parameters: Iterable[Parameter]) -> pd.DataFrame:
    """Return the table `PARAMETERS`: a row for each point of a curve, and one for a
    single value.

    Parameters are numbered from 1 in their order. ``place`` is nan for a single value,
    ``low`` and ``high`` are nan where there is no interval.
    """
    rows = []
    for parameter_number, parameter in enumerate(parameters, 1):
        row: dict[str, Any] = {
            name: getattr(parameter, name) for name in _TYPE_OF_COLUMN
        }
        row |= {
            f"{name}_{end}": ends[end_index]
            for name, ends in parameter.over.items()
            for end_index, end in _SPAN_ENDS
        }
        unit = parameter.dimension.unit if parameter.dimension else ""
        row |= {
            "number": parameter_number,
            "unit": unit,
            "in_scenario": parameter.usable,
            "place": math.nan,
        }
        values = {
            "value": parameter.value,
            "low": parameter.low,
            "high": parameter.high,
        }
        for point_index in range(
            len(parameter.value) if isinstance(parameter.value, tuple) else 1
        ):
            for name, value in values.items():
                if isinstance(value, tuple):
                    row["place"], row[name] = value[point_index]
                else:
                    row[name] = math.nan if value is None else value
            rows.append(dict(row))
    return PARAMETERS.framed(rows)


def read_parameters(table: pd.DataFrame) -> list[Parameter]:
    """Return the parameters of a table `PARAMETERS`, in the order of their numbers."""
    return [parameter_from_rows(rows) for _, rows in table.groupby("number", sort=True)]


def parameter_from_rows(rows: pd.DataFrame) -> Parameter:
    """Return the parameter of rows that share a number: one row, or one for each point
    of a curve.
    """
    first = rows.iloc[0]
    places = rows["place"].tolist()

    def value(column: str) -> Any:
        """Return a number, the points of a curve, or None if the column is empty."""
        values = rows[column].tolist()
        if math.isnan(values[0]):
            return None
        return (
            values[0]
            if math.isnan(places[0])
            else tuple(zip(places, values, strict=True))
        )

    over = {
        name: tuple(float(first[f"{name}_{end}"]) for _, end in _SPAN_ENDS)
        for name in QUANTITIES
    }
    return Parameter(
        value=value("value"),
        low=value("low"),
        high=value("high"),
        dimension=DIMENSIONS.get(first["unit"]),
        over={
            name: (low, high)
            for name, (low, high) in over.items()
            if not math.isnan(low)
        },
        usable=bool(first["in_scenario"]),
        **{name: as_type(first[name]) for name, as_type in _TYPE_OF_COLUMN.items()},
    )


# ----------------------------------------------------------------------------------- what laws find

COLUMN_OF_QUANTITY = {
    "world_size": "ranks",
    "hosts": "hosts",
    "clients": "ranks",
    "local_batch_size": "batch",
    "message_size": "nbytes",
    "file_size": "nbytes",
}
"""The column of the measurements that has each quantity."""


@dataclass(frozen=True)
class FitBasis:
    """The measurements that a parameter was fitted to, and how well it fits them."""

    rows: pd.DataFrame  # measurements
    error: float  # mean of \\|fitted / measured - 1\\| over the rows; nan if nothing is left over
    # keys of `COLUMN_OF_QUANTITY` that the rows were measured over
    quantities: Sequence[str]


@dataclass
class Findings:
    """Parameters, residuals and notes that laws have found so far."""

    parameters: list[Parameter] = field(default_factory=list)
    residuals: list[pd.DataFrame] = field(default_factory=list)  # tables `RESIDUALS`
    # sentences on what was left out or assumed
    notes: list[str] = field(default_factory=list)

    def merge(self, law_findings: Findings) -> None:
        """Append the parameters, residuals and notes that a law has found."""
        self.parameters += law_findings.parameters
        self.residuals += law_findings.residuals
        self.notes += law_findings.notes

    def add_parameter(
        self,
        basis: FitBasis,
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
        """Append a parameter that was fitted to measurements.

        Args:
            basis: the measurements that it rests on.
            key: dotted key of a scenario; not used where ``name`` is given.
            estimate: the value and the ends of its interval. The parameter has no
                interval if any end, or an end of any point, is nan or infinite.
            dimension: of the value; None for a pure number.
            note: what a reader must know.
            model: the only model that it holds for; '' for all.
            name: name for people of a parameter that no scenario shall take; it is in
                place of the key, and the parameter is not usable.
            count: rows that it comes from; by default those of ``basis``.
            source: files and tool; by default those of the rows of ``basis``.
        """
        value, low, high = estimate
        is_bounded = all(np.isfinite(np.ravel(end)).all() for end in (low, high))
        self.parameters.append(
            Parameter(
                key=name or key,
                value=value,
                low=low if is_bounded else None,
                high=high if is_bounded else None,
                dimension=dimension,
                over={
                    quantity: span(basis.rows[COLUMN_OF_QUANTITY[quantity]])
                    for quantity in basis.quantities
                },
                residual=basis.error,
                rows=len(basis.rows) if count is None else count,
                source=source or describe_sources(basis.rows),
                note=note,
                model=model,
                usable=not name,
            )
        )

    def add_residuals(
        self,
        rows: pd.DataFrame,
        law: str,
        unit: str,
        measured: Floats,
        fitted: Floats,
        *,
        used: Any = True,
    ) -> None:
        """Append a table `RESIDUALS` of measured and fitted values.

        Args:
            rows: (n,) measurements; they give the columns that both tables have.
            law: name of the law.
            unit: SI unit of the values.
            measured: (n,) measured values.
            fitted: (n,) values that the law gives.
            used: whether rows were fitted: (n,), or one value for all.
        """
        relative = fitted / measured - 1
        residuals = rows.assign(
            law=law,
            unit=unit,
            measured=measured,
            fitted=fitted,
            relative=relative,
            used=used,
        )
        self.residuals.append(residuals[list(RESIDUALS.columns)].reset_index(drop=True))


def describe_sources(rows: pd.DataFrame) -> str:
    """Return files and tools of the rows, each once, such as 'a.txt, b.txt
    (nccl-tests)'.
    """
    return f"{', '.join(dict.fromkeys(rows['source']))} ({', '.join(dict.fromkeys(rows['tool']))})"


def group_rows(
    table: pd.DataFrame, *columns: str
) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield each combination of values in ``columns``, ascending, and its rows; rows
    with a missing value are left out.
    """
    for key, rows in table.groupby(list(columns), sort=True):
        yield tuple(key) if isinstance(key, tuple) else (key,), rows


def span(values: Any) -> tuple[float, float]:
    """Return the lowest and the highest of some values; nan in a Series does not count,
    unless all are.
    """
    return float(np.min(values)), float(np.max(values))


def join_notes(*notes: str) -> str:
    """Join the notes that are not empty by semicolons."""
    return "; ".join(filter(None, notes))


def mean_error(measured: Floats, fitted: Floats | float) -> float:
    r"""Return the mean of \\|fitted / measured - 1\\|."""
    return float(np.abs(fitted / measured - 1).mean())


class LogCurve(NamedTuple):
    """A curve through groups of rows: its points, the ends of their intervals, and its
    error.
    """

    points: Points
    # ends of the intervals; nan where the rows are too few
    low: Points
    high: Points
    error: float  # mean relative error of the rows about the points

    @property
    def estimate(self) -> tuple[Points, Points, Points]:
        """The points, and the ends of their intervals."""
        return self.points, self.low, self.high


def log_curve(x: Floats, y: Floats) -> LogCurve:
    """Fit a curve with a point for each distinct ``x``, ascending: the geometric mean
    of its ``y``.

    The spread of the logarithms within a point, pooled over all points, gives the
    intervals (t distribution, rows - points degrees of freedom). They are nan if there
    are fewer than `fit.MIN_DOF` of these.

    Args:
        x: (n,) positive, such as bytes of a message.
        y: (n,) positive measured values.
    """
    log_y = np.log(y)
    x_values, point_of_row, counts = np.unique(
        x, return_inverse=True, return_counts=True
    )
    # (points,) means of log y; (n,) each row's deviation from that of its point
    mean_of_point = np.bincount(point_of_row, log_y) / counts
    deviations = log_y - mean_of_point[point_of_row]
    half_widths = pooled_half_widths(deviations, counts)

    def points(values: Floats) -> Points:
        """Return the points of a curve from the logarithms of its values."""
        return tuple(zip(x_values.tolist(), np.exp(values).tolist(), strict=True))

    error = float(np.abs(np.expm1(-deviations)).mean())
    return LogCurve(
        points(mean_of_point),
        points(mean_of_point - half_widths),
        points(mean_of_point + half_widths),
        error,
    )
