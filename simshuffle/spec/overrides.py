"""Values by dotted key: setting them, replacing names by the records that they name,
and grids.

A dotted key leads from mapping to mapping, and into lists by number:
'workload.exchange', 'extractors.0.model'.
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
"""Functions by dotted key: each returns the plain values that a name as value stands
for, or raises an `InputError` if it stands for none.
"""

# ---------------------------------------------------------------------------- setting a dotted key


def set_key(
    raw: dict[str, Any],
    key: str,
    value: Any,
    problems: list[Problem],
    references: References | None = None,
    *,
    create: bool = True,
) -> bool:
    """Set a dotted key of ``raw`` to a copy of ``value``. Returns False if it cannot be
    set.

    Args:
        raw: the mapping; changed in place.
        key: the dotted key.
        value: plain value.
        problems: what keeps the key from being set is added to it.
        references: names on the way that these know are replaced by what they name, so
            that a key of a named record can be set.
        create: whether mappings that are missing on the way are made; else they are a
            problem.
    """
    *parents, last = key.split(".")
    parent: Any = raw
    for depth, part in enumerate(parents, 1):
        prefix = ".".join(parents[:depth])
        if (
            references
            and prefix in references
            and not expand_name(raw, prefix, references, problems)
        ):
            return False
        if create and isinstance(parent, dict):
            parent.setdefault(part, {})
        parent = value_under(parent, part)
        if not isinstance(parent, dict | list):
            problems.append(_missing_parent_problem(key, prefix, parent, value))
            return False
    if isinstance(parent, list):
        if value_under(parent, last) is None:
            problems.append(_missing_parent_problem(key, key, None, value))
            return False
        parent[int(last)] = copy.deepcopy(value)
    else:
        parent[last] = copy.deepcopy(value)  # the caller keeps his
    return True


def plain_copy(value: Any) -> Any:
    """Copy plain values: dicts and lists at every depth; other values are shared."""
    if isinstance(value, dict):
        return {key: plain_copy(member) for key, member in value.items()}
    if isinstance(value, list):
        return [plain_copy(member) for member in value]
    return value


def value_under(container: Any, part: str) -> Any:
    """Return what a mapping or a list has under one step of a dotted key; None if
    nothing.
    """
    if isinstance(container, dict):
        return container.get(part)
    if (
        isinstance(container, list)
        and re.fullmatch(r"[0-9]{1,9}", part)
        and int(part) < len(container)
    ):
        return container[int(part)]
    return None


def _missing_parent_problem(
    key: str, prefix: str, obstacle: Any, value: Any
) -> Problem:
    """Return the problem of setting a dotted key to ``value``: its step ``prefix`` is
    missing (``obstacle`` is None), or holds the plain value ``obstacle``.
    """
    if obstacle is None:
        rule = f"cannot be set: there is no '{prefix}'"
        rejected = value
        return Problem(key, rule, repr(rejected), "Name a key that exists.")
    rule = f"cannot be set: '{prefix}' holds a plain value"
    return Problem(key, rule, repr(obstacle), f"Set {prefix} itself.")


def expand_name(
    raw: dict[str, Any], key: str, references: References, problems: list[Problem]
) -> bool:
    """Replace the name at a dotted key by what it names; a value that is no text stays.

    Returns:
        False if it names nothing; then a problem is added, and the name stays. True in
        all other cases, also if there is no such key.
    """
    *parents, last = key.split(".")
    parent: Any = raw
    for part in parents:
        parent = value_under(parent, part)
    if not isinstance(parent, dict) or not isinstance(parent.get(last), str):
        return True
    try:
        parent[last] = references[key](parent[last])
    except InputError as error:
        problems += [problem.below(key) for problem in error.problems]
        return False
    return True


def keys_overlap(key: str, other_key: str) -> bool:
    """Return True if two dotted keys are equal, or one is below the other."""
    return (
        key == other_key
        or key.startswith(f"{other_key}.")
        or other_key.startswith(f"{key}.")
    )


def sort_outermost_first(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sort values by the number of steps of their dotted keys, fewest first.

    A record then comes before the keys below it, and all values have an effect. Keys of
    equally many steps keep their order.
    """
    return {key: values[key] for key in sorted(values, key=lambda key: key.count("."))}


# ------------------------------------------------------------------------------------------- grids


def grid(
    axes: Mapping[str, Sequence[Any]], zipped: bool = False
) -> list[dict[str, Any]]:
    """List the combinations of the values of several dotted keys, each a mapping;
    without axes a single empty one.

    Args:
        axes: the values of each key.
        zipped: whether the first value of each key goes with the first ones of the
            others, the second with the second ones, and so on; otherwise every value of
            a key goes with every one of the others, the last key varying fastest.

    Raises:
        InputError: there are `grid_problems`.
    """
    if problems := grid_problems(axes, zipped):
        raise InputError(problems, "sweep")
    if not axes:
        return [{}]
    rows = (
        zip(*axes.values(), strict=True)
        if zipped
        else itertools.product(*axes.values())
    )
    return [dict(zip(axes, row, strict=True)) for row in rows]


def grid_problems(
    axes: Mapping[str, Sequence[Any]], zipped: bool = False
) -> list[Problem]:
    """List the problems that keep axes from being a grid: an axis without values,
    lengths that differ although they are zipped, or too many combinations.
    """
    problems = [
        Problem(
            key, "must list at least one value", "none", "Add values or remove the key."
        )
        for key, values in axes.items()
        if not len(values)
    ]
    lengths = {key: len(values) for key, values in axes.items()}
    if zipped and len(set(lengths.values())) > 1:
        key_lengths = ", ".join(f"{key}: {length}" for key, length in lengths.items())
        rule = "values that are taken together must be equally many"
        return [
            *problems,
            Problem(
                "",
                rule,
                key_lengths,
                "Add the missing ones, or combine each with each.",
            ),
        ]
    count = max(lengths.values(), default=1) if zipped else math.prod(lengths.values())
    if count > MOST_COMBINATIONS:
        rule = f"must make at most {MOST_COMBINATIONS} combinations"
        return [*problems, Problem("", rule, str(count), "Leave some values out.")]
    return problems


def combination_name(values: Mapping[str, Any], omitted: Collection[str] = ()) -> str:
    """Return a name for a combination, such as 'seed=3 rings=2'.

    A dotted key stands with its last step alone, also if two end alike. The dotted keys
    in ``omitted`` are left out.
    """
    return " ".join(
        f"{key.rsplit('.', 1)[-1]}={short_text(value)}"
        for key, value in values.items()
        if key not in omitted
    )


def add_axis_values(
    problem: Problem, axes: Mapping[str, Sequence[Any]], combination: Mapping[str, Any]
) -> Problem:
    """Return the problem of a combination, with the values of the axes behind it.

    These are the axes at, above or below the problem's own key; if there are none, all
    axes. Axes of one value are left out. ``axes`` has all values of each key.
    """
    related_keys = [key for key in combination if keys_overlap(key, problem.path)]
    axis_texts = []
    for key in related_keys or combination:
        if len(axes[key]) > 1:
            value = combination[key]
            index = list(axes[key]).index(value) + 1
            axis_texts.append(f"value {index} of {key}, {short_text(value)!r}")
    if not axis_texts:
        return problem
    return replace(problem, rule=f"{problem.rule} ({'; '.join(axis_texts)})")


def short_text(value: Any) -> str:
    """Return the text of a value in the name of a combination: of a record its name or
    kind, '...' if it has neither, and the first digits of its ``sha256``, if any.
    """
    if not isinstance(value, dict):
        return str(value)
    name = str(value.get("name", value.get("kind", "...")))
    digest = value.get("sha256")
    return f"{name}-{digest[:6]}" if isinstance(digest, str) else name


def pin_axis(
    axes: dict[Any, Any], key: str, value: Any, axes_key: str, problems: list[Problem]
) -> None:
    """Take a key that is set to one value, and the keys below it, out of the axes that
    vary them.

    Args:
        axes: by dotted key; changed in place.
        key: the key that is set.
        value: its value.
        axes_key: the dotted key of the axes.
        problems: an axis above the key, which would set it again, is added to it.
    """
    for axis in [axis for axis in axes if isinstance(axis, str)]:
        if axis == key or axis.startswith(f"{key}."):
            del axes[axis]
        elif key.startswith(f"{axis}."):
            rule = f"has no effect: {axes_key}.{axis} sets it for each run"
            problems.append(Problem(key, rule, repr(value), f"Set {axis} too."))


def read_axis(text: str) -> tuple[str, list[Any]]:
    """Parse an axis that is written KEY=V1,V2,... on a command line: return its key and
    its values.

    Values are read as YAML; a single list stands for its elements. A comma separates
    values unless it is within brackets or quotes, or a parameter of a record follows
    that is named by its kind: these are two values of the key:
    ``workload.exchange=local_shuffle,importance_pair:exchange_fraction=0.1,lagging=true``.

    Raises:
        InputError: the axis is not written so.
    """
    key, equals, value_list = (part.strip() for part in text.partition("="))
    if not equals or not key or not value_list:
        example = "For example world_size=128,256,512."
        raise InputError(
            Problem("", "an axis is written KEY=V1,V2,...", repr(text), example)
        )
    texts: list[str] = []
    for piece in _split_at_commas(value_list):
        if texts and re.match(r"\s*[A-Za-z_][\w.]*=", piece):
            texts[-1] += f",{piece}"
        else:
            texts.append(piece)
    values = [read_value(value_text, key) for value_text in texts]
    if len(values) == 1 and isinstance(values[0], list):
        return key, values[0]
    return key, values


def _split_at_commas(text: str) -> list[str]:
    """Split a text at the commas that are not within quotes, [] or {}."""
    pieces = [""]
    depth = 0
    quote = ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "," and depth == 0:
            pieces.append("")
            continue
        depth += (not quote and letter in "[{") - (
            not quote and letter in "]}" and depth > 0
        )
        pieces[-1] += letter
    return pieces
