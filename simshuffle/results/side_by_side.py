"""Values of two results side by side, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from simshuffle.results.console import new_table

if TYPE_CHECKING:
    from rich.table import Table

MOST_ROWS = 60
"""Rows of a table that are all shown; of a longer one, those that differ, and at most so many."""
MOST_ASKED = 30  # keys of what was asked that are shown, those that say most
ABSENT, SHORT = "-", 60
"""What stands for no value in a table, and letters of a value that it shows."""


def asked(table: pd.DataFrame) -> Iterator[str | Table]:
    """What was asked, the first keys of many."""
    yield differences("What was asked", table.head(MOST_ASKED))
    if len(table) > MOST_ASKED:
        yield f"{len(table) - MOST_ASKED} more keys differ; --json has them."


def differences(title: str, table: pd.DataFrame) -> Table:
    """Keys and their values in A and B; the run only where they are not those of all."""
    several = "run" in table and (table["run"] != "").any()
    shown = new_table(title, ["run"] if several else [])
    for name in ("key", "A", "B"):
        shown.add_column(name, overflow="fold")
    for row in table.to_dict("records"):
        run = [row["run"] or "all"] if several else []
        shown.add_row(*run, row["key"], _value(row["a"]), _value(row["b"]))
    return shown


def _value(value: Any) -> str:
    """A value as a file has it, cut where it is long."""
    text = ABSENT if value is None else str(value).lower() if value in (True, False) else str(value)
    return text if len(text) <= SHORT else f"{text[: SHORT - 3]}..."


def values(name: str, table: pd.DataFrame) -> Iterator[str | Table]:
    """A table of the results, and a sentence on how much of it is the same."""
    if table.empty:
        yield f"{name}: nothing to compare."
        return
    differ = table[table["difference"] != 0]
    shown = table if len(table) <= MOST_ROWS else differ.head(MOST_ROWS)
    keys = [str(column) for column in table if column not in {"a", "b", "difference"}]
    if len(shown):
        yield _side_by_side(name, shown, keys)
    same = len(table) - len(differ)
    alike = table[table["difference"] == 0]
    exact = bool((alike["a"] == alike["b"]).all())
    text = f"{name}: {same} of {len(table)} values are the same, "
    text += "bit for bit" if exact else "but for rounding"
    if differ["difference"].notna().any():
        most = differ.loc[[differ["difference"].abs().idxmax()]].to_dict("records")[0]
        where = ", ".join(str(most[key]) for key in keys)
        text += f"; the largest difference is {_change(most['difference'])}, {where}"
    more = len(differ) - len(shown)
    yield f"{text}." + (f" {more} more values differ; --json has them." if more > 0 else "")


def _side_by_side(name: str, table: pd.DataFrame, keys: Sequence[str]) -> Table:
    words = [key for key in keys if not pd.api.types.is_numeric_dtype(table[key])]
    shown = new_table(f"{name[0].upper()}{name[1:]}: A, B, difference in % of A")
    for key in keys:
        shown.add_column(str(key), justify="left" if key in words else "right")
    for letter in ("A", "B", "difference"):
        shown.add_column(letter, justify="right", no_wrap=True)
    for row in table.to_dict("records"):
        cells = [str(row[key]) for key in keys]
        shown.add_row(*cells, _number(row["a"]), _number(row["b"]), _change(row["difference"]))
    return shown


def _number(value: float) -> str:
    if pd.isna(value):
        return ABSENT
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _change(percent: float) -> str:
    """A difference in percent; '=' where there is none, or rounding alone."""
    if pd.isna(percent):
        return ABSENT
    if percent == 0:
        return "="
    return f"{percent:+.1f} %" if abs(percent) >= 0.1 else f"{percent:+.1g} %"
