"""The figure of the runs of a simulation: where the seconds of an epoch go, a bar a run."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simshuffle.results import report
from simshuffle.results.style import APART, COLOURS, STYLE, legend_above, line_height, new_figure

BAR, THIN = 0.66, 0.16
"""Widths of a bar, and of those of hidden work on both sides of it, of one row."""
ROW_INCHES = 0.24
NAME = 22
"""Characters of a line of a run's name."""
LONG = 3.0
"""Bars that many times as long as the longest of the others get a panel of their own."""
VISIBLE = 0.004
"""Share of the longest bar below which nothing can be seen."""
HATCH: dict[str, Any] = {"hatch": "/////", "edgecolor": "white", "alpha": 0.75, "linewidth": 0}
HIDDEN: dict[str, Any] = {"hatch": "......", "facecolor": "none", "linewidth": 0.6}
BEHIND = {
    "exchange": ("EXCHANGE", 0.5, "exchange hidden\nbehind other work"),
    "allreduce": ("GE+WU", -0.5, "allreduce hidden\nbehind the backward pass"),
}
"""What may be hidden: the label in whose colour it is drawn, on which side of the bar, its name."""

WHISKER: dict[str, Any] = {"color": "black", "capsize": 2, "elinewidth": 0.8, "capthick": 0.8}


def breakdown_figure(
    table: pd.DataFrame,
    epochs: pd.DataFrame,
    labels: report.Booking = "cause",
    half: pd.Series[float] | None = None,
    about: str = "",
) -> Figure:
    """The breakdown of each run's last epoch, as a figure of one paper column.

    Args:
        table: from `simshuffle.results.report.breakdown`.
        epochs: run, epoch, world_size, exchange_total_s, exchange_exposed_s of the same runs.
        labels: 'cause' for waiting in the colour of what is waited for, hatched; 'paper' for the
            authors' booking, where waiting counts where it happens.
        half: half the 95 % interval of an epoch (s), by run and epoch; drawn at the end of the bar.
        about: what that is the interval of.
    """
    last = epochs.assign(run=epochs["run"].astype(str)).sort_values("epoch", kind="stable")
    last = last.drop_duplicates("run", keep="last").set_index("run")
    order = list(dict.fromkeys(table["run"].astype(str)))
    last = last.loc[order]
    places = list(zip(last.index, last["epoch"], strict=True))
    last["half"] = 0.0 if half is None else half.loc[places].to_numpy()
    names = table["run"].astype(str)
    table = table.assign(run=names)[table["epoch"] == names.map(last["epoch"])]
    groups = _panels(table.groupby("run", sort=False)["seconds"].sum())
    rows = [list(_rows(last.loc[runs])) for runs in groups]
    lines = [sum(max(1.0, 0.7 * (1 + text.count("\n"))) for _, text in part) for part in rows]
    with matplotlib.rc_context(STYLE):
        figure = new_figure(ROW_INCHES * line_height() * sum(lines) + 0.32 * len(groups) + 0.2)
        axes = figure.subplots(len(groups), 1, height_ratios=lines, squeeze=False)[:, 0]
        shown: set[str] = set()
        for ax, part in zip(axes, rows, strict=True):
            shown |= _draw(ax, part, table, last, labels)
        axes[-1].set_xlabel(f"time per epoch (s){_size(last)}")
        _legend(figure, shown, about)
        return figure


def _size(epochs: pd.DataFrame) -> str:
    sizes = epochs["world_size"].unique()
    return f", {sizes[0]} GPUs" if len(sizes) == 1 else ""


def _panels(seconds: pd.Series[float]) -> list[list[str]]:
    """Runs that can share an axis: those over `LONG` times as long as the longest of the others
    stand apart, in a panel before them."""
    ordered = seconds.sort_values(kind="stable")
    for cut in range(len(ordered) - 1, 0, -1):
        if ordered.iloc[cut] > LONG * ordered.iloc[cut - 1]:
            long = set(ordered.index[cut:])
            names = [str(run) for run in seconds.index]
            return [[r for r in names if r in long], [r for r in names if r not in long]]
    return [[str(run) for run in seconds.index]]


def _rows(epochs: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Each run with its text; runs of several world sizes stand below a row that names theirs,
    whose run is ''."""
    sizes, before = epochs["world_size"], None
    for run, size in sizes.items():
        if sizes.nunique() > 1 and size != before:
            yield "", f"{size} GPUs"
            before = size
        yield str(run), in_lines(str(run))


def in_lines(run: str, whole: bool = False) -> str:
    """The name of a run beside its bar: the strategy, then each swept key with its value; the
    world size only if ``whole``, as it stands elsewhere."""
    name, *swept = re.split(r" (?=@|[\w.]+=)", run)
    spaced = (
        part.replace("_", " ").replace("=", " = ")
        for part in swept
        if whole or not part.startswith("@")
    )
    parts = [name, *spaced]
    return "\n".join(line for part in parts for line in textwrap.wrap(part, NAME))


def _draw(
    ax: Axes,
    rows: Sequence[tuple[str, str]],
    table: pd.DataFrame,
    epochs: pd.DataFrame,
    labels: report.Booking,
) -> set[str]:
    """The bars of a panel; returns what is in them: labels, 'waiting', 'slowed', 'interval',
    and what is hidden."""
    sums = {run: table.loc[table["run"] == run, "seconds"].sum() for run, _ in rows if run}
    longest = max(seconds + epochs["half"][run] for run, seconds in sums.items())
    shown: set[str] = set()
    for y, (run, _) in enumerate(rows):
        if not run:
            continue
        left = 0.0
        for label, waits, seconds in _pieces(table[table["run"] == run], labels):
            look = HATCH if waits else APART if seconds > VISIBLE * longest else {"linewidth": 0}
            ax.barh(y, seconds, BAR, left, facecolor=COLOURS[label], **look)
            left += seconds
            kind = "slowed" if label == report.SLOWING else "waiting"
            shown |= {label, kind} if waits else {label}
        for name, (label, side, _) in BEHIND.items():
            if (hidden := report.hidden(epochs.loc[run], name)) > VISIBLE * longest:
                look = {**HIDDEN, "edgecolor": COLOURS[label]}
                ax.barh(y + side * (BAR + THIN), hidden, THIN, **look)
                shown.add(name)
        if half := float(epochs["half"][run]):
            ax.errorbar(left, y, xerr=half, **WHISKER)
            shown.add("interval")
        ax.text(left + half + 0.01 * longest, y, _seconds(left), ha="left", va="center")
    ax.set_xlim(0, 1.14 * longest or 1.0)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(range(len(rows)), [text for _, text in rows])
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    return shown


def _pieces(table: pd.DataFrame, labels: report.Booking) -> Iterator[tuple[str, bool, float]]:
    """The pieces of a bar: label, whether it is waiting, seconds. Waiting follows the work that it
    is for."""
    pieces = report.shown(table, labels)
    for label in COLOURS:
        for waits in (False, True):
            here = pieces[(pieces["label"] == label) & (pieces["waiting"] == waits)]
            if (seconds := float(here["seconds"].sum())) > 0:
                yield label, waits, seconds


def _legend(figure: Figure, shown: set[str], about: str) -> None:
    handles: list[Artist] = [
        Patch(facecolor=COLOURS[label], label=label) for label in COLOURS if label in shown
    ]
    if "waiting" in shown:
        text = "waiting for other ranks\n(colour: what they do)"
        handles.append(Patch(facecolor="#999999", label=text, **HATCH))
    if "slowed" in shown:
        text = "backward pass slowed\nby allreduce"
        handles.append(Patch(facecolor=COLOURS[report.SLOWING], label=text, **HATCH))
    for name, (label, _, text) in BEHIND.items():
        if name in shown:
            handles.append(Patch(label=text, **HIDDEN, edgecolor=COLOURS[label]))
    if "interval" in shown:
        text = textwrap.fill(f"95 % interval of {about}", NAME + 4)
        handles.append(Line2D([], [], color=WHISKER["color"], linewidth=0.8, label=text))
    legend_above(figure, handles)


def _seconds(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 4)}f}"
