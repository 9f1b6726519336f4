"""A measurement on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from simshuffle.studies.testbed.folder import Measurement


def parts(result: Measurement) -> Iterator[Table | str]:
    """The tables and lines, from top to bottom."""
    shape, overhead = result.settings.shape, result.tables.overhead
    yield (
        f"{shape.hosts} hosts on {shape.leaves} leaves, {shape.spines} spines, every link"
        f" {shape.rate * 8 / 1e6:g} Mbit/s; {result.settings.nbytes / 1e6:g} MB a host; Linux"
        f" {result.meta['kernel']}"
    )
    yield _patterns(result)
    yield (
        f"Fitted on the single flows: efficiency {overhead.efficiency:.4f}, start-up"
        f" {overhead.startup * 1e3:.2f} ms. No more is fitted."
    )
    if len(result.tables.verdicts):
        yield _verdicts(result)
    held = int(result.tables.runs["held_up"].sum())
    if held:
        runs = len(result.tables.runs)
        yield (
            f"{held} of {runs} runs were held up: a processor was missing, not the network. They"
            " count only where no other is left."
        )


def _patterns(result: Measurement) -> Table:
    table = Table(title="Makespan, measured and predicted", title_justify="left")
    for name in ("pattern", "measured s", "min - max", "predicted s", "error", "flows 10 - 90 %"):
        table.add_column(name, justify="left" if name == "pattern" else "right", no_wrap=True)
    for row in result.tables.patterns.to_dict("records"):
        if row["reason"]:
            table.add_row(row["pattern"], row["reason"])
            continue
        mark = " (fit)" if row["use"] == "fit" else ""
        table.add_row(
            f"{row['pattern']}{mark}",
            f"{row['measured_s']:.3f}",
            f"{row['low_s']:.3f} - {row['high_s']:.3f}",
            f"{row['predicted_s']:.3f}",
            _percent(row["error"]),
            f"{_percent(row['flow_error_p10'])} - {_percent(row['flow_error_p90'])}",
        )
    return table


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _verdicts(result: Measurement) -> Table:
    table = Table(title="Which is faster, at the same bytes a host?", title_justify="left")
    for name in ("question", "measured", "predicted", "verdict"):
        table.add_column(name, justify="left", no_wrap=True)
    for row in result.tables.verdicts.to_dict("records"):
        same = "the same" if row["same"] else "NOT the same"
        table.add_row(
            f"{row['a']} or {row['b']}?", _answer(row, "measured"), _answer(row, "predicted"), same
        )
    return table


def _answer(row: dict[Any, Any], which: str) -> str:
    faster = {"a": row["a"], "b": row["b"]}.get(row[which], "alike")
    return f"{faster} ({row[f'{which}_ratio']:.2f})"
