"""The files that come with simshuffle: scenarios, studies, topologies, the catalog of
models and data sets; and safe reading of YAML.
"""

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


def shipped_folder(folder: str) -> Path:
    """Return the folder of shipped files with that name: in the installed package, or
    in the checkout when simshuffle runs from one. The latter may not exist.
    """
    installed = _PACKAGE / "_shipped" / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder


def shipped_names(folder: str) -> list[str]:
    """List the names of the YAML files in a shipped folder and the folders below it,
    without suffix, such as 'paper/strategies', sorted; [] if there is no such folder.
    """
    root = shipped_folder(folder)
    return sorted(
        path.relative_to(root).with_suffix("").as_posix()
        for path in root.rglob("*.yaml")
    )


def find_file(reference: str, folder: str, beside: Path | None = None) -> Path:
    """Find the file that ``reference`` names: a path if it has a suffix of YAML or JSON
    or begins with '.', '/' or '~', else a shipped file.

    The path is returned as written, with '~' replaced; ``beside`` is before it where
    the file was found there.

    Args:
        reference: a path, or the name of a shipped file.
        folder: the shipped folder to search.
        beside: the folder from which a path counts, before the working directory.

    Raises:
        ScenarioError: there is no such file.
    """
    path = Path(reference)
    with suppress(RuntimeError):  # a user without a home
        path = path.expanduser()
    looks_like_path = path.suffix in _SUFFIXES or reference.startswith((".", "/", "~"))
    candidates = [path] if beside is None else [beside / path, path]
    if looks_like_path:
        for candidate in candidates:
            if is_file(candidate):
                return candidate
    elif is_file(shipped_file := shipped_folder(folder) / f"{reference}.yaml"):
        return shipped_file
    suggestion = suggest_nearest(reference, shipped_names(folder)).partition("Known: ")[
        0
    ]
    remedy = f"{suggestion}List those that come with simshuffle: simshuffle list --all."
    if looks_like_path:
        remedy = f"Give its path from the working directory. {remedy}"
    existing_suffixes = [
        suffix
        for candidate in ([] if looks_like_path else candidates)
        for suffix in _SUFFIXES
        if is_file(candidate.parent / f"{candidate.name}{suffix}")
    ]
    if existing_suffixes:
        name = f"{reference}{existing_suffixes[0]}"
        remedy = (
            f"There is a file {name}. Write {name}: a name without suffix is one of those that come"
            " with simshuffle."
        )
    kind = re.sub("ie$", "y", folder.removesuffix("s"))
    raise ScenarioError(
        Problem("", f"no such {kind} file or name", repr(reference), remedy)
    )


def is_file(path: Path) -> bool:
    """Return True if ``path`` is a file; False if it cannot be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Return True if ``path`` is a folder; False if it cannot be a path."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def suggest_nearest(word: str, words: list[str]) -> str:
    """Return a remedy that names the closest of ``words``, then every word."""
    close_matches = difflib.get_close_matches(word, words, 1)
    hint = f"Did you mean '{close_matches[0]}'? " if close_matches else ""
    return f"{hint}Known: {', '.join(words)}."


MAX_YAML_LENGTH = 1_000_000
"""Most characters of a YAML text. Reading them takes seconds; a scenario has a few kB."""
MAX_YAML_VALUES = 50_000
"""Most keys and values of a YAML text, an alias counted as a copy of all that it stands
for.
"""
MAX_YAML_DEPTH = 50
"""Most values within one another, aliases unfolded: whatever walks through them is
recursive.
"""
TOO_DEEP = f"must have at most {MAX_YAML_DEPTH} values within one another"
MAX_NUMBER = 100
"""Most characters of a number: longer ones fit no float, and Python refuses to print
some.
"""


class _RuleError(yaml.constructor.ConstructorError):
    """Error of YAML that breaks a rule of simshuffle's own: ``rule`` and ``remedy`` as
    of `Problem`.
    """

    def __init__(self, rule: str, observed: str, mark: Any, remedy: str) -> None:
        super().__init__(None, None, observed, mark)
        self.rule = rule
        self.remedy = remedy


if TYPE_CHECKING or not yaml.__with_libyaml__:
    _SafeLoader = yaml.SafeLoader
    _SafeDumper = yaml.SafeDumper
else:
    _SafeLoader = yaml.CSafeLoader
    _SafeDumper = yaml.CSafeDumper


class _Loader(_SafeLoader):
    """Safe YAML, which refuses a key written twice."""


def _check_bounds(text: str) -> None:
    """Refuse YAML of too many values, too deep, or that hold themselves.

    An alias repeats a node: nodes are few even where the values are too many to walk
    through. So values are counted as if written out, before anything is constructed.

    Raises:
        _RuleError: the text breaks a bound.
        yaml.YAMLError: the text is not YAML, or has an alias of no anchor.
    """
    count = 0
    sizes: dict[
        str | None, tuple[int, int]
    ] = {}  # values and depth of what an anchor names
    # of each node that is open: its anchor, the values before it, the depth of what is in it
    open_nodes: list[tuple[str | None, int, int]] = []
    for event in yaml.parse(text, _SafeLoader):
        values = depth = 1
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.DocumentStartEvent):
            sizes.clear()
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, count_before, inner_depth = open_nodes.pop()
            values = count - count_before
            depth = inner_depth + 1
        elif not isinstance(event, yaml.NodeEvent):
            continue
        else:
            if isinstance(event, yaml.AliasEvent):
                if any(anchor == open_anchor for open_anchor, _, _ in open_nodes):
                    rule = "a value must not hold itself"
                    observed = "an alias"
                    raise _RuleError(rule, observed, event.start_mark, "Leave it out.")
                if anchor not in sizes:
                    mark: Any = event.start_mark  # of the parser in C or the other
                    raise ComposerError(
                        None, None, f"found undefined alias {anchor!r}", mark
                    )
                values, depth = sizes[anchor]
            count += values
            if count > MAX_YAML_VALUES:
                rule = (
                    f"must hold at most {MAX_YAML_VALUES} keys and values, an alias counted as all"
                    " that it stands for"
                )
                remedy = "Leave aliases out, or split the file."
                raise _RuleError(rule, "more of them", event.start_mark, remedy)
            if len(open_nodes) + depth > MAX_YAML_DEPTH:
                raise _RuleError(
                    TOO_DEEP, "more of them", event.start_mark, "Nest less."
                )
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((anchor, count - 1, 0))
                continue
        sizes[anchor] = values, depth
        if open_nodes:
            open_anchor, count_before, inner_depth = open_nodes[-1]
            open_nodes[-1] = open_anchor, count_before, max(inner_depth, depth)


def _construct_dict(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    """Construct a mapping; raises a `_RuleError` if it has a key twice."""
    line_of_key: dict[Any, int] = {}
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, Hashable) and key in line_of_key:
            observed = (
                f"the key '{key}' is written twice (line {line_of_key[key]} and here)"
            )
            position = key_node.start_mark
            raise _RuleError(
                "must have every key once", observed, position, "Correct that line."
            )
        if isinstance(key, Hashable):
            line_of_key[key] = key_node.start_mark.line + 1
    return loader.construct_mapping(node, deep=True)


def _construct_number(loader: _Loader, node: yaml.ScalarNode) -> float:
    """Construct a number; raises a `_RuleError` if it has more than `MAX_NUMBER`
    characters.
    """
    if len(node.value) > MAX_NUMBER:
        rule = f"a number has at most {MAX_NUMBER} characters"
        observed = f"{len(node.value)} characters"
        raise _RuleError(
            rule, observed, node.start_mark, "Round it, or put it in quotes."
        )
    is_whole = node.tag == "tag:yaml.org,2002:int"
    return (
        loader.construct_yaml_int(node)
        if is_whole
        else loader.construct_yaml_float(node)
    )


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_dict)
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_number)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_number)

# what constructors of yaml raise for a tag whose text does not fit it, beside YAMLError
_CONSTRUCTOR_ERRORS = (
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
    TypeError,
    OverflowError,
)


def read_yaml(path: Path) -> list[Any]:
    """Read the documents of a YAML file, as plain Python values.

    [] for a file without any; None stands for an empty document between others.

    Raises:
        ScenarioError: the file cannot be read, is not YAML, is larger than
            `MAX_YAML_LENGTH`, `MAX_YAML_VALUES` or `MAX_YAML_DEPTH`, writes a key
            twice, or tries to construct objects.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_YAML_LENGTH + 1)
    except UnicodeDecodeError:
        problem = Problem(
            "", "must be a text file in UTF-8", "other bytes", "Save it as UTF-8."
        )
        raise ScenarioError(problem, str(path)) from None
    except OSError as error:
        problem = Problem(
            "", f"cannot be read: {error.strerror}", remedy="Check the path."
        )
        raise ScenarioError(problem, str(path)) from None
    return parse_documents(text, str(path))


def write_yaml(document: Any) -> str:
    """Write plain values as one document of YAML, keys in their order."""
    text: str = yaml.dump(
        document, Dumper=_SafeDumper, sort_keys=False, allow_unicode=True, width=130
    )
    return text


def read_value(text: str, path: str) -> Any:
    """Read a single value in YAML, bounded as in `read_yaml`; None for an empty text.

    Args:
        text: the value.
        path: the key that it is for.

    Raises:
        ScenarioError: it is not YAML, or not a plain value, or too large.
    """
    try:
        values = parse_documents(text, path)
    except ScenarioError as error:
        (problem_of_text,) = error.problems
        rule = f"the value must be plain YAML: {problem_of_text.rule}"
        problem = Problem(
            path, rule, shorten(repr(text)), "Quote it, or write it shorter."
        )
        raise ScenarioError(problem) from None
    if len(values) > 1:
        problem = Problem(
            path, "must be one value", f"{len(values)} documents", "Quote it."
        )
        raise ScenarioError(problem)
    return values[0] if values else None


def parse_documents(text: str, source: str) -> list[Any]:
    """Parse the documents of a text in YAML, bounded as in `read_yaml`; [] for none.

    Args:
        text: the YAML.
        source: where it is from, for errors.

    Raises:
        ScenarioError: it is not YAML, writes a key twice, tries to construct objects,
            or is too large; always with one problem.
    """
    try:
        if len(text) > MAX_YAML_LENGTH:
            rule = f"must have at most {MAX_YAML_LENGTH} characters"
            raise _RuleError(rule, "more of them", None, "Split it into several files.")
        _check_bounds(text)
        return list(yaml.load_all(text, _Loader))
    except _RuleError as error:
        problem = _yaml_problem(error, error.rule, error.remedy)
    except yaml.constructor.ConstructorError as error:
        rule = "may hold only plain values; nothing is constructed from a file"
        problem = _yaml_problem(error, rule)
    except (yaml.YAMLError, *_CONSTRUCTOR_ERRORS) as error:
        # libyaml looks ahead, and meets a bound of its own before ours
        is_too_deep = "maximum nesting depth" in str(error)
        problem = _yaml_problem(error, TOO_DEEP if is_too_deep else "must be YAML")
    raise ScenarioError(problem, source) from None


def shorten(text: str) -> str:
    """Return a text of up to 80 characters as is, of a longer one 77 and '...'."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def parse_kind(text: str) -> dict[str, Any]:
    """Parse the short form of a record: its kind and parameters, such as
    ``importance_pair:exchange_fraction=0.1,schedule.overlap=false``. Returns plain
    values: those after '=' are read as YAML, dots lead into mappings.

    Of a parameter that is set twice, the last value counts; '' is read as None. A kind
    is not checked.

    Raises:
        ScenarioError: a parameter is not written name=value, or cannot be set.
    """
    kind, _, arguments = text.partition(":")
    values: dict[str, Any] = {"kind": kind}
    for item in filter(None, arguments.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            rule = "parameters are written name=value"
            remedy = "For example partial_local_shuffle:exchange_fraction=0.1."
            raise ScenarioError(Problem("", rule, repr(item), remedy))
        mapping = values
        *parents, last = name.strip().split(".")
        for part in parents:
            if isinstance(mapping.get(part), str):
                mapping[part] = parse_kind(mapping[part])
            mapping = mapping.setdefault(part, {})
            if not isinstance(mapping, dict):
                rule = f"cannot be set: '{part}' holds a plain value"
                remedy = "Give one of the two."
                raise ScenarioError(Problem(name, rule, repr(value), remedy))
        mapping[last] = read_value(value, name)
    return values


def _yaml_problem(
    error: Exception, rule: str, remedy: str = "Correct that line."
) -> Problem:
    """Turn an error of the YAML parser into a problem, with its line and column."""
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    message = getattr(error, "problem", None) or str(error)
    return Problem(place, rule, shorten(" ".join(message.split())), remedy)


def catalog_entry(kind: str, name: str) -> dict[str, Any]:
    """Return a copy of the entry ``name`` of the catalog ``kind`` ('models',
    'datasets', 'failures'), with its name in it.

    Raises:
        ScenarioError: there is no such entry.
    """
    entries = _catalog(kind)
    if name not in entries:
        rule = f"no such entry among the {kind}"
        raise ScenarioError(
            Problem("", rule, repr(name), suggest_nearest(name, sorted(entries)))
        )
    return {"name": name, **copy.deepcopy(entries[name])}


def catalog_names(kind: str) -> list[str]:
    """List the names of the entries of the catalog ``kind`` ('models', 'datasets' or
    'failures'), sorted.
    """
    return sorted(_catalog(kind))


dataset_names, model_names = (
    partial(catalog_names, kind) for kind in ("datasets", "models")
)


@cache
def _catalog(kind: str) -> dict[str, Any]:
    """Read the entries of a catalog, by name; once a process, as every scenario asks
    for two. All callers share the values, and must not change them.
    """
    entries: dict[str, Any] = read_yaml(CATALOG / f"{kind}.yaml")[0]
    return entries
