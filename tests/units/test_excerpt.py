"""Tables for a paper: chosen rows and columns, three significant digits, at most eight columns."""

from collections.abc import Sequence

import pytest
from rich.table import Table

from simshuffle.errors import InputError
from simshuffle.report.console import export_parts, new_table
from simshuffle.report.excerpt import MAX_COLUMNS, Excerpt, shorten_numbers


def seconds_table() -> Table:
    table = new_table("Seconds per epoch", ["run", "epoch"], ["total", "waiting"])
    table.add_row("local @32", "1 cold", "851.956 ± 7.130", "0.12845")
    table.add_row("partial-0.5 @32", "2", "1,887.1 ± 3.339", "-4.3049")
    return table


def bytes_table() -> Table:
    table = new_table("Bytes", ["run"], ["PFS"])
    table.add_row("local @32", "1.75 TB")
    return table


def cells(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in column.cells] for column in table.columns]


def test_numbers_have_three_significant_digits_and_names_stay():
    """By hand: 851.956 to 852, and its half width has no decimals either; 0.12845 to 0.128."""
    names, epochs, totals, waits = cells(shorten_numbers(seconds_table()))
    assert names == ["local @32", "partial-0.5 @32"]
    assert epochs == ["1 cold", "2"]
    assert totals == ["852 ± 7", "1,887 ± 3"]
    assert waits == ["0.128", "-4.30"]


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("0.000", "0.000"),
        ("9.9996", "10.00"),
        ("99.96 ± 0.04", "99.96 ± 0.04"),
        ("179.961 ± 0.367", "180.0 ± 0.4"),
        ("3,906", "3,906"),
        ("-", "-"),
        ("88%", "88%"),
        ("12.345 to 67.891", "12.3 to 67.9"),
        ("0.00012345", "0.000123"),
        ("2.5", "2.5"),
    ],
)
def test_digits_are_dropped_and_never_invented(given, printed):
    table = new_table(None, ["run"], ["value"])
    table.add_row("a", given)
    assert cells(shorten_numbers(table))[1] == [printed]


def take(runs: Sequence[str] = (), columns: Sequence[str] = ()) -> list[str | Table]:
    parts = [seconds_table(), "a note", bytes_table()]
    return Excerpt(runs, columns).take_from(parts, "command line")


def test_rows_and_columns_are_chosen_by_name_or_pattern_in_the_order_given():
    (table,) = take(["partial*"], ["total", "run"])
    assert isinstance(table, Table)
    assert cells(table) == [["1,887.1 ± 3.339"], ["partial-0.5 @32"]]
    # rows alone: every table that has them, without the notes
    assert [part.title for part in take(["local @32"]) if isinstance(part, Table)] == [
        "Seconds per epoch",
        "Bytes",
    ]
    assert len(take()) == 3


def test_a_caption_is_the_title_of_the_first_table():
    first, *_ = Excerpt(caption="Epochs of two runs").take_from([seconds_table()], "here")
    assert "\\caption{Epochs of two runs}" in export_parts([first], "latex")


@pytest.mark.parametrize(
    ("runs", "columns", "known"),
    [(["lokal*"], [], "local @32, partial-0.5 @32"), ([], ["time"], "run, epoch, total")],
)
def test_what_no_table_has_is_refused_with_what_there_is(runs, columns, known):
    with pytest.raises(InputError, match=known):
        take(runs, columns)


def test_latex_has_eight_columns_and_names_those_left_out():
    headings = [f"part {number}" for number in range(1, 13)]
    table = new_table("Wide", ["run"], headings)
    table.add_row("a", *map(str, range(12)))
    text = export_parts([table], "latex")
    assert text.count(" & ") == 2 * (MAX_COLUMNS - 1)
    assert "% left out: part 8, part 9, part 10, part 11, part 12" in text
    assert export_parts([table], "markdown").count("part") == 12
