"""The figure of a measurement, from its table alone."""

from __future__ import annotations

import pandas as pd

from simshuffle.results.chart import Axis, Chart, Look, Mark, Panel, in_rows, rule

LOOKS = {
    "fit": Look("fitted", "#BBBBBB"),
    "predict": Look("predicted", "#4477AA"),
    "measured": Look("measured (range)", "#000000", "o", size=2.5),
    "band": Look("at most 7 %", "#EEEEEE"),
    "flows": Look("flows, 10th to 90th percentile", "#EE6677", width=2.2),
    "error": Look("makespan", "#000000", "o", size=2.5),
}


def testbed_chart(patterns: pd.DataFrame) -> Chart:
    """Predicted makespans as bars and measured ones as points with their range; beside them the
    error of the prediction, and of the single flows from their 10th to their 90th percentile, in
    %."""
    known = patterns[patterns["reason"] == ""].reset_index(drop=True)
    rows = known.assign(y=known.index, measured="measured", flows="flows", look="error")
    rows = rows.assign(percent=100 * rows["error"])
    rows = rows.assign(p10=100 * rows["flow_error_p10"], p90=100 * rows["flow_error_p90"])
    times = [
        Mark("bar", rows, x="", x2="predicted_s", look="use", thick=0.62),
        Mark("interval", rows, x="low_s", x2="high_s", look="measured"),
        Mark("point", rows, x="measured_s", look="measured"),
    ]
    errors = [
        rule("band", x=-7.0, x2=7.0),
        rule(Look(width=0.6), x=0.0),
        Mark("rule", rows, x="p10", x2="p90", look="flows"),
        Mark("point", rows, x="percent"),
    ]
    y = in_rows([str(name).replace("_", " ") for name in rows["pattern"]])
    return Chart(
        [Panel(times, Axis("makespan (s)", low=0.0), y), Panel(errors, Axis("error (%)"), y)],
        0.6 + 0.17 * len(known),
        LOOKS,
        "Makespan by pattern, predicted and measured, and the error of the prediction.",
        across=2,
        widths=(1.5, 1.0),
        share="y",
    )
