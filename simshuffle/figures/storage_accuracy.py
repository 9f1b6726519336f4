"""Storage against accuracy against time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from simshuffle.figures.kinds import Given, Kind, nothing
from simshuffle.results.style import STYLE, legend_above, new_figure
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.time_to_accuracy.drawing import places_across, time_unit
from simshuffle.studies.time_to_accuracy.frontier import named
from simshuffle.studies.time_to_accuracy.labels import Spot, label_points
from simshuffle.studies.training.looks import look_of, strategies

SIZE = 4.0
COLUMNS = ["setting", "strategy", "exchange_fraction", "storage_nbytes", "accuracy", "low", "high"]


def table(given: Sequence[Given]) -> pd.DataFrame:
    """Each setting that was simulated, with what its hosts store, its final accuracy with a 95 %
    interval, and its time.

    Raises:
        InputError: none was simulated.
    """
    settings = given[0].result.tables["settings"]
    settings = settings[settings["message"] == ""]
    if settings.empty:
        raise nothing("needs a setting that was simulated", given, "Its settings.csv says why not.")
    return settings[[*COLUMNS, "total_s", "on_front"]].reset_index(drop=True)


def draw(given: Sequence[Given]) -> Figure:
    """Points with Q beside them: what a host stores from left to right, accuracy upwards, the time
    of all epochs in colour."""
    rows = table(given)
    unit, name = time_unit(float(rows["total_s"].max()))
    known = strategies(rows)
    with matplotlib.rc_context(STYLE):
        figure = new_figure(2.6)
        ax = figure.subplots()
        places = places_across(
            ax, rows["storage_nbytes"], lambda value: readable(value, Dimension.NBYTES, 2)
        )
        times = rows["total_s"] / unit
        scale = matplotlib.colors.LogNorm if times.max() > 4 * times.min() else None
        norm: Any = (scale or matplotlib.colors.Normalize)(times.min(), times.max() or 1.0)
        colours = matplotlib.cm.ScalarMappable(norm, "viridis_r")
        for row, x in zip(rows.to_dict("records"), places, strict=True):
            marker = look_of(str(row["strategy"]), known)["marker"]
            _point(ax, row, x, colours.to_rgba(row["total_s"] / unit), marker)
        ax.set_xlabel("stored on a host")
        ax.set_ylabel("final test accuracy (%)")
        ax.margins(0.12)
        ax.spines[["top", "right"]].set_visible(False)
        bar = figure.colorbar(colours, ax=ax, pad=0.02, aspect=25)
        bar.set_label(f"simulated time of all epochs ({name})")
        if scale:
            bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            bar.ax.yaxis.set_minor_locator(NullLocator())
        grey: dict[str, Any] = {"linestyle": "", "color": "#777777", "markersize": SIZE}
        handles = [
            Line2D([], [], marker=look_of(n, known)["marker"], label=n, **grey) for n in known
        ]
        legend_above(figure, handles, str(given[0].result.meta.get("model", "")))
        figure.draw_without_rendering()  # so that pixels are where they will be
        spots = [
            Spot(
                (x, 100 * row["accuracy"]),
                (100 * row["low"], 100 * row["high"]),
                SIZE,
                named(row),
                "#333333",
            )
            for row, x in zip(rows.to_dict("records"), places, strict=True)
        ]
        label_points(figure, ax, spots, [], float(ax.get_window_extent().x1))
        return figure


def _point(ax: Axes, row: Mapping[Any, Any], x: float, colour: Any, marker: str) -> None:
    mean = 100 * row["accuracy"]
    if not np.isnan(row["low"]):
        bars = [[mean - max(100 * row["low"], 0.0)], [min(100 * row["high"], 100.0) - mean]]
        ax.errorbar([x], [mean], bars, color=colour, linewidth=0.7, capsize=1.3, zorder=2)
    look: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.3, "zorder": 3}
    ax.plot([x], [mean], marker, color=colour, markersize=SIZE, **look)


KIND = Kind(("time_to_accuracy",), draw, table)
