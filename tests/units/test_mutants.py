"""Mutants of `make mutants`."""

import csv
from itertools import groupby
from pathlib import Path

import pytest

from benchmarks.mutations import Mutations

ROOT = Path(__file__).parents[2]
with (ROOT / "benchmarks" / "equivalent_mutants.csv").open(encoding="utf-8") as table:
    EQUIVALENT = {
        file: list(rows)
        for file, rows in groupby(csv.DictReader(table), key=lambda row: row["file"])
    }

SOURCE = '''"""1 < 2"""
TABLE = {"a": 1}
def rate(rows: Literal["a", "b"], key="x") -> float:
    """3 < 4"""
    if rows is None and TABLE:
        raise ValueError(f"{1 + 1}")
    key = (rows, "b")
    return max(rows["a"], rows["b"]) - math.sqrt(rows[0] * 2.0)
def now(state):
    state.clock[0].now, state.clock["now"][0], state.links.shape[0]
def text(count) -> str:
    return count + 1
'''


def test_mutants_change_what_decides_numbers_and_no_text():
    found = Mutations("simshuffle/rate.py", SOURCE).found
    assert {mutant.line for mutant in found} == {2, 5, 7, 8, 10}
    assert {mutant.after.removeprefix("return ") for mutant in found if mutant.line > 2} == {
        'state.clock[(0 + 1)].now, state.clock["now"][0], state.links.shape[0]',
        'state.clock[0].now, state.clock["now"][(0 + 1)], state.links.shape[0]',
        'state.clock[0].now, state.clock["now"][0], state.links.shape[(0 + 1)]',
        "if not (rows is None and TABLE):",
        "if rows is None or TABLE:",
        "key = (rows,)",
        'min(rows["a"], rows["b"]) - math.sqrt(rows[0] * 2.0)',
        'max(rows["b"], rows["b"]) - math.sqrt(rows[0] * 2.0)',
        'max(rows["a"], rows["a"]) - math.sqrt(rows[0] * 2.0)',
        'max(rows["a"], rows["b"]) + math.sqrt(rows[0] * 2.0)',
        'max(rows["a"], rows["b"]) - (rows[0] * 2.0)',
        'max(rows["a"], rows["b"]) - math.sqrt((rows[0]))',
        'max(rows["a"], rows["b"]) - math.sqrt(rows[0] / 2.0)',
        'max(rows["a"], rows["b"]) - math.sqrt(rows[-1] * 2.0)',
        'max(rows["a"], rows["b"]) - math.sqrt(rows[(0 + 1)] * 2.0)',
        'max(rows["a"], rows["b"]) - math.sqrt(rows[0] * (2.0 + 1))',
    }


@pytest.mark.parametrize("file", EQUIVALENT)
def test_the_list_of_equivalent_mutants_holds_mutants_of_today(file):
    found = Mutations(file, (ROOT / file).read_text(encoding="utf-8")).found
    known = {(mutant.before, mutant.after) for mutant in found}
    assert [row for row in EQUIVALENT[file] if (row["before"], row["after"]) not in known] == []
    assert all(row["reason"] for row in EQUIVALENT[file])
