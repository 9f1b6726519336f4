"""Draws docs/figures/alltoall.png, predicted over measured of every algorithm and size, and prints
errors and how many orders of algorithms are right: python benchmarks/alltoall_figure.py. Rows are
those of validation/alltoall.csv, and the opened ones of validation/sealed/2026-11-24. Thin lines
are the closed form that predicted them until November 2026, docs/data/alltoall-closed-form.csv.
"""

from __future__ import annotations

import time
from itertools import combinations
from pathlib import Path

import pandas as pd

from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.report import canvas, paper
from simshuffle.report.chart import Axis, Chart, Look, Mark, Panel, rule, ticks
from simshuffle.spec.units import Dimension, parse_quantity
from simshuffle.studies.alltoall import alltoalls_of_scenario

ROOT = Path(__file__).parent.parent
MEASURED = ("validation/alltoall.csv", "validation/sealed/2026-11-24/rows.csv")
COLOURS = {
    "linear": ("#4477AA", "o"),
    "linear_sync": ("#66CCEE", "s"),
    "pairwise": ("#EE6677", "^"),
    "bruck": ("#228833", "D"),
    "default": ("#888888", "v"),
}
LOOKS = {
    **{name: Look(name, *look) for name, look in COLOURS.items()},
    **{
        f"{name} before": Look("", look[0], width=0.5) for name, look in COLOURS.items()
    },
}
TICKS = [0.4, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0]
BAND, FACTOR, APART = 0.15, 1.5, 1.2
SMALL = 4096
"""Bytes a pair above which no row should be off by more than `FACTOR`."""


def short(nbytes: float) -> str:
    """Bytes as 16, 1 Ki or 2 Mi."""
    for factor, unit in ((2**20, " Mi"), (2**10, " Ki")):
        if nbytes >= factor:
            return f"{nbytes / factor:g}{unit}"
    return f"{nbytes:g}"


def read_rows() -> pd.DataFrame:
    """Predict every measured all-to-all; columns are those of the rows, and machine, algorithm
    (look), bytes a pair (x), predicted (s), closed_form (s), and seconds of this process."""
    rows = pd.concat(pd.read_csv(ROOT / name).assign(file=name) for name in MEASURED)
    rows = rows[(rows["kind"] == "alltoall") & rows["measured"].notna()]
    words = rows["values"].str.extract(r"algorithm=(?P<look>\w+);nbytes=(?P<size>.+)")
    rows = rows.assign(
        machine=rows["case"].str.split(",").str[0],
        look=words["look"],
        x=[parse_quantity(size, Dimension.NBYTES) for size in words["size"]],
    )
    closed_form = pd.read_csv(ROOT / "docs" / "data" / "alltoall-closed-form.csv")
    rows = rows.merge(
        closed_form.set_index("case")["predicted_s"].rename("closed_form"), on="case"
    )
    predicted = []
    for scenario, own in rows.groupby("scenario", sort=False):
        began = time.process_time()
        law = alltoalls_of_scenario(load_scenario(str(scenario)))
        seconds = [
            law.seconds(look, x) for look, x in zip(own["look"], own["x"], strict=True)
        ]
        predicted.append(pd.Series(seconds, own.index))
        print(
            f"{scenario}: {len(own)} rows in {time.process_time() - began:.0f} s of CPU"
        )
    return rows.assign(predicted=pd.concat(predicted))


def draw_chart(rows: pd.DataFrame) -> Chart:
    """A panel for each machine."""
    panels = []
    for number, (machine, own) in enumerate(rows.groupby("machine", sort=False)):
        points = own.sort_values("x")
        marks = [
            rule(Look(colour="#DDDDDD"), y=1 / (1 + BAND), y2=1 + BAND),
            rule(Look(colour="#000000", width=0.6), y=1.0),
        ]
        for column, suffix in (("closed_form", " before"), ("predicted", "")):
            ratio = points.assign(y=points[column] / points["measured"])
            ratio["look"] += suffix
            marks += [
                Mark("line", ratio[ratio["look"] == f"{name}{suffix}"])
                for name in COLOURS
            ]
        sizes = {size: short(size) for size in points["x"].unique().tolist()}
        x = Axis(
            "bytes a pair" * (number == 2),
            True,
            min(sizes) / 1.5,
            max(sizes) * 1.5,
            sizes,
        )
        y = Axis("predicted / measured", True, 0.34, 2.5, ticks(TICKS))
        panels.append(Panel(marks, x, y, title=str(machine)))
    about = (
        "All-to-alls, predicted over measured (band: ±15 %), by algorithm and bytes a pair."
        " Thin: closed form."
    )
    return Chart(panels, 4.8, LOOKS, about)


def count_orders(rows: pd.DataFrame, column: str) -> tuple[int, int]:
    """Pairs of algorithms that differ by more than a fifth at a size, and in how many of them the
    faster one is predicted to be the faster one."""
    pairs = right = 0
    for _, group in rows.groupby(["machine", "x"]):
        for first, second in combinations(group.to_dict("records"), 2):
            apart = first["measured"] / second["measured"]
            if max(apart, 1 / apart) > APART:
                pairs += 1
                right += (apart - 1) * (first[column] - second[column]) > 0
    return pairs, right


def main() -> None:
    rows = read_rows()
    own = rows[rows["use"] == "predict"]
    opened = own["file"].str.startswith("validation/sealed")
    for column in ("closed_form", "predicted"):
        ratio = own[column] / own["measured"]
        error = (ratio - 1).abs()
        print(
            f"{column}: median error of {len(own)} rows {error.median():.1%},"
            f" of {opened.sum()} opened {error[opened].median():.1%};"
            " orders of algorithms: {1} of {0} right".format(
                *count_orders(rows, column)
            )
        )
        is_far = (own["x"] > SMALL) & ((ratio > FACTOR) | (ratio < 1 / FACTOR))
        for case, far in zip(own["case"][is_far], ratio[is_far], strict=True):
            print(f"  {far:.2f} times what was measured: {case}")
    stem = ROOT / "docs" / "figures" / "alltoall"
    canvas.save(paper.draw(draw_chart(rows)), stem)[1].unlink()


if __name__ == "__main__":
    main()
