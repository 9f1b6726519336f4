"""The figure of a measurement and its tables on a terminal, from tables alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.report.chart import Axis, Chart, Look, Mark, Panel, in_rows, rule
from simshuffle.report.console import new_table
from simshuffle.study.study import Tables

LOOKS = {
    "fit": Look("fitted", "#BBBBBB"),
    "predict": Look("predicted", "#4477AA"),
    "measured": Look("measured (range)", "#000000", "o", size=2.5),
    "band": Look("at most 7 %", "#EEEEEE"),
    "flows": Look("flows, 10th to 90th percentile", "#EE6677", width=2.2),
    "error": Look("makespan", "#000000", "o", size=2.5),
}


def testbed_chart(patterns: pd.DataFrame) -> Chart:
    """Predicted makespans as bars and measured ones as points with their range; beside
    them the error of the prediction, and of the single flows from their 10th to their
    90th percentile, in %.
    """
    known = patterns[patterns["reason"] == ""].reset_index(drop=True)
    rows = known.assign(y=known.index, measured="measured", flows="flows", look="error")
    rows = rows.assign(percent=100 * rows["error"])
    rows = rows.assign(
        p10=100 * rows["flow_error_p10"], p90=100 * rows["flow_error_p90"]
    )
    times = [
        Mark("bar", rows, x="", x2="predicted_s", look="use", thick=0.62),
        Mark("interval", rows, x="low_s", x2="high_s", look="measured"),
        Mark("point", rows, x="measured_s", look="measured"),
    ]
    errors = [
        rule("band", x=-7.0, x2=7.0),
        rule(Look(width=0.6), x=0.0),
        Mark("rule", rows, x="p10", x2="p90", look="flows"),
        Mark("point", rows, x="percent"),
    ]
    y = in_rows([str(name).replace("_", " ") for name in rows["pattern"]])
    return Chart(
        [
            Panel(times, Axis("makespan (s)", low=0.0), y),
            Panel(errors, Axis("error (%)"), y),
        ],
        0.6 + 0.17 * len(known),
        LOOKS,
        "Makespan by pattern, predicted and measured, and the error of the prediction.",
        across=2,
        widths=(1.5, 1.0),
        share="y",
    )


def parts(tables: Tables, about: Any) -> Iterator[Table | str]:
    """The tables and lines of a terminal; ``about`` is what ``meta.json`` says."""
    runs = tables["runs"]
    settings = about["settings"]
    overhead = about["overhead"]
    shape = about["settings"].shape
    yield (
        f"{shape.hosts} hosts on {shape.leaves} leaves, {shape.spines} spines, every link"
        f" {shape.rate * 8 / 1e6:g} Mbit/s; {settings.nbytes / 1e6:g} MB a host; Linux"
        f" {about['kernel']}"
    )
    yield _patterns(tables["patterns"])
    yield (
        f"Fitted on the single flows: efficiency {overhead.efficiency:.4f}, start-up"
        f" {overhead.startup * 1e3:.2f} ms. No more is fitted."
    )
    if len(tables["verdicts"]):
        yield _verdicts(tables["verdicts"])
    if held := int(runs["held_up"].sum()):
        yield (
            f"{held} of {len(runs)} runs were held up: a processor was missing, not the network."
            " They count only where no other is left."
        )


def _patterns(patterns: pd.DataFrame) -> Table:
    numbers = ("measured s", "min - max", "predicted s", "error", "flows 10 - 90 %")
    table = new_table("Makespan, measured and predicted", ["pattern"], numbers)
    for row in patterns.to_dict("records"):
        if row["reason"]:
            table.add_row(row["pattern"], row["reason"])
            continue
        table.add_row(
            row["pattern"] + (" (fit)" if row["use"] == "fit" else ""),
            f"{row['measured_s']:.3f}",
            f"{row['low_s']:.3f} - {row['high_s']:.3f}",
            f"{row['predicted_s']:.3f}",
            _percent(row["error"]),
            f"{_percent(row['flow_error_p10'])} - {_percent(row['flow_error_p90'])}",
        )
    return table


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _verdicts(verdicts: pd.DataFrame) -> Table:
    title = "Which is faster, at the same bytes a host?"
    table = new_table(title, ["question", "measured", "predicted", "verdict"])
    for row in verdicts.to_dict("records"):
        question = f"{row['a']} or {row['b']}?"
        same = "the same" if row["same"] else "NOT the same"
        table.add_row(
            question, _answer(row, "measured"), _answer(row, "predicted"), same
        )
    return table


def _answer(row: Mapping[Any, Any], which: str) -> str:
    faster = {"a": row["a"], "b": row["b"]}.get(row[which], "alike")
    return f"{faster} ({row[f'{which}_ratio']:.2f})"
