"""Figures, from tables alone: (table, ax) -> ax. Sized for one column of a two-column paper."""

from __future__ import annotations

import math
import re
import textwrap
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, fontManager
from matplotlib.patches import Patch

COLUMN_INCHES = 3.4
WIDTH = 0.62
FITTING = 13
"""Characters of the usual size that stand below a bar; longer names are written smaller."""
DASHED = (0, (2, 1.5))
COLOURS = {
    "I/O": "#4477AA",
    "FW+BW": "#228833",
    "IMPT": "#AA3377",
    "GE+WU": "#CCBB44",
    "EXCHANGE": "#EE6677",
}


def _font() -> str:
    """The name under which matplotlib's own DejaVu Sans is found, and no other of that name that
    the machine may have.

    So a figure is the same to the last byte wherever it is drawn.
    """
    name = "DejaVu Sans of matplotlib"
    if all(entry.name != name for entry in fontManager.ttflist):
        file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
        own = FontEntry(
            fname=str(file),
            name=name,
            style="normal",
            variant="normal",
            weight=400,
            stretch="normal",
            size="scalable",
        )
        fontManager.ttflist.append(own)
    return name


STYLE: dict[Any, Any] = {
    "font.family": _font(),
    "mathtext.fontset": "custom",
    "mathtext.rm": _font(),
    "font.size": 7,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    "svg.hashsalt": "simshuffle",
}
TALL = 3.0  # bars that many times as high as the highest of the others get a panel of their own


def breakdown(table: pd.DataFrame, ax: Axes, waiting: pd.DataFrame, epochs: pd.DataFrame) -> Axes:
    """Stacked bars of the papers' labels, one bar a run.

    Args:
        table: run, label, seconds of one epoch.
        ax: where to draw.
        waiting: run, label, cause, seconds: the part spent waiting for other ranks, drawn hatched
            in the colour of its cause.
        epochs: run, exchange_total_s, exchange_exposed_s: what of the exchange was hidden is
            outlined at the top of the bar.

    Returns:
        ``ax``.
    """
    solid = _seconds_of(table, "label")
    idle = _seconds_of(waiting, "label", "cause")
    runs = list(_heights(table))
    highest = max(_heights(table).values())
    for x, run in enumerate(runs):
        bottom = 0.0
        for label, colour in COLOURS.items():
            waits = {cause: idle.get((run, label, cause), 0.0) for cause in COLOURS}
            bottom = _bar(
                ax, x, bottom, solid.get((run, label), 0.0) - sum(waits.values()), color=colour
            )
            for cause, wait in waits.items():
                bottom = _bar(
                    ax,
                    x,
                    bottom,
                    wait,
                    facecolor=COLOURS[cause],
                    hatch="/////",
                    edgecolor="white",
                    alpha=0.75,
                )
        _hidden(ax, x, bottom, epochs[epochs["run"].astype(str) == run])
        ax.text(x, bottom + highest * 0.015, _seconds(bottom), ha="center", va="bottom")
    ax.set_ylim(0, highest * 1.1 or 1.0)
    ax.set_xlim(-0.6, len(runs) - 0.4)
    labels = [_in_lines(run) for run in runs]
    longest = max((len(line) for label in labels for line in label.splitlines()), default=0)
    ax.set_xticks(
        range(len(runs)),
        labels,
        fontsize=STYLE["xtick.labelsize"] * min(1.0, FITTING / max(longest, 1)),
    )
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _in_lines(run: str) -> str:
    """The name of a run below its bar: strategy, world size, and each swept key with its value
    begin a line; long ones have several."""
    name, *swept = re.split(r" (?=@|[\w.]+=)", run)
    spaced = (part.replace("_", " ").replace("=", "= ") for part in swept)
    return "\n".join(
        [
            name,
            *(
                line
                for part in spaced
                for line in textwrap.wrap(part, FITTING - 1, break_long_words=False)
            ),
        ]
    )


def _seconds_of(table: pd.DataFrame, *keys: str) -> dict[Any, float]:
    """Seconds by run and ``keys``."""
    named = table.assign(run=table["run"].astype(str))
    return dict(named.groupby(["run", *keys], observed=True)["seconds"].sum().items())


def _bar(ax: Axes, x: float, bottom: float, height: float, **style: Any) -> float:
    """One piece of a stacked bar; returns its upper end."""
    if height > 0:
        ax.bar(x, height, WIDTH, bottom, linewidth=0, **style)
    return bottom + max(height, 0.0)


def _heights(table: pd.DataFrame) -> dict[str, float]:
    """Seconds of each run's bar, in the order of the table."""
    runs = table["run"].astype(str)
    return {run: float(table.loc[runs == run, "seconds"].sum()) for run in dict.fromkeys(runs)}


def panels(heights: dict[str, float]) -> list[list[str]]:
    """Runs that can share an axis: those over `TALL` times as high as the highest of the others
    stand apart, in a panel before them."""
    ordered = sorted(heights, key=lambda run: heights[run])
    for cut in range(len(ordered) - 1, 0, -1):
        if heights[ordered[cut]] > TALL * heights[ordered[cut - 1]]:
            tall = set(ordered[cut:])
            return [
                [run for run in heights if run in tall],
                [run for run in heights if run not in tall],
            ]
    return [list(heights)]


def _hidden(ax: Axes, x: float, top: float, epoch: pd.DataFrame) -> None:
    for _, row in epoch.iterrows():
        hidden = float(row["exchange_total_s"] - row["exchange_exposed_s"])
        if hidden > 0:
            ax.bar(
                x,
                hidden,
                WIDTH,
                top - hidden,
                facecolor="none",
                edgecolor="black",
                linestyle=DASHED,
                linewidth=0.7,
            )


def _legend(figure: Figure, labels: set[str], hidden: bool, idle: bool) -> None:
    handles = [
        Patch(facecolor=colour, label=label) for label, colour in COLOURS.items() if label in labels
    ]
    if idle:
        handles.append(
            Patch(
                facecolor="#999999",
                hatch="/////",
                edgecolor="white",
                label="waiting for others\n(colour: for what)",
            )
        )
    if hidden:
        handles.append(
            Patch(
                facecolor="none",
                edgecolor="black",
                linestyle=DASHED,
                linewidth=0.7,
                label="hidden exchange",
            )
        )
    figure.legend(
        handles=handles,
        ncols=3,
        loc="outside upper center",
        frameon=False,
        handlelength=1.4,
        columnspacing=1.0,
    )


def _seconds(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 4)}f}"


def breakdown_figure(table: pd.DataFrame, waiting: pd.DataFrame, epochs: pd.DataFrame) -> Figure:
    """The breakdown of each run's last epoch, as a figure of one paper column; see `breakdown` for
    the tables."""
    last: dict[Any, Any] = table.groupby(table["run"].astype(str))["epoch"].max().to_dict()

    def of(frame: pd.DataFrame, runs: list[str]) -> pd.DataFrame:
        names = frame["run"].astype(str)
        return frame[names.isin(runs) & (frame["epoch"] == names.map(last))]

    groups = panels(_heights(of(table, list(last))))
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(max(COLUMN_INCHES, 0.62 * len(last) + 0.6), 2.4), layout="constrained"
        )
        FigureCanvasAgg(figure)
        axes = figure.subplots(
            1, len(groups), width_ratios=[len(runs) for runs in groups], squeeze=False
        )[0]
        for ax, runs in zip(axes, groups, strict=True):
            breakdown(of(table, runs), ax, of(waiting, runs), of(epochs, runs))
        axes[0].set_ylabel("time per epoch (s)")
        shown = of(epochs, list(last))
        hidden = bool((shown["exchange_total_s"] > shown["exchange_exposed_s"]).any())
        _legend(
            figure,
            set(table["label"]),
            hidden,
            bool((of(waiting, list(last))["seconds"] > 0).any()),
        )
        return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write ``stem``.png (300 dpi) and ``stem``.pdf, the same bytes for the same figure; returns
    both paths."""
    png, pdf = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf"))
    with matplotlib.rc_context(STYLE):
        figure.savefig(png, dpi=300, metadata={"Software": None})
        figure.savefig(pdf, metadata={"CreationDate": None})
    return [png, pdf]
