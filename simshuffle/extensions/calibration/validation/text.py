"""The validation on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.extensions.calibration.validation.scores import within
from simshuffle.extensions.calibration.validation.table import coverage, summary
from simshuffle.report.console import new_table
from simshuffle.spec.units import Dimension, readable

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


def interval(row: Mapping[Any, Any]) -> str:
    """The 90 % interval of a row; nothing where there is none."""
    return span(row["interval_low"], row["interval_high"], row["unit"])


def percent(part: float) -> str:
    """A share in percent; a dash if there is none."""
    return f"{100 * part:.0f} %" if math.isfinite(part) else "–"


def score(number: float) -> str:
    """An interval score; a dash if there is none."""
    return f"{number:.2f}" if math.isfinite(number) else "–"


CELLS = ["case", "quantity", "measured", "range", "predicted", "range", "error"]
SUMMARY = ["set", "rows", "within", "mean error", "median", "worst", "where"]
SCORES = ["set", "rows", "median error", "in 90 % interval", "score", "naive score"]
OPENED = ["case", "quantity", "predicted", "90 % interval", "measured", "error", "in it"]
UNMEASURED = ["case", "quantity", "predicted", "range", "90 % interval"]
ENTRIES = [
    *("by", "set", "rows", "median error", "in 90 % interval", "score"),
    *("ours: error", "ours: in interval", "ours: score"),
]


def summary_cells(results: pd.DataFrame, use: str) -> list[list[str]]:
    """The rows of the summary for one use: set, number, how many are within their interval, mean,
    median and worst error, and where the worst is. Rows without a measured value do not count."""
    part = summary(results[results["error"].notna()])
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


def score_cells(results: pd.DataFrame) -> list[list[str]]:
    """How good the 90 % intervals of each set are: set, number of its predicted and measured rows,
    their median error, the share in the interval, the interval score and the naive one."""
    part = summary(results[(results["use"] == "predict") & results["error"].notna()])
    return [
        [
            row["set"],
            str(row["rows"]),
            f"{100 * row['median_error']:.1f} %",
            percent(row["coverage"]),
            score(row["interval_score"]),
            score(row["naive_score"]),
        ]
        for row in part.to_dict("records")
    ]


def score_text(results: pd.DataFrame) -> str:
    """What the 90 % intervals of all sets come to, in words; nothing where there are none."""
    found = coverage(results)
    if not found["scored"]:
        return ""
    return (
        f"{found['covered']} of {found['scored']} measured values"
        f" ({percent(found['covered'] / found['scored'])}) lie in the 90 % interval of their"
        f" prediction. Its score is better than the naive one in {found['sets_better_than_naive']}"
        f" of {found['scored_sets']} sets."
    )


def sealed_text(about: Mapping[str, Any]) -> str:
    """When and with which versions predictions were sealed, and their digest."""
    named = ", ".join(f"{name} {number}" for name, number in sorted(about["versions"].items()))
    return f"Sealed {about['date']} with {named}; sha-256 {about['sha256']}."


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
    measured = results[results["error"].notna()]
    for use in ("fit", "predict"):
        for name, part in measured[measured["use"] == use].groupby("set", sort=False):
            yield _rich(
                f"{name} ({'fitted' if use == 'fit' else 'predicted'})",
                CELLS,
                [cells(r) for r in part.to_dict("records")],
                range(2, 7),
            )
    yield from _unmeasured(results)
    if unknown := reasons(results):
        yield _rich(HEADINGS["none"], ["set", "case", "why"], unknown, ())
    for use in ("fit", "predict"):
        if rows := summary_cells(results, use):
            yield _rich(HEADINGS[use], SUMMARY, rows, range(1, 6))
    yield from _scores(results)
    if covered := coverage_text(results):
        yield covered


def opened_parts(results: pd.DataFrame) -> Iterator[str | Table]:
    """The tables of predictions that were sealed: for each set what was measured since, then what
    was not, and how good the intervals are."""
    measured = results[results["error"].notna()]
    for name, part in measured.groupby("set", sort=False):
        held = within(part).tolist()
        rows = [
            [
                *(row["case"], row["quantity"], value(row["predicted"], row["unit"])),
                *(interval(row), value(row["measured"], row["unit"]), error(row["error"])),
                ("yes" if inside else "no") if interval(row) else "",
            ]
            for row, inside in zip(part.to_dict("records"), held, strict=True)
        ]
        yield _rich(f"{name} (sealed)", OPENED, rows, range(2, 6))
    yield from _unmeasured(results)
    yield from _scores(results)


def _unmeasured(results: pd.DataFrame) -> Iterator[Table]:
    """The predictions of what is not measured yet, set by set."""
    later = results[results["measured"].isna() & results["predicted"].notna()]
    for name, part in later.groupby("set", sort=False):
        rows = [
            [
                *(row["case"], row["quantity"], value(row["predicted"], row["unit"])),
                *(span(row["predicted_low"], row["predicted_high"], row["unit"]), interval(row)),
            ]
            for row in part.to_dict("records")
        ]
        yield _rich(f"{name} (not measured yet)", UNMEASURED, rows, range(2, 5))


def _scores(results: pd.DataFrame) -> Iterator[str | Table]:
    """How good the 90 % intervals are."""
    if rows := score_cells(results):
        yield _rich("90 % intervals, from the errors of other sets", SCORES, rows, range(1, 6))
    if said := score_text(results):
        yield said


def entry_cells(found: pd.DataFrame) -> list[list[str]]:
    """What each entry comes to in each set, beside simshuffle on the same rows."""
    return [
        [
            *(row["by"], row["set"], str(row["rows"]), f"{100 * row['median_error']:.1f} %"),
            *(percent(row["coverage"]), score(row["interval_score"])),
            f"{100 * row['our_median_error']:.1f} %",
            *(percent(row["our_coverage"]), score(row["our_interval_score"])),
        ]
        for row in found.to_dict("records")
    ]


def entry_parts(found: pd.DataFrame) -> Iterator[Table]:
    """The same as a table, if there are entries."""
    if rows := entry_cells(found):
        yield _rich("Entries, and simshuffle on the same rows", ENTRIES, rows, range(2, 9))
