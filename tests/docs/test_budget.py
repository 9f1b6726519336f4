"""What the package may weigh: a budget that only shrinks (docs/data/budget.csv), and the list of
what extensions take from the rooms below them (docs/data/extension-imports.csv).

Whoever needs more raises a row in the same commit, and says why in its message. Whoever needs less
lowers it: a row that is more than 2 % too high fails. ``python -m tests.docs.test_budget`` writes
both files anew.
"""

import ast
import csv
import io
import re
import sys
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "simshuffle"
BUDGET = ROOT / "docs" / "data" / "budget.csv"
TAKEN = ROOT / "docs" / "data" / "extension-imports.csv"
SLACK = 1.02
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path):
    """The folder of the package that a file is in; "." for files beside the rooms."""
    return path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else "."


@cache
def nodes_of(path):
    """All nodes of a file's syntax tree, walked once for all counts."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def tokens_of(path):
    """Tokens of code: neither comments nor docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    rows = {
        row
        for node in nodes_of(path)
        if isinstance(node, documented) and ast.get_docstring(node)
        for row in range(node.body[0].lineno, node.body[0].end_lineno + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return sum(each.type not in NO_CODE and each.start[0] not in rows for each in tokens)


@cache
def imports_of(path):
    """(module, name) of everything that a file imports from the package, but for its types."""
    checking = {
        inner
        for node in nodes_of(path)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    return [
        (node.module, name.name)
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("simshuffle")
        for name in (node.names if node not in checking else ())
    ]


def folder_of(module):
    """The folder in which a module is, from the package."""
    place = ROOT.joinpath(*module.split("."))
    return (place if place.is_dir() else place.parent).relative_to(PACKAGE)


@cache
def measured():
    """What the budget has a row for, by its name."""
    out = Counter()
    arrows, rooms, classes = set(), set(), Counter()
    for path in FILES:
        tokens = tokens_of(path)
        out[f"tokens {room_of(path)}"] += tokens
        out["tokens"] += tokens
        out["Any"] += len(re.findall(r"\bAny\b", path.read_text(encoding="utf-8")))
        own = path.parent.relative_to(PACKAGE)
        for module, _ in imports_of(path):
            other = folder_of(module)
            if other not in {own, Path()} and own != Path():
                arrows.add((own, other))
                if own.parts[0] != other.parts[0]:
                    rooms.add((own.parts[0], other.parts[0]))
        names = (node.name for node in nodes_of(path) if isinstance(node, ast.ClassDef))
        classes.update({name for name in names if not name.startswith("_")})
    out["arrows between folders"], out["arrows between rooms"] = len(arrows), len(rooms)
    out["class names of two things"] = sum(count > 1 for count in classes.values())
    out["names that extensions take"] = len(taken())
    return dict(sorted(out.items()))


def taken():
    """(module, name) of what extensions import from other rooms."""
    return sorted(
        {
            (module, name)
            for path in FILES
            if room_of(path) == "extensions"
            for module, name in imports_of(path)
            if not module.startswith("simshuffle.extensions")
        }
    )


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


ROWS = {row["what"]: int(row["most"]) for row in rows_of(BUDGET)} if BUDGET.exists() else {}


def test_the_budget_has_a_row_for_everything():
    assert list(ROWS) == list(measured())


@pytest.mark.parametrize("what", ROWS)
def test_nothing_is_above_its_budget_nor_far_below_it(what):
    assert measured()[what] <= ROWS[what] <= measured()[what] * SLACK


def test_what_extensions_take_stands_in_a_list():
    listed = [(row["module"], row["name"]) for row in rows_of(TAKEN)]
    assert listed == taken()


def write(path, heads, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows(rows)


if __name__ == "__main__":
    write(BUDGET, ("what", "most"), measured().items())
    write(TAKEN, ("module", "name"), taken())
    sys.stdout.write("Written. Say in the commit why a row grew.\n")
