"""The files that simshuffle brings along: scenarios, studies, topologies, the catalog of models and
data sets; and safe reading of YAML."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Hashable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from simshuffle.errors import Problem, ScenarioError

_PACKAGE = Path(__file__).parents[1]
CATALOG = _PACKAGE / "scenario" / "catalog"


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
    shipped file's name.

    Raises:
        ScenarioError: there is none.
    """
    given = _home_expanded(reference)
    looks_like_path = given.suffix in {".yaml", ".yml", ".json"} or reference.startswith(
        (".", "/", "~")
    )
    candidates = [given] if beside is None else [beside / given, given]
    if looks_like_path:
        for candidate in candidates:
            if is_file(candidate):
                return candidate
    elif is_file(named := shipped(folder) / f"{reference}.yaml"):
        return named
    kind = (
        folder.removesuffix("s").removesuffix("ie") + "y"
        if folder.endswith("ies")
        else folder.removesuffix("s")
    )
    raise ScenarioError(
        Problem(
            "",
            f"no such {kind} file or name",
            repr(reference),
            nearest(reference, shipped_names(folder)),
        )
    )


def _home_expanded(reference: str) -> Path:
    try:
        return Path(reference).expanduser()
    except RuntimeError:  # a user without a home
        return Path(reference)


def is_file(path: Path) -> bool:
    """Whether ``path`` is a file; False for what cannot be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def nearest(word: str, words: list[str]) -> str:
    """A remedy that names the closest of ``words`` and then all of them."""
    close = difflib.get_close_matches(word, words, 1)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {', '.join(words)}."


class _WrittenTwice(yaml.constructor.ConstructorError):
    """A key that a mapping has already."""


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, Hashable) and key in seen and key != "<<":
            raise _WrittenTwice(
                None,
                None,
                f"the key '{key}' is written twice (line {seen[key]} and here)",
                key_node.start_mark,
            )
        if isinstance(key, Hashable):
            seen[key] = key_node.start_mark.line + 1
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path) -> list[Any]:
    """The documents of a YAML file, as plain Python values.

    Raises:
        ScenarioError: the file cannot be read, is not YAML, writes a key twice, or tries to
            construct objects.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return list(yaml.load_all(text, _Loader))
    except UnicodeDecodeError:
        raise ScenarioError(
            Problem("", "must be a text file in UTF-8", "other bytes", "Save it as UTF-8."),
            str(path),
        ) from None
    except OSError as error:
        raise ScenarioError(
            Problem("", f"cannot be read: {error.strerror}", remedy="Check the path."), str(path)
        ) from None
    except _WrittenTwice as error:
        raise ScenarioError(_yaml_problem(error, "must have every key once"), str(path)) from None
    except yaml.constructor.ConstructorError as error:
        raise ScenarioError(
            _yaml_problem(error, "may hold only plain values; nothing is constructed from a file"),
            str(path),
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ScenarioError(_yaml_problem(error, "must be YAML"), str(path)) from None


def read_value(text: str) -> Any:
    """A single value in YAML.

    Raises:
        ValueError: it is not YAML, or not a plain value.
    """
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None


def by_kind(text: str) -> dict[str, Any]:
    """The plain values of a record that is named by its kind, such as
    ``importance_pair:exchange_fraction=0.1,schedule.overlap=false``.

    Raises:
        ScenarioError: a parameter is not written name=value, or cannot be set.
    """
    kind, _, arguments = text.partition(":")
    out: dict[str, Any] = {"kind": kind}
    for item in filter(None, arguments.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise ScenarioError(
                Problem(
                    "",
                    "parameters are written name=value",
                    repr(item),
                    "For example partial_local_shuffle:exchange_fraction=0.1.",
                )
            )
        at = out
        *parents, last = name.strip().split(".")
        for part in parents:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise ScenarioError(
                    Problem(
                        name,
                        f"cannot be set: '{part}' holds a plain value",
                        repr(value),
                        "Give one of the two.",
                    )
                )
        try:
            at[last] = read_value(value)
        except ValueError:
            raise ScenarioError(
                Problem(name, "the value must be plain YAML", repr(value), "Write for example 0.1.")
            ) from None
    return out


def _yaml_problem(error: Exception, rule: str) -> Problem:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    what = getattr(error, "problem", None) or str(error)
    return Problem(where, rule, what, "Correct that line.")


def catalog_entry(kind: str, name: str) -> dict[str, Any]:
    """The entry ``name`` of the catalog ``kind`` ('models' or 'datasets'), with its name in it.

    Raises:
        ScenarioError: there is no such entry.
    """
    entries = _catalog(kind)
    if name not in entries:
        raise ScenarioError(
            Problem(
                "", f"no such entry among the {kind}", repr(name), nearest(name, sorted(entries))
            )
        )
    return {"name": name, **copy.deepcopy(entries[name])}


@cache
def _catalog(kind: str) -> dict[str, Any]:
    """All entries by name, read once a process: every scenario asks for two."""
    entries: dict[str, Any] = read_yaml(CATALOG / f"{kind}.yaml")[0]
    return entries
