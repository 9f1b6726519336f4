"""Mutants of `make mutants`."""

from benchmarks.mutations import Mutations

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
