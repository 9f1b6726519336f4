"""The figure of the validation, from its table alone: predicted over measured."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simshuffle.report.chart import (
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    in_rows,
    key,
    rule,
    ticks,
)

LOOKS = {
    "predict": Look("predicted", "#4477AA", "o", width=0.6),
    "fit": Look("fitted", "#888888", "o", width=0.6, fill="none"),
}
BAND = 0.1
"""Relative error up to which the band of the figure reaches."""
TICKS = [0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 5, 10]


def ratios_chart(results: pd.DataFrame) -> Chart:
    """Draw the ratio of predicted to measured of each row, a line for each set, with
    the range from ``predicted_low`` to ``predicted_high``.

    The 90 % intervals are not drawn. The band is ±10 %. Rows without a measured or a
    predicted value are left out.
    """
    rows = results[results["error"].notna()].sort_values("measured", kind="stable")
    sets = list(dict.fromkeys(results.loc[results["error"].notna(), "set"]))
    # (rows,) rows of a set lie side by side within ±0.3 of its line
    index_in_set = rows.groupby("set").cumcount()
    rows_of_set = rows.groupby("set")["set"].transform("size")
    offsets = np.where(
        rows_of_set > 1, 0.3 - 0.6 * index_in_set / (rows_of_set - 1).clip(lower=1), 0.0
    )
    ratios = {
        name: rows[column] / rows["measured"]
        for name, column in (
            ("x", "predicted"),
            ("low", "predicted_low"),
            ("high", "predicted_high"),
        )
    }
    rows = rows.assign(
        y=rows["set"].map(sets.index) + offsets, look=rows["use"], **ratios
    )
    ratio_values = rows[["x", "low", "high"]].to_numpy(float)
    low = 0.93 * np.nanmin([*ratio_values.flat, 0.9])
    high = 1.08 * np.nanmax([*ratio_values.flat, 1.1])
    displayed_ticks = [tick for tick in TICKS if low <= tick <= high]
    if len(displayed_ticks) > 7:
        displayed_ticks = [
            tick for tick in displayed_ticks if tick not in {0.67, 0.8, 1.25, 1.5}
        ]
    marks = [
        rule(Look(colour="#DDDDDD"), x=1 / (1 + BAND), x2=1 + BAND),
        rule(Look(colour="#000000", width=0.6), x=1.0),
        Mark("rule", rows[rows["high"] > rows["low"]], x="low", x2="high"),
        Mark("point", rows),
        *(key(name, "point") for name in LOOKS),
    ]
    x_axis = Axis(
        "predicted / measured (band: ±10 %)", True, low, high, ticks(displayed_ticks)
    )
    panel = Panel(marks, x_axis, in_rows([name.replace("_", " ") for name in sets]))
    description = "Predicted over measured, a point for each row of a set."
    return Chart([panel], 0.6 + 0.42 * max(len(sets), 1), LOOKS, description)
