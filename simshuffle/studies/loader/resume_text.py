"""Loaders that were broken off, on a terminal and as a figure. Tables fit 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import fill, shorten
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.report.chart import (
    GREY,
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    in_rows,
    percent,
    stack_rows,
)
from simshuffle.report.chart import ticks as ticks_at
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.loader.resume_tables import AGAIN, GOES_ON, RESUMES, right

COUNTED = (
    *("loader", "outcome", "lost", "repeated", "twice", "twice_whole", "never", "skipped"),
    "continues",
)
COSTS = (
    *("loader", "files", "requests", "nbytes", "read_s", "first_batch_s"),
    *("batch_companions", "batch_companions_whole"),
)
LOOKS = {"lost": Look("lost", "#EE6677"), "again": Look("more than once because of it", "#CCBB44")}
ROW, MARGIN = 0.15, 0.42
"""Inches of a bar, and of a panel's axis and title."""
LONGEST = 26
"""Letters of a name on a line of a table."""


def resume_parts(resumes: pd.DataFrame, says: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield the set, and for each change what becomes of the epoch."""
    nbytes = readable(says["nbytes"], Dimension.NBYTES, 3)
    where = "half of it" if says["step"] is None else f"{says['step']} iterations"
    yield (
        f"{says['samples']} samples in {says['shards']} shards, {nbytes}; workers of a rank:"
        f" {says['workers']}, batch: {says['batch_size']}, epochs: {says['epochs']}."
        f" Epoch {says['epoch']} is broken off after {where}."
    )
    for change, of in _by_change(resumes):
        yield RESUMES.listing(of, f"{change}: what becomes of the epoch", COUNTED, names=2)


def resume_details(resumes: pd.DataFrame, says: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield for each change what is read again, and a sentence on each loader."""
    for change, of in _by_change(resumes):
        known = of[of["lost"].notna()]
        title = f"{change}: what is read again ({says['storage']}), and mixing"
        yield RESUMES.listing(known, title, COSTS)
        for row in resumes.loc[of.index].to_dict("records"):
            yield fill(f"{row['loader']}: {row['says']}", 100, subsequent_indent="  ")


def _by_change(resumes: pd.DataFrame) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Yield each change of the ranks, and its rows with names of loaders folded."""
    names = resumes["loader"].map(lambda name: fill(name, LONGEST))
    yield from resumes.assign(loader=names).groupby("change", sort=False)


def resume_verdict(resumes: pd.DataFrame, says: Mapping[str, Any]) -> Iterator[str]:
    """How many lose or repeat nothing, and what that rests on."""
    exact = [row["loader"] for row in resumes.to_dict("records") if right(row)]
    names = ", ".join(dict.fromkeys(exact))
    yield (
        f"{len(exact)} of {len(resumes)} go on with nothing lost and nothing a second time"
        f"{f': {names}' if names else ''}."
    )
    libraries = ", ".join(sorted(set(", ".join(resumes["library"]).split(", ")) - {"any"}))
    yield (
        f"Rests on one seed, {says['seed']}, on this set, these ranks and this iteration"
        f"{f', and on the code of {libraries}' if libraries else ''}; samples are counted, none is"
        " read. Decoding, and how long processes take to begin, are left out."
    )


def resume_chart(resumes: pd.DataFrame, says: Mapping[str, Any]) -> Chart:
    """Samples of the epoch that are lost, and that come more than once but would not, over all, a
    bar for each loader and a panel for each change."""
    changes = list(dict.fromkeys(resumes["change"]))
    panels = [_panel(resumes[resumes["change"] == of], of, says["samples"]) for of in changes]
    height = sum(MARGIN + ROW * len(panel.marks[1].data) for panel in panels)
    about = "Samples of a broken epoch that are lost or come more than once."
    return Chart(panels, height + 0.3, LOOKS, about, share="x", x="share of the samples")


def _panel(resumes: pd.DataFrame, change: str, size: int) -> Panel:
    again = (resumes["twice"] - resumes["twice_whole"]).clip(lower=0)
    rows = resumes.assign(y=range(len(resumes)), again=again)
    parts = [rows.assign(look=name, size=rows[name].fillna(0) / size) for name in LOOKS]
    pieces = stack_rows(pd.concat(parts), "y", "size", ("x", "x2"))
    ends = pieces.groupby("y")["x2"].max()
    texts = [_beside(row) for row in rows.to_dict("records")]
    marks = [
        Mark("bar", pieces[pieces["size"] > 0], thick=0.72),
        Mark(
            "text",
            rows.assign(x=rows["y"].map(ends), text=texts),
            aside=(3, 0),
            look=Look(colour=GREY),
        ),
    ]
    names = [shorten(str(name), 30, placeholder="...") for name in rows["loader"]]
    high = 1.6 * max(1.0, float(ends.max()))
    axis = Axis(low=0.0, high=high, small=True, ticks=ticks_at([0, 0.5, 1], percent))
    return Panel(marks, axis, in_rows(names, small=True), change)


def _beside(row: Mapping[Any, Any]) -> str:
    if row["outcome"] in {GOES_ON, AGAIN}:
        return "nothing" if right(row) else "begins again" * (row["outcome"] == AGAIN)
    return str(row["outcome"])
