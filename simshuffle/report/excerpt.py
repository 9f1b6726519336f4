"""Excerpts of printed tables for a paper: chosen rows and columns, few digits, a
caption.
"""

from __future__ import annotations

import copy
import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from simshuffle.errors import refuse

MAX_COLUMNS = 8
"""Columns of a LaTeX table that fit a page of one column."""
DIGITS = 3
"""Significant digits of a number in a paper."""
_NUMBER = re.compile(r"-?\d[\d,]*\.\d+")
"""A number with decimals; commas may part its thousands."""


@dataclass(frozen=True)
class Excerpt:
    """The rows, columns and caption that a reader wants of the tables of a result."""

    # names or patterns such as 'local*' of the first column; () for all
    runs: Sequence[str] = ()
    # headings in the order that they shall have; () for all
    columns: Sequence[str] = ()
    caption: str | None = None  # title of the first table; None for its own

    def take_from(self, parts: Iterable[str | Table], source: str) -> list[str | Table]:
        """Return the chosen rows and columns of each table; the caption becomes its
        title.

        The first table alone has the caption. Texts beside the tables are left out
        where rows or columns are chosen. A table without a chosen row is left out, and
        one without a chosen column of numbers where another table has one. ``source``
        names the place of the options in an error.

        Where no rows or columns are chosen, ``parts`` come back as they are, and the
        caption is written into the first table in place. Names are case-sensitive.

        Raises:
            InputError: no table has a run or a column that is named.
        """
        everything = list(parts)
        tables = [part for part in everything if isinstance(part, Table)]
        self._check("--columns", self.columns, list(map(_headings, tables)), source)
        self._check("--runs", self.runs, list(map(_row_names, tables)), source)
        if self.runs or self.columns:
            chosen = [_with_rows(table, self.runs) for table in tables]
            chosen = [
                _with_columns(table, self.columns)
                for table in chosen
                if table.row_count
            ]
            tables = [table for table in chosen if _has_numbers(table)] or chosen
            everything = list(tables)
        if self.caption is not None and tables:
            tables[0].title = self.caption
        return everything

    @staticmethod
    def _check(
        option: str,
        patterns: Sequence[str],
        names_of_table: list[list[str]],
        source: str,
    ) -> None:
        """Check that each pattern matches a name of any table; raises InputError if
        not.
        """
        names = list(dict.fromkeys(name for table in names_of_table for name in table))
        for pattern in patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                remedy = f"Known: {', '.join(names)}."
                refuse(
                    option,
                    "must match a name in a table",
                    repr(pattern),
                    remedy,
                    source,
                )


def shorten_numbers(table: Table) -> Table:
    """Return the table with `DIGITS` significant digits in each number that has
    decimals.

    The first column stays as it is, as do digits before the decimal point. The half
    width behind '±' has as many decimals as its mean, and both have more where the half
    width would be 0. Numbers without decimals stay, as do texts around numbers.
    """

    def shorten(cell: str) -> str:
        mean, separator, half_width = cell.partition(" ± ")
        decimals = _decimals(mean)
        if decimals is None:
            return _NUMBER.sub(
                lambda match: round_number(match[0], _decimals(match[0])), cell
            )
        if not separator:
            return round_number(mean, decimals)
        decimals = max(decimals, _decimals(half_width, digits=1) or 0)
        return f"{round_number(mean, decimals)} ± {round_number(half_width, decimals)}"

    return with_cells(table, lambda column, cell: shorten(cell) if column else cell)


def narrow(table: Table) -> tuple[Table, list[str]]:
    """Return the first `MAX_COLUMNS` columns of a table, and the headings of those left
    out.
    """
    headings = _headings(table)
    return _with_columns(table, headings[:MAX_COLUMNS]), headings[MAX_COLUMNS:]


def _decimals(number: str, digits: int = DIGITS) -> int | None:
    """Return how many decimals leave ``digits`` significant digits, never more than it
    has.

    None where the text is no number with decimals.
    """
    if not _NUMBER.fullmatch(number):
        return None
    value = abs(float(number.replace(",", "")))
    num_decimals = len(number.rpartition(".")[2])
    if value == 0:
        return num_decimals
    return min(num_decimals, max(0, digits - 1 - math.floor(math.log10(value))))


def round_number(number: str, decimals: int | None) -> str:
    """Return a number with so many decimals, None for 0; another text stays as it is.

    The number gets commas between its thousands.
    """
    try:
        return f"{float(number.replace(',', '')):,.{decimals or 0}f}"
    except ValueError:
        return number


def _has_numbers(table: Table) -> bool:
    """Return whether any column is aligned right, as columns of numbers are."""
    return any(column.justify == "right" for column in table.columns)


def _headings(table: Table) -> list[str]:
    """Return the headings of all columns, each on one line."""
    return [" ".join(str(column.header).split()) for column in table.columns]


def _row_names(table: Table) -> list[str]:
    """Return the texts of the first column; [] for a table without columns."""
    return [str(cell) for cell in table.columns[0].cells] if table.columns else []


def _with_rows(table: Table, patterns: Sequence[str]) -> Table:
    """Return the table's rows whose first cell a pattern matches; all without a
    pattern.
    """
    chosen_rows = [
        row
        for row, name in enumerate(_row_names(table))
        if not patterns
        or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    rows = [[cells[row] for cells in columns] for row in chosen_rows]
    return rebuild_table(table, range(len(columns)), rows)


def _with_columns(table: Table, patterns: Sequence[str]) -> Table:
    """Return the table's columns whose heading a pattern matches, in the patterns'
    order.

    All columns without a pattern; a table without rows and columns if none matches. A
    column that several patterns match is taken once, at the first of them.
    """
    headings = _headings(table)
    if patterns and not any(
        fnmatch.fnmatchcase(name, pattern) for name in headings for pattern in patterns
    ):
        return rebuild_table(table, [], [])
    chosen = [
        index
        for pattern in patterns or ["*"]
        for index, name in enumerate(headings)
        if fnmatch.fnmatchcase(name, pattern)
    ]
    chosen = list(dict.fromkeys(chosen))
    columns = [[str(cell) for cell in table.columns[index].cells] for index in chosen]
    return rebuild_table(
        table, chosen, [list(row) for row in zip(*columns, strict=True)]
    )


def with_cells(table: Table, change: Callable[[int, str], str]) -> Table:
    """Return a copy of the table with each cell changed.

    ``change`` is given the index of the cell's column, from 0, and the cell's text.
    """
    columns = [
        [change(index, str(cell)) for cell in column.cells]
        for index, column in enumerate(table.columns)
    ]
    return rebuild_table(
        table, range(len(columns)), [list(row) for row in zip(*columns, strict=True)]
    )


def rebuild_table(
    table: Table, column_indices: Sequence[int], rows: Sequence[Sequence[str]]
) -> Table:
    """Return a table that looks like ``table``, with these columns and rows only.

    ``rows`` hold a text for each of the columns in ``column_indices``, in their order.
    Styles of rows and lines between sections are lost; ``table`` is not changed.
    """
    rebuilt = copy.copy(table)
    rebuilt.rows = []
    rebuilt.columns = [
        replace(table.columns[old_index], _index=new_index, _cells=[])
        for new_index, old_index in enumerate(column_indices)
    ]
    for row in rows:
        rebuilt.add_row(*row)
    return rebuilt
