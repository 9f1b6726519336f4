"""The house rules of CONTRIBUTING.md that can be counted: widths, lengths, layers, kinds, words.

What breaks a rule today is named in a list beside it. The lists only shrink: a name that no longer
breaks the rule has to go from its list.
"""

import ast
import configparser
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "simshuffle"
PLUGINS = ROOT / "plugins"
MODULES = sorted([*PACKAGE.rglob("*.py"), *PLUGINS.rglob("*.py")])
COLUMNS = 100
PRAGMA = re.compile(r"  # (noqa|type: ignore).*")  # what is said to a tool, as ruff counts
FUNCTION_LINES = 60
FILE_LINES, KERNEL_LINES = 480, 500

LONG_FUNCTIONS: set[str] = set()
LONG_FILES: set[str] = set()
# packages of which each file is a kind, or one module of several kinds
KINDS = (
    "fabric/topology",
    "fabric/routing",
    "fabric/allreduce",
    "workload/exchange",
    "fabric/network",
)
# those whose kinds nobody else may ask for, and who does
OPEN_KINDS = {"fabric/topology", "fabric/routing", "workload/exchange"}
ASKED_ELSEWHERE = {
    "studies/mechanisms/variants.py partial_local_shuffle",
    "extensions/learning/time_to_accuracy/simulated.py recorded",
}
# a name for a thing that the field calls otherwise: what to write; grows as the package gets rid of
# another one
WORDS = {
    "data_optimised": "filtering",
    "early": "sent_before_use",
    "ext": "other_load",
    "form": "validation",
    "hit_sent": "sent_from_cache",
    "life": "pairing_index",
    "lives": "partner_epochs",
    "looked_at": "the noun itself",
    "nowhere": "null_link",
    "pace": "rate",
    "paced_steps": "spread_over_iterations",
    "price": "cost_model",
    "printed": "console",
    "rooms": "capacities, scratch, slots",
    "tabular": "table_io",
}


@cache
def nodes(path):
    """Of the file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text())))


def name_of(path):
    return path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT).as_posix()


def only_known(broken, known):
    """What breaks a rule is what is known to, no more and no less."""
    assert sorted(broken - known) == [], "breaks the rule"
    assert sorted(known - broken) == [], "no longer breaks the rule: take it from the list"


def test_lines_are_at_most_100_columns_wide():
    sources = [
        path
        for part in (PACKAGE, PLUGINS, ROOT / "tests", ROOT / "benchmarks")
        for path in part.rglob("*.py")
    ]
    assert len(sources) > 300
    wide = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(PRAGMA.sub("", line)) > COLUMNS
    ]
    assert wide == []


def lines_of(function):
    """Lines of a function from `def` on, without its docstring.

    The signature of a verb declares its options, and does not count.
    """
    first = function.body[0]
    has_docstring = ast.get_docstring(function, clean=False) is not None
    docstring = first.end_lineno - first.lineno + 1 if has_docstring else 0
    declares_options = "Option(" in ast.unparse(function.args)
    begin = first.lineno if declares_options else function.lineno
    return function.end_lineno - begin + 1 - docstring


def test_functions_are_at_most_60_lines_long():
    functions = [
        (f"{name_of(path)} {node.name}", lines_of(node))
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert len(functions) > 2000
    only_known({name for name, lines in functions if lines > FUNCTION_LINES}, LONG_FUNCTIONS)


def is_compiled(path):
    """Whether the file has compiled functions: it imports the decorators."""
    return any(
        isinstance(node, ast.ImportFrom) and (node.module or "").endswith(".compiling")
        for node in nodes(path)
    )


def test_files_are_at_most_480_lines_long_and_500_if_compiled():
    assert 2 <= sum(map(is_compiled, MODULES)) <= 20
    long = {
        name_of(path)
        for path in MODULES
        if len(path.read_text().splitlines()) > (KERNEL_LINES if is_compiled(path) else FILE_LINES)
    }
    only_known(long, LONG_FILES)


# ------------------------------------------------------------------------------------------- layers


def layers_of_the_linter():
    linter = configparser.ConfigParser()
    linter.read(ROOT / ".importlinter", encoding="utf-8")
    return [
        line.replace("simshuffle.", "")
        for line in linter["importlinter:contract:rooms"]["layers"].split("\n")
        if line
    ]


def layers_of_the_design():
    """Under "## Layers" a numbered list, whose items are the lines of the contract in their order,
    without "simshuffle." and with or without backticks: ``3. `sim | plan` ``."""
    section = re.search(
        r"^## Layers\n(.*?)(?=^## |\Z)",
        (ROOT / "docs" / "design.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    items = re.findall(r"^(\d+)\. (.*)$", section[1], re.MULTILINE)
    assert [int(number) for number, _ in items] == list(range(1, len(items) + 1))
    return [item.replace("`", "").strip() for _, item in items]


def test_the_layers_of_the_design_are_those_of_the_linter():
    assert layers_of_the_design() == layers_of_the_linter()


def test_every_part_of_the_package_has_a_layer():
    layers = {part.strip() for line in layers_of_the_linter() for part in re.split("[|:]", line)}
    assert len(layers) > 10
    parts = {
        path.stem
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    without = {
        part for part in parts if not any(f"{layer}.".startswith(f"{part}.") for layer in layers)
    }
    assert without == {"__init__", "__main__"}


# -------------------------------------------------------------------------------------------- kinds


def kinds():
    """Kind by the file that registers it: (package, kind, file)."""
    for package in KINDS:
        place = PACKAGE / package
        for path in sorted(place.rglob("*.py")) or [place.with_suffix(".py")]:
            for node in nodes(path):
                if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "kind":
                    for kind in ast.walk(node.annotation):
                        if isinstance(kind, ast.Constant):
                            yield package, kind.value, path


def test_a_kind_is_registered_in_one_place():
    found = list(kinds())
    assert len(found) > 20
    assert len({(package, kind) for package, kind, _ in found}) == len(found)


@cache
def compared_with(path):
    """Every text that something is compared with in a file."""
    sides = [
        side
        for node in nodes(path)
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
    ]
    parts = [part for side in sides for part in ast.walk(side)]
    return {part.value for part in parts if isinstance(part, ast.Constant)}


def test_nobody_asks_what_kind_it_is_but_the_kinds():
    asked = {
        f"{name_of(path)} {kind}"
        for package, kind, _ in kinds()
        for path in MODULES
        if package in OPEN_KINDS
        and not path.is_relative_to(PACKAGE / package)
        and kind in compared_with(path)
    }
    only_known(asked, ASKED_ELSEWHERE)


# -------------------------------------------------------------------------------------------- words


def names_in(path):
    """The names that a file gives: its own, of functions, classes, parameters and variables."""
    yield path.stem
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_a_thing_is_called_what_the_field_calls_it():
    names = [(path, name.strip("_").lower()) for path in MODULES for name in names_in(path)]
    assert len(names) > 10_000
    assert [
        f"{name_of(path)}: {name} is {WORDS[name]}" for path, name in names if name in WORDS
    ] == []
