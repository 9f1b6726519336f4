"""The validation on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.extensions.calibration.validation.scores import is_in_interval
from simshuffle.extensions.calibration.validation.table import (
    count_covered_rows,
    summarize_sets,
)
from simshuffle.report.console import new_table
from simshuffle.spec.units import Dimension, readable

DIMENSION_OF_UNIT = {
    "s": Dimension.SECONDS,
    "B/s": Dimension.BANDWIDTH,
    "1/s": Dimension.FREQUENCY,
    "B": Dimension.NBYTES,
}
TITLE_OF_USE = {
    "fit": "Fitted: a parameter comes from these rows, so their errors say how well the law fits",
    "predict": "Predicted: no parameter comes from these rows",
    "none": "Not validated, and why",
}


def format_value(number: float, unit: str) -> str:
    """Return a number of the table for a reader: three significant digits and its unit,
    without a unit if `DIMENSION_OF_UNIT` lacks it.

    A dash stands for nan and inf.
    """
    if not math.isfinite(number):
        return "–"
    if unit not in DIMENSION_OF_UNIT:
        return f"{number:.3g}"
    return readable(number, DIMENSION_OF_UNIT[unit], 3)


def format_range(low: float, high: float, unit: str) -> str:
    """Return a range for a reader; '' where both ends have one text, or one is not
    finite.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    low_text = format_value(low, unit)
    high_text = format_value(high, unit)
    if low_text == high_text:
        return ""
    number, _, unit_of_low = low_text.partition(" ")
    has_one_unit = unit_of_low == high_text.partition(" ")[2]
    return f"{number if has_one_unit else low_text}–{high_text}"


def format_error(share: float) -> str:
    """Return a relative error in percent, with its sign; '' if it is not finite."""
    return f"{100 * share:+.1f} %" if math.isfinite(share) else ""


def row_cells(row: Mapping[Any, Any]) -> list[str]:
    """Return the cells of a row that was compared.

    They are case, quantity, measured, its range, predicted, its range, and error.
    """
    return [
        row["case"],
        row["quantity"],
        format_value(row["measured"], row["unit"]),
        format_range(row["low"], row["high"], row["unit"]),
        format_value(row["predicted"], row["unit"]),
        format_range(row["predicted_low"], row["predicted_high"], row["unit"]),
        format_error(row["error"]),
    ]


def format_interval(row: Mapping[Any, Any]) -> str:
    """Return the 90 % interval of a row; '' where it has none, or both ends have one
    text.
    """
    return format_range(row["interval_low"], row["interval_high"], row["unit"])


def format_percent(share: float) -> str:
    """Return a share in percent; a dash if there is none."""
    return f"{100 * share:.0f} %" if math.isfinite(share) else "–"


def format_score(number: float) -> str:
    """Return an interval score; a dash if there is none."""
    return f"{number:.2f}" if math.isfinite(number) else "–"


ROW_HEADINGS = ["case", "quantity", "measured", "range", "predicted", "range", "error"]
SUMMARY_HEADINGS = ["set", "rows", "within", "mean error", "median", "worst", "where"]
SCORE_HEADINGS = [
    "set",
    "rows",
    "median error",
    "in 90 % interval",
    "score",
    "naive score",
]
SEALED_HEADINGS = [
    "case",
    "quantity",
    "predicted",
    "90 % interval",
    "measured",
    "error",
    "in it",
]
UNMEASURED_HEADINGS = ["case", "quantity", "predicted", "range", "90 % interval"]
ENTRY_HEADINGS = [
    *("by", "set", "rows", "median error", "in 90 % interval", "score"),
    *("ours: error", "ours: in interval", "ours: score"),
]


def summary_cells(results: pd.DataFrame, use: str) -> list[list[str]]:
    """Return the rows of the summary for one use of rows.

    They are set, number, how many have a measured range that meets the predicted one,
    mean, median and worst error, and where the worst is. Rows without a measured value
    do not count.
    """
    summaries = summarize_sets(results[results["error"].notna()])
    summaries = summaries[summaries["use"] == use]
    return [
        [
            row["set"],
            str(row["rows"]),
            f"{round(row['inside'] * row['rows'])}",
            *(
                f"{100 * row[name]:.1f} %"
                for name in ("mean_error", "median_error", "worst_error")
            ),
            row["worst_case"],
        ]
        for row in summaries.to_dict("records")
    ]


def score_cells(results: pd.DataFrame) -> list[list[str]]:
    """Return the scores of the 90 % intervals of each set.

    They are set, number of its predicted and measured rows, their median error, the
    share in the interval, the interval score and the naive one.
    """
    summaries = summarize_sets(
        results[(results["use"] == "predict") & results["error"].notna()]
    )
    return [
        [
            row["set"],
            str(row["rows"]),
            f"{100 * row['median_error']:.1f} %",
            format_percent(row["coverage"]),
            format_score(row["interval_score"]),
            format_score(row["naive_score"]),
        ]
        for row in summaries.to_dict("records")
    ]


def score_text(results: pd.DataFrame) -> str:
    """Describe how good the 90 % intervals of all sets are; '' where there are none."""
    counts = count_covered_rows(results)
    if not counts["scored"]:
        return ""
    return (
        f"{counts['covered']} of {counts['scored']} measured values"
        f" ({format_percent(counts['covered'] / counts['scored'])}) lie in the 90 % interval of"
        " their prediction. The score of the intervals is better than the naive one in"
        f" {counts['sets_better_than_naive']} of {counts['scored_sets']} sets."
    )


def describe_seal(origin: Mapping[str, Any]) -> str:
    """Describe when and with which versions predictions were sealed, and their digest.

    ``origin`` is that of `SealedPredictions`.
    """
    version_texts = ", ".join(
        f"{package} {version}"
        for package, version in sorted(origin["versions"].items())
    )
    return f"Sealed {origin['date']} with {version_texts}; sha-256 {origin['sha256']}."


def coverage_text(results: pd.DataFrame) -> str:
    """Describe how many predicted rows have a predicted range that overlaps the
    measured one (the text calls it interval); '' where none is predicted and measured.
    """
    counts = count_covered_rows(results)
    if not counts["rows"]:
        return ""
    text = (
        f"Of {counts['rows']} predicted rows {counts['inside']} lie within their interval (the"
        f" measured and the predicted range overlap). {counts['intervals']} have an interval"
        f" rather than one number; {counts['inside_intervals']} of these lie within it."
    )
    max_traffic = results["traffic"].max()
    if max_traffic > 0:
        text += (
            f" For runs of more than one rack of ABCI, the traffic of other jobs may add up to"
            f" {100 * max_traffic:.0f} % to the time. The same configurations took that much longer"
            " when they were measured again (ParaDL's report against its logs)."
        )
    return text


def reasons(results: pd.DataFrame) -> list[list[str]]:
    """Return set, 'CASE, QUANTITY' and reason of each row that cannot be predicted."""
    unpredicted_rows = results[results["use"] == "none"]
    return [
        [row["set"], f"{row['case']}, {row['quantity']}", row["reason"]]
        for row in unpredicted_rows.to_dict("records")
    ]


def build_table(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    number_columns: Sequence[int],
) -> Table:
    """Return a table for a terminal.

    Args:
        title: of the table.
        headings: of the columns.
        rows: cells of each row.
        number_columns: indices of the columns that hold numbers; they are aligned on
            the right.
    """
    table = new_table(title)
    for column, heading in enumerate(headings):
        table.add_column(
            heading, justify="right" if column in number_columns else "left"
        )
    for row in rows:
        table.add_row(*row)
    return table


def parts(results: pd.DataFrame) -> Iterator[str | Table]:
    """Yield all tables that have rows: for each use and set its measured rows, then
    predictions not measured yet, reasons, summaries, interval scores and the coverage.
    """
    measured = results[results["error"].notna()]
    for use in ("fit", "predict"):
        for name, set_rows in measured[measured["use"] == use].groupby(
            "set", sort=False
        ):
            yield build_table(
                f"{name} ({'fitted' if use == 'fit' else 'predicted'})",
                ROW_HEADINGS,
                [row_cells(row) for row in set_rows.to_dict("records")],
                range(2, 7),
            )
    yield from tables_without_measurement(results)
    if reason_rows := reasons(results):
        yield build_table(TITLE_OF_USE["none"], ["set", "case", "why"], reason_rows, ())
    for use in ("fit", "predict"):
        if rows := summary_cells(results, use):
            yield build_table(TITLE_OF_USE[use], SUMMARY_HEADINGS, rows, range(1, 6))
    yield from score_parts(results)
    if sentence := coverage_text(results):
        yield sentence


def opened_parts(results: pd.DataFrame) -> Iterator[str | Table]:
    """Yield the tables of predictions that were sealed.

    They are for each set what was measured since, then what was not, and how good the
    intervals are.
    """
    measured = results[results["error"].notna()]
    for name, set_rows in measured.groupby("set", sort=False):
        is_inside = is_in_interval(set_rows).tolist()
        rows = [
            [
                row["case"],
                row["quantity"],
                format_value(row["predicted"], row["unit"]),
                format_interval(row),
                format_value(row["measured"], row["unit"]),
                format_error(row["error"]),
                ("yes" if inside else "no") if format_interval(row) else "",
            ]
            for row, inside in zip(set_rows.to_dict("records"), is_inside, strict=True)
        ]
        yield build_table(f"{name} (sealed)", SEALED_HEADINGS, rows, range(2, 6))
    yield from tables_without_measurement(results)
    yield from score_parts(results)


def tables_without_measurement(results: pd.DataFrame) -> Iterator[Table]:
    """Yield the predictions of what is not measured yet, set by set."""
    unmeasured_rows = results[results["measured"].isna() & results["predicted"].notna()]
    for name, set_rows in unmeasured_rows.groupby("set", sort=False):
        rows = [
            [
                row["case"],
                row["quantity"],
                format_value(row["predicted"], row["unit"]),
                format_range(row["predicted_low"], row["predicted_high"], row["unit"]),
                format_interval(row),
            ]
            for row in set_rows.to_dict("records")
        ]
        yield build_table(
            f"{name} (not measured yet)", UNMEASURED_HEADINGS, rows, range(2, 5)
        )


def score_parts(results: pd.DataFrame) -> Iterator[str | Table]:
    """Yield the table of how good the 90 % intervals are, and a sentence on it; nothing
    where no predicted row is measured.
    """
    if rows := score_cells(results):
        yield build_table(
            "90 % intervals, from the errors of other sets",
            SCORE_HEADINGS,
            rows,
            range(1, 6),
        )
    if sentence := score_text(results):
        yield sentence


def entry_cells(comparison: pd.DataFrame) -> list[list[str]]:
    """Return the scores of each entry in each set, and of simshuffle on its rows: texts
    under `ENTRY_HEADINGS`.
    """
    return [
        [
            *(
                row["by"],
                row["set"],
                str(row["rows"]),
                f"{100 * row['median_error']:.1f} %",
            ),
            *(format_percent(row["coverage"]), format_score(row["interval_score"])),
            f"{100 * row['our_median_error']:.1f} %",
            *(
                format_percent(row["our_coverage"]),
                format_score(row["our_interval_score"]),
            ),
        ]
        for row in comparison.to_dict("records")
    ]


def entry_parts(comparison: pd.DataFrame) -> Iterator[Table]:
    """Yield the table of entries beside simshuffle, if there are entries."""
    if rows := entry_cells(comparison):
        yield build_table(
            "Entries, and simshuffle on the same rows",
            ENTRY_HEADINGS,
            rows,
            range(2, 9),
        )
