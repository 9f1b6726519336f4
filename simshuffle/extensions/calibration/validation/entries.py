"""Entries: predictions of others for rows of the validation, scored beside simshuffle's
own.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.extensions.calibration.validation.scores import score_intervals
from simshuffle.extensions.calibration.validation.table import (
    ValidationRow,
    parse_positive,
)
from simshuffle.spec.library import suggest_nearest
from simshuffle.study.schema import Schema, amount, text

ROW_KEY = ("set", "case", "quantity")
ENTRIES = Schema(
    {
        "by": text("who or what made the prediction"),
        "set": text("the row's set, case and quantity, as in the table of predictions"),
        "case": text("see set"),
        "quantity": text("see set"),
        "predicted": amount("the prediction, in the row's unit"),
        "interval_low": amount(
            "lower end of the 90 % interval of the prediction; may be empty", empty=True
        ),
        "interval_high": amount("upper end of the 90 % interval", empty=True),
    },
    key=("by", *ROW_KEY),
    is_newer=True,
)
"""A row for each prediction of others."""
BESIDE = Schema(
    {
        "by": text("who or what made the predictions"),
        "set": text("group of rows"),
        "rows": amount("number of measured rows of the set that the entry predicts"),
        "median_error": amount("median of |predicted / measured - 1|"),
        "coverage": amount("share of measured values in the 90 % interval", empty=True),
        "interval_score": amount("mean interval score, as in the summary", empty=True),
        "our_median_error": amount("median error of simshuffle on the same rows"),
        "our_coverage": amount("coverage of simshuffle on the same rows", empty=True),
        "our_interval_score": amount(
            "interval score of simshuffle on the same rows", empty=True
        ),
    }
)
"""A row for each entry and set."""


def read_entries(paths: Sequence[Path], rows: Sequence[ValidationRow]) -> pd.DataFrame:
    """Read predictions of others from CSV files with the columns of `ENTRIES`, in any
    order.

    The table has the rows in the order of the files; an empty interval is nan. Other
    columns are ignored.

    Args:
        paths: the files; without any, the table is empty.
        rows: of the validation; every entry must be of one of them with use predict.

    Raises:
        InputError: with the problems of all files; a file is read up to a record with
            more or fewer fields than its header. Repeated entries are a problem, too.
    """
    use_of_row: dict[tuple[str, ...], str] = {
        (row.set, row.case, row.quantity): row.use for row in rows
    }
    entries_by_key: dict[tuple[str, ...], list[str | float | None]] = {}
    problems: list[Problem] = []
    for path in paths:
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                for location, record in read_records(
                    csv.DictReader(file, strict=True), path.name
                ):
                    key = tuple(record[name] for name in ENTRIES.key)
                    faults = list(find_faults(record, location, use_of_row))
                    if not faults and key in entries_by_key:
                        rule = f"must not repeat {', '.join(ENTRIES.key)}"
                        faults = [
                            Problem(
                                location,
                                rule,
                                ", ".join(key),
                                "Take one of the two out.",
                            )
                        ]
                    problems += faults
                    values = [
                        parse_positive(record[name])
                        for name in list(ENTRIES.columns)[4:]
                    ]
                    entries_by_key.setdefault(key, [*key, *values])
        except InputError as error:
            problems += error.problems
        except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
            rule = "must be a readable CSV file"
            problems.append(Problem(str(path), rule, str(error), "Correct the file."))
    if problems:
        raise InputError(problems, "--entry")
    entries = ENTRIES.framed(list(entries_by_key.values()))
    numbers = list(ENTRIES.columns)[4:]
    return entries.astype(dict.fromkeys(numbers, float))


def read_records(
    table: csv.DictReader[str], name: str
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the records of a CSV file: the place for errors, 'NAME:LINE', and the cells
    by column of `ENTRIES`, without blanks around them.

    Raises:
        InputError: a column is missing, or a record has more or fewer fields than the
            header.
    """
    missing = [
        column for column in ENTRIES.columns if column not in (table.fieldnames or [])
    ]
    if missing:
        rule = f"must have the columns {', '.join(ENTRIES.columns)}"
        raise InputError(Problem(name, rule, f"no {', '.join(missing)}", "Add them."))
    for record in table:
        location = f"{name}:{table.line_num}"
        if None in record or None in record.values():
            rule = "must have as many fields as the header"
            remedy = "Put texts with commas in quotes."
            raise InputError(Problem(location, rule, "more or fewer", remedy))
        yield location, {column: record[column].strip() for column in ENTRIES.columns}


def find_faults(
    record: Mapping[str, str], location: str, use_of_row: Mapping[tuple[str, ...], str]
) -> Iterator[Problem]:
    """Yield what is wrong with an entry, which stands at ``location``.

    It must be of a row with use predict and name its author. The prediction and both
    ends of an interval must be above 0; the interval may be empty.

    Args:
        record: cells by column of `ENTRIES`.
        location: place for the errors.
        use_of_row: the use by set, case and quantity.
    """
    key = tuple(record[name] for name in ROW_KEY)
    if key not in use_of_row:
        names = [", ".join(row_key) for row_key in use_of_row]
        suggestion = suggest_nearest(", ".join(key), names).partition("Known: ")[0]
        remedy = (
            f"{suggestion}Copy set, case and quantity from the table of predictions."
        )
        yield Problem(location, "no such row", ", ".join(key), remedy)
    elif use_of_row[key] != "predict":
        remedy = "Take the entry out: entries are compared on predicted rows only."
        yield Problem(
            location, "must be a row with use predict", f"use {use_of_row[key]}", remedy
        )
    if not record["by"]:
        yield Problem(
            f"{location} by",
            "must not be empty",
            "nothing",
            "Name who or what predicts.",
        )
    interval_texts = [record[name] for name in ("interval_low", "interval_high")]
    number_texts = {"predicted": record["predicted"]}
    if any(interval_texts):
        number_texts |= {
            "interval_low": interval_texts[0],
            "interval_high": interval_texts[1],
        }
    numbers = {name: parse_positive(value) for name, value in number_texts.items()}
    for name, number in numbers.items():
        if number is None:
            rule = "must be a number greater than 0"
            remedy = "Write the number in the row's unit."
            yield Problem(f"{location} {name}", rule, repr(number_texts[name]), remedy)
    low = numbers.get("interval_low")
    high = numbers.get("interval_high")
    if low and high and low > high:
        rule = "must not be below interval_low"
        value = f"{low:g} to {high:g}"
        yield Problem(f"{location} interval_high", rule, value, "Swap them.")


def compare_entries(results: pd.DataFrame, entries: pd.DataFrame) -> pd.DataFrame:
    """Score entries and the predictions in ``results`` on measured values that both
    predict.

    Returns columns of `BESIDE`, a row for each author and set, in the order of
    ``entries``. Rows without a measured value or a prediction of simshuffle do not
    count; an author without other rows of a set is left out there.
    """
    measured = results.loc[results["measured"].notna() & results["predicted"].notna()]
    our_columns = ["predicted", "interval_low", "interval_high"]
    compared_rows = entries.merge(
        measured[[*ROW_KEY, "measured", *our_columns]],
        on=list(ROW_KEY),
        suffixes=("", "_ours"),
    )
    out = []
    for (author, set_name), their_rows in compared_rows.groupby(
        ["by", "set"], sort=False
    ):
        our_rows = their_rows.drop(columns=our_columns).rename(
            columns={f"{column}_ours": column for column in our_columns}
        )
        scores_of_both = [
            (median_error(side_rows), *score_intervals(side_rows)[:2])
            for side_rows in (their_rows, our_rows)
        ]
        out.append(
            (author, set_name, len(their_rows), *scores_of_both[0], *scores_of_both[1])
        )
    return BESIDE.framed(out)


def median_error(rows: pd.DataFrame) -> float:
    """Return the median of |predicted / measured - 1|, a share; nan without rows."""
    return float((rows["predicted"] / rows["measured"] - 1).abs().median())
