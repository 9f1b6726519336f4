"""Resumed loaders on a terminal and as a figure. Tables fit 100 columns."""

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
from simshuffle.studies.loader.resume_tables import (
    BEGINS_AGAIN,
    GOES_ON,
    RESUMES,
    is_exact,
)
from simshuffle.study.verdict import Verdict

COLUMNS_OF_COUNTS = (
    *(
        "loader",
        "outcome",
        "lost",
        "repeated",
        "twice",
        "twice_whole",
        "never",
        "skipped",
    ),
    "continues",
)
COLUMNS_OF_COSTS = (
    *("loader", "files", "requests", "nbytes", "read_s", "first_batch_s"),
    *("batch_companions", "batch_companions_whole"),
)
LOOKS = {
    "lost": Look("lost", "#EE6677"),
    "again": Look("more than once because of the break", "#CCBB44"),
}
BAR_INCHES, MARGIN_INCHES = 0.15, 0.42
"""Inches of a bar, and of a panel's axis and title."""
MAX_NAME_LETTERS = 26
"""Letters of a name on a line of a table."""


def resume_parts(
    resumes: pd.DataFrame, facts: Mapping[str, Any]
) -> Iterator[str | Table]:
    """Yield a line on the data set, and for each change a table of what becomes of the
    epoch.
    """
    nbytes = readable(facts["nbytes"], Dimension.NBYTES, 3)
    step_text = "half of it" if facts["step"] is None else f"{facts['step']} iterations"
    yield (
        f"{facts['samples']} samples in {facts['shards']} shards, {nbytes}; workers of a rank:"
        f" {facts['workers']}, batch: {facts['batch_size']}, epochs: {facts['epochs']}."
        f" Epoch {facts['epoch']} is broken off after {step_text}."
    )
    for change, change_rows in _group_by_change(resumes):
        yield RESUMES.listing(
            change_rows,
            f"{change}: what becomes of the epoch",
            COLUMNS_OF_COUNTS,
            names=2,
        )


def resume_details(
    resumes: pd.DataFrame, facts: Mapping[str, Any]
) -> Iterator[str | Table]:
    """Yield for each change a table of what is read again, and sentences on each
    loader.

    Loaders that refuse or do not fit have sentences alone.
    """
    for change, change_rows in _group_by_change(resumes):
        counted_rows = change_rows[change_rows["lost"].notna()]
        title = f"{change}: what is read again ({facts['storage']}), and mixing"
        yield RESUMES.listing(counted_rows, title, COLUMNS_OF_COSTS)
        for row in resumes.loc[change_rows.index].to_dict("records"):
            yield fill(f"{row['loader']}: {row['says']}", 100, subsequent_indent="  ")


def _group_by_change(resumes: pd.DataFrame) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Yield each change of the ranks, and its rows with names of loaders folded to
    `MAX_NAME_LETTERS` letters a line.
    """
    names = resumes["loader"].map(lambda name: fill(name, MAX_NAME_LETTERS))
    yield from resumes.assign(loader=names).groupby("change", sort=False)


def resume_verdict(resumes: pd.DataFrame, facts: Mapping[str, Any]) -> Verdict:
    """Return the verdict: how many rows go on, lose and repeat nothing, with the names
    of their loaders.

    A loader counts once for each change.
    """
    exact_loaders = [
        row["loader"] for row in resumes.to_dict("records") if is_exact(row)
    ]
    names = ", ".join(dict.fromkeys(exact_loaders))
    libraries = ", ".join(
        sorted(set(", ".join(resumes["library"]).split(", ")) - {"any"})
    )
    return Verdict(
        [
            f"{len(exact_loaders)} of {len(resumes)} resumed loaders lose nothing and repeat"
            f" nothing{f': {names}' if names else ''}."
        ],
        rests_on=(
            f"seed {facts['seed']}, this data set, these ranks and this iteration"
            f"{f', and the code of {libraries}' if libraries else ''}; samples are counted, none"
            " is read, and decoding and the start of processes are left out."
        ),
    )


def resume_chart(resumes: pd.DataFrame, facts: Mapping[str, Any]) -> Chart:
    """Draw the share of an epoch's samples that the crash loses or repeats.

    Each loader has a bar, each change a panel. Samples that come more than once without
    the crash, too, do not count. Unknown counts are drawn as 0.
    """
    changes = list(dict.fromkeys(resumes["change"]))
    panels = [
        _draw_panel(resumes[resumes["change"] == change], change, facts["samples"])
        for change in changes
    ]
    height = sum(
        MARGIN_INCHES + BAR_INCHES * len(panel.marks[1].data) for panel in panels
    )
    description = "Samples of a broken epoch that are lost or come more than once."
    return Chart(
        panels, height + 0.3, LOOKS, description, share="x", x="share of the samples"
    )


def _draw_panel(resumes: pd.DataFrame, change: str, num_samples: int) -> Panel:
    """Draw the bars of one change: shares of the ``num_samples`` samples."""
    num_repeated = (resumes["twice"] - resumes["twice_whole"]).clip(lower=0)
    rows = resumes.assign(y=range(len(resumes)), again=num_repeated)
    rows_of_look = [
        rows.assign(look=name, size=rows[name].fillna(0) / num_samples)
        for name in LOOKS
    ]
    bar_pieces = stack_rows(pd.concat(rows_of_look), "y", "size", ("x", "x2"))
    bar_ends = bar_pieces.groupby("y")["x2"].max()
    texts = [_text_beside_bar(row) for row in rows.to_dict("records")]
    marks = [
        Mark("bar", bar_pieces[bar_pieces["size"] > 0], thick=0.72),
        Mark(
            "text",
            rows.assign(x=rows["y"].map(bar_ends), text=texts),
            aside=(3, 0),
            look=Look(colour=GREY),
        ),
    ]
    names = [shorten(str(name), 30, placeholder="...") for name in rows["loader"]]
    high = 1.6 * max(1.0, float(bar_ends.max()))
    axis = Axis(low=0.0, high=high, small=True, ticks=ticks_at([0, 0.5, 1], percent))
    return Panel(marks, axis, in_rows(names, small=True), change)


def _text_beside_bar(row: Mapping[Any, Any]) -> str:
    """Return the text beside a loader's bar: 'nothing', 'begins again', '' of a loader
    that goes on with losses, else its outcome.
    """
    if row["outcome"] in {GOES_ON, BEGINS_AGAIN}:
        return (
            "nothing"
            if is_exact(row)
            else "begins again" * (row["outcome"] == BEGINS_AGAIN)
        )
    return str(row["outcome"])
