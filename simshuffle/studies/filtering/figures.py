"""The figures of a study of data-optimised training, from its tables alone. Each is one column of a
two-column paper wide."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simshuffle.results.style import STYLE, legend_above, line_handle, new_figure
from simshuffle.studies.filtering.tables import SUBSETS, FilterTables, summary
from simshuffle.studies.training.figures import ASIDE

LOOKS: dict[str, dict[str, Any]] = {
    "full": {"color": "#000000", "marker": "s"},
    "network": {"color": "#4477AA", "marker": "o"},
    "random": {"color": "#EE6677", "marker": "v"},
}
LABELS = {"full": "full data", "network": "network-filtered", "random": "randomly filtered"}
MOST_RATES = 6


def figures(tables: FilterTables) -> dict[str, Figure]:
    """Every figure that the tables have something for, by the name of its file."""
    out = {}
    if len(tables.points):
        out["points"] = points_figure(tables.points)
    settings = summary(tables.runs)
    if len(settings):
        out["accuracy_batch_size"] = batch_size_figure(settings)
        if settings["learning_rate"].nunique() > 1:
            out["accuracy_learning_rate"] = learning_rate_figure(settings)
    return out


def points_figure(points: pd.DataFrame) -> Figure:
    """The training samples of the first seed in t-SNE's plane, coloured by class, with what is
    filtered out in black.

    Args:
        points: columns `POINT_COLUMNS`.
    """
    rows = points[points["seed"] == points["seed"].iloc[0]]
    noise = rows["noise"].to_numpy(np.bool_)
    size = float(np.clip(3000 / len(rows), 0.2, 4))
    with matplotlib.rc_context(STYLE):
        figure, (ax,) = _panels(1, 2.9)
        kept = rows[~noise]
        ax.scatter(
            kept["x"],
            kept["y"],
            size,
            kept["label"] % 20,
            cmap="tab20",
            vmin=0,
            vmax=19,
            linewidths=0,
            rasterized=True,
        )
        ax.scatter(
            rows["x"][noise],
            rows["y"][noise],
            1.5 * size,
            "black",
            marker="x",
            linewidths=0.4,
            rasterized=True,
        )
        ax.set_aspect("equal", "datalim")
        ax.set_xlabel("first axis of t-SNE")
        ax.set_ylabel("second axis of t-SNE")
        shape: dict[str, Any] = {"linestyle": "", "markersize": 3}
        text = f"noise ({100 * noise.mean():.1f} %, seed {rows['seed'].iloc[0]})"
        handles = [
            Line2D([], [], color="black", marker="x", label=text, **shape),
            Line2D([], [], color="#1f77b4", marker="o", label="kept (colour: class)", **shape),
        ]
        legend_above(figure, handles)
        return figure


def batch_size_figure(settings: pd.DataFrame) -> Figure:
    """Accuracy against batch size, a line for each data set, at the learning rate that is best for
    the full data.

    Args:
        settings: columns `SUMMARY_COLUMNS`.
    """
    with matplotlib.rc_context(STYLE):
        figure, (ax,) = _panels(1, 2.25)
        _lines(settings[settings["chosen"]], ax)
        ax.set_xlabel("batch size (samples)")
        ax.set_ylabel("test accuracy (%)")
        legend_above(figure, [line_handle(LABELS[name], look) for name, look in LOOKS.items()])
        return figure


def learning_rate_figure(settings: pd.DataFrame) -> Figure:
    """Accuracy against batch size, a panel for each learning rate, the first six.

    Args:
        settings: columns `SUMMARY_COLUMNS`.
    """
    rates = sorted(set(settings["learning_rate"]))[:MOST_RATES]
    down = -(-len(rates) // 2)
    with matplotlib.rc_context(STYLE):
        figure, axes = _panels(len(rates), 1.35 * down + 0.4)
        for ax, rate in zip(axes, rates, strict=False):
            _lines(settings[settings["learning_rate"] == rate], ax)
            ax.set_title(f"learning rate {rate:g}", fontsize=6.5, pad=3)
        figure.supxlabel("batch size (samples)", fontsize=7.5)
        figure.supylabel("test accuracy (%)", fontsize=7.5)
        legend_above(figure, [line_handle(LABELS[name], look) for name, look in LOOKS.items()])
        return figure


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    across = 1 if count == 1 else 2
    figure = new_figure(height)
    axes = list(
        figure.subplots(
            -(-count // across), across, sharex=True, sharey=True, squeeze=False
        ).ravel()
    )
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[count:]:
        ax.set_visible(False)
    return figure, axes


def _lines(rows: pd.DataFrame, ax: Axes) -> None:
    sizes = sorted(set(rows["batch_size"]))
    step = (sizes[-1] / sizes[0]) ** ASIDE
    for place, subset in enumerate(SUBSETS):
        line = rows[rows["subset"] == subset].sort_values("batch_size")
        mean, low, high = (
            (100 * line[name].to_numpy(float)).clip(0, 100) for name in ("accuracy", "low", "high")
        )
        bars = np.where(np.isnan(low), 0.0, [mean - low, high - mean])
        ax.errorbar(
            line["batch_size"] * step ** (place - (len(SUBSETS) - 1) / 2),
            mean,
            bars,
            **LOOKS[subset],
            markersize=2.6,
            linewidth=0.9,
            elinewidth=0.7,
            capsize=1.3,
        )
    ax.set_xscale("log", base=2)
    ax.set_xticks(
        sizes, [str(size) for size in sizes], fontsize=6, rotation=45 if len(sizes) > 6 else 0
    )
    ax.minorticks_off()
