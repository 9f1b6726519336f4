"""A parameter that was fitted, with its interval; as a table and back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from simshuffle.scenario.calibrated import QUANTITIES
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.calibrate.tables import DIMENSIONS, PARAMETERS

DIGITS = 5
"""Significant digits of what is written; no measurement is as exact as that."""

Points = tuple[tuple[float, float], ...]
"""A curve: places and values, ascending."""
Value = float | Points
Over = dict[str, tuple[float, float]]
"""Lowest and highest of each quantity that something was measured over."""


@dataclass(frozen=True)
class Parameter:
    """A parameter that was fitted.

    Attributes:
        key: dotted key of a scenario; or, where ``usable`` is False, a name for people.
        value: SI value, or the points of a curve.
        low, high: ends of the interval of 95 %, like ``value``; None where the points are too few
            for one.
        dimension: of the values; None for a pure number.
        over: what it was measured over, from the lowest to the highest: keys of `QUANTITIES`.
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
    over: Over
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


def parameters_table(parameters: Iterable[Parameter]) -> pd.DataFrame:
    """The table `PARAMETERS`."""
    rows = [row for number, p in enumerate(parameters, 1) for row in _rows(number, p)]
    return pd.DataFrame(rows, columns=list(PARAMETERS.columns))


def _rows(number: int, p: Parameter) -> list[dict[str, Any]]:
    places = [x for x, _ in p.value] if isinstance(p.value, tuple) else [math.nan]
    values, lows, highs = (
        [y for _, y in value]
        if isinstance(value, tuple)
        else [math.nan if value is None else value] * len(places)
        for value in (p.value, p.low, p.high)
    )
    over = {f"{name}_low": low for name, (low, _) in p.over.items()}
    over |= {f"{name}_high": high for name, (_, high) in p.over.items()}
    shared = {
        "number": number,
        "key": p.key,
        "unit": p.dimension.unit if p.dimension else "",
        **over,
        **{name: getattr(p, name) for name in ("residual", "rows", "source", "note", "model")},
        "in_scenario": p.usable,
    }
    return [
        {**shared, "place": place, "value": value, "low": low, "high": high}
        for place, value, low, high in zip(places, values, lows, highs, strict=True)
    ]


def parameters_of(table: pd.DataFrame) -> list[Parameter]:
    """The parameters of a table `PARAMETERS`."""
    return [_parameter(rows) for _, rows in table.groupby("number", sort=True)]


def _parameter(rows: pd.DataFrame) -> Parameter:
    first = rows.iloc[0]
    places = rows["place"].tolist()

    def value(column: str) -> Value | None:
        values = rows[column].tolist()
        if math.isnan(values[0]):
            return None
        curve = tuple(zip(places, values, strict=True))
        return values[0] if math.isnan(places[0]) else curve

    over = {
        name: (float(first[f"{name}_low"]), float(first[f"{name}_high"]))
        for name in QUANTITIES
        if pd.notna(first[f"{name}_low"])
    }
    found = value("value")
    assert found is not None  # noqa: S101 - the schema wants it
    return Parameter(
        first["key"],
        found,
        value("low"),
        value("high"),
        DIMENSIONS.get(first["unit"]),
        over,
        float(first["residual"]),
        int(first["rows"]),
        first["source"],
        first["note"],
        first["model"],
        bool(first["in_scenario"]),
    )
