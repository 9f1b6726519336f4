"""The validation on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.results.console import new_table
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.validation.table import coverage, summary

DIMENSIONS = {
    "s": Dimension.SECONDS,
    "B/s": Dimension.BANDWIDTH,
    "1/s": Dimension.FREQUENCY,
    "B": Dimension.NBYTES,
}
HEADINGS = {
    "fit": "Fitted: a parameter comes from these rows, so their errors say how well the law fits",
    "predict": "Predicted: no parameter comes from these rows",
    "none": "Not validated, and why",
}


def value(number: float, unit: str) -> str:
    """A number of the table for a reader: three significant digits and its unit; a dash if there is
    none."""
    if not math.isfinite(number):
        return "–"
    return readable(number, DIMENSIONS[unit], 3) if unit in DIMENSIONS else f"{number:.3g}"


def span(low: float, high: float, unit: str) -> str:
    """A range, or nothing where both ends read the same."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    first, last = value(low, unit), value(high, unit)
    if first == last:
        return ""
    number, _, of_first = first.partition(" ")
    return f"{number}–{last}" if of_first == last.partition(" ")[2] else f"{first}–{last}"


def error(share: float) -> str:
    """A relative error in percent, with its sign."""
    return f"{100 * share:+.1f} %" if math.isfinite(share) else ""


def cells(row: Mapping[Any, Any]) -> list[str]:
    """The cells of a row that was compared: case, quantity, measured, its range, predicted, its
    range, error."""
    return [
        row["case"],
        row["quantity"],
        value(row["measured"], row["unit"]),
        span(row["low"], row["high"], row["unit"]),
        value(row["predicted"], row["unit"]),
        span(row["predicted_low"], row["predicted_high"], row["unit"]),
        error(row["error"]),
    ]


CELLS = ["case", "quantity", "measured", "range", "predicted", "range", "error"]
SUMMARY = ["set", "rows", "within", "mean error", "median", "worst", "where"]


def summary_cells(results: pd.DataFrame, use: str) -> list[list[str]]:
    """The rows of the summary for one use: set, number, how many are within their interval, mean,
    median and worst error, and where the worst is."""
    part = summary(results)
    part = part[part["use"] == use]
    return [
        [
            row["set"],
            str(row["rows"]),
            f"{round(row['inside'] * row['rows'])}",
            *(f"{100 * row[name]:.1f} %" for name in ("mean_error", "median_error", "worst_error")),
            row["worst_case"],
        ]
        for row in part.to_dict("records")
    ]


def coverage_text(results: pd.DataFrame) -> str:
    """How many predicted rows lie within their interval, and what the intervals are, in words;
    nothing where no row is predicted."""
    found = coverage(results)
    if not found["rows"]:
        return ""
    text = (
        f"Of {found['rows']} predicted rows {found['inside']} lie within their interval (the"
        f" measured and the predicted range overlap). {found['intervals']} have an interval and not"
        f" one number, of which {found['inside_intervals']} lie within it."
    )
    more = results["traffic"].max()
    if more > 0:
        text += (
            f" For runs of more than one rack of ABCI, the traffic of others may add up to"
            f" {100 * more:.0f} % to the time: so much longer the same configurations took when"
            " they were measured again (ParaDL's report against its logs)."
        )
    return text


def reasons(results: pd.DataFrame) -> list[list[str]]:
    """What could not be validated: set, case and quantity, reason."""
    part = results[results["use"] == "none"]
    return [
        [row["set"], f"{row['case']}, {row['quantity']}", row["reason"]]
        for row in part.to_dict("records")
    ]


def _rich(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]
) -> Table:
    table = new_table(title)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number in numbers else "left")
    for row in rows:
        table.add_row(*row)
    return table


def parts(results: pd.DataFrame) -> Iterator[str | Table]:
    """All tables: for each use and set its rows, then the summaries and the coverage."""
    for use in ("fit", "predict"):
        for name, part in results[results["use"] == use].groupby("set", sort=False):
            yield _rich(
                f"{name} ({'fitted' if use == 'fit' else 'predicted'})",
                CELLS,
                [cells(r) for r in part.to_dict("records")],
                range(2, 7),
            )
    if unknown := reasons(results):
        yield _rich(HEADINGS["none"], ["set", "case", "why"], unknown, ())
    for use in ("fit", "predict"):
        if rows := summary_cells(results, use):
            yield _rich(HEADINGS[use], SUMMARY, rows, range(1, 6))
    if covered := coverage_text(results):
        yield covered
