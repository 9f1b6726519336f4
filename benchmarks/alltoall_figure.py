"""Draws docs/figures/alltoall.png, predicted over measured of every algorithm and size, and prints
the median error and how many orders of algorithms are right: python benchmarks/alltoall_figure.py
[RESULT.json], the output of `simshuffle study validate --only alltoall --json`."""

from __future__ import annotations

import json
import sys
from itertools import combinations
from pathlib import Path

import pandas as pd

from simshuffle import validate
from simshuffle.report import canvas, paper
from simshuffle.report.chart import Axis, Chart, Look, Mark, Panel, rule, ticks

LOOKS = {
    "linear": Look("linear", "#4477AA", "o"),
    "linear_sync": Look("linear_sync", "#66CCEE", "s"),
    "pairwise": Look("pairwise", "#EE6677", "^"),
    "bruck": Look("bruck", "#228833", "D"),
    "default": Look("default of Open MPI", "#888888", "v"),
}
TICKS = [0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0]
BAND, APART = 0.15, 1.2


def short(nbytes: float) -> str:
    """Bytes as 16, 1 Ki or 2 Mi."""
    for factor, unit in ((2**20, " Mi"), (2**10, " Ki")):
        if nbytes >= factor:
            return f"{nbytes / factor:g}{unit}"
    return f"{nbytes:g}"


def rows_of(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with machine, algorithm (look), bytes a pair (x) and predicted over measured (y)."""
    words = table["values"].str.extract(r"algorithm=(?P<look>\w+);nbytes=(?P<x>\d+) B")
    machine = table["case"].str.split(",").str[0]
    ratio = pd.to_numeric(table["predicted"]) / pd.to_numeric(table["measured"])
    return table.assign(
        machine=machine, look=words["look"], x=words["x"].astype(float), y=ratio
    )


def chart(rows: pd.DataFrame) -> Chart:
    """A panel for each machine."""
    panels = []
    for number, (machine, own) in enumerate(rows.groupby("machine", sort=False)):
        of = own.sort_values("x")
        marks = [
            rule(Look(colour="#DDDDDD"), y=1 / (1 + BAND), y2=1 + BAND),
            rule(Look(colour="#000000", width=0.6), y=1.0),
            *(Mark("line", of[of["look"] == name]) for name in LOOKS),
        ]
        sizes = {size: short(size) for size in of["x"].unique().tolist()}
        low = min(sizes) / 1.5
        high = max(sizes) * 1.5
        x = Axis("bytes a pair" if number == 2 else "", True, low, high, sizes)
        y = Axis("predicted / measured", True, 0.45, 2.1, ticks(TICKS))
        panels.append(Panel(marks, x, y, title=str(machine)))
    about = "All-to-alls, predicted over measured (band: ±15 %), by algorithm and bytes a pair."
    return Chart(panels, 4.8, LOOKS, about)


def orders(rows: pd.DataFrame) -> tuple[int, int]:
    """Pairs of algorithms that differ by more than a fifth at a size, and in how many of them the
    faster one is predicted to be the faster one."""
    pairs = right = 0
    for _, of in rows.groupby(["machine", "x"]):
        for a, b in combinations(of.to_dict("records"), 2):
            apart = a["measured"] / b["measured"]
            if max(apart, 1 / apart) > APART:
                pairs += 1
                right += (apart - 1) * (a["predicted"] - b["predicted"]) > 0
    return pairs, right


if __name__ == "__main__":
    if len(sys.argv) > 1:
        table = pd.DataFrame(
            json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["rows"]
        )
    else:
        table = validate(only=["alltoall"]).table("validation")
    rows = rows_of(table)
    own = rows[rows["use"] == "predict"]
    print(
        f"median error of {len(own)} predicted rows: {(own['y'] - 1).abs().median():.1%}"
    )
    print("orders of algorithms: {1} of {0} right".format(*orders(rows)))
    stem = Path(__file__).parent.parent / "docs" / "figures" / "alltoall"
    canvas.save(paper.draw(chart(rows)), stem)[1].unlink()
