"""Tables that may be longer than the memory.

They grow, are read and are joined piece by piece, and are loaded only on demand.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from simshuffle.report.table_io import stack_tables

ROWS_AT_ONCE = 1 << 17
"""Rows of a long table that are in memory at a time; those of a group in its file."""


@dataclass(frozen=True)
class TablePart:
    """Rows of a long table, and where they are."""

    rows: pd.DataFrame | Path  # themselves, or the Parquet file that holds them
    # a table of one row, whose columns stand before those of every row; None for none
    lead: pd.DataFrame | None = None
    # what has to be there as long as the file, such as its temporary folder
    holder: object = field(default=None, repr=False)

    def __len__(self) -> int:
        """Return the number of rows."""
        if isinstance(self.rows, pd.DataFrame):
            return len(self.rows)
        return int(pq.read_metadata(self.rows).num_rows)

    def pieces(self, columns: Sequence[str] | None) -> Iterator[pd.DataFrame]:
        """Yield the rows, a group of the file at a time; only ``columns`` if they are
        given, in the order of the table.

        A column that is not there is left out without an error. There is at least one
        piece, which may be empty.
        """
        for rows in self._groups(columns):
            if self.lead is None:
                yield rows
                continue
            # the one row of lead, once for each row of the piece
            lead_columns = self.lead.take([0] * len(rows)).reset_index(drop=True)
            yield pd.concat(
                [lead_columns[_select_columns(columns, lead_columns.columns)], rows],
                axis=1,
            )

    def _groups(self, columns: Sequence[str] | None) -> Iterator[pd.DataFrame]:
        """Yield the rows as they are stored, without the columns of ``lead``.

        There is at least one piece, which may be empty.
        """
        if isinstance(self.rows, pd.DataFrame):
            yield self.rows[_select_columns(columns, self.rows.columns)].reset_index(
                drop=True
            )
            return
        with pq.ParquetFile(self.rows) as file:
            present_columns = _select_columns(columns, file.schema_arrow.names)
            if file.num_row_groups == 0:
                yield file.schema_arrow.empty_table().to_pandas()[present_columns]
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, present_columns).to_pandas()


def _select_columns(
    requested: Sequence[str] | None, present: Iterable[str]
) -> list[str]:
    """Return the names in ``present`` that are requested, in the order of ``present``;
    every name if ``requested`` is None.
    """
    return [name for name in present if requested is None or name in requested]


@dataclass(frozen=True)
class LongTable:
    """A table whose rows lie in parts, one below the other.

    Methods that read them raise OSError, ValueError or pyarrow.ArrowException where a
    file is damaged.
    """

    parts: tuple[TablePart, ...]

    def __len__(self) -> int:
        """Return the number of rows, without reading them."""
        return sum(map(len, self.parts))

    @property
    def file(self) -> Path | None:
        """The Parquet file that holds just this table; None if there is none."""
        rows = [part.rows for part in self.parts if part.lead is None]
        return (
            rows[0]
            if len(self.parts) == 1 and rows and isinstance(rows[0], Path)
            else None
        )

    def with_leading_columns(self, lead: pd.DataFrame) -> LongTable:
        """Return the table with the columns of ``lead`` in front, whose one row is
        repeated in every row.

        Nothing is read or copied. Leading columns that a part has already are replaced.
        """
        return LongTable(
            tuple(TablePart(part.rows, lead, part.holder) for part in self.parts)
        )

    def pieces(self, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        """Yield the rows in their order, `ROWS_AT_ONCE` together, and the remaining
        ones last; only ``columns`` if they are given. There is at least one piece,
        which may be empty. Every piece is numbered from 0.

        Columns keep the order of the table; one that is not there is left out without
        an error.
        """
        groups = _Groups()
        for part in self.parts:
            for piece in part.pieces(columns):
                yield from groups.add(piece)
        yield from groups.flush()

    def load(self) -> pd.DataFrame:
        """Return all rows as one frame in memory; nothing is cached."""
        return stack_tables(
            list(chain.from_iterable(part.pieces(None) for part in self.parts))
        )

    def distinct(self, columns: Sequence[str]) -> pd.DataFrame:
        """Return each combination of values in these columns once, with these alone.

        They are in the order in which they come first; the index may have gaps.
        """
        pieces = [piece.drop_duplicates() for piece in self.pieces(columns)]
        return stack_tables(pieces).drop_duplicates()


Table = pd.DataFrame | LongTable


class LazyTables(Mapping[str, pd.DataFrame]):
    """Tables by name; a long one is loaded when it is first read, and then stays in
    memory.
    """

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self.stored = dict(tables)

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Return the table, loaded."""
        table = self.stored[name]
        if isinstance(table, LongTable):
            table = self.stored[name] = table.load()
        return table

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the tables."""
        return iter(self.stored)

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self.stored)


def get_lazily(tables: Mapping[str, pd.DataFrame], name: str) -> Table:
    """Return the table ``name`` without loading it.

    It is a `LongTable` if it is not in memory yet.
    """
    return tables.stored[name] if isinstance(tables, LazyTables) else tables[name]


def get_long(tables: Mapping[str, pd.DataFrame], name: str) -> LongTable:
    """Return the table ``name`` as a `LongTable`, whether it is in memory or not."""
    table = get_lazily(tables, name)
    return table if isinstance(table, LongTable) else LongTable((TablePart(table),))


def join_tables(tables: Iterable[LongTable]) -> Table:
    """Join tables below one another; in memory if they have `ROWS_AT_ONCE` rows at
    most.
    """
    table = LongTable(tuple(part for table in tables for part in table.parts))
    return table if len(table) > ROWS_AT_ONCE else table.load()


class _Groups:
    """Rows that arrive piece by piece, joined to groups of `ROWS_AT_ONCE`."""

    def __init__(self) -> None:
        self._pending: list[pd.DataFrame] = []
        self._num_pending = 0
        self._began = False

    def add(self, piece: pd.DataFrame) -> Iterator[pd.DataFrame]:
        """Yield the groups that these rows fill; the remaining rows are copied and kept
        for the next group.
        """
        while self._num_pending + len(piece) > ROWS_AT_ONCE:
            num_free = ROWS_AT_ONCE - self._num_pending
            group = stack_tables([*self._pending, piece.iloc[:num_free]])
            piece = piece.iloc[num_free:]
            self._pending = []
            self._num_pending = 0
            self._began = True
            yield group.reset_index(drop=True)
        if len(piece) or not self._began:
            self._pending.append(piece.reset_index(drop=True).copy())
            self._num_pending += len(piece)

    def flush(self) -> Iterator[pd.DataFrame]:
        """Yield the rows that fill no group, if there are any; nothing if no frame was
        added.

        Where no rows were added but an empty frame, it is that frame. The rows stay
        pending: to be called once.
        """
        if self._pending:
            yield stack_tables(self._pending)


class Growing:
    """A table that grows piece by piece. A long one is written to a file, and not kept
    in memory.
    """

    def __init__(self) -> None:
        self._groups = _Groups()
        self._folder: _Folder | None = None
        self._file: _File | None = None

    def add(self, piece: pd.DataFrame) -> None:
        """Add rows at the end. At most `ROWS_AT_ONCE` of them stay in memory.

        Others are written to a temporary file. ``piece`` is copied. Columns and types
        must be those of the first rows.
        """
        for group in self._groups.add(piece):
            if self._folder is None or self._file is None:
                self._folder = _Folder()
                self._file = _File(self._folder.path / "table.parquet", lean=True)
            self._file.write(group)

    def table(self) -> Table:
        """Return all rows that were added, at least one piece; to be called once, at
        the end. The file of a long table is deleted when nobody refers to the table any
        more.

        It is a frame up to `ROWS_AT_ONCE` rows, else a `LongTable`.
        """
        last_groups = list(self._groups.flush())
        if self._file is None:
            return stack_tables(last_groups)
        for group in last_groups:
            self._file.write(group)
        self._file.close()
        return LongTable((TablePart(self._file.path, holder=self._folder),))


class _Folder:
    """A temporary folder that is deleted when nobody refers to this object any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="simshuffle-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class _File:
    """A Parquet file that is written group by group. With ``lean`` numbers have no
    dictionary of the values that occur, which takes 20 MB and saves nothing where few
    times are equal.
    """

    def __init__(self, path: Path, *, lean: bool = False) -> None:
        self.path = path
        self._lean = lean
        self._writer: pq.ParquetWriter | None = None

    def write(self, group: pd.DataFrame) -> None:
        """Add a group of rows; the first one decides columns and types."""
        if self._writer is None:
            schema = pa.Schema.from_pandas(group.head(0), preserve_index=False)
            text_columns = [
                field.name for field in schema if not pa.types.is_primitive(field.type)
            ]
            dictionary_columns = text_columns if self._lean else True
            self._writer = pq.ParquetWriter(
                self.path, schema, compression="zstd", use_dictionary=dictionary_columns
            )
        schema = self._writer.schema
        self._writer.write_table(
            pa.Table.from_pandas(group, schema, preserve_index=False)
        )

    def close(self) -> None:
        """Close the file; nothing more is written."""
        if self._writer is not None:
            self._writer.close()


def write_parquet(pieces: Iterable[pd.DataFrame], path: Path) -> None:
    """Write the pieces of a table to a Parquet file, a group of rows each.

    There is at least one piece; the types of the columns are those of the first. An
    older file is replaced. An index is not written.
    """
    file = _File(path)
    try:
        for piece in pieces:
            file.write(piece)
    finally:
        file.close()
