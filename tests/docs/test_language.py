"""Names and docstrings explain themselves (docs/design.md), counted file by file.

What still breaks a rule is counted in docs/data/unclear.csv. Its numbers only shrink: a file above
its row fails, and so does one below. ``python -m tests.docs.test_language`` writes the file anew.
"""

import ast
import csv
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "simshuffle"
UNCLEAR = ROOT / "docs" / "data" / "unclear.csv"

# pronouns, prepositions and bare participles say nothing of the thing that a name holds; neither do
# the words that stand for anything
EMPTY_WORDS = """
of at by to on in_ it its one ones other others each every all_ rest whole half way ways thing
asked told said says given found kept held left taken made done gone put there here then these
those such same apart alone through between before after until upto further least most more
less loose named called shown seen known wanted need needs meant bare plain own alike away
item items obj info res tmp stuff things
"""
EMPTY_NAMES = frozenset(EMPTY_WORDS.split())
PARTICIPLE = re.compile(
    r"_?(\w+(ed|ing)|told|said|put|kept|held|found|left|made|cut|shown|seen|known|rest|apart|at|of"
    r"|between|within|by)"
)
NOUN_DECORATORS = {"property", "cached_property", "fixture"}
VAGUE_BEGINNING = re.compile(
    r"(What|Whether|How|Those|That|This|Which|Who|Where|When|As|Of|All|One|Every|Some|Such|Same|It"
    r"|They|For|In|On|By|To|s|B|Let)\b"
)
VAGUE_WORDS = re.compile(
    r"\b(the same|likewise|as above|as below|all of it|of it|of them|what is asked|those of)\b",
    re.IGNORECASE,
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def empty_names(tree):
    """(line, name) of every binding that says nothing of the thing it holds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            if node.id in EMPTY_NAMES:
                yield node.lineno, node.id
        elif isinstance(node, ast.arg) and node.arg in EMPTY_NAMES:
            yield node.lineno, node.arg
        elif isinstance(node, FUNCTIONS) and PARTICIPLE.fullmatch(node.name):
            decorators = {
                getattr(decorator, "id", getattr(decorator, "attr", ""))
                for decorator in node.decorator_list
            }
            if not decorators & NOUN_DECORATORS:
                yield node.lineno, node.name


def vague_docstrings(tree):
    """(line, first line) of every docstring that cannot be understood alone."""
    for node in ast.walk(tree):
        docstring = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
        if docstring and is_vague(docstring):
            yield node.body[0].lineno, docstring.splitlines()[0]


def is_vague(docstring):
    first_sentence = docstring.split(".")[0]
    return bool(VAGUE_BEGINNING.match(docstring) or VAGUE_WORDS.search(first_sentence))


@cache
def measured():
    """{path: (empty names, vague docstrings)} of the files that have any."""
    counts = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names, docstrings = len(list(empty_names(tree))), len(list(vague_docstrings(tree)))
        if names or docstrings:
            counts[path.relative_to(ROOT).as_posix()] = (names, docstrings)
    return counts


def listed():
    with UNCLEAR.open(encoding="utf-8", newline="") as file:
        return {
            row["file"]: (int(row["names"]), int(row["docstrings"])) for row in csv.DictReader(file)
        }


def test_no_file_gets_names_or_docstrings_that_say_nothing():
    assert measured() == listed()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("of = 1", ["of"]),
        ("def f(given): ...", ["given"]),
        ("[each for each in rows]", ["each"]),
        ("def _located(): ...", ["_located"]),
        ("@property\ndef measured(self): ...", []),
        ("for candidate in candidates: ...", []),
    ],
)
def test_an_empty_name_is_seen(source, names):
    assert [name for _, name in empty_names(ast.parse(source))] == names


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("What is read.", True),
        ("The same of a rank.", True),
        ("Rows of it.", True),
        ("Return the route of each rank's reads, (M, L).", False),
        ("Capacity of each link, (L,), in bytes/s. Those of no host are 0.", False),
    ],
)
def test_a_vague_docstring_is_seen(docstring, expected):
    assert is_vague(docstring) is expected


if __name__ == "__main__":
    measured.cache_clear()
    with UNCLEAR.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("file", "names", "docstrings"))
        writer.writerows((path, *counts) for path, counts in measured().items())
    sys.stdout.write("Written. The numbers only shrink.\n")
