"""Long tables: they grow, are stored, joined and read piece by piece, with every bit."""

import gc
import weakref

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import simshuffle
from simshuffle.errors import InputError
from simshuffle.report.console import terminal_text
from simshuffle.study import long_table, schema
from simshuffle.study.cell import Outcome
from simshuffle.study.long_table import (
    Growing,
    LazyTables,
    LongTable,
    TablePart,
    get_lazily,
    join_tables,
    write_parquet,
)
from simshuffle.study.registry import read_folder
from simshuffle.study.schema import Schema, count, real, text
from simshuffle.study.store import Disk
from tests.small import small

ROWS = 10
SCHEMA = Schema(
    {"kind": text("of it"), "number": count("of it"), "seconds": real("of it")}, ".parquet"
)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_table, "ROWS_AT_ONCE", ROWS)
    monkeypatch.setattr(schema, "ROWS_AT_ONCE", ROWS)


def piece(first: int, rows: int, kinds: str = "ab") -> pd.DataFrame:
    number = np.arange(first, first + rows, dtype=np.int32)
    kind = pd.Categorical.from_codes(number % len(kinds), pd.Index(list(kinds)))
    return pd.DataFrame({"kind": kind, "number": number, "seconds": np.sqrt(number)})


def is_same_table(one: LongTable, other: LongTable) -> bool:
    """Whether rows are equal to the last bit, in their order, a category as its text."""
    frames = [table.load().astype({"kind": object}) for table in (one, other)]
    return frames[0].equals(frames[1])


def long(*rows: int) -> LongTable:
    """What grew to more rows than a short table has."""
    table = grown(*rows)
    assert isinstance(table, LongTable)
    return table


def grown(*rows: int) -> pd.DataFrame | LongTable:
    growing, first = Growing(), 0
    for count_ in rows:
        growing.add(piece(first, count_))
        first += count_
    return growing.table()


@pytest.mark.parametrize("rows", [(3, 4, 3), (25,), (4, 9, 0, 30, 1), (10, 10), (11, 1)])
def test_a_table_that_grew_is_as_if_it_had_been_whole(rows):
    table, whole = grown(*rows), piece(0, sum(rows))
    assert isinstance(table, LongTable) == (sum(rows) > ROWS)
    loaded = table.load() if isinstance(table, LongTable) else table
    pd.testing.assert_frame_equal(loaded, whole)
    if isinstance(table, LongTable):
        assert table.file is not None
        groups = pq.ParquetFile(table.file).metadata
        sizes = [groups.row_group(at).num_rows for at in range(groups.num_row_groups)]
        assert sizes == [ROWS] * (sum(rows) // ROWS) + [sum(rows) % ROWS] * (sum(rows) % ROWS > 0)
        assert len(table) == sum(rows)


def test_a_piece_is_not_held_when_it_was_added():
    growing = Growing()
    for number in range(5):
        rows = piece(17 * number, 17)
        held = [weakref.ref(rows[name].to_numpy()) for name in ("number", "seconds")]
        held.append(weakref.ref(rows))
        growing.add(rows)
        del rows
        gc.collect()
        assert [ref() for ref in held] == [None] * 3
    table = growing.table()
    assert len(table) == 85


def test_a_short_table_without_rows_keeps_its_columns():
    table = grown(0)
    assert isinstance(table, pd.DataFrame)
    assert list(table) == list(SCHEMA.columns)
    assert table["number"].dtype == np.int32


def test_the_file_of_a_table_goes_with_the_table():
    table = long(25)
    file = table.file
    assert file is not None
    behind = table.with_leading_columns(pd.DataFrame({"run": ["a"]}))
    del table
    gc.collect()
    assert file.is_file()
    assert len(behind.load()) == 25
    del behind
    gc.collect()
    assert not file.parent.exists()


def test_tables_are_joined_with_what_stands_in_front():
    names = ["one", "two", "three"]
    tables = [long(25), LongTable((TablePart(piece(0, 3)),)), long(12)]
    lead = [pd.DataFrame({"run": pd.Categorical([name], names), "seed": 7}) for name in names]
    table = join_tables(
        of.with_leading_columns(before) for of, before in zip(tables, lead, strict=True)
    )
    assert isinstance(table, LongTable)
    whole = table.load()
    assert list(whole) == ["run", "seed", "kind", "number", "seconds"]
    assert list(whole["run"]) == ["one"] * 25 + ["two"] * 3 + ["three"] * 12
    assert [len(part) for part in table.pieces()] == [10, 10, 10, 10]
    distinct = table.distinct(["run", "seed"])
    assert list(distinct["run"]) == names
    assert list(distinct["seed"]) == [7, 7, 7]
    assert isinstance(join_tables(tables[1:2]), pd.DataFrame)


def test_categories_that_differ_by_piece_are_those_of_all():
    growing = Growing()
    for number, kinds in enumerate(("ab", "cab", "d")):
        growing.add(piece(8 * number, 8, kinds))
    table = growing.table()
    assert isinstance(table, LongTable)
    expected = [
        kinds[n % len(kinds)]
        for at, kinds in enumerate(("ab", "cab", "d"))
        for n in range(8 * at, 8 * at + 8)
    ]
    assert list(table.load()["kind"]) == expected


def test_two_tables_are_the_same_to_the_last_bit_however_they_lie():
    one, other = long(25), LongTable((TablePart(piece(0, 12)), TablePart(piece(12, 13))))
    assert is_same_table(one, other)
    changed = piece(0, 25)
    changed.loc[23, "seconds"] = np.nextafter(changed.loc[23, "seconds"], 9.0)
    assert not is_same_table(one, LongTable((TablePart(changed),)))
    assert not is_same_table(one, LongTable((TablePart(piece(0, 24)),)))


def test_a_long_table_is_checked_but_not_loaded(tmp_path):
    table = long(35)
    path = SCHEMA.write(table, tmp_path / "long")
    read = SCHEMA.read(tmp_path / "long")
    assert isinstance(read, LongTable)
    assert is_same_table(read, table)
    damaged = piece(0, 35)
    damaged.loc[31, "seconds"] = np.nan
    damaged.to_parquet(path, index=False)
    with pytest.raises(InputError, match="seconds: is empty in row 32"):
        SCHEMA.read(tmp_path / "long")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="cannot be read"):
        SCHEMA.read(tmp_path / "long")


def test_what_is_written_is_checked_too(tmp_path):
    wrong = LongTable((TablePart(piece(0, 25)), TablePart(piece(25, 25).assign(seconds=np.inf))))
    with pytest.raises(InputError, match="must be finite"):
        SCHEMA.write(wrong, tmp_path / "wrong")


def test_a_store_keeps_a_long_table_and_gives_it_unloaded(tmp_path):
    store, digest = Disk(tmp_path), "ab" * 16
    tables = LazyTables({"long": grown(25), "short": grown(4)})
    store.add(digest, Outcome({"a": 1}, tables))
    parts = frozenset({"long.parquet", "short.parquet"})
    found = store.get(digest, parts)
    assert found is not None
    assert isinstance(get_lazily(found.tables, "long"), LongTable)
    pd.testing.assert_frame_equal(found.tables["long"], piece(0, 25))
    pd.testing.assert_frame_equal(found.tables["short"], piece(0, 4))
    [file] = tmp_path.rglob("long.parquet")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert store.get(digest, parts) is None
    assert store.get(digest, frozenset({"short.parquet"})) is not None


def test_a_loaded_table_is_loaded_once(tmp_path):
    write_parquet([piece(0, 25)], tmp_path / "a.parquet")
    tables = LazyTables({"a": LongTable((TablePart(tmp_path / "a.parquet"),))})
    first = tables["a"]
    (tmp_path / "a.parquet").unlink()
    assert tables["a"] is first
    assert list(tables) == ["a"]


def test_a_result_is_printed_without_its_longest_table(tmp_path):
    folder = simshuffle.run(small(world_size=4)).save(tmp_path / "run", draw=False)
    found = read_folder(folder)
    assert "local @4" in terminal_text(found.parts())
    assert found.exported() and found.verdict()
    assert isinstance(get_lazily(found.tables, "timeline"), LongTable)
