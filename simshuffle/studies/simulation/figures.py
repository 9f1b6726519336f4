"""The figure of the runs of a simulation: where the seconds of an epoch go, a bar a
run.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from simshuffle.report import intervals, report
from simshuffle.report.chart import (
    MAX_INCHES,
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    in_rows,
    key,
    rule,
    stack_rows,
)
from simshuffle.report.intervals import CENTRE, HIGH, LOW, Ends, add_interval_ends
from simshuffle.report.names import without_schedule
from simshuffle.report.style import COLOURS, line_height
from simshuffle.studies.simulation.text import format_seconds

BAR_WIDTH, HIDDEN_WIDTH = 0.66, 0.16
"""Widths (rows) of a bar, and of the bars of hidden work on both sides of it."""
ROW_INCHES = 0.24
"""Height of a row with one bar."""
LINE_ROWS, SMALL_LINE_ROWS = 0.7, 0.5
"""Part of a row that a line of a name takes, and a line in small letters."""
NAME_WIDTH = 22  # characters of a line of a run's name
LONG_FACTOR = 3.0
"""Bars that many times as long as the longest of the others get a panel of their own."""
SCALE_FACTORS = [
    digit * 10**power for power in range(7) for digit in (1, 1.5, 2, 3, 4, 5, 6, 8)
]
"""Factors by which the panel of short bars may be drawn wider than that of long bars."""
SHADE = Look("", "#000000", alpha=0.15)
VISIBLE = 0.004  # share of the longest bar below which nothing can be seen
WHISKER = Look("", "#000000", size=4, width=1.0)
HIDDEN_WORK = {
    "exchange": (0.5, "exchange hidden\nbehind other work", COLOURS["EXCHANGE"]),
    "allreduce": (-0.5, "allreduce hidden\nbehind the backward pass", COLOURS["GE+WU"]),
}
"""Work that may be hidden: its side of the bar (rows), its name and its colour."""
WAITING = {
    "waiting": Look(
        "waiting for other ranks\n(colour: what they do)", "#999999", fill="waiting"
    ),
    "slowed": Look(
        "backward pass slowed\nby allreduce", COLOURS[report.SLOWING], fill="waiting"
    ),
}


def breakdown_chart(
    table: pd.DataFrame,
    epochs: pd.DataFrame,
    booking: report.Booking = "cause",
    *,
    half_intervals: pd.Series[float] | None = None,
    interval_subject: str = "",
    bars: Sequence[tuple[str, int]] | None = None,
    interval_ends: Ends | None = None,
    num_measured: int = 0,
) -> Chart:
    """Draw the breakdown of epochs of runs: a bar for each run, with its waiting and
    hidden work.

    Runs that only one of the tables has get no bar. Pages can show bars as shares, too.

    Args:
        table: the breakdown, of `simshuffle.report.report.breakdown`.
        epochs: run, epoch, world_size, exchange_total_s, exchange_exposed_s and
            allreduce_hidden_s of these runs, a row for each run and epoch.
        booking: 'cause' for waiting in the colour of what is waited for, hatched;
            'paper' for the booking of the authors, where waiting counts where it
            happens.
        half_intervals: half the 95 % interval of an epoch (s), by run and epoch, for all
            bars; 0 for a bar without one. None without intervals.
        interval_subject: the quantity that the 95 % interval is of.
        bars: runs and their epochs; None for the last epoch of every run.
        interval_ends: ends of the 90 % interval of the last epoch (s), by run.
        num_measured: measured runs that these intervals take in.
    """
    parts = report.arrange_labels(table, booking)
    parts = parts.assign(run=parts["run"].astype(str), label=parts["label"].astype(str))
    rows = _rows_of_bars(epochs, list(dict.fromkeys(parts["run"])), bars)
    rows = _add_half_intervals(rows, half_intervals)
    rows = _add_ends_of_last_epochs(rows, epochs, interval_ends)
    pieces = _pieces(parts.merge(rows[["run", "epoch", "bar"]], on=["run", "epoch"]))
    rows["end"] = pieces.groupby("bar")["x2"].max().reindex(rows["bar"])
    # a panel of its own may have one number of ranks only, which is then still named
    rows["in_groups"] = rows["world_size"].nunique() > 1

    panels = _draw_panels(rows, pieces)
    return Chart(
        panels,
        _height_inches(panels),
        _breakdown_looks(interval_subject, num_measured),
        "Seconds of an epoch. Hatched parts are waiting for other ranks, in the colour of what"
        f" these ranks do. {report.legend(table, booking)}",
        shares=True,
    )


def _add_half_intervals(
    rows: pd.DataFrame, half_intervals: pd.Series[float] | None
) -> pd.DataFrame:
    """Return the rows with half the 95 % interval of each bar (s) as column ``half``.

    It is 0 without intervals.
    """
    run_epochs = list(zip(rows["run"], rows["epoch"], strict=True))
    half = 0.0 if half_intervals is None else half_intervals.loc[run_epochs].to_numpy()
    return rows.assign(half=half)


def _add_ends_of_last_epochs(
    rows: pd.DataFrame, epochs: pd.DataFrame, interval_ends: Ends | None
) -> pd.DataFrame:
    """Add the ends of the 90 % interval (s) to the bars of the last epoch of each run,
    as columns `LOW` and `HIGH`: NaN for other bars and without an interval.
    """
    last_epochs = epochs.groupby(epochs["run"].astype(str))["epoch"].max()
    names = rows["run"].where(rows["epoch"] == rows["run"].map(last_epochs), "")
    return add_interval_ends(rows.assign(of=names), interval_ends or {}, "of")


def _draw_panels(rows: pd.DataFrame, pieces: pd.DataFrame) -> list[Panel]:
    """Return the panels, the last with the title of the time axis.

    Names are smaller, then on one line, where panels are higher than `MAX_INCHES`;
    panels may still be higher. The title names the number of GPUs if all bars have one.
    """
    panels = _panels(rows, pieces)
    if _height_inches(panels) > MAX_INCHES:
        panels = _panels(rows, pieces, small=True)
    is_full = _height_inches(panels) > MAX_INCHES
    if is_full:  # a name has one line
        rows = rows.assign(name=rows["name"].str.replace("\n", " "))
        panels = _panels(rows, pieces, small=True)
    last_axis = panels[-1].x
    sizes = rows["world_size"].unique()
    separator = "\n" if is_full else " "  # the axis is narrow beside long names
    ranks = f",{separator}{sizes[0]} GPUs" if len(sizes) == 1 else ""
    panels[-1] = replace(
        panels[-1], x=replace(last_axis, title=f"time per epoch (s){ranks}")
    )
    return panels


def _breakdown_looks(interval_subject: str, num_measured: int) -> dict[str, Look]:
    """Return the looks of work, waiting, hidden work and intervals, by their keys.

    Keys are labels, 'LABEL waits', those of `WAITING` and `HIDDEN_WORK`, 'half' and
    'ends'.
    """
    looks = {label: Look(label, colour) for label, colour in COLOURS.items()}
    looks |= {
        f"{label} waits": Look("", colour, fill="waiting")
        for label, colour in COLOURS.items()
    }
    looks |= WAITING
    looks |= {
        name: Look(text, colour, fill="hidden")
        for name, (_, text, colour) in HIDDEN_WORK.items()
    }
    interval = replace(
        WHISKER,
        label=textwrap.fill(f"95 % interval of {interval_subject}", NAME_WIDTH + 4),
    )
    ends = intervals.whisker(num_measured)
    return looks | {"half": interval, "ends": ends, "middle": intervals.MIDDLE}


def _height_inches(panels: Sequence[Panel]) -> float:
    """Return the height of the panels in inches, without the legend."""
    lines = sum(panel.weight for panel in panels)
    return ROW_INCHES * line_height() * lines + 0.32 * len(panels) + 0.2


def _rows_of_bars(
    epochs: pd.DataFrame, runs: list[str], bars: Sequence[tuple[str, int]] | None
) -> pd.DataFrame:
    """Return the epochs that have a bar, in the order of the runs.

    They have the columns ``name``, with the epoch where a run has several bars, else in
    lines (`wrap_name`), and ``bar``, the index from 0. Runs that ``runs`` lacks are left
    out; ``bars`` None stands for the last epoch of each run.
    """
    rows = epochs.assign(run=epochs["run"].astype(str)).sort_values(
        "epoch", kind="stable"
    )
    rows = rows[rows["run"].isin(runs)]
    if bars is None:
        rows = rows.drop_duplicates("run", keep="last")
    else:
        chosen = set(bars)
        pairs = zip(rows["run"], rows["epoch"], strict=True)
        rows = rows[[pair in chosen for pair in pairs]]
    rows = rows.iloc[rows["run"].map(runs.index).argsort(kind="stable")]
    names = without_schedule(rows["run"].tolist())
    if rows["run"].duplicated().any():
        epochs_of_bars = [
            f"epoch {epoch}{' cold' * (epoch == 1)}" for epoch in rows["epoch"]
        ]
        names = [
            f"{name}, {epoch}"
            for name, epoch in zip(names, epochs_of_bars, strict=True)
        ]
    else:
        names = [wrap_name(name) for name in names]
    return rows.assign(name=names, bar=range(len(rows))).reset_index(drop=True)


def _pieces(parts: pd.DataFrame) -> pd.DataFrame:
    """Return the pieces of all bars, one after another, with look, tip and ends (s).

    Labels are in the order of `COLOURS`; waiting follows the work that it waits for.
    Pieces of 0 s are left out. ``parts`` are of `report.arrange_labels`, with ``bar``.
    """
    position_of_label = {label: position for position, label in enumerate(COLOURS)}
    keys = ["bar", "place", "label", "waiting", "run", "epoch"]
    sums = (
        parts.assign(place=parts["label"].map(position_of_label))
        .groupby(keys)["seconds"]
        .sum()
    )
    pieces = sums[sums > 0].reset_index()
    totals = pieces.groupby("bar")["seconds"].transform("sum")
    looks = pieces["label"] + pieces["waiting"].map({True: " waits", False: ""})
    tips = [
        f"{run}, epoch {epoch}\n{report.part_name(label, is_waiting)}: {format_seconds(seconds)} s,"
        f" {100 * seconds / total:.3g} % of {format_seconds(total)} s"
        for run, epoch, label, is_waiting, seconds, total in zip(
            *(pieces[name] for name in ("run", "epoch", "label", "waiting", "seconds")),
            totals,
            strict=True,
        )
    ]
    return stack_rows(
        pieces.assign(look=looks, tip=tips), "bar", "seconds", ("x", "x2")
    )


def _panels(
    rows: pd.DataFrame, pieces: pd.DataFrame, *, small: bool = False
) -> list[Panel]:
    """Return one panel, or two for long and short bars with scales that can be
    compared.

    The axis of the short bars is a round number of times as wide. Its title says so,
    and its part of the long axis is shaded.
    """
    panels = [_panel(group, pieces, small=small) for group in _groups(rows)]
    if len(panels) == 1:
        return panels
    long_panel, short_panel = panels
    long_end = long_panel.x.high or 1.0
    short_end = short_panel.x.high or 1.0
    factor = max(
        factor for factor in SCALE_FACTORS if factor * short_end <= 1.001 * long_end
    )
    shaded = rule(SHADE, x=0.0, x2=long_end / factor)
    title = f"the shaded part of the axis above, {factor:g} times as wide"
    return [
        replace(long_panel, marks=[shaded, *long_panel.marks]),
        replace(
            short_panel, x=replace(short_panel.x, high=long_end / factor), title=title
        ),
    ]


def _groups(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the groups of bars that can share an axis: one, or long bars and then
    short ones.

    They are divided at the longest bar that is over `LONG_FACTOR` times as long as the
    next shorter one; a bar reaches to the end of its 90 % interval.
    """
    bar_ends = rows[["end", HIGH]].max(axis=1)
    sorted_ends = sorted(bar_ends)
    for index in range(len(sorted_ends) - 1, 0, -1):
        if sorted_ends[index] > LONG_FACTOR * sorted_ends[index - 1]:
            is_long = bar_ends >= sorted_ends[index]
            return [rows[is_long], rows[~is_long]]
    return [rows]


def _panel(rows: pd.DataFrame, pieces: pd.DataFrame, *, small: bool = False) -> Panel:
    """Draw the bars of some runs, with hidden work, intervals and numbers beside them.

    Hidden work below `VISIBLE` of the longest bar is left out. ``small`` is for names
    and numbers.
    """
    names, positions = _group_names(rows)
    bar_ends = (rows["end"] + rows["half"]).combine(rows[HIGH], max, fill_value=0.0)
    rows = rows.assign(**{CENTRE: rows.get(CENTRE, np.nan)})
    texts = rows["end"].map(_seconds_text) + rows[[LOW, HIGH, CENTRE]].apply(
        _interval_text, axis=1
    )
    rows = rows.assign(y=positions, x=bar_ends, text=texts)
    longest = float(rows["x"].max())
    panel_pieces = pieces[pieces["bar"].isin(rows["bar"])]
    position_of_bar = dict(zip(rows["bar"], positions, strict=True))
    panel_pieces = panel_pieces.assign(y=panel_pieces["bar"].map(position_of_bar))
    marks = [Mark("bar", panel_pieces, thick=BAR_WIDTH)]
    for name, (side, *_) in HIDDEN_WORK.items():
        seconds = report.hidden_seconds(rows, name)
        y = rows["y"] + side * (BAR_WIDTH + HIDDEN_WIDTH)
        hidden_bars = rows.assign(x=0.0, x2=seconds, y=y, look=name)
        hidden_bars["tip"] = [
            f"{name} behind other work: {format_seconds(hidden)} s"
            for hidden in seconds
        ]
        marks.append(
            Mark("bar", hidden_bars[seconds > VISIBLE * longest], thick=HIDDEN_WIDTH)
        )
    rows_with_interval = rows.assign(x=rows[LOW], x2=rows[HIGH], look="ends")
    marks.append(Mark("interval", rows_with_interval[rows_with_interval[HIGH].notna()]))
    middles = rows.assign(x=rows[CENTRE], look="middle")
    marks.append(Mark("point", middles[middles[CENTRE].notna()]))
    ends = rows.assign(
        x=rows["end"] - rows["half"], x2=rows["end"] + rows["half"], look="half"
    )
    marks.append(Mark("interval", ends[ends["half"] > 0]))
    marks.append(Mark("text", rows, aside=(2, 0), small=small))
    # a label may occur as waiting only
    marks += [key(str(label), "bar") for label in panel_pieces["label"].unique()]
    for name, labels in (
        ("slowed", {report.SLOWING}),
        ("waiting", {*COLOURS} - {report.SLOWING}),
    ):
        if (
            panel_pieces.loc[panel_pieces["waiting"].astype(bool), "label"]
            .isin(labels)
            .any()
        ):
            marks.append(key(name, "bar"))
    # the axis is longer than the longest bar, for the text behind that
    axis_factor = 1.5 if len(rows_with_interval.dropna(subset=HIGH)) else 1.14
    axis_factor += 0.2 * (len(middles.dropna(subset=CENTRE)) > 0)
    # rows stand equally far apart, so that the name with most lines decides
    line = SMALL_LINE_ROWS if small else LINE_ROWS
    lines = len(names) * max(max(1.0, line * (1 + text.count("\n"))) for text in names)
    return Panel(
        marks,
        Axis(low=0.0, high=axis_factor * longest or 1.0),
        in_rows(names, small=small),
        weight=lines,
    )


def _group_names(rows: pd.DataFrame) -> tuple[list[str], list[int]]:
    """Return the names beside the rows, and the row index of each bar.

    Bars of several world sizes stand below a row without a bar, which names their size.
    Such a row stands wherever the size changes from one bar to the next.
    """
    names: list[str] = []
    positions: list[int] = []
    previous_size = None
    for size, name in zip(rows["world_size"], rows["name"], strict=True):
        if rows["in_groups"].any() and size != previous_size:
            names.append(f"{size} GPUs")
            previous_size = size
        positions.append(len(names))
        names.append(name)
    return names, positions


def wrap_name(run: str, with_world_size: bool = False) -> str:
    """Wrap the name of a run into lines: the strategy, then each swept key with its
    value.

    Lines have at most `NAME_WIDTH` letters; underscores of keys become spaces.

    Args:
        run: the name of the run.
        with_world_size: true to include the world size, which else stands elsewhere.
    """
    name, *swept_words = re.split(r" (?=@|[\w.]+=)", run)
    spaced_words = (
        part.replace("_", " ").replace("=", " = ")
        for part in swept_words
        if with_world_size or not part.startswith("@")
    )
    parts = [name, *spaced_words]
    return "\n".join(line for part in parts for line in textwrap.wrap(part, NAME_WIDTH))


def _interval_text(ends: pd.Series[float]) -> str:
    """Return the text of an interval behind the number of a bar, ' (1.2–1.5)' without
    unit, or ' → 1.4 (1.2–1.5)' with its middle; '' where an end is NaN.
    """
    if ends[[LOW, HIGH]].isna().any():
        return ""
    has_middle = not math.isnan(ends[CENTRE])
    middle = f" → {_seconds_text(ends[CENTRE])}" if has_middle else ""
    return f"{middle} ({_seconds_text(ends[LOW])}–{_seconds_text(ends[HIGH])})"


def _seconds_text(value: float) -> str:
    """Format seconds with three digits, more before the point, and at most four
    decimals; without a unit.
    """
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 4)}f}"
