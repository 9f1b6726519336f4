"""Differences of two results, value by value: which rows differ, by how much, and where."""

from dataclasses import astuple, replace

import numpy as np
import pandas as pd
import pytest

from simshuffle.study.differences import (
    Difference,
    compare_files,
    compare_tables,
    compare_values,
)
from simshuffle.study.long_table import LongTable, TablePart
from simshuffle.study.schema import Schema, count, real, text

COLUMNS = {
    "run": text("of it"),
    "epoch": count("of it"),
    "seconds": real("of it", empty=True),
    "note": text("of it", empty=True),
    "took": replace(real("of it"), measured=True),
}
KEYED = Schema(COLUMNS, key=("run", "epoch"))
FREE = Schema(COLUMNS)


def table(*rows):
    return pd.DataFrame(rows, columns=[*COLUMNS])


STORED = table(
    ("a", 1, 1.0, "x", 7.0),
    ("a", 2, 2.0, "y", 7.0),
    ("b", 1, 4.0, None, 7.0),
    ("b", 2, np.nan, "z", 7.0),
)


def long(frame, rows_of_part=3):
    """Return the table in parts of so many rows, each with numbers of its own from 0."""
    pieces = [frame[n : n + rows_of_part] for n in range(0, len(frame), rows_of_part)]
    return LongTable(tuple(TablePart(piece.reset_index(drop=True)) for piece in pieces))


def found(stored, again, schema=KEYED, tolerance=0.0):
    differences = compare_tables("t.csv", schema, long(stored), long(again), tolerance)
    return [astuple(each)[1:] for each in differences]


def changed(**columns):
    """Return the stored rows with other values, by column and row."""
    again = STORED.copy()
    for name, values in columns.items():
        for row, value in values.items():
            again.loc[row, name] = value
    return again


def test_what_a_clock_measured_and_what_is_missing_twice_is_no_difference():
    assert found(STORED, STORED) == []
    assert found(STORED, STORED.assign(took=8.0)) == []
    assert found(STORED, STORED, FREE) == []


def test_the_row_that_differs_most_is_named_beside_their_number():
    """1 s of 2 is a half, 1 s of 5 a fifth, in the second part: two of four rows."""
    again = changed(seconds={1: 1.0, 2: 5.0})
    assert found(STORED, again) == [("seconds", 2, 4, 1.0, 0.5, "run=a, epoch=2", 2.0, 1.0)]
    # without a key a row is told by its number and what stands before the first real number
    again = changed(seconds={1: 1.9, 2: 6.0})
    expected = ("seconds", 2, 4, 2.0, pytest.approx(1 / 3), "row 3, run=b, epoch=1", 4.0, 6.0)
    assert found(STORED, again, FREE) == [expected]


def test_a_number_that_is_missing_once_differs_most_and_has_no_size():
    again = changed(seconds={0: 9.0, 3: 1.0})
    assert found(STORED, again) == [("seconds", 2, 4, None, None, "run=b, epoch=2", None, 1.0)]


def test_a_number_may_be_missing_in_either_table():
    (difference,) = found(STORED, changed(seconds={0: np.nan}))
    assert difference == ("seconds", 1, 4, None, None, "run=a, epoch=1", 1.0, None)


def test_of_several_parts_the_first_row_that_differs_most_counts():
    """Rows 1 and 4 differ by a half, the others by less; six rows in three parts."""
    stored = table(*[("a", n, 2.0, "x", 7.0) for n in range(1, 7)])
    again = stored.assign(seconds=[1.5, 1.0, 2.0, 1.9, 1.0, 1.8])

    def pieces(frame):
        return LongTable(tuple(long(frame[n : n + 2]).parts[0] for n in (0, 2, 4)))

    (difference,) = compare_tables("t.csv", KEYED, pieces(stored), pieces(again), 0.0)
    assert (difference.rows, difference.where) == (5, "run=a, epoch=2")
    # the last part has a small difference, and then the largest of all
    again = stored.assign(seconds=[2.0, 1.8, 2.0, 2.0, 1.9, 0.5])
    (difference,) = compare_tables("t.csv", KEYED, pieces(stored), pieces(again), 0.0)
    assert (difference.rows, difference.where) == (3, "run=a, epoch=6")


def test_of_texts_the_first_row_that_differs_is_named():
    again = changed(note={1: "Y", 2: "w"})
    assert found(STORED, again) == [("note", 2, 4, None, None, "run=a, epoch=2", "y", "Y")]
    assert found(STORED, changed(note={2: "w"}))[0][5:] == ("run=b, epoch=1", None, "w")


@pytest.mark.parametrize(
    ("value", "tolerance", "differs"),
    [
        (1.25, 0.25, False),  # a quarter of 1.25 s are 0.3125 s
        (1.25, 0.2, False),  # as far off as a fifth of the larger one
        (1.25, 0.19, True),
        (1.0 + 1e-13, 0.0, True),
        (1.0 + 9e-13, 1e-15, False),  # nothing, beside any tolerance
        (1.0 + 2e-12, 1e-15, True),
    ],
)
def test_a_tolerance_is_a_share_of_the_larger_number(value, tolerance, differs):
    assert bool(found(STORED, changed(seconds={0: value}), tolerance=tolerance)) is differs
    plain = compare_values("m", {"a": 1.0}, {"a": value}, tolerance)
    assert bool(plain) is differs


def test_rows_in_another_order_are_compared_by_their_key():
    again = changed(seconds={2: 5.0}).iloc[[1, 0, 3, 2]]
    order, seconds = found(STORED, again)
    assert order == ("", 0, 0, None, None, "", "rows in one order", "in another order")
    assert seconds == ("seconds", 1, 4, 1.0, pytest.approx(0.2), "run=b, epoch=1", 4.0, 5.0)


def test_rows_that_one_table_lacks_are_counted_and_the_others_compared():
    again = pd.concat([changed(seconds={1: 4.0})[1:], table(("c", 9, 1.0, "x", 7.0))])
    extra, seconds = found(STORED, again)
    assert extra[6:] == (
        "1 row that the other lacks (run=a, epoch=1)",
        "1 row that the other lacks (run=c, epoch=9)",
    )
    assert seconds == ("seconds", 1, 3, 2.0, 0.5, "run=a, epoch=2", 2.0, 4.0)
    (fewer,) = found(STORED, STORED[2:])
    assert fewer[6:] == ("2 rows that the other lacks (run=a, epoch=1)", "")
    one_key = Schema(COLUMNS, key=("epoch",))
    (single,) = found(STORED[:1], STORED[:2], one_key)
    assert single[6:] == ("", "1 row that the other lacks (epoch=2)")


def test_tables_of_other_lengths_without_a_key_have_one_difference():
    (lengths,) = found(STORED, STORED[:3], FREE)
    assert lengths == ("", 0, 0, None, None, "", "4 rows", "3 rows")


def test_values_by_key_differ_in_kind_size_and_presence():
    stored = {"a": 2.0, "b": 1, "c": "x", "d": [1.0], "e": 5, "g": True}
    again = {"a": 1.0, "b": 1.0, "c": "x", "d": [1.5], "f": 5, "g": "True"}
    rows = [astuple(each) for each in compare_values("meta", stored, again, 0.1)]
    none = ("", 0, 0, None, None, "")
    assert rows == [
        ("meta", "a", 0, 0, 1.0, 0.5, "", 2.0, 1.0),
        ("meta", "d", *none[1:], [1.0], [1.5]),
        ("meta", "e", *none[1:], 5, "nothing"),
        ("meta", "f", *none[1:], "nothing", 5),
        ("meta", "g", *none[1:], True, "True"),
    ]


@pytest.mark.parametrize(
    ("stored", "again", "words"),
    [
        (b"a\nb\n", b"a\nc\n", "line 2"),
        (b"a\nb", b"a\nb\nc", "line 3"),
        (b"a\nb\nc", b"a", "line 2"),
        (None, b"a", "none"),
        (b"a", None, "one"),
    ],
)
def test_the_first_line_that_differs_is_named(stored, again, words):
    (difference,) = compare_files("f", stored, again)
    assert difference.stored == words
    assert (difference.rows, difference.of) == (0, 0)
    assert compare_files("f", stored, stored) == []


def test_a_difference_is_a_sentence():
    of_rows = Difference("t.csv", "s", 2, 4, 1.0, 0.5, "run=a", 2.0, None)
    assert str(of_rows) == (
        "t.csv: s in 2 of 4 rows, largest difference 1 (relative 0.5) at run=a:"
        " 2.0 stored, nothing recomputed"
    )
    first = replace(of_rows, absolute=None, relative=None, again="x" * 50)
    assert ", the first one at run=a: 2.0 stored, xxx" in str(first)
    assert len(str(first).split("stored, ")[1].split(" rec")[0]) <= 41
    assert str(Difference("f", "", 0, 0, None, None, "", "", "one")) == (
        "f: none stored, one recomputed"
    )
