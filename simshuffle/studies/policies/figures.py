"""The figure of a comparison, from its tables alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from simshuffle.results.chart import (
    DASHES,
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    in_rows,
    key,
    rule,
    stacked,
)

LOOKS = {
    "pfs": Look("file system", "#EE6677"),
    "remote_ssd": Look("another's SSD", "#CCBB44"),
    "remote_memory": Look("another's memory", "#66CCEE"),
    "own_ssd": Look("own SSD", "#228833"),
    "own_memory": Look("own memory", "#4477AA"),
    "staging_buffer": Look("(no fetching)", "#BBBBBB"),
    "no wait": Look("no wait", "#000000", dash=DASHES[1], width=0.6),
    "partial": Look("(%): share of set read", "#FFFFFF"),
}
SOURCES = list(LOOKS)[:6]
ROW, MARGIN = 0.135, 0.42
"""Inches of a bar, and of a panel's axis and title."""


def policies_chart(policies: pd.DataFrame) -> Chart:
    """Time of all epochs of each policy, a panel for each case: a bar as long as its ratio to
    perfect, divided like the bytes of its sources."""
    cases = list(dict.fromkeys(policies["case"]))
    across = 1 if len(cases) == 1 else 2
    down = -(-len(cases) // across)
    bars = int(policies.groupby("case").size().max())
    panels = [_panel(policies[policies["case"] == case], case) for case in cases]
    if (policies["coverage"] < 1).any():
        panels[0] = replace(panels[0], marks=[*panels[0].marks, key("partial", "bar")])
    return Chart(
        panels,
        down * (MARGIN + ROW * bars) + 0.3,
        LOOKS,
        "Time of all epochs over that without any wait, by where bytes came from.",
        across=across,
        share="y",
        x="time of all epochs / time without any wait",
    )


def _panel(policies: pd.DataFrame, case: str) -> Panel:
    rows = policies.assign(y=range(len(policies)), x=policies["total_ratio"].fillna(0.0))
    fits = rows["problem"] == ""
    longest = float(rows.loc[fits, "x"].max()) if fits.any() else 1.0
    shares = [
        rows[fits].assign(look=source, size=rows["x"] * rows[f"{source}_share"])
        for source in SOURCES
    ]
    pieces = stacked(pd.concat(shares), "y", "size", ("x", "x2"))
    texts = [_text(row) for row in rows.to_dict("records")]
    ends = rows.assign(text=texts, x=rows["x"].where(fits, 1.0))
    known, unknown = Look(colour="#000000"), Look(colour="#666666")
    marks = [
        Mark("bar", pieces[pieces["size"] > 0], thick=0.72),
        rule("no wait", x=1.0),
        Mark("text", ends[fits], aside=(2, 0), look=known),
        Mark("text", ends[~fits], aside=(3, 0), look=unknown),
    ]
    names = [str(name).replace("_", " ") for name in rows["policy"]]
    x = Axis(low=0.0, high=1.36 * (longest or 1.0), small=True)
    return Panel(marks, x, in_rows(names, small=True), case)


def _text(row: dict[Any, Any]) -> str:
    if row["problem"]:
        return "does not fit"
    partial = f" ({100 * row['coverage']:.0f} %)" if row["coverage"] < 1 else ""
    return f"{row['total_ratio']:.2f}{partial}"
