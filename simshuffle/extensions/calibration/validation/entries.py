"""Entries: what others predict of the same rows, from CSV files, and how good that is beside what
simshuffle predicts."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.extensions.calibration.validation.scores import scores
from simshuffle.extensions.calibration.validation.table import ValidationRow, positive
from simshuffle.spec.library import suggest_nearest
from simshuffle.study.schema import Schema, amount, text

KEY = ("set", "case", "quantity")
ENTRIES = Schema(
    {
        "by": text("who or what predicts it"),
        "set": text("the row's set, case and quantity, as in the table of predictions"),
        "case": text("see set"),
        "quantity": text("see set"),
        "predicted": amount("what it predicts, in the row's unit"),
        "interval_low": amount("where its 90 % interval begins; may be empty", empty=True),
        "interval_high": amount("where that ends", empty=True),
    },
    key=("by", *KEY),
)
"""A row for each prediction of others."""
BESIDE = Schema(
    {
        "by": text("who or what predicts"),
        "set": text("group of rows"),
        "rows": amount("how many rows of it are predicted so, and measured"),
        "median_error": amount("median of |predicted / measured - 1|"),
        "coverage": amount("share of measured values in the 90 % interval", empty=True),
        "interval_score": amount("mean interval score, as of the summary", empty=True),
        "our_median_error": amount("median error of simshuffle on the same rows"),
        "our_coverage": amount("its coverage on them", empty=True),
        "our_interval_score": amount("its interval score on them", empty=True),
    }
)
"""A row for each entry and set."""


def read_entries(paths: Sequence[Path], rows: Sequence[ValidationRow]) -> pd.DataFrame:
    """The predictions in CSV files with the columns of `ENTRIES`, in any order. Every one must be
    of one of ``rows`` with use predict.

    Raises:
        InputError: with every problem of every file.
    """
    known: dict[tuple[str, ...], str] = {(r.set, r.case, r.quantity): r.use for r in rows}
    found: dict[tuple[str, ...], list[str | float | None]] = {}
    problems: list[Problem] = []
    for path in paths:
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                for where, record in _records(csv.DictReader(file, strict=True), path.name):
                    key = tuple(record[name] for name in ENTRIES.key)
                    faults = list(_faults(record, where, known))
                    if not faults and key in found:
                        rule = f"must not repeat {', '.join(ENTRIES.key)}"
                        faults = [Problem(where, rule, ", ".join(key), "Take one of them out.")]
                    problems += faults
                    values = [positive(record[name]) for name in list(ENTRIES.columns)[4:]]
                    found.setdefault(key, [*key, *values])
        except InputError as error:
            problems += error.problems
        except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
            rule = "must be a readable CSV file"
            problems.append(Problem(str(path), rule, str(error), "Correct the file."))
    if problems:
        raise InputError(problems, "--entry")
    out = ENTRIES.framed(list(found.values()))
    numbers = list(ENTRIES.columns)[4:]
    return out.astype(dict.fromkeys(numbers, float))


def _records(table: csv.DictReader[str], name: str) -> Iterator[tuple[str, dict[str, str]]]:
    missing = [column for column in ENTRIES.columns if column not in (table.fieldnames or [])]
    if missing:
        rule = f"must have the columns {', '.join(ENTRIES.columns)}"
        raise InputError(Problem(name, rule, f"no {', '.join(missing)}", "Add them."))
    for record in table:
        where = f"{name}:{table.line_num}"
        if None in record or None in record.values():
            rule, remedy = "must have as many fields as the header", "Put texts in quotes."
            raise InputError(Problem(where, rule, "more or fewer", remedy))
        yield where, {column: record[column].strip() for column in ENTRIES.columns}


def _faults(
    record: Mapping[str, str], where: str, known: Mapping[tuple[str, ...], str]
) -> Iterator[Problem]:
    """What is wrong with an entry, which stands at ``where``."""
    key = tuple(record[name] for name in KEY)
    if key not in known:
        names = [", ".join(of) for of in known]
        hint = suggest_nearest(", ".join(key), names).partition("Known: ")[0]
        remedy = f"{hint}Copy set, case and quantity from the table of predictions."
        yield Problem(where, "no such row", ", ".join(key), remedy)
    elif known[key] != "predict":
        remedy = "Take it out: only predicted rows are compared."
        yield Problem(where, "must be a row with use predict", f"use {known[key]}", remedy)
    if not record["by"]:
        yield Problem(f"{where} by", "must not be empty", "nothing", "Name what predicts it.")
    ends = [record[name] for name in ("interval_low", "interval_high")]
    wanted = {"predicted": record["predicted"]}
    if any(ends):
        wanted |= {"interval_low": ends[0], "interval_high": ends[1]}
    numbers = {name: positive(value) for name, value in wanted.items()}
    for name, number in numbers.items():
        if number is None:
            rule, remedy = "must be a number greater than 0", "Write it in the row's unit."
            yield Problem(f"{where} {name}", rule, repr(wanted[name]), remedy)
    low, high = numbers.get("interval_low"), numbers.get("interval_high")
    if low and high and low > high:
        rule, value = "must not be below interval_low", f"{low:g} to {high:g}"
        yield Problem(f"{where} interval_high", rule, value, "Swap them.")


def beside(results: pd.DataFrame, entries: pd.DataFrame) -> pd.DataFrame:
    """What entries come to beside the predictions in ``results``, on the same measured values:
    columns of `BESIDE`. Rows without a measured value do not count."""
    measured = results.loc[results["measured"].notna() & results["predicted"].notna()]
    ours = ["predicted", "interval_low", "interval_high"]
    both = entries.merge(measured[[*KEY, "measured", *ours]], on=list(KEY), suffixes=("", "_ours"))
    out = []
    for (by, name), theirs in both.groupby(["by", "set"], sort=False):
        own = theirs.drop(columns=ours).rename(columns={f"{of}_ours": of for of in ours})
        found = [(_median_error(part), *scores(part)[:2]) for part in (theirs, own)]
        out.append((by, name, len(theirs), *found[0], *found[1]))
    return BESIDE.framed(out)


def _median_error(part: pd.DataFrame) -> float:
    return float((part["predicted"] / part["measured"] - 1).abs().median())
