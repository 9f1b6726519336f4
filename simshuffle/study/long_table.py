"""Tables that may be longer than the memory: they grow, are read and are joined piece by piece, and
are whole in memory only where somebody asks for that."""

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

from simshuffle.report.table_io import stacked

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
        """Its rows."""
        if isinstance(self.rows, pd.DataFrame):
            return len(self.rows)
        return int(pq.read_metadata(self.rows).num_rows)

    def pieces(self, columns: Sequence[str] | None) -> Iterator[pd.DataFrame]:
        """Its rows, a group of the file at a time; of ``columns`` alone, if given."""
        for rows in self._groups(columns):
            if self.lead is None:
                yield rows
                continue
            before = self.lead.take([0] * len(rows)).reset_index(drop=True)
            yield pd.concat([before[_of(columns, before.columns)], rows], axis=1)

    def _groups(self, columns: Sequence[str] | None) -> Iterator[pd.DataFrame]:
        if isinstance(self.rows, pd.DataFrame):
            yield self.rows[_of(columns, self.rows.columns)].reset_index(drop=True)
            return
        with pq.ParquetFile(self.rows) as file:
            wanted = _of(columns, file.schema_arrow.names)
            if file.num_row_groups == 0:
                yield file.schema_arrow.empty_table().to_pandas()[wanted]
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, wanted).to_pandas()


def _of(wanted: Sequence[str] | None, there: Iterable[str]) -> list[str]:
    return [name for name in there if wanted is None or name in wanted]


@dataclass(frozen=True)
class LongTable:
    """A table that lies in parts, one below the other. What reads them raises OSError, ValueError
    or pyarrow.ArrowException where a file is damaged."""

    parts: tuple[TablePart, ...]

    def __len__(self) -> int:
        """Its rows; none of them is read."""
        return sum(map(len, self.parts))

    @property
    def file(self) -> Path | None:
        """The Parquet file that holds just this table; None if there is none."""
        rows = [of.rows for of in self.parts if of.lead is None]
        return rows[0] if len(self.parts) == 1 and rows and isinstance(rows[0], Path) else None

    def behind(self, lead: pd.DataFrame) -> LongTable:
        """The table with the columns of ``lead`` in front, whose one row stands in every row."""
        return LongTable(tuple(TablePart(of.rows, lead, of.holder) for of in self.parts))

    def pieces(self, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        """Its rows in their order, `ROWS_AT_ONCE` together, and the rest at last; so at least one
        piece, which may be empty. Of ``columns`` alone, if given."""
        groups = _Groups()
        for part in self.parts:
            for piece in part.pieces(columns):
                yield from groups.add(piece)
        yield from groups.rest()

    def whole(self) -> pd.DataFrame:
        """All of it in memory."""
        return stacked(list(chain.from_iterable(part.pieces(None) for part in self.parts)))

    def distinct(self, columns: Sequence[str]) -> pd.DataFrame:
        """The rows that differ in these columns."""
        pieces = [piece.drop_duplicates() for piece in self.pieces(columns)]
        return stacked(pieces).drop_duplicates()


Table = pd.DataFrame | LongTable


class LazyTables(Mapping[str, pd.DataFrame]):
    """Tables by name, of which long ones are loaded when they are asked for, and kept then."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self.known = dict(tables)

    def __getitem__(self, name: str) -> pd.DataFrame:
        """The table, whole."""
        table = self.known[name]
        if isinstance(table, LongTable):
            table = self.known[name] = table.whole()
        return table

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self.known)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.known)


def unloaded(tables: Mapping[str, pd.DataFrame], name: str) -> Table:
    """One of ``tables`` as it is: a long one if it is not loaded."""
    return tables.known[name] if isinstance(tables, LazyTables) else tables[name]


def long(tables: Mapping[str, pd.DataFrame], name: str) -> LongTable:
    """One of ``tables`` as a long one, whether it is in memory or not."""
    table = unloaded(tables, name)
    return table if isinstance(table, LongTable) else LongTable((TablePart(table),))


def joined(tables: Iterable[LongTable]) -> Table:
    """Tables below one another; in memory if they are short."""
    table = LongTable(tuple(part for table in tables for part in table.parts))
    return table if len(table) > ROWS_AT_ONCE else table.whole()


def same(a: LongTable, b: LongTable) -> bool:
    """Whether both hold the same, to the last bit."""

    def plain(piece: pd.DataFrame) -> pd.DataFrame:
        return piece.astype(dict.fromkeys(piece.select_dtypes("category"), object))

    pairs = zip(a.pieces(), b.pieces(), strict=False)
    return len(a) == len(b) and all(plain(left).equals(plain(right)) for left, right in pairs)


class _Groups:
    """Rows that come piece by piece, put together to groups of `ROWS_AT_ONCE`."""

    def __init__(self) -> None:
        self._held: list[pd.DataFrame] = []
        self._rows = 0
        self._began = False

    def add(self, piece: pd.DataFrame) -> Iterator[pd.DataFrame]:
        """The groups that are full with these rows; the rest is held, as a copy without the
        piece."""
        while self._rows + len(piece) > ROWS_AT_ONCE:
            room = ROWS_AT_ONCE - self._rows
            group, piece = stacked([*self._held, piece.iloc[:room]]), piece.iloc[room:]
            self._held, self._rows, self._began = [], 0, True
            yield group.reset_index(drop=True)
        if len(piece) or not self._began:
            self._held.append(piece.reset_index(drop=True).copy())
            self._rows += len(piece)

    def rest(self) -> Iterator[pd.DataFrame]:
        """What is left, if it is anything; and if there was nothing before it, that."""
        if self._held:
            yield stacked(self._held)


class Growing:
    """A table that grows piece by piece. What is long lies in a file, of which nothing is held."""

    def __init__(self) -> None:
        self._groups = _Groups()
        self._folder: _Folder | None = None
        self._file: _File | None = None

    def add(self, piece: pd.DataFrame) -> None:
        """Add rows at the end. They are not held, but for a copy of less than `ROWS_AT_ONCE`."""
        for group in self._groups.add(piece):
            if self._folder is None or self._file is None:
                self._folder = _Folder()
                self._file = _File(self._folder.path / "table.parquet", lean=True)
            self._file.write(group)

    def table(self) -> Table:
        """All that was added, of which there was something; to be called once, at the end. The file
        of a long table goes when nobody has the table any more."""
        rest = list(self._groups.rest())
        if self._file is None:
            return stacked(rest)
        for group in rest:
            self._file.write(group)
        self._file.close()
        return LongTable((TablePart(self._file.path, holder=self._folder),))


class _Folder:
    """A temporary folder that goes when nobody holds it any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="simshuffle-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class _File:
    """A Parquet file that is written group by group; if ``lean``, numbers without a dictionary of
    those that occur, which takes 20 MB and saves nothing where few times are equal."""

    def __init__(self, path: Path, *, lean: bool = False) -> None:
        self.path, self._lean = path, lean
        self._writer: pq.ParquetWriter | None = None

    def write(self, group: pd.DataFrame) -> None:
        """Add a group of rows."""
        if self._writer is None:
            schema = pa.Schema.from_pandas(group.head(0), preserve_index=False)
            named = [field.name for field in schema if not pa.types.is_primitive(field.type)]
            words = named if self._lean else True
            self._writer = pq.ParquetWriter(
                self.path, schema, compression="zstd", use_dictionary=words
            )
        schema = self._writer.schema
        self._writer.write_table(pa.Table.from_pandas(group, schema, preserve_index=False))

    def close(self) -> None:
        """Nothing more is written."""
        if self._writer is not None:
            self._writer.close()


def write_parquet(pieces: Iterable[pd.DataFrame], path: Path) -> None:
    """Write the pieces of a table, at least one, to a Parquet file, a group of rows each."""
    file = _File(path)
    try:
        for piece in pieces:
            file.write(piece)
    finally:
        file.close()
