"""The files that simshuffle brings along: scenarios, studies, topologies, the catalog of models and
data sets; and safe reading of YAML."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Hashable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from yaml.composer import ComposerError

from simshuffle.errors import Problem, ScenarioError

_PACKAGE = Path(__file__).parents[1]
CATALOG = _PACKAGE / "job" / "scenario" / "catalog"
_SUFFIXES = (".yaml", ".yml", ".json")
INPUTS = "inputs"
"""The folder in a result folder with the files that its documents name."""


def shipped(folder: str) -> Path:
    """The folder of that name in the installed package, or in the checkout when simshuffle runs
    from one."""
    installed = _PACKAGE / "_shipped" / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder


def shipped_names(folder: str) -> list[str]:
    """Names of the files in a shipped folder, such as 'paper/strategies', sorted."""
    root = shipped(folder)
    return sorted(
        path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml")
    )


def find(reference: str, folder: str, beside: Path | None = None) -> Path:
    """The file that ``reference`` names: a path (from ``beside``, or the working directory), or a
    shipped file's name. Raises a ScenarioError if there is none."""
    given = Path(reference)
    with suppress(RuntimeError):  # a user without a home
        given = given.expanduser()
    looks_like_path = given.suffix in _SUFFIXES or reference.startswith((".", "/", "~"))
    candidates = [given] if beside is None else [beside / given, given]
    if looks_like_path:
        for candidate in candidates:
            if is_file(candidate):
                return candidate
    elif is_file(named := shipped(folder) / f"{reference}.yaml"):
        return named
    remedy = nearest(reference, shipped_names(folder))
    written = [
        suffix
        for candidate in ([] if looks_like_path else candidates)
        for suffix in _SUFFIXES
        if is_file(candidate.parent / f"{candidate.name}{suffix}")
    ]
    if written:
        name = f"{reference}{written[0]}"
        remedy = (
            f"There is a file {name}. Write {name}: a name without suffix is one of those that come"
            " with simshuffle."
        )
    kind = re.sub("ie$", "y", folder.removesuffix("s"))
    raise ScenarioError(Problem("", f"no such {kind} file or name", repr(reference), remedy))


def is_file(path: Path) -> bool:
    """Whether ``path`` is a file; False for what cannot be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether ``path`` is a folder; False for what cannot be a path."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def nearest(word: str, words: list[str]) -> str:
    """A remedy that names the closest of ``words`` and then all of them."""
    close = difflib.get_close_matches(word, words, 1)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {', '.join(words)}."


MAX_YAML_LENGTH = 1_000_000
"""Most characters of a YAML text. Reading them takes seconds; a scenario has a few kB."""
MAX_YAML_VALUES = 50_000
"""Most keys and values of a YAML text, an alias counted as a copy of all that it stands for."""
MAX_YAML_DEPTH = 50
"""Most values within one another, aliases unfolded: whatever walks through them is recursive."""
TOO_DEEP = f"must have at most {MAX_YAML_DEPTH} values within one another"
MAX_NUMBER = 100
"""Most characters of a number: longer ones fit no float, and Python refuses to print some."""


class _Refused(yaml.constructor.ConstructorError):
    """YAML that breaks a rule of simshuffle's own: `rule`, `remedy` as of `Problem`."""

    def __init__(self, rule: str, found: str, mark: Any, remedy: str) -> None:
        super().__init__(None, None, found, mark)
        self.rule = rule
        self.remedy = remedy


if TYPE_CHECKING or not yaml.__with_libyaml__:  # noqa: SIM108 - mypy needs a class
    _Parsed = yaml.SafeLoader
else:
    _Parsed = yaml.CSafeLoader


class _Loader(_Parsed):
    """Safe YAML, which refuses a key written twice."""


def _check_bounds(text: str) -> None:
    """Refuse YAML of too many values, too deep, or that hold themselves. An alias is the same node
    again: nodes are few even where the values are too many to walk through. So values are counted
    as if written out, before anything is constructed."""
    count = 0
    sizes: dict[str | None, tuple[int, int]] = {}  # values and depth of what an anchor names
    # of each node that is open: its anchor, the values before it, the depth of what is in it
    nodes: list[tuple[str | None, int, int]] = []
    for event in yaml.parse(text, _Parsed):
        values = depth = 1
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.DocumentStartEvent):
            sizes.clear()
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before, inside = nodes.pop()
            values, depth = count - before, inside + 1
        elif not isinstance(event, yaml.NodeEvent):
            continue
        else:
            if isinstance(event, yaml.AliasEvent):
                if any(anchor == of for of, _, _ in nodes):
                    rule, found = "a value must not hold itself", "an alias"
                    raise _Refused(rule, found, event.start_mark, "Leave it out.")
                if anchor not in sizes:
                    mark: Any = event.start_mark  # of the parser in C or the other
                    raise ComposerError(None, None, f"found undefined alias {anchor!r}", mark)
                values, depth = sizes[anchor]
            count += values
            if count > MAX_YAML_VALUES:
                rule = (
                    f"must hold at most {MAX_YAML_VALUES} keys and values, an alias counted as all"
                    " that it stands for"
                )
                remedy = "Leave aliases out, or split the file."
                raise _Refused(rule, "more of them", event.start_mark, remedy)
            if len(nodes) + depth > MAX_YAML_DEPTH:
                raise _Refused(TOO_DEEP, "more of them", event.start_mark, "Nest less.")
            if isinstance(event, yaml.CollectionStartEvent):
                nodes.append((anchor, count - 1, 0))
                continue
        sizes[anchor] = values, depth
        if nodes:
            of, before, inside = nodes[-1]
            nodes[-1] = of, before, max(inside, depth)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, Hashable) and key in seen:
            found = f"the key '{key}' is written twice (line {seen[key]} and here)"
            mark = key_node.start_mark
            raise _Refused("must have every key once", found, mark, "Correct that line.")
        if isinstance(key, Hashable):
            seen[key] = key_node.start_mark.line + 1
    return loader.construct_mapping(node, deep=True)


def _number(loader: _Loader, node: yaml.ScalarNode) -> float:
    if len(node.value) > MAX_NUMBER:
        rule = f"a number has at most {MAX_NUMBER} characters"
        found = f"{len(node.value)} characters"
        raise _Refused(rule, found, node.start_mark, "Round it, or put it in quotes.")
    whole = node.tag == "tag:yaml.org,2002:int"
    return loader.construct_yaml_int(node) if whole else loader.construct_yaml_float(node)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)

# what constructors of yaml raise for a tag whose text does not fit it, beside YAMLError
_UNFIT = (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError)


def read_yaml(path: Path) -> list[Any]:
    """The documents of a YAML file, as plain Python values. Raises a ScenarioError if the file
    cannot be read, is not YAML, is larger than `MAX_YAML_LENGTH`, `MAX_YAML_VALUES` or
    `MAX_YAML_DEPTH`, writes a key twice, or tries to construct objects."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_YAML_LENGTH + 1)
    except UnicodeDecodeError:
        problem = Problem("", "must be a text file in UTF-8", "other bytes", "Save it as UTF-8.")
        raise ScenarioError(problem, str(path)) from None
    except OSError as error:
        problem = Problem("", f"cannot be read: {error.strerror}", remedy="Check the path.")
        raise ScenarioError(problem, str(path)) from None
    return documents(text, str(path))


def read_value(text: str, path: str) -> Any:
    """A single value in YAML, bounded as in `read_yaml`; ``path`` is the key that it is for. Raises
    a ScenarioError if it is not YAML, or not a plain value, or too large."""
    try:
        values = documents(text, path)
    except ScenarioError as error:
        (found,) = error.problems
        what = f"the value must be plain YAML: {found.rule}"
        problem = Problem(path, what, shortened(repr(text)), "Quote it, or write it shorter.")
        raise ScenarioError(problem) from None
    if len(values) > 1:
        problem = Problem(path, "must be one value", f"{len(values)} documents", "Quote it.")
        raise ScenarioError(problem)
    return values[0] if values else None


def documents(text: str, source: str) -> list[Any]:
    """The documents of a text in YAML, bounded as in `read_yaml`; ``source`` is where it is from.
    Raises a ScenarioError if it is not YAML, or too large."""
    try:
        if len(text) > MAX_YAML_LENGTH:
            rule = f"must have at most {MAX_YAML_LENGTH} characters"
            raise _Refused(rule, "more of them", None, "Split it into several files.")
        _check_bounds(text)
        return list(yaml.load_all(text, _Loader))
    except _Refused as error:
        problem = _yaml_problem(error, error.rule, error.remedy)
    except yaml.constructor.ConstructorError as error:
        rule = "may hold only plain values; nothing is constructed from a file"
        problem = _yaml_problem(error, rule)
    except (yaml.YAMLError, *_UNFIT) as error:
        # libyaml looks ahead, and meets a bound of its own before ours
        deeper = "maximum nesting depth" in str(error)
        problem = _yaml_problem(error, TOO_DEEP if deeper else "must be YAML")
    raise ScenarioError(problem, source) from None


def shortened(text: str) -> str:
    """The text, or the first 77 characters of a longer one."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def by_kind(text: str) -> dict[str, Any]:
    """The plain values of a record that is named by its kind, such as
    ``importance_pair:exchange_fraction=0.1,schedule.overlap=false``. Raises a ScenarioError if a
    parameter is not written name=value, or cannot be set."""
    kind, _, arguments = text.partition(":")
    out: dict[str, Any] = {"kind": kind}
    for item in filter(None, arguments.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            rule = "parameters are written name=value"
            remedy = "For example partial_local_shuffle:exchange_fraction=0.1."
            raise ScenarioError(Problem("", rule, repr(item), remedy))
        at = out
        *parents, last = name.strip().split(".")
        for part in parents:
            if isinstance(at.get(part), str):
                at[part] = by_kind(at[part])
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                rule = f"cannot be set: '{part}' holds a plain value"
                remedy = "Give one of the two."
                raise ScenarioError(Problem(name, rule, repr(value), remedy))
        at[last] = read_value(value, name)
    return out


def _yaml_problem(error: Exception, rule: str, remedy: str = "Correct that line.") -> Problem:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    what = getattr(error, "problem", None) or str(error)
    return Problem(where, rule, shortened(" ".join(what.split())), remedy)


def catalog_entry(kind: str, name: str) -> dict[str, Any]:
    """The entry ``name`` of the catalog ``kind`` ('models', 'datasets', 'failures'), with its name
    in it. Raises a ScenarioError if there is no such entry."""
    entries = _catalog(kind)
    if name not in entries:
        rule = f"no such entry among the {kind}"
        raise ScenarioError(Problem("", rule, repr(name), nearest(name, sorted(entries))))
    return {"name": name, **copy.deepcopy(entries[name])}


def catalog_names(kind: str) -> list[str]:
    """Names of the entries of the catalog ``kind`` ('models', 'datasets' or 'failures'), sorted."""
    return sorted(_catalog(kind))


dataset_names, model_names = (partial(catalog_names, kind) for kind in ("datasets", "models"))


@cache
def _catalog(kind: str) -> dict[str, Any]:
    """All entries by name, read once a process: every scenario asks for two."""
    entries: dict[str, Any] = read_yaml(CATALOG / f"{kind}.yaml")[0]
    return entries
