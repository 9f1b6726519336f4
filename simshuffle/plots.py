"""Figures, from tables alone: (table, ax) -> ax. Sized for one column of a two-column paper."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

COLUMN_INCHES = 3.4
COLOURS = {"I/O": "#4477AA", "FW+BW": "#228833", "IMPT": "#AA3377", "GE+WU": "#CCBB44", "EXCHANGE": "#EE6677"}
STYLE: dict[Any, Any] = {
    "font.size": 7,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    "svg.hashsalt": "simshuffle",
}
CUT_RATIO = 3.0


def breakdown(table: pd.DataFrame, ax: Axes, waiting: pd.DataFrame, epochs: pd.DataFrame) -> Axes:
    """Stacked bars of the papers' labels, one bar a run.

    Args:
        table: run, label, seconds of one epoch.
        ax: where to draw.
        waiting: run, label, seconds: the part spent waiting for other ranks, drawn hatched.
        epochs: run, exchange_total_s, exchange_exposed_s: what of the exchange was hidden is drawn as a dashed outline beside the bar.

    Returns:
        ``ax``. A bar over three times as high as the next is cut, and says so by its number.
    """
    runs = list(dict.fromkeys(table["run"].astype(str)))
    heights = table.assign(run=table["run"].astype(str)).groupby("run")["seconds"].sum()
    limit = _limit([float(heights[run]) for run in runs])
    solid = table.assign(run=table["run"].astype(str)).set_index(["run", "label"])["seconds"]
    idle = waiting.assign(run=waiting["run"].astype(str)).set_index(["run", "label"])["seconds"]
    for x, run in enumerate(runs):
        bottom = 0.0
        for label, colour in COLOURS.items():
            if (run, label) not in solid.index:
                continue
            total = float(solid.loc[(run, label)])
            wait = float(idle.loc[(run, label)]) if (run, label) in idle.index else 0.0
            ax.bar(x, total - wait, 0.62, bottom, color=colour, linewidth=0)
            ax.bar(x, wait, 0.62, bottom + total - wait, facecolor=colour, hatch="/////", edgecolor="white", linewidth=0, alpha=0.75)
            bottom += total
        _hidden(ax, x, bottom, epochs[epochs["run"].astype(str) == run])
        cut = bottom > limit
        ax.text(x, min(bottom, limit) + limit * 0.015, f"{_seconds(bottom)} (cut)" if cut else _seconds(bottom), ha="center", va="bottom")
    ax.set_ylim(0, limit * 1.12)
    ax.set_xlim(-0.6, len(runs) - 0.4)
    ax.set_xticks(range(len(runs)), [_wrapped(run, len(runs)) for run in runs])
    ax.set_ylabel("time per epoch (s)")
    ax.spines[["top", "right"]].set_visible(False)
    _legend(ax, set(table["label"]), bool((epochs["exchange_total_s"] > epochs["exchange_exposed_s"]).any()), bool((idle > 0).any()))
    return ax


def _limit(heights: list[float]) -> float:
    ordered = sorted(heights)
    top = ordered[-1] if ordered else 1.0
    if len(ordered) > 1 and ordered[-1] > CUT_RATIO * ordered[-2]:
        top = ordered[-2] * 1.35
    return top if top > 0 else 1.0


def _hidden(ax: Axes, x: float, top: float, epoch: pd.DataFrame) -> None:
    for _, row in epoch.iterrows():
        hidden = float(row["exchange_total_s"] - row["exchange_exposed_s"])
        if hidden > 0:
            ax.bar(x, hidden, 0.62, top - hidden, facecolor="none", edgecolor="black", linestyle=(0, (2, 1.5)), linewidth=0.7)


def _legend(ax: Axes, labels: set[str], hidden: bool, idle: bool) -> None:
    handles = [Patch(facecolor=colour, label=label) for label, colour in COLOURS.items() if label in labels]
    if idle:
        handles.append(Patch(facecolor="#999999", hatch="/////", edgecolor="white", label="waiting for others"))
    if hidden:
        handles.append(Patch(facecolor="none", edgecolor="black", linestyle=(0, (2, 1.5)), linewidth=0.7, label="hidden exchange"))
    ax.legend(
        handles=handles, ncols=3, loc="lower center", bbox_to_anchor=(0.45, 1.0), frameon=False, handlelength=1.4, columnspacing=1.0,
        borderaxespad=0.2,
    )  # fmt: skip


def _seconds(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 4)}f}"


def _wrapped(run: str, count: int) -> str:
    text = run.replace(" @", "\n@")
    return text if count <= 6 else text.replace("-", "-\n", 1)


def breakdown_figure(table: pd.DataFrame, waiting: pd.DataFrame, epochs: pd.DataFrame) -> Figure:
    """The breakdown of each run's last epoch, as a figure of one paper column."""
    with matplotlib.rc_context(STYLE):
        runs = table["run"].astype(str).nunique()
        figure = Figure(figsize=(COLUMN_INCHES, 2.4 if runs <= 6 else 2.8), layout="constrained")
        FigureCanvasAgg(figure)
        last = table.groupby(table["run"].astype(str))["epoch"].max().to_dict()

        def steady(frame: pd.DataFrame) -> pd.DataFrame:
            return frame[frame["epoch"] == frame["run"].astype(str).map(last)]

        breakdown(steady(table), figure.add_subplot(), steady(waiting), steady(epochs))
        return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write ``stem``.png (300 dpi) and ``stem``.pdf, the same bytes for the same figure; returns both paths."""
    png, pdf = stem.with_suffix(".png"), stem.with_suffix(".pdf")
    with matplotlib.rc_context(STYLE):
        figure.savefig(png, dpi=300, metadata={"Software": None})
        figure.savefig(pdf, metadata={"CreationDate": None})
    return [png, pdf]
