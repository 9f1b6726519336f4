"""The figure of the validation, from its table alone: predicted over measured, one column of a
paper wide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simshuffle.results.style import STYLE, legend_above, new_figure

FITTED, PREDICTED = "#888888", "#4477AA"
BAND = 0.1


def figure(results: pd.DataFrame) -> Figure:
    """A row for each set: the ratio of predicted to measured of each of its rows, and the interval
    where there is one."""
    compared = results[results["error"].notna()]
    sets = list(dict.fromkeys(compared["set"]))
    with matplotlib.rc_context(STYLE):
        out = new_figure(0.6 + 0.42 * max(len(sets), 1))
        ratios(compared, sets, out.subplots())
        marks = [
            Line2D(
                [],
                [],
                linestyle="none",
                marker=marker,
                markersize=3.5,
                markerfacecolor=face,
                markeredgecolor=colour,
                label=label,
            )
            for marker, face, colour, label in (
                ("o", PREDICTED, PREDICTED, "predicted"),
                ("o", "none", FITTED, "fitted"),
            )
        ]
        legend_above(out, marks)
        return out


def ratios(compared: pd.DataFrame, sets: list[str], ax: Axes) -> Axes:
    """Predicted over measured on a logarithmic axis; the band is ±10 %."""
    ax.axvspan(1 / (1 + BAND), 1 + BAND, color="#DDDDDD", linewidth=0, zorder=0)
    ax.axvline(1.0, color="black", linewidth=0.6, zorder=1)
    for level, name in enumerate(reversed(sets)):
        part = compared[compared["set"] == name].sort_values("measured")
        heights = (
            level + np.linspace(-0.3, 0.3, len(part)) if len(part) > 1 else np.array([float(level)])
        )
        for height, row in zip(heights, part.to_dict("records"), strict=True):
            _ratio(row, float(height), ax)
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    wanted = [0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 5, 10]
    shown = [tick for tick in wanted if low <= tick <= high]
    if len(shown) > 7:
        shown = [tick for tick in shown if tick not in {0.67, 0.8, 1.25, 1.5}]
    ax.set_xticks(shown, [f"{tick:g}" for tick in shown])
    ax.minorticks_off()
    ax.set_yticks(range(len(sets)), [name.replace("_", " ") for name in reversed(sets)])
    ax.set_ylim(-0.6, len(sets) - 0.4)
    ax.set_xlabel("predicted / measured (band: ±10 %)")
    return ax


def _ratio(row: Mapping[Any, Any], height: float, ax: Axes) -> None:
    colour = FITTED if row["use"] == "fit" else PREDICTED
    face = "none" if row["use"] == "fit" else colour
    low, value, high = (
        row[name] / row["measured"] for name in ("predicted_low", "predicted", "predicted_high")
    )
    if high > low:
        ax.plot([low, high], [height, height], color=colour, linewidth=0.6)
    ax.plot(
        value,
        height,
        "o",
        markersize=2.6,
        markerfacecolor=face,
        markeredgecolor=colour,
        markeredgewidth=0.6,
    )
