"""The figure of the validation, from its table alone: predicted over measured."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simshuffle.report.chart import Axis, Chart, Look, Mark, Panel, in_rows, key, rule, ticks

LOOKS = {
    "predict": Look("predicted", "#4477AA", "o", width=0.6),
    "fit": Look("fitted", "#888888", "o", width=0.6, fill="none"),
}
BAND = 0.1
TICKS = [0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 5, 10]


def ratios_chart(results: pd.DataFrame) -> Chart:
    """A row for each set: the ratio of predicted to measured of each of its rows, and the interval
    where there is one; the band is ±10 %."""
    rows = results[results["error"].notna()].sort_values("measured", kind="stable")
    sets = list(dict.fromkeys(results.loc[results["error"].notna(), "set"]))
    number, count = rows.groupby("set").cumcount(), rows.groupby("set")["set"].transform("size")
    aside = np.where(count > 1, 0.3 - 0.6 * number / (count - 1).clip(lower=1), 0.0)
    ratios = {
        name: rows[of] / rows["measured"]
        for name, of in (("x", "predicted"), ("low", "predicted_low"), ("high", "predicted_high"))
    }
    rows = rows.assign(y=rows["set"].map(sets.index) + aside, look=rows["use"], **ratios)
    ends = rows[["x", "low", "high"]].to_numpy(float)
    low, high = 0.93 * np.nanmin([*ends.flat, 0.9]), 1.08 * np.nanmax([*ends.flat, 1.1])
    shown = [tick for tick in TICKS if low <= tick <= high]
    if len(shown) > 7:
        shown = [tick for tick in shown if tick not in {0.67, 0.8, 1.25, 1.5}]
    marks = [
        rule(Look(colour="#DDDDDD"), x=1 / (1 + BAND), x2=1 + BAND),
        rule(Look(colour="#000000", width=0.6), x=1.0),
        Mark("rule", rows[rows["high"] > rows["low"]], x="low", x2="high"),
        Mark("point", rows),
        *(key(name, "point") for name in LOOKS),
    ]
    x = Axis("predicted / measured (band: ±10 %)", True, low, high, ticks(shown))
    panel = Panel(marks, x, in_rows([name.replace("_", " ") for name in sets]))
    about = "Predicted over measured, a point for each row of a set."
    return Chart([panel], 0.6 + 0.42 * max(len(sets), 1), LOOKS, about)
