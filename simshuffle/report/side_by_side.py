"""Values of two results side by side, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from simshuffle.report.console import new_table
from simshuffle.report.names import cut_text
from simshuffle.report.report import WHOLE

if TYPE_CHECKING:
    from rich.table import Table

MOST_ROWS = 60
"""Rows of a table that are all shown; of a longer one, those that differ, and at most so many."""
MOST_ASKED = 30  # keys of what was asked that are shown, those that say most
HEADLINE = 1e-3
"""Share of the largest value beside it below which a value of A makes no headline."""
HALVES = ("a_half", "b_half")
"""Columns of half the 95 % intervals of A and B, where a table has them."""
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
    return cut_text(text, SHORT)


def last_epochs(table: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on the last epoch of each run: the one that differs most, and the others;
    nothing of a table without epochs."""
    if not {"epoch", "label"} <= {*table} or table.empty:
        return
    whole = table[table["label"] == WHOLE]
    keys = [key for key in _keys(table) if key not in {"epoch", "label"}]
    last = whole[whole["epoch"] == whole.groupby(keys)["epoch"].transform("max")]
    changes = last["difference"].abs().sort_values(ascending=False)
    if changes.empty:
        return
    if not changes.iloc[0] > 0:
        yield "Last epochs: the same in A and B."
        return
    row = last.loc[changes.index[0]].to_dict()
    a, b = (_number(row[of], row.get(f"{of}_half")) for of in "ab")
    run = ", ".join(str(row[key]) for key in keys)
    text = f"Last epoch of {run}: A {a} s, B {b} s, {_change(row['difference'])}"
    if len(changes) > 1:
        most = changes.iloc[1]
        others = "1 other run" if len(changes) == 2 else f"{len(changes) - 1} other runs"
        text += f"; {others}: {f'{_change(most)[1:]} at most' if most > 0 else 'the same'}"
    yield f"{text}."


def values(name: str, table: pd.DataFrame) -> Iterator[str | Table]:
    """A table of the results, and a sentence on how much of it is the same."""
    if table.empty:
        yield f"{name}: nothing to compare."
        return
    differ = table[table["difference"] != 0]
    shown = table if len(table) <= MOST_ROWS else differ.head(MOST_ROWS)
    keys = _keys(table)
    if len(shown):
        yield _side_by_side(name, shown, keys)
        if any(shown[half].gt(0).any() for half in HALVES if half in shown):
            yield "± is half the 95 % interval, by Student's t."
    same = len(table) - len(differ)
    alike = table[table["difference"] == 0]
    exact = bool((alike["a"] == alike["b"]).all())
    text = f"{name}: {same} of {len(table)} values are the same, "
    text += "bit for bit" if exact else "but for rounding"
    notable = differ[differ["a"].abs() >= HEADLINE * largest_beside(table)[differ.index]]
    if notable["difference"].notna().any():
        most = notable.loc[[notable["difference"].abs().idxmax()]].to_dict("records")[0]
        where = ", ".join(str(most[key]) for key in keys)
        text += f"; the largest difference is {_change(most['difference'])}, {where}"
    more = len(differ) - len(shown)
    yield f"{text}." + (f" {more} more values differ; --json has them." if more > 0 else "")


def _keys(table: pd.DataFrame) -> list[str]:
    """The columns that tell rows apart."""
    return [str(of) for of in table if of not in {"a", "b", "difference", *HALVES}]


def largest_beside(table: pd.DataFrame) -> pd.Series[float]:
    """(rows,) the largest value of A or B beside each row: of the rows that differ from
    it in the last key alone, and of the same measure."""
    keys = _keys(table)
    size = table[["a", "b"]].abs().max(axis=1)
    beside = [key for key in keys if key != "measure"][:-1] + ["measure"] * ("measure" in keys)
    if not beside:
        return pd.Series(size.max(), table.index)
    largest: pd.Series[float] = size.groupby(
        [table[key] for key in beside], dropna=False
    ).transform("max")
    return largest


def _side_by_side(name: str, table: pd.DataFrame, keys: Sequence[str]) -> Table:
    words = [key for key in keys if not pd.api.types.is_numeric_dtype(table[key])]
    shown = new_table(f"{name[0].upper()}{name[1:]}: A, B, difference in % of A")
    for key in keys:
        shown.add_column(str(key), justify="left" if key in words else "right")
    for letter in ("A", "B", "difference"):
        shown.add_column(letter, justify="right", no_wrap=True)
    for row in table.to_dict("records"):
        cells = [str(row[key]) for key in keys]
        both = (_number(row[of], row.get(f"{of}_half")) for of in "ab")
        shown.add_row(*cells, *both, _change(row["difference"]))
    return shown


def _number(value: float, half: float | None = None) -> str:
    """A value, and half its interval with as many decimals if there is one."""
    if pd.isna(value):
        return ABSENT
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if not half or pd.isna(half):
        return text
    return f"{text} ± {half:,.{len(text.partition('.')[2])}f}"


def _change(percent: float) -> str:
    """A difference in percent; '=' where there is none, or rounding alone."""
    if pd.isna(percent):
        return ABSENT
    if percent == 0:
        return "="
    if abs(percent) < 0.1:
        return f"{percent:+.1g} %"
    return f"{percent:+,.0f} %" if abs(percent) >= 1000 else f"{percent:+.1f} %"
