"""Values by dotted key: setting them, replacing names by the records that they name, and grids.

A dotted key leads from mapping to mapping, and into lists by number: 'workload.exchange',
'extractors.0.model'.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import read_value

MOST_COMBINATIONS = 100_000
"""Combinations of a grid."""

References = Mapping[str, Callable[[str], Any]]
"""For each dotted key whose value may be a name: the plain values that a name stands for; raises an
`InputError` if it stands for none."""

# ---------------------------------------------------------------------------- setting a dotted key


def put(
    raw: dict[str, Any],
    key: str,
    value: Any,
    problems: list[Problem],
    references: References | None = None,
    create: bool = True,
) -> bool:
    """Set a dotted key of ``raw`` to a copy of ``value``; what keeps it from being set is added to
    ``problems``. Names on the way that ``references`` know are replaced by what they name, so that
    a key of a named record can be set. Mappings on the way that are missing are made, or a problem
    unless ``create``. Returns whether it was set."""
    *parents, last = key.split(".")
    at: Any = raw
    for depth, part in enumerate(parents, 1):
        prefix = ".".join(parents[:depth])
        if references and prefix in references and not expand(raw, prefix, references, problems):
            return False
        if create and isinstance(at, dict):
            at.setdefault(part, {})
        at = inside(at, part)
        if not isinstance(at, dict | list):
            problems.append(_no_place(key, prefix, at, value))
            return False
    if isinstance(at, list):
        if inside(at, last) is None:
            problems.append(_no_place(key, key, None, value))
            return False
        at[int(last)] = copy.deepcopy(value)
    else:
        at[last] = copy.deepcopy(value)  # the caller keeps his
    return True


def plain_copy(value: Any) -> Any:
    """A copy of plain values, mappings and lists and all that is in them."""
    if isinstance(value, dict):
        return {key: plain_copy(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain_copy(each) for each in value]
    return value


def inside(at: Any, part: str) -> Any:
    """What a mapping or a list has under that step of a key; None if nothing."""
    if isinstance(at, dict):
        return at.get(part)
    if isinstance(at, list) and re.fullmatch(r"[0-9]{1,9}", part) and int(part) < len(at):
        return at[int(part)]
    return None


def _no_place(key: str, prefix: str, there: Any, value: Any) -> Problem:
    if there is None:
        rule, given = f"cannot be set: there is no '{prefix}'", value
        return Problem(key, rule, repr(given), "Name a key that exists.")
    rule = f"cannot be set: '{prefix}' holds a plain value"
    return Problem(key, rule, repr(there), f"Set {prefix} itself.")


def expand(raw: dict[str, Any], key: str, references: References, problems: list[Problem]) -> bool:
    """Replace the name that stands at a dotted key by what it names; what is no text stays. Returns
    False if it names nothing; then a problem is added, and the name stays."""
    *parents, last = key.split(".")
    at: Any = raw
    for part in parents:
        at = inside(at, part)
    if not isinstance(at, dict) or not isinstance(at.get(last), str):
        return True
    try:
        at[last] = references[key](at[last])
    except InputError as error:
        problems += [problem.below(key) for problem in error.problems]
        return False
    return True


def related(key: str, other: str) -> bool:
    """Whether two dotted keys are the same, or one is below the other."""
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")


def outermost_first(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values, a record before what is in it, so that all of them have an effect; otherwise
    in their order."""
    return {key: values[key] for key in sorted(values, key=lambda key: key.count("."))}


# ------------------------------------------------------------------------------------------- grids


def grid(axes: Mapping[str, Sequence[Any]], zipped: bool = False) -> list[dict[str, Any]]:
    """The combinations of the values of several dotted keys, each a mapping; without axes a single
    empty one. If ``zipped``, the first value of each key together, the second ones, and so on;
    otherwise every value of a key with every one of the others, the last key varying fastest.
    Raises an InputError where there are `grid_problems`."""
    if problems := grid_problems(axes, zipped):
        raise InputError(problems, "sweep")
    if not axes:
        return [{}]
    rows = zip(*axes.values(), strict=True) if zipped else itertools.product(*axes.values())
    return [dict(zip(axes, row, strict=True)) for row in rows]


def grid_problems(axes: Mapping[str, Sequence[Any]], zipped: bool = False) -> list[Problem]:
    """What keeps axes from being a grid: one without values, lengths that differ although they are
    zipped, or too many combinations."""
    empty = [
        Problem(key, "must list at least one value", "none", "Add values or remove the key.")
        for key, values in axes.items()
        if not len(values)
    ]
    lengths = {key: len(values) for key, values in axes.items()}
    if zipped and len(set(lengths.values())) > 1:
        found = ", ".join(f"{key}: {length}" for key, length in lengths.items())
        rule = "values that are taken together must be equally many"
        return [
            *empty,
            Problem("", rule, found, "Add the missing ones, or combine each with each."),
        ]
    count = max(lengths.values(), default=1) if zipped else math.prod(lengths.values())
    if count > MOST_COMBINATIONS:
        rule = f"must make at most {MOST_COMBINATIONS} combinations"
        return [*empty, Problem("", rule, str(count), "Leave some values out.")]
    return empty


def combination_name(values: Mapping[str, Any], said: Collection[str] = ()) -> str:
    """A name for a combination, such as 'seed=3 rings=2'; keys that are ``said`` elsewhere are left
    out."""
    return " ".join(
        f"{key.rsplit('.', 1)[-1]}={short(value)}"
        for key, value in values.items()
        if key not in said
    )


def which_value(
    problem: Problem, axes: Mapping[str, Sequence[Any]], combination: Mapping[str, Any]
) -> Problem:
    """The problem of a combination, with the values of the axes that it comes from: those of keys
    that are at, above or below its own; else all. ``axes`` has all values of each key."""
    own = [key for key in combination if related(key, problem.path)] or list(combination)
    told = [
        f"value {list(axes[key]).index(combination[key]) + 1} of {key}, {short(combination[key])!r}"
        for key in own
        if len(axes[key]) > 1
    ]
    if not told:
        return problem
    return replace(problem, rule=f"{problem.rule} ({'; '.join(told)})")


def short(value: Any) -> str:
    """A value in the name of a combination; of a record its name or kind, and of one that names a
    file some digits of the file's contents too."""
    if not isinstance(value, dict):
        return str(value)
    name = str(value.get("name", value.get("kind", "...")))
    digest = value.get("sha256")
    return f"{name}-{digest[:6]}" if isinstance(digest, str) else name


def pin(axes: dict[Any, Any], key: str, value: Any, where: str, problems: list[Problem]) -> None:
    """Take a key that is set to one value, and the keys below it, out of the axes that vary them.
    An axis above it, which would set it again, is added to ``problems``; ``where`` is the dotted
    key of the axes."""
    for axis in [axis for axis in axes if isinstance(axis, str)]:
        if axis == key or axis.startswith(f"{key}."):
            del axes[axis]
        elif key.startswith(f"{axis}."):
            rule = f"has no effect: {where}.{axis} sets it for each run"
            problems.append(Problem(key, rule, repr(value), f"Set {axis} too."))


def read_axis(text: str) -> tuple[str, list[Any]]:
    """The key and the values of an axis that is written KEY=V1,V2,... on a command line. Values are
    read as YAML. A comma separates values unless it is within brackets or quotes, or a parameter of
    a record follows that is named by its kind: these are two values of the key:
    ``workload.exchange=local_shuffle,importance_pair:exchange_fraction=0.1,lagging=true``. Raises
    an InputError if it is not written so."""
    key, equals, listed = (part.strip() for part in text.partition("="))
    if not equals or not key or not listed:
        example = "For example world_size=128,256,512."
        raise InputError(Problem("", "an axis is written KEY=V1,V2,...", repr(text), example))
    texts: list[str] = []
    for piece in _pieces(listed):
        if texts and re.match(r"\s*[A-Za-z_][\w.]*=", piece):
            texts[-1] += f",{piece}"
        else:
            texts.append(piece)
    values = [read_value(each, key) for each in texts]
    if len(values) == 1 and isinstance(values[0], list):
        return key, values[0]
    return key, values


def _pieces(text: str) -> list[str]:
    """What stands between the commas that are not within quotes or brackets."""
    pieces, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "," and depth == 0:
            pieces.append("")
            continue
        depth += (not quote and letter in "[{") - (not quote and letter in "]}" and depth > 0)
        pieces[-1] += letter
    return pieces
