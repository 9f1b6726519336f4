"""Measured curves: a quantity that depends on another one, given as points or as a
constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from simshuffle.spec.record import quantity_schema, text_type
from simshuffle.spec.units import (
    Dimension,
    UnitError,
    format_quantity,
    parse_quantity,
    pattern,
)

INTERPOLATIONS = ("log", "linear")


@dataclass(frozen=True)
class Curve:
    """A function of one variable through measured points; outside them the value of the
    nearest point.
    """

    # (n,) places of the points (SI unit, or a plain number), ascending; (0.0,) for a constant
    x: tuple[float, ...]
    y: tuple[float, ...]  # (n,) values there (SI unit), greater than 0
    # between neighbouring points: 'log', straight in log y over log x, as for sizes and counts that
    # were measured in powers of two; or 'linear'
    interpolation: str = "log"
    # the same value everywhere; there is one point, and its x has no meaning
    constant: bool = False

    def __call__(self, x: float) -> float:
        """Return the value at ``x`` (SI unit); outside the points, also at 0 or below,
        that of the nearest point.
        """
        if self.constant:
            return self.y[0]
        if self.interpolation == "linear" or x in self.x or not self.covers(x):
            return float(np.interp(x, self.x, self.y))
        return math.exp(float(np.interp(math.log(x), np.log(self.x), np.log(self.y))))

    def covers(self, x: float) -> bool:
        """Return True if ``x`` lies within the measured points; always True for a
        constant.
        """
        return self.constant or self.x[0] <= x <= self.x[-1]


def _parse_number(value: object, dimension: Dimension | None) -> float:
    """Parse a quantity with a unit of ``dimension``, or a finite plain number (or its
    text) if that is None; raises a ValueError.
    """
    if dimension is not None:
        try:
            return parse_quantity(value, dimension)
        except UnitError as error:
            raise ValueError(f"'{value}' {error}") from None
    # the keys of a mapping become texts where it is written as JSON
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with suppress(ValueError):
            if math.isfinite(number := float(value)):
                return number
    raise ValueError(f"'{value}' is not a number")


def _parse_points(
    points: object, argument_dimension: Dimension | None, value_dimension: Dimension
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Parse the points of a curve: (n,) places, ascending, and (n,) values there;
    raises a ValueError.
    """
    if not isinstance(points, Mapping) or not points:
        raise ValueError("points must be a mapping of at least one place to its value")
    pairs = sorted(
        (_parse_number(x, argument_dimension), _parse_number(y, value_dimension))
        for x, y in points.items()
    )
    x, y = zip(*pairs, strict=True)
    if len(set(x)) < len(x) or x[0] <= 0 or min(y) <= 0:
        raise ValueError(
            "points must have distinct places, and places and values greater than 0"
        )
    return x, y


def _curve_annotations(
    argument_dimension: Dimension | None, value_dimension: Dimension
) -> Any:
    """Make the annotations of a field that holds a curve.

    Args:
        argument_dimension: of the places of its points; None for a plain number.
        value_dimension: of its values.
    """

    def read(value: object) -> object:
        """Return the curve of a mapping or constant; raises a ValueError."""
        if isinstance(value, Curve):
            return value
        if not isinstance(value, Mapping):
            constant = _parse_number(value, value_dimension)
            if constant <= 0:
                raise ValueError("must be greater than 0")
            return Curve((0.0,), (constant,), constant=True)
        unknown_keys = sorted(set(map(str, value)) - {"points", "interpolation"})
        if unknown_keys or "points" not in value:
            written_keys = ", ".join(map(str, value)) or "none"
            raise ValueError(
                f"a curve has the keys points and interpolation; got {written_keys}"
            )
        interpolation = value.get("interpolation", INTERPOLATIONS[0])
        if interpolation not in INTERPOLATIONS:
            known_names = ", ".join(INTERPOLATIONS)
            raise ValueError(
                f"interpolation must be one of {known_names}; got {interpolation!r}"
            )
        return Curve(
            *_parse_points(value["points"], argument_dimension, value_dimension),
            interpolation=interpolation,
        )

    def write(curve: Curve) -> object:
        """Return plain values that `read` turns into an equal curve."""
        if curve.constant:
            return format_quantity(curve.y[0], value_dimension)

        def place(x: float) -> object:
            """Return a point's place as a file has it: with its unit, or a number."""
            return (
                format_quantity(x, argument_dimension)
                if argument_dimension is not None
                else int(x)
                if x.is_integer()
                else x
            )

        points = {
            place(x): format_quantity(y, value_dimension)
            for x, y in zip(curve.x, curve.y, strict=True)
        }
        return {"points": points, "interpolation": curve.interpolation}

    reads = BeforeValidator(
        read,
        json_schema_input_type=_curve_text_type(argument_dimension, value_dimension),
    )
    return reads, PlainSerializer(write)


def _curve_text_type(
    argument_dimension: Dimension | None, value_dimension: Dimension
) -> Any:
    """Make the type, with a JSON Schema, of the text of such a curve in a file."""
    place = (
        {}
        if argument_dimension is None
        else {"pattern": pattern(argument_dimension, positive=True)}
    )
    points = {
        "type": "object",
        "description": "The value at each place that was measured.",
        "minProperties": 1,
        "propertyNames": place,
        "additionalProperties": quantity_schema(value_dimension, positive=True),
    }
    interpolation = {
        "enum": list(INTERPOLATIONS),
        "default": INTERPOLATIONS[0],
        "description": "What joins neighbouring points: a straight line in log y over log x, or in"
        " y over x.",
    }
    argument = "a number" if argument_dimension is None else argument_dimension.unit
    curve = {
        "type": "object",
        "title": f"curve over {argument}",
        "properties": {"points": points, "interpolation": interpolation},
        "required": ["points"],
        "additionalProperties": False,
    }
    return (
        text_type(value_dimension, positive=True)
        | Annotated[dict[str, Any], WithJsonSchema(curve)]
    )


BandwidthBySize = Annotated[
    Curve, *_curve_annotations(Dimension.NBYTES, Dimension.BANDWIDTH)
]
"""Bytes/s over bytes: '6.3 GB/s', or ``{points: {100 MB: 9 GB/s, 700 MB: 6.2 GB/s}}``."""
BandwidthByCount = Annotated[Curve, *_curve_annotations(None, Dimension.BANDWIDTH)]
"""Bytes/s over a number, such as that of clients: '1 GB/s', or ``{points: {1: 512 MB/s,
8: 1 GB/s}}``.
"""
FrequencyByCount = Annotated[Curve, *_curve_annotations(None, Dimension.FREQUENCY)]
"""Operations/s over a number, such as the queue depth: '500 k/s', or ``{points: {1: 12
k/s, 32: 300 k/s}}``.
"""
