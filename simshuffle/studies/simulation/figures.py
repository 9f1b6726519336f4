"""The figure of the runs of a simulation: where the seconds of an epoch go, a bar a run."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

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
from simshuffle.report.intervals import HIGH, LOW, Ends, add_interval_ends
from simshuffle.report.names import without_schedule
from simshuffle.report.style import COLOURS, line_height
from simshuffle.studies.simulation.text import number

BAR, THIN = 0.66, 0.16
"""Widths of a bar, and of those of hidden work on both sides of it, of one row."""
ROW_INCHES = 0.24
LINE, SMALL_LINE = 0.7, 0.5  # of a row that a line of a name takes, and one in small letters
NAME = 22  # characters of a line of a run's name
LONG = 3.0
"""Bars that many times as long as the longest of the others get a panel of their own."""
TIMES = [s * 10**power for power in range(7) for s in (1, 1.5, 2, 3, 4, 5, 6, 8)]
"""How much wider such a panel may be drawn than the other."""
SHADE = Look("", "#000000", alpha=0.15)
VISIBLE = 0.004  # share of the longest bar below which nothing can be seen
WHISKER = Look("", "#000000", size=4, width=1.0)
BEHIND = {
    "exchange": (0.5, "exchange hidden\nbehind other work", COLOURS["EXCHANGE"]),
    "allreduce": (-0.5, "allreduce hidden\nbehind the backward pass", COLOURS["GE+WU"]),
}
"""What may be hidden: on which side of the bar, its name and colour."""
WAITING = {
    "waiting": Look("waiting for other ranks\n(colour: what they do)", "#999999", fill="waiting"),
    "slowed": Look("backward pass slowed\nby allreduce", COLOURS[report.SLOWING], fill="waiting"),
}


def breakdown_chart(
    table: pd.DataFrame,
    epochs: pd.DataFrame,
    labels: report.Booking = "cause",
    half: pd.Series[float] | None = None,
    about: str = "",
    bars: Sequence[tuple[str, int]] | None = None,
    ends: Ends | None = None,
) -> Chart:
    """The breakdown of epochs of runs, from `simshuffle.report.report.breakdown`, and run, epoch,
    world_size, exchange_total_s, exchange_exposed_s of the same runs. ``labels`` are 'cause' for
    waiting in the colour of what is waited for, hatched, or 'paper' for the authors' booking, where
    waiting counts where it happens; ``half`` is half the 95 % interval of an epoch (s), by run and
    epoch, of what ``about`` says; ``bars`` are runs and their epochs, the last one of every run if
    not given; ``ends`` are those of the 90 % interval of a run's last epoch (s)."""
    parts = report.arrange_labels(table, labels)
    parts = parts.assign(run=parts["run"].astype(str), label=parts["label"].astype(str))
    rows = _bars(epochs, list(dict.fromkeys(parts["run"])), bars)
    places = list(zip(rows["run"], rows["epoch"], strict=True))
    rows["half"] = 0.0 if half is None else half.loc[places].to_numpy()
    ended = epochs.groupby(epochs["run"].astype(str))["epoch"].max()
    names = rows["run"].where(rows["epoch"] == rows["run"].map(ended), "")
    rows = add_interval_ends(rows.assign(of=names), ends or {}, "of")
    pieces = _pieces(parts.merge(rows[["run", "epoch", "bar"]], on=["run", "epoch"]))
    rows["end"] = pieces.groupby("bar")["x2"].max().reindex(rows["bar"])
    # a panel of its own may have one number of ranks alone, which is then still named
    rows["in_groups"] = rows["world_size"].nunique() > 1
    panels = _panels(rows, pieces)
    if _height(panels) > MAX_INCHES:
        panels = _panels(rows, pieces, small=True)
    is_full = _height(panels) > MAX_INCHES
    if is_full:  # a name has one line
        rows["name"] = rows["name"].str.replace("\n", " ")
        panels = _panels(rows, pieces, small=True)
    last = panels[-1].x
    sizes = rows["world_size"].unique()
    between = "\n" if is_full else " "  # the axis is narrow beside long names
    ranks = f",{between}{sizes[0]} GPUs" if len(sizes) == 1 else ""
    panels[-1] = replace(panels[-1], x=replace(last, title=f"time per epoch (s){ranks}"))
    looks = {label: Look(label, colour) for label, colour in COLOURS.items()}
    looks |= {f"{label} waits": Look("", c, fill="waiting") for label, c in COLOURS.items()}
    looks |= WAITING
    looks |= {name: Look(text, of, fill="hidden") for name, (_, text, of) in BEHIND.items()}
    interval = replace(WHISKER, label=textwrap.fill(f"95 % interval of {about}", NAME + 4))
    return Chart(
        panels,
        _height(panels),
        looks | {"half": interval, "ends": intervals.WHISKER},
        "Seconds of an epoch. Hatched is waiting for other ranks, in the colour of what they do."
        f" {report.legend(table, labels)}",
        shares=True,
    )


def _height(panels: Sequence[Panel]) -> float:
    """Inches without the legend."""
    lines = sum(panel.weight for panel in panels)
    return ROW_INCHES * line_height() * lines + 0.32 * len(panels) + 0.2


def _bars(
    epochs: pd.DataFrame, runs: list[str], bars: Sequence[tuple[str, int]] | None
) -> pd.DataFrame:
    """The epochs that have a bar, in the order of the runs, with their number and ``name``."""
    rows = epochs.assign(run=epochs["run"].astype(str)).sort_values("epoch", kind="stable")
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
        epochs_of_bars = [f"epoch {epoch}{' cold' * (epoch == 1)}" for epoch in rows["epoch"]]
        names = [f"{name}, {epoch}" for name, epoch in zip(names, epochs_of_bars, strict=True)]
    else:
        names = [in_lines(name) for name in names]
    return rows.assign(name=names, bar=range(len(rows))).reset_index(drop=True)


def _pieces(parts: pd.DataFrame) -> pd.DataFrame:
    """The pieces of all bars, one after another; waiting follows the work that it is for."""
    order = {label: place for place, label in enumerate(COLOURS)}
    keys = ["bar", "place", "label", "waiting", "run", "epoch"]
    sums = parts.assign(place=parts["label"].map(order)).groupby(keys)["seconds"].sum()
    pieces = sums[sums > 0].reset_index()
    whole = pieces.groupby("bar")["seconds"].transform("sum")
    looks = pieces["label"] + pieces["waiting"].map({True: " waits", False: ""})
    tips = [
        f"{run}, epoch {epoch}\n{report.part_name(label, waits)}: {number(own)} s,"
        f" {100 * own / of:.3g} % of {number(of)} s"
        for run, epoch, label, waits, own, of in zip(
            *(pieces[name] for name in ("run", "epoch", "label", "waiting", "seconds")),
            whole,
            strict=True,
        )
    ]
    return stack_rows(pieces.assign(look=looks, tip=tips), "bar", "seconds", ("x", "x2"))


def _panels(rows: pd.DataFrame, pieces: pd.DataFrame, *, small: bool = False) -> list[Panel]:
    """Panels of long and of short bars, whose scales can be compared: that of the short ones is a
    round number of times as wide, says so, and is shaded in the other."""
    panels = [_panel(group, pieces, small=small) for group in _groups(rows)]
    if len(panels) == 1:
        return panels
    long, short = panels
    high = long.x.high or 1.0
    times = max(t for t in TIMES if t * (short.x.high or 1.0) <= 1.001 * high)
    shaded = rule(SHADE, x=0.0, x2=high / times)
    title = f"the shaded part of the axis above, {times:g} times as wide"
    return [
        replace(long, marks=[shaded, *long.marks]),
        replace(short, x=replace(short.x, high=high / times), title=title),
    ]


def _groups(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Bars that can share an axis: those over `LONG` times as long stand before the others."""
    reach = rows[["end", HIGH]].max(axis=1)
    ordered = sorted(reach)
    for cut in range(len(ordered) - 1, 0, -1):
        if ordered[cut] > LONG * ordered[cut - 1]:
            long = reach >= ordered[cut]
            return [rows[long], rows[~long]]
    return [rows]


def _panel(rows: pd.DataFrame, pieces: pd.DataFrame, *, small: bool = False) -> Panel:
    names, places = _in_groups(rows)
    reach = (rows["end"] + rows["half"]).combine(rows[HIGH], max, fill_value=0.0)
    texts = rows["end"].map(_seconds) + rows[[LOW, HIGH]].apply(_within, axis=1)
    rows = rows.assign(y=places, x=reach, text=texts)
    longest = float(rows["x"].max())
    own = pieces[pieces["bar"].isin(rows["bar"])]
    own = own.assign(y=own["bar"].map(dict(zip(rows["bar"], places, strict=True))))
    marks = [Mark("bar", own, thick=BAR)]
    for name, (side, *_) in BEHIND.items():
        seconds = report.hidden_seconds(rows, name)
        behind = rows.assign(x=0.0, x2=seconds, y=rows["y"] + side * (BAR + THIN), look=name)
        behind["tip"] = [f"{name} behind other work: {number(each)} s" for each in seconds]
        marks.append(Mark("bar", behind[seconds > VISIBLE * longest], thick=THIN))
    known = rows.assign(x=rows[LOW], x2=rows[HIGH], look="ends")
    marks.append(Mark("interval", known[known[HIGH].notna()]))
    ends = rows.assign(x=rows["end"] - rows["half"], x2=rows["end"] + rows["half"], look="half")
    marks.append(Mark("interval", ends[ends["half"] > 0]))
    marks.append(Mark("text", rows, aside=(2, 0), small=small))
    # a label may be waited for alone
    marks += [key(str(label), "bar") for label in own["label"].unique()]
    for name, labels in (("slowed", {report.SLOWING}), ("waiting", {*COLOURS} - {report.SLOWING})):
        if own.loc[own["waiting"].astype(bool), "label"].isin(labels).any():
            marks.append(key(name, "bar"))
    room = 1.5 if len(known.dropna(subset=HIGH)) else 1.14  # for the text behind the longest bar
    # rows stand equally far apart, so that the name with most lines decides
    line = SMALL_LINE if small else LINE
    lines = len(names) * max(max(1.0, line * (1 + text.count("\n"))) for text in names)
    return Panel(
        marks, Axis(low=0.0, high=room * longest or 1.0), in_rows(names, small=small), weight=lines
    )


def _in_groups(rows: pd.DataFrame) -> tuple[list[str], list[int]]:
    """What stands beside rows, and the rows of the bars; those of several world sizes stand below a
    row that names theirs, which has no bar."""
    names: list[str] = []
    places: list[int] = []
    sizes, before = rows["world_size"], None
    for size, name in zip(sizes, rows["name"], strict=True):
        if rows["in_groups"].any() and size != before:
            names.append(f"{size} GPUs")
            before = size
        places.append(len(names))
        names.append(name)
    return names, places


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


def _within(ends: pd.Series[float]) -> str:
    """The ends of an interval behind the number of a bar; '' where there is none."""
    return "" if ends.isna().any() else f" ({_seconds(ends[LOW])}–{_seconds(ends[HIGH])})"


def _seconds(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 4)}f}"
