"""Schema: a table's columns, by which it is written, read back to the last bit, and
printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
from rich.table import Table as RichTable

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.report.columns import (
    LARGEST,
    Column,
    amount,
    count,
    flag,
    real,
    share,
    spent,
    text,
)
from simshuffle.report.console import new_table
from simshuffle.study.long_table import (
    ROWS_AT_ONCE,
    LongTable,
    Table,
    TablePart,
    write_parquet,
)

__all__ = [
    "LARGEST",
    "Column",
    "amount",
    "count",
    "flag",
    "real",
    "share",
    "spent",
    "text",
]
# ends are looked up in this order: longer ones stand before those that they end in
UNITS = {"_bytes_per_s": "bytes/s", "_per_s": "1/s", "_s": "s", "nbytes": "bytes"}
"""What the name of a column says of its unit, by its end or, for bytes, its beginning."""


@dataclass(frozen=True)
class Schema:
    """The columns of a table, its key, and the format of its file."""

    columns: Mapping[str, Column]  # by name, in their order
    suffix: str = ".csv"  # '.csv' or '.parquet'
    key: tuple[str, ...] = ()  # columns in which no two rows agree; () where they may
    # columns that results of earlier versions lack, and the column that had their values
    newer: Mapping[str, str] = field(default_factory=dict)
    # columns that results of earlier versions lack, and the value that they have there
    absent: Mapping[str, Any] = field(default_factory=dict)
    is_newer: bool = False  # whether results of earlier versions lack the table

    @property
    def meanings(self) -> dict[str, str]:
        """The sentence of every column, by name."""
        return {name: column.meaning for name, column in self.columns.items()}

    def check(
        self, table: pd.DataFrame, source: str, num_previous_rows: int = 0
    ) -> None:
        """Check the names and the values of the columns of ``table``, and its key.

        Columns have to be these in this order, values such as each may hold, and keys
        may not come twice within ``table``.

        Args:
            source: the file, for the error.
            num_previous_rows: rows of a table without key that precede ``table``, a
                part of it.

        Raises:
            InputError: names every column that is wrong.
        """
        names = list(self.columns)
        if list(table.columns) != names:
            present_columns = ", ".join(map(str, table.columns)) or "none"
            refuse(
                source,
                f"must have the columns {', '.join(names)}",
                present_columns,
                REMEDY,
                source,
            )
        faults = {
            name: self.columns[name].fault(table[name], num_previous_rows)
            for name in names
        }
        problems = [
            Problem(f"{source}: {name}", fault, _sample(table[name]), REMEDY)
            for name, fault in faults.items()
            if fault
        ]
        if (
            self.key
            and not problems
            and (is_repeated := table.duplicated(list(self.key))).any()
        ):
            rule = f"must not repeat {', '.join(self.key)}"
            problems.append(
                Problem(source, rule, f"row {int(is_repeated.argmax()) + 1}", REMEDY)
            )
        if problems:
            raise InputError(problems, source)

    def listing(
        self,
        table: pd.DataFrame,
        title: str | None,
        columns: Sequence[str],
        names: int = 1,
    ) -> RichTable:
        """Return columns of ``table`` as a terminal, a paper and the page show them.

        ``table`` has rows of this schema. The first ``names`` columns name the row; the
        others are aligned as numbers are.
        """
        descriptions = [self.columns[name] for name in columns]
        heads = [
            column.head or name
            for name, column in zip(columns, descriptions, strict=True)
        ]
        rows = (
            [
                column.cell(value)
                for column, value in zip(descriptions, row, strict=True)
            ]
            for row in table[list(columns)].itertuples(index=False, name=None)
        )
        return new_table(title, heads[:names], heads[names:], rows)

    def framed(self, rows: Sequence[Any]) -> pd.DataFrame:
        """Return the table of these rows with all columns; missing values are NaN.

        Rows are mappings by column, or sequences in the order of the columns. Keys of a
        mapping that are no column are left out without an error. Nothing is checked.
        """
        return pd.DataFrame(rows, columns=list(self.columns))

    def empty(self) -> pd.DataFrame:
        """Return the table without rows; all columns are of objects."""
        return self.framed([])

    def write(self, table: Table, stem: Path) -> Path:
        """Write ``table`` to ``stem`` with the suffix; return the path.

        An older file is replaced. For CSV a long table is loaded; to Parquet it is
        written and checked piece by piece, so that a part of the file may be left after
        an error, and a key that comes again in another piece is not found.

        Raises:
            InputError: as of `check`: a study made a table that it did not describe.
        """
        path = stem.with_name(stem.name + self.suffix)
        if self.suffix == ".csv":
            frame = table.load() if isinstance(table, LongTable) else table
            self.check(frame, path.name)
            frame.to_csv(path, index=False)
            return path
        if isinstance(table, pd.DataFrame):
            self.check(table, path.name)
            write_parquet(LongTable((TablePart(table),)).pieces(), path)
        else:
            write_parquet(self._check_pieces(table, path.name), path)
        return path

    def _check_pieces(self, table: LongTable, source: str) -> Iterator[pd.DataFrame]:
        """Yield the pieces of a long table, each checked by `check` by itself."""
        num_previous_rows = 0
        for piece in table.pieces():
            self.check(piece, source, num_previous_rows)
            num_previous_rows += len(piece)
            yield piece

    def read(self, stem: Path) -> Table:
        """Read the table at ``stem``, with its numbers to the last bit.

        An empty text stays one. Columns that earlier versions lack are filled in, see
        ``newer`` and ``absent``, and a table that they lack has no rows. Counts that
        may be empty are floats in a CSV file.

        A table in Parquet without key of more than `ROWS_AT_ONCE` rows is checked piece
        by piece, and not loaded: a `LongTable`. It must have all columns; none are
        filled in.

        Raises:
            InputError: the table cannot be read, or `check` refuses it.
        """
        path = stem.with_name(stem.name + self.suffix)
        if self.is_newer and not path.exists():
            return self.empty()
        try:
            if self.suffix == ".csv":
                table = self._csv(path)
            else:
                long = LongTable((TablePart(path),))
                if len(long) > ROWS_AT_ONCE and not self.key:
                    for _ in self._check_pieces(long, path.name):
                        pass
                    return long
                table = long.load()
        except InputError:
            raise
        except (OSError, ValueError, pa.ArrowException, KeyError, TypeError) as error:
            why = str(error).partition("\n")[0]
            refuse(path.name, "cannot be read", why, REMEDY, str(path.parent))
        for name, older_name in self.newer.items():
            if name not in table and older_name in table:
                table.insert(list(self.columns).index(name), name, table[older_name])
        for name, value in self.absent.items():
            if name not in table:
                table.insert(list(self.columns).index(name), name, value)
        self.check(table, path.name)
        return table

    def _csv(self, path: Path) -> pd.DataFrame:
        """Read a CSV file with the types of the columns.

        Columns that the schema does not name are read too, with a type of their own.

        Raises:
            InputError: its end is cut off.
        """
        kinds = {
            "text": pa.string(),
            "real": pa.float64(),
            "flag": pa.bool_(),
            "count": pa.int64(),
        }
        # whole numbers of which some may be empty are read as floats
        types = {
            name: kinds[
                "real" if column.empty and column.kind == "count" else column.kind
            ]
            for name, column in self.columns.items()
        }
        convert = pc.ConvertOptions(column_types=types, strings_can_be_null=False)
        parse = pc.ParseOptions(newlines_in_values=True)
        content = path.read_bytes()
        if not content.endswith(b"\n") or content.count(b'"') % 2:
            rule = "must end with a complete line: the file is cut off"
            refuse(
                path.name,
                rule,
                repr(content[-20:].decode(errors="replace")),
                REMEDY,
                str(path.parent),
            )
        arrow_table = pc.read_csv(
            pa.BufferReader(content), convert_options=convert, parse_options=parse
        )
        table: pd.DataFrame = arrow_table.to_pandas()
        return table


REMEDY = (
    "Give a folder that simshuffle wrote and nobody changed, or make the result again."
)


def find_missing_files(
    folder: Path, names: Sequence[str], stored: Mapping[str, Schema]
) -> list[str]:
    """Return the ``names`` of files that a result folder lacks.

    A table that earlier versions lack (``stored`` has the schemas by name) may be
    missing where ``columns.json`` does not describe it.
    """
    missing = [name for name in names if not (folder / name).is_file()]
    if missing and "columns.json" not in missing:
        description = (folder / "columns.json").read_text("utf-8", "replace")
        for name, schema in stored.items():
            file = f"{name}{schema.suffix}"
            if schema.is_newer and file in missing and file not in description:
                missing.remove(file)
    return missing


def problems_of_misfits(fits: Mapping[str, bool]) -> Iterator[Problem]:
    """Yield a problem for each file of a result that does not fit the others.

    Args:
        fits: whether the file fits, by its path.
    """
    for path, fit in fits.items():
        if not fit:
            yield Problem(
                path, "must fit the other files of the result", "others", REMEDY
            )


def _sample(values: pd.Series[Any]) -> str:
    """Return the first three values of a column as text, for an error."""
    texts = ", ".join(repr(value) for value in values.head(3).tolist())
    return f"{texts}, ..." if len(values) > 3 else texts or "no rows"


def unit_of(name: str) -> str:
    """Return the unit in the name of a column, as in `UNITS`; '' if it names none.

    'nbytes' counts only where the name begins with it.
    """
    if name.startswith("nbytes"):
        return UNITS["nbytes"]
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
