"""The figure of a calibration, from its table of residuals alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pandas as pd

from simshuffle.report.chart import (
    GREY,
    Axis,
    Chart,
    Look,
    Mark,
    Marker,
    Panel,
    hollow_looks,
    key,
    log_axis,
    rule,
)
from simshuffle.report.style import BRIGHT
from simshuffle.spec.units import Dimension, readable

MARKERS: tuple[Marker, ...] = ("o", "s", "^", "D", "v", "P", "X")
UNITS = {
    "s": ("time", Dimension.SECONDS),
    "B/s": ("bandwidth", Dimension.BANDWIDTH),
    "1/s": ("files/s", None),
}
"""What an axis is called, and how its numbers are written, by unit in the order of the
rows.
"""
EQUAL = Look(colour=GREY, width=0.7)


def residuals_chart(residuals: pd.DataFrame) -> Chart:
    """Draw fitted against measured values on the left, and the relative error on the
    right.

    There is a row for each unit of `UNITS`, and a colour for each law. Rows of the
    table `RESIDUALS` that were not fitted are hollow. The table has at least one row of
    such a unit.
    """
    laws = list(dict.fromkeys(residuals["law"]))
    looks = {
        law: Look(law, colour, marker, size=3)
        for law, colour, marker in zip(
            laws, cycle(BRIGHT[:6]), cycle(MARKERS), strict=False
        )
    }
    hollow_marks = hollow_looks(looks, ", not fitted")
    fitted = residuals["law"].where(
        residuals["used"], residuals["law"] + ", not fitted"
    )
    tips = (
        residuals["law"] + ": " + (100 * residuals["relative"]).map("{:+.2f} %".format)
    )
    rows = residuals.assign(look=fitted, percent=100 * residuals["relative"], tip=tips)
    panels = [
        panel
        for unit in UNITS
        if (rows["unit"] == unit).any()
        for panel in panels_of_unit(rows, unit)
    ]
    names = [*laws, *["not fitted"] * (not residuals["used"].all())]
    keys = [key(name, "point") for name in names]
    panels[0] = replace(panels[0], marks=[*panels[0].marks, *keys])
    looks |= {"not fitted": Look("not fitted", GREY, "o", fill="none"), **hollow_marks}
    description = "Fitted against measured values, and the relative error."
    return Chart(panels, 1.7 * len(panels) / 2, looks, description, across=2)


def panels_of_unit(residuals: pd.DataFrame, unit: str) -> list[Panel]:
    """Return both panels of a unit: fitted against measured values, and relative errors
    (%).

    ``residuals`` are those of `residuals_chart`, with the columns look, percent and tip
    that it adds.
    """
    rows = residuals[residuals["unit"] == unit]
    name, dimension = UNITS[unit]
    values = rows[["measured", "fitted"]].to_numpy(float)
    low = float(values.min()) / 1.3
    high = float(values.max()) * 1.3
    diagonal = pd.DataFrame({"x": [low, high], "y": [low, high]})

    def text(value: float) -> str:
        """Return a value as the axis writes it."""
        return f"{value:g}" if dimension is None else readable(value, dimension, 3)

    axis = replace(log_axis("", low, high, max_ticks=4, text=text), small=True)
    max_percent = max(float(rows["percent"].abs().max()) * 1.15, 0.1)
    value_marks = [
        Mark("line", diagonal, look=EQUAL),
        Mark("point", rows, x="measured", y="fitted"),
    ]
    error_marks = [rule(EQUAL, y=0.0), Mark("point", rows, x="measured", y="percent")]
    measured_axis = replace(axis, title=f"measured {name}", turned=40)
    error_axis = Axis(
        "relative error (%)", low=-max_percent, high=max_percent, small=True
    )
    return [
        Panel(value_marks, measured_axis, replace(axis, title=f"fitted {name}")),
        Panel(error_marks, measured_axis, error_axis),
    ]
