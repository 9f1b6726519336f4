"""The figure of a measurement, from its table alone. Sized for one column of a two-column paper."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simshuffle.results.style import STYLE, legend_above, new_figure

FITTED, PREDICTED, FLOWS = "#BBBBBB", "#4477AA", "#EE6677"


def testbed_figure(patterns: pd.DataFrame) -> Figure:
    """Makespan by pattern, and beside it the error of the prediction; see `makespans` and `errors`
    for the table."""
    known = patterns[patterns["reason"] == ""].reset_index(drop=True)
    with matplotlib.rc_context(STYLE):
        figure = new_figure(0.6 + 0.17 * len(known))
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.5, 1.0))
        makespans(known, left)
        errors(known, right)
        legend_above(figure)
    return figure


def makespans(known: pd.DataFrame, ax: Axes) -> Axes:
    """Predicted makespans as bars and measured ones as points, with a line from the shortest to the
    longest repetition.

    Args:
        known: pattern, use, measured_s, low_s, high_s, predicted_s.
        ax: where to draw.

    Returns:
        ``ax``.
    """
    y = np.arange(len(known))
    for use, colour, label in (("fit", FITTED, "fitted"), ("predict", PREDICTED, "predicted")):
        here = (known["use"] == use).to_numpy()
        ax.barh(y[here], known["predicted_s"][here], 0.62, color=colour, linewidth=0, label=label)
    measured = known["measured_s"].to_numpy()
    spread = np.stack([measured - known["low_s"], known["high_s"] - measured])
    label = "measured (range)"
    look: dict[str, Any] = {"markersize": 2.5, "elinewidth": 0.8, "capsize": 2}
    ax.errorbar(measured, y, xerr=spread, fmt="o", color="black", label=label, **look)
    ax.set_yticks(y, [str(name).replace("_", " ") for name in known["pattern"]])
    ax.invert_yaxis()
    ax.set_xlabel("makespan (s)")
    ax.set_xlim(left=0)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def errors(known: pd.DataFrame, ax: Axes) -> Axes:
    """Error of the predicted makespan as points, and of the single flows as lines from their 10th
    to their 90th percentile, in %.

    Args:
        known: error, flow_error_p10, flow_error_p90.
        ax: where to draw.

    Returns:
        ``ax``.
    """
    y = np.arange(len(known))
    ax.axvspan(-7, 7, color="#EEEEEE", linewidth=0, label="at most 7 %")
    ax.axvline(0, color="#888888", linewidth=0.6)
    low, high = (100 * known[f"flow_error_p{part}"] for part in (10, 90))
    label = "flows, 10th to 90th percentile"
    ax.hlines(y, low, high, color=FLOWS, linewidth=2.2, label=label)
    ax.plot(100 * known["error"], y, "o", color="black", markersize=2.5, label="makespan")
    ax.set_xlabel("error (%)")
    ax.spines[["top", "right"]].set_visible(False)
    return ax
