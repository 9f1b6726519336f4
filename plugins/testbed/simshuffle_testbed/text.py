"""A measurement on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.results.console import new_table
from simshuffle.study.study import Result
from simshuffle_testbed.tables import said


def parts(result: Result) -> Iterator[Table | str]:
    """The tables and lines, from top to bottom."""
    about, runs = said(result.meta), result.tables["runs"]
    settings, overhead, shape = about["settings"], about["overhead"], about["settings"].shape
    yield (
        f"{shape.hosts} hosts on {shape.leaves} leaves, {shape.spines} spines, every link"
        f" {shape.rate * 8 / 1e6:g} Mbit/s; {settings.nbytes / 1e6:g} MB a host; Linux"
        f" {about['kernel']}"
    )
    yield _patterns(result.tables["patterns"])
    yield (
        f"Fitted on the single flows: efficiency {overhead.efficiency:.4f}, start-up"
        f" {overhead.startup * 1e3:.2f} ms. No more is fitted."
    )
    if len(result.tables["verdicts"]):
        yield _verdicts(result.tables["verdicts"])
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
        question, same = f"{row['a']} or {row['b']}?", "the same" if row["same"] else "NOT the same"
        table.add_row(question, _answer(row, "measured"), _answer(row, "predicted"), same)
    return table


def _answer(row: Mapping[Any, Any], which: str) -> str:
    faster = {"a": row["a"], "b": row["b"]}.get(row[which], "alike")
    return f"{faster} ({row[f'{which}_ratio']:.2f})"
