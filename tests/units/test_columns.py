"""How a column prints a value: by its kind, or as its look says."""

import pandas as pd
import pytest

from simshuffle.study.schema import Schema, amount, count, flag, real, share, text


@pytest.mark.parametrize(
    ("column", "value", "printed"),
    [
        (text("t"), "local", "local"),
        (flag("f"), True, "True"),
        (count("c"), 1234567, "1234567"),
        (count("c"), 3.0, "3"),
        (real("r"), 0.00123456, "0.00123"),
        (amount("a", look=".1f"), 2.25, "2.2"),
        (amount("a", look="bytes"), 1.5e9, "1.5 GB"),
        (count("c", look="bytes"), 2000, "2 kB"),
        (share("s", look="percent"), 0.1234, "12.3 %"),
        (share("s", look=".0fpercent"), 0.5, "50 %"),
        (amount("a", look=".3g or -"), 0.0, "-"),
        (amount("a", look=".3g or -"), 1.5, "1.5"),
        (real("r", look=lambda value: f"<{value:g}>"), 2.0, "<2>"),
        (real("r", empty=True), float("nan"), ""),
        (text("t", empty=True), None, ""),
    ],
)
def test_a_value_is_printed_as_its_column_says(column, value, printed):
    assert column.cell(value) == printed


def test_a_table_is_printed_with_the_heads_of_its_columns():
    schema = Schema({"rank": count("r"), "held_nbytes": amount("h", head="held", look="bytes")})
    table = pd.DataFrame({"rank": [0, 1], "held_nbytes": [1e6, 2.5e6]})
    listed = schema.listing(table, "Ranks", ("rank", "held_nbytes"))
    assert listed.title == "Ranks"
    assert [column.header for column in listed.columns] == ["rank", "held"]
    assert [list(column.cells) for column in listed.columns] == [["0", "1"], ["1 MB", "2.5 MB"]]
    assert [column.justify for column in listed.columns] == ["left", "right"]
