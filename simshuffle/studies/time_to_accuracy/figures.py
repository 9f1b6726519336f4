"""The figures, from tables alone. Each is one column of a two-column paper wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simshuffle.results.style import STYLE, legend_above, line_handle
from simshuffle.studies.time_to_accuracy.drawing import framed, time_axis, time_unit
from simshuffle.studies.time_to_accuracy.frontier import frontier_figure
from simshuffle.studies.time_to_accuracy.tables import Tables
from simshuffle.studies.training.figures import DASHES
from simshuffle.studies.training.intervals import estimate
from simshuffle.studies.training.looks import look_of, strategies

PANEL_INCHES = 1.45


def figures(tables: Tables, meta: Mapping[str, Any]) -> dict[str, Figure]:
    """Every figure that the tables have something for, by the name of its file.

    Args:
        tables: what was found.
        meta: with what every figure states: ``model`` (what was trained), the ``rule`` of the
            scaling and the ``schedules`` of the exchange; results of before lack the first and the
            last.
    """
    simulated = tables.settings[tables.settings["message"] == ""]
    if not len(simulated):
        return {}
    out = {"frontier": frontier_figure(simulated, meta)}
    curves = tables.curves[tables.curves["setting"].isin(simulated["setting"])]
    if len(curves):
        out["accuracy_time"] = time_figure(simulated, curves, meta)
    return out


# ---------------------------------------------------------------------------- accuracy against time


def time_figure(settings: pd.DataFrame, curves: pd.DataFrame, meta: Mapping[str, Any]) -> Figure:
    """Accuracy against simulated time with 95 % bands, a panel for each Q, with global and local
    shuffle in each.

    Args:
        settings: columns `SETTING_COLUMNS`, those that were simulated.
        curves: columns `CURVE_COLUMNS`, of these settings.
        meta: as of `figures`.
    """
    everywhere = settings[settings["strategy"].isin(["global", "local"])]
    no_fraction = settings["exchange_fraction"].isna()
    loaders = settings[no_fraction & ~settings.index.isin(everywhere.index)]
    exchanged = settings.drop([*everywhere.index, *loaders.index])
    fractions = sorted(set(exchanged["exchange_fraction"]))
    panels = [
        (f"Q = {q:g}", pd.concat([everywhere, exchanged[exchanged["exchange_fraction"] == q]]))
        for q in fractions
    ]
    if len(loaders):
        panels.append(("loaders", pd.concat([everywhere, loaders])))
    panels = panels or [("", everywhere)]
    across = 1 if len(panels) == 1 else 2
    known = strategies(settings)
    unit, name = time_unit(float(settings["total_s"].max()))
    with matplotlib.rc_context(STYLE):
        down = -(-len(panels) // across)
        figure = framed(down * PANEL_INCHES + (0.9 if across == 1 else 0.35), meta)
        axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for ax, (title, rows) in zip(axes, panels, strict=False):
            _curves(ax, rows, curves, known, unit)
            ax.set_title(title, fontsize=6.5, pad=3)
            ax.spines[["top", "right"]].set_visible(False)
            ax.tick_params(labelsize=6)
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        for ax in axes[max(len(panels) - across, 0) : len(panels)]:  # the lowest of each column
            ax.tick_params(labelbottom=True)
            ax.set_xlabel(f"simulated time ({name})")
        time_axis(axes[0], settings["total_s"], unit)
        figure.supylabel("test accuracy (%)", fontsize=7.5)
        lines = _lines_of(settings, known).items()
        handles = [line_handle(label, line["look"]) for label, line in lines]
        legend_above(figure, handles, meta.get("model", ""))
        return figure


def _curves(
    ax: Axes, settings: pd.DataFrame, curves: pd.DataFrame, known: Sequence[str], unit: float
) -> None:
    for label, row in _lines_of(settings, known).items():
        rows = curves[curves["setting"] == row["setting"]]
        groups = list(rows.groupby("epoch"))
        found = [estimate(group["accuracy"].tolist()) for _, group in groups]
        mean, low, high = (
            np.clip([100 * getattr(each, part) for each in found], 0, 100)
            for part in ("mean", "low", "high")
        )
        x = np.array([group["time_s"].iloc[0] for _, group in groups]) / unit
        ax.plot(x, mean, **row["look"], label=label, markersize=2, linewidth=0.9)
        ax.fill_between(x, low, high, color=row["look"]["color"], alpha=0.2, linewidth=0)


def _lines_of(settings: pd.DataFrame, known: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Name in the legend, setting and look of each line: one for each strategy, and for each source
    of global shuffle."""
    out: dict[str, dict[str, Any]] = {}
    for row in settings.to_dict("records"):
        strategy = str(row["strategy"])
        label = str(row["setting"]) if strategy == "global" else strategy
        number = sum(each["strategy"] == strategy for each in out.values())
        if label not in out:
            look = {**look_of(strategy, known), "linestyle": DASHES[number % len(DASHES)]}
            out[label] = {"strategy": strategy, "setting": row["setting"], "look": look}
    return out
