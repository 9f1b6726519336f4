"""Show the values of two results side by side, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from simshuffle.report.console import new_table
from simshuffle.report.names import cut_text
from simshuffle.report.report import WHOLE, rows_of_last_epoch

if TYPE_CHECKING:
    from rich.table import Table

MAX_ROWS = 60
"""Rows of a table that are all shown; of a longer one, those that differ, and at most
so many.
"""
MAX_KEYS = 30  # keys of what was asked that are shown, those that say most
MIN_HEADLINE_SHARE = 1e-3
"""Share of the largest value beside it below which a value of A makes no headline."""
HALF_WIDTH_COLUMNS = ("a_half", "b_half")
"""Columns of half the 95 % intervals of A and B, where a table has them."""
ABSENT, MAX_LETTERS = "-", 60
"""What stands for no value in a table, and letters of a value that it shows."""


def list_differing_keys(table: pd.DataFrame) -> Iterator[str | Table]:
    """Yield the table of keys with different values in the requests, up to `MAX_KEYS`.

    A sentence follows if there are more. ``table`` is as in `differences`, with the
    keys that say most first.
    """
    yield differences("Inputs that differ", table.head(MAX_KEYS))
    if len(table) > MAX_KEYS:
        yield f"{len(table) - MAX_KEYS} more keys differ; --json has them."


def differences(title: str, table: pd.DataFrame) -> Table:
    """Return a table of keys and their values in A and B, with the run where the runs
    differ.

    ``table`` has the columns key, a and b, and may have run: '' for all runs. None is
    shown as `ABSENT`; values are cut at `MAX_LETTERS`.
    """
    has_runs = "run" in table and (table["run"] != "").any()
    console_table = new_table(title, ["run"] if has_runs else [])
    for name in ("key", "A", "B"):
        console_table.add_column(name, overflow="fold")
    for row in table.to_dict("records"):
        run = [row["run"] or "all"] if has_runs else []
        console_table.add_row(*run, row["key"], _value(row["a"]), _value(row["b"]))
    return console_table


def _value(value: Any) -> str:
    """Return a value as a file has it, cut where it is long."""
    text = (
        ABSENT
        if value is None
        else str(value).lower()
        if value in (True, False)
        else str(value)
    )
    return cut_text(text, MAX_LETTERS)


def last_epochs(table: pd.DataFrame, num_epochs: tuple[int, ...] = ()) -> Iterator[str]:
    """Yield a sentence on how much the last epoch of each run differs; none without
    epochs.

    It names the run that differs most, and the largest difference of the others.
    ``table`` is as in `values`; nothing is yielded without columns epoch and label.
    ``num_epochs`` of A and B, if they are known: where they differ, the sentence names
    the last epoch that both have.
    """
    if not {"epoch", "label"} <= {*table} or table.empty:
        return
    epoch_rows = table[table["label"] == WHOLE]
    keys = [key for key in _keys(table) if key not in {"epoch", "label"}]
    last = rows_of_last_epoch(epoch_rows, keys)
    heading = "Last epoch"
    if len(set(num_epochs)) > 1:
        heading = f"Epoch {last['epoch'].max()} (the last that both have)"
    changes = last["difference"].abs().sort_values(ascending=False)
    if changes.empty:
        return
    if not changes.iloc[0] > 0:
        yield f"{heading}: the same in A and B."
        return
    row = last.loc[changes.index[0]].to_dict()
    a, b = (_number(row[letter]) for letter in "ab")
    run = ", ".join(str(row[key]) for key in keys)
    text = f"{heading} of {run}: A {a} s, B {b} s, {_change(row['difference'])}"
    if len(changes) > 1:
        second_change = changes.iloc[1]
        other_runs = (
            "1 other run" if len(changes) == 2 else f"{len(changes) - 1} other runs"
        )
        largest_change = (
            f"{_change(second_change)[1:]} at most" if second_change > 0 else "the same"
        )
        text += f"; {other_runs}: {largest_change}"
    yield f"{text}."


def explain_change(table: pd.DataFrame) -> str:
    """Return the sentence on the label whose seconds change most in the last epoch of
    the run that differs most; '' without labels, or where no epoch differs.

    ``table`` is as in `values`.
    """
    if not {"epoch", "label"} <= {*table} or table.empty:
        return ""
    keys = [key for key in _keys(table) if key not in {"epoch", "label"}]
    last = rows_of_last_epoch(table, keys).to_dict("records")
    epochs = [
        row for row in last if row["label"] == WHOLE and abs(row["difference"]) > 0
    ]
    if not epochs:
        return ""
    epoch = max(epochs, key=lambda row: abs(row["difference"]))
    gaps = {
        row["label"]: row["b"] - row["a"]
        for row in last
        if row["label"] != WHOLE and all(row[key] == epoch[key] for key in keys)
    }
    total = epoch["b"] - epoch["a"]
    label = max(gaps, key=lambda name: gaps[name] / total, default="")
    if not label or not gaps[label] / total > 0:
        return ""
    return f"{label} differs most, by {gaps[label]:+.3g} of {total:+.3g} s."


def values(name: str, table: pd.DataFrame) -> Iterator[str | Table]:
    """Yield a table of the results, and a sentence on how many of its values are equal.

    A table of more than `MAX_ROWS` rows shows only rows that differ. The largest
    difference is named among values of at least `MIN_HEADLINE_SHARE` of their siblings.

    Args:
        name: of the table, for its title and the sentence.
        table: columns a, b and difference (B less A, in percent of A: 0 also where it
            is rounding, NaN where it is unknown, which counts as different); maybe
            `HALF_WIDTH_COLUMNS`; all others are keys of a row.
    """
    if table.empty:
        yield f"{name}: nothing to compare."
        return
    differing_rows = table[table["difference"] != 0]
    displayed_rows = table if len(table) <= MAX_ROWS else differing_rows.head(MAX_ROWS)
    keys = _keys(table)
    if len(displayed_rows):
        yield _side_by_side(name, displayed_rows, keys)
        if any(
            displayed_rows[column].gt(0).any()
            for column in HALF_WIDTH_COLUMNS
            if column in displayed_rows
        ):
            yield "± is half the 95 % interval, by Student's t."
    num_equal = len(table) - len(differing_rows)
    equal_rows = table[table["difference"] == 0]
    is_exact = bool((equal_rows["a"] == equal_rows["b"]).all())
    text = f"{name}: {num_equal} of {len(table)} values are the same, "
    text += "bit for bit" if is_exact else "but for rounding"
    notable = differing_rows[
        differing_rows["a"].abs()
        >= MIN_HEADLINE_SHARE * largest_beside(table)[differing_rows.index]
    ]
    if notable["difference"].notna().any():
        largest = notable.loc[[notable["difference"].abs().idxmax()]].to_dict(
            "records"
        )[0]
        place = ", ".join(str(largest[key]) for key in keys)
        text += f"; the largest difference is {_change(largest['difference'])}, {place}"
    num_hidden = len(differing_rows) - len(displayed_rows)
    yield f"{text}." + (
        f" {num_hidden} more values differ; --json has them." if num_hidden > 0 else ""
    )


def _keys(table: pd.DataFrame) -> list[str]:
    """Return the columns that tell rows apart: no values, half widths or difference."""
    return [
        str(column)
        for column in table
        if column not in {"a", "b", "difference", *HALF_WIDTH_COLUMNS}
    ]


def largest_beside(table: pd.DataFrame) -> pd.Series[float]:
    """Return (rows,) the largest value of A or B among the siblings of each row.

    Siblings differ from a row in the last key alone, and have its measure. With no
    other key than the last, all rows are siblings.
    """
    keys = _keys(table)
    size = table[["a", "b"]].abs().max(axis=1)
    sibling_keys = [key for key in keys if key != "measure"][:-1] + ["measure"] * (
        "measure" in keys
    )
    if not sibling_keys:
        return pd.Series(size.max(), table.index)
    largest: pd.Series[float] = size.groupby(
        [table[key] for key in sibling_keys], dropna=False
    ).transform("max")
    return largest


def _side_by_side(name: str, table: pd.DataFrame, keys: Sequence[str]) -> Table:
    """Return a table of the values in A and B, and their differences."""
    text_keys = [key for key in keys if not pd.api.types.is_numeric_dtype(table[key])]
    console_table = new_table(
        f"{name[0].upper()}{name[1:]}: A, B, difference in % of A"
    )
    for key in keys:
        console_table.add_column(
            str(key), justify="left" if key in text_keys else "right"
        )
    for letter in ("A", "B", "difference"):
        console_table.add_column(letter, justify="right", no_wrap=True)
    for row in table.to_dict("records"):
        cells = [str(row[key]) for key in keys]
        formatted = (_number(row[letter], row.get(f"{letter}_half")) for letter in "ab")
        console_table.add_row(*cells, *formatted, _change(row["difference"]))
    return console_table


def _number(value: float, half_width: float | None = None) -> str:
    """Return a value, and half its interval with as many decimals if there is one.

    `ABSENT` where the value is NaN; no half width where it is None, NaN or 0.
    """
    if pd.isna(value):
        return ABSENT
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if not half_width or pd.isna(half_width):
        return text
    return f"{text} ± {half_width:,.{len(text.partition('.')[2])}f}"


def _change(percent: float) -> str:
    """Return a difference in percent, with its sign; '=' where there is none, or
    rounding alone, and `ABSENT` for NaN.
    """
    if pd.isna(percent):
        return ABSENT
    if percent == 0:
        return "="
    if abs(percent) < 0.1:
        return f"{percent:+.1g} %"
    return f"{percent:+,.0f} %" if abs(percent) >= 1000 else f"{percent:+.1f} %"
