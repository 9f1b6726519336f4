"""Tables of two results, row beside row, and their differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from simshuffle.report import intervals, side_by_side
from simshuffle.study.matching import (
    RequestsByRun,
    describe_pairs,
    match_runs,
    pair_names,
)
from simshuffle.study.study import Result

ROUNDING = 1e-11
"""Share of the largest value of a run by which two values may differ by rounding: sums
of a million numbers of 53 bits.
"""
RATES = "rates"
"""The table of samples, iterations and samples/s; shown where the first two differ."""
HALF = "half"
"""Column of a table of `Result.compared` with half the 95 % interval of each row's
value.
"""


def compare_tables(
    a: Result, b: Result, pairs: Mapping[str, str], notes: list[str]
) -> dict[str, pd.DataFrame]:
    """Return the tables that both results have, row beside row, by name.

    Notes are added on tables whose rows have other keys and which are left out, on
    renamed runs, and on rows without a counterpart, which are left out. `RATES` is only
    there if the epochs have other samples or iterations; a note on this comes first.

    Args:
        a: result A.
        b: result B.
        pairs: runs of B by those of A matched with them.
        notes: sentences for people; changed in place.

    Returns:
        Tables with the columns of `_join_values`.
    """
    tables_b = b.compared()
    tables = {}
    for name, table_a in a.compared().items():
        if name not in tables_b:
            continue
        table_b = tables_b[name]
        if table_a.index.names != table_b.index.names:
            rows = " and ".join(
                ", ".join(map(str, table.index.names)) for table in (table_a, table_b)
            )
            notes.append(
                f"Table {name} is not compared: its key columns differ ({rows})."
            )
            continue
        table_b, rename_notes = _rename_runs(table_a, table_b, pairs)
        notes += rename_notes
        tables[name] = _join_values(name, table_a, table_b, notes)
    if not _note_other_lengths(tables, notes):
        tables.pop(RATES, None)
    return tables


def compare_intervals(
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    pairs: Mapping[str, str],
    notes: list[str],
) -> pd.DataFrame | None:
    """Return the epochs of both results with their intervals, as
    `intervals_side_by_side` does.

    None, and a note appended to ``notes``, where one has no intervals. Runs without a
    counterpart are left out without a note. ``a`` and ``b`` are contents of
    ``meta.json``.
    """
    letters = [
        letter for letter, meta in (("A", a), ("B", b)) if "intervals" not in meta
    ]
    if letters:
        notes.append(f"{' and '.join(letters)}: {intervals.NO_INTERVALS_TO_COMPARE}.")
        return None
    for letter, meta in (("A", a), ("B", b)):
        if count := intervals.measured_count(meta["intervals"]):
            runs = "run" if count == 1 else "runs"
            notes.append(f"{letter}: its intervals take in {count} measured {runs}.")
    frame_a, frame_b = (intervals.frame(meta["intervals"]) for meta in (a, b))
    return intervals.intervals_side_by_side(
        frame_a, _rename_runs(frame_a, frame_b, pairs)[0]
    )


def _note_other_lengths(tables: Mapping[str, pd.DataFrame], notes: list[str]) -> bool:
    """Return true if compared epochs have other samples or iterations.

    A note on the first such epoch then comes first in ``notes``. False without `RATES`.
    """
    rates = tables.get(RATES)
    if rates is None or rates.empty:
        return False
    wide = rates.pivot(
        index=[
            column
            for column in rates
            if column not in {"measure", "a", "b", "difference"}
        ],
        columns="measure",
        values=["a", "b"],
    )
    for count in ("samples", "iterations"):
        differing = wide[wide["a", count] != wide["b", count]]
        if len(differing):
            row_key = differing.index[0]
            row_key = row_key if isinstance(row_key, tuple) else (row_key,)
            row = differing.iloc[0]
            place_text = ", epoch ".join(map(str, row_key[:2]))
            lengths = [
                f"{row[letter, 'samples']:,.0f} samples in"
                f" {row[letter, 'iterations']:,.0f} iterations"
                for letter in "ab"
            ]
            rule = (
                "compare samples/s, not the seconds of an epoch"
                if count == "samples"
                else "both train on the same number of samples"
            )
            note = (
                f"Epochs differ in length ({place_text}): A has {lengths[0]}, B {lengths[1]};"
                f" {rule}."
            )
            notes.insert(0, note)
            return True
    return False


def _rename_runs(
    table_a: pd.DataFrame, table_b: pd.DataFrame, run_pairs: Mapping[str, str]
) -> tuple[pd.DataFrame, list[str]]:
    """Return the table of B with the names of A in its first key column, and notes.

    Names of B without a counterpart become 'NAME of B'. If any name is no text, such as
    a number of ranks, table B is returned as it is.

    Args:
        table_a: the table of A.
        table_b: the table of B.
        run_pairs: runs of B by those of A matched with them; used where A has one of
            these.
    """
    column = table_a.index.names[0]
    names_a, names_b = (
        list(dict.fromkeys(table.index.get_level_values(0)))
        for table in (table_a, table_b)
    )
    if not all(isinstance(name, str) for name in [*names_a, *names_b]):
        return table_b, []
    notes: list[str] = []
    if column != "run":
        pairs, notes = pair_names(names_a, names_b, f"{column} column")
    elif set(names_a) & run_pairs.keys():
        pairs = dict(run_pairs)
    else:  # labels of a sweep, which are no names of scenarios
        requests_a: RequestsByRun = {name: {} for name in names_a}
        requests_b: RequestsByRun = {name: {} for name in names_b}
        pairs = match_runs(requests_a, requests_b)
        notes = describe_pairs(requests_a, requests_b, pairs)
    # a run of B that is not compared must not pass for one of A with its name
    name_in_a = {name: f"{name} of B" for name in names_b} | {
        name_of_b: name_a for name_a, name_of_b in pairs.items()
    }
    if table_b.index.nlevels > 1:
        return table_b.rename(index=name_in_a, level=0), notes
    return table_b.rename(name_in_a), notes


def _fill_absent_rows(
    table_a: pd.DataFrame, table_b: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both tables with each other's rows, where all keys of a row but the last
    are in both.

    Table A says in ``attrs['absent']`` which value a row has that is not there, and so
    has a NaN; without it, both tables are returned as they are.
    """
    if "absent" not in table_a.attrs:
        return table_a, table_b
    rows = table_a.index.union(table_b.index, sort=False)
    keys_of_sides = [{key[:-1] for key in table.index} for table in (table_a, table_b)]
    rows = rows[[key[:-1] in keys_of_sides[0] & keys_of_sides[1] for key in rows]]
    absent_value = table_a.attrs["absent"]
    filled = [
        table.reindex(rows.union(table.index, sort=False))
        for table in (table_a, table_b)
    ]
    return filled[0].fillna(absent_value), filled[1].fillna(absent_value)


def _join_values(
    name: str, table_a: pd.DataFrame, table_b: pd.DataFrame, notes: list[str]
) -> pd.DataFrame:
    """Return the values of both tables by row and column, with their difference.

    Columns are the keys, measure (if there are several), a, b, a_half and b_half (half
    95 % intervals, if any is above 0), and difference: B less A in % of A's size, 0
    where both are equal but for rounding, NaN where A is 0 or a value is missing.

    Rows that only one side has are left out, with a note appended to ``notes``; so are
    columns that only one has, and values that both lack, without one.
    """
    table_a, table_b = _fill_absent_rows(table_a, table_b)
    for letter, extra_rows in (
        ("A", table_a.index.difference(table_b.index)),
        ("B", table_b.index.difference(table_a.index)),
    ):
        if len(extra_rows):
            notes.append(
                f"{name}: {len(extra_rows)} rows that only {letter} has are left out."
            )
    common_rows = table_a.index[table_a.index.isin(table_b.index)]
    common_a = table_a.loc[common_rows]
    common_b = table_b.loc[common_rows]
    columns = [column for column in table_a if column in table_b and column != HALF]
    sides = {"a_half": common_a, "b_half": common_b}
    half_columns = {
        half_name: rows[HALF]
        for half_name, rows in sides.items()
        if HALF in rows and rows[HALF].gt(0).any()
    }
    pieces = [
        pd.DataFrame(
            {
                "measure": column,
                "a": common_a[column],
                "b": common_b[column],
                **half_columns,
            }
        )
        for column in columns
    ]
    if not pieces:
        return pd.DataFrame(columns=[*table_a.index.names, "a", "b", "difference"])
    values = pd.concat(pieces).reset_index().dropna(subset=["a", "b"], how="all")
    if len(columns) == 1:
        values = values.drop(columns="measure")
    percent = 100 * (values["b"] - values["a"]) / values["a"].abs()
    percent = percent.where(values["a"] != values["b"], 0.0)
    percent = percent.mask(_is_rounding_error(values), 0.0)
    percent = percent.where(percent.abs() < float("inf"))
    return values.assign(difference=percent).reset_index(drop=True)


def _is_rounding_error(values: pd.DataFrame) -> pd.Series[bool]:
    """Return (rows,) true where two values differ, but by no more than `ROUNDING` of
    the largest one beside them; false where they are equal or one is NaN.
    """
    largest = side_by_side.largest_beside(values)
    difference = (values["b"] - values["a"]).abs()
    return (difference > 0) & (difference <= ROUNDING * largest)
