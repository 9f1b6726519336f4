"""Which runs of two results are compared with each other, and what was asked of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any

import pandas as pd

MOST_TRIED = 200 * 200
"""Pairs of runs that are looked at; of more, only those of one name are compared."""
MOST_NAMED = 5  # keys that a sentence names; the rest are counted
STRATEGY = "workload.exchange.kind"
_FIRST = (
    *("cluster.name", "world_size", "workload.dataset.", "workload.model.", STRATEGY),
    *("epochs", "seed", "seeds", "workload.", ""),
)
"""What keys begin with, in the order in which their differences are told."""

Flat = Mapping[str, Any]  # values by dotted key
Asked = Mapping[str, Flat]  # what was asked of each run, by its name


def flat(value: Any, key: str = "") -> dict[str, Any]:
    """Values by dotted key; a list without mappings is one value."""
    if isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict) or not value:
        return {key: value} if key else {}
    out: dict[str, Any] = {}
    for name, inner in value.items():
        out |= flat(inner, f"{key}.{name}" if key else str(name))
    return out


def matched(a: Mapping[str, Flat], b: Mapping[str, Flat]) -> dict[str, str]:
    """Runs of B by those of A that they are compared with: those of one name; then, of one
    strategy, those that differ in the fewest keys; and the only run of A with the only one of B."""
    pairs = {name: name for name in a if name in b}
    if not pairs and len(a) == len(b) == 1:
        return dict(zip(a, b, strict=True))
    if len(a) * len(b) > MOST_TRIED:
        return pairs
    apart = sorted(
        (len(_decisive(a[x], b[y])), i, j, x, y)
        for i, x in enumerate(a)
        for j, y in enumerate(b)
        if x not in pairs and y not in pairs and _strategy(x, a[x]) == _strategy(y, b[y])
    )
    for *_, x, y in apart:
        if x not in pairs and y not in pairs.values():
            pairs[x] = y
    return {name: pairs[name] for name in a if name in pairs}


def _strategy(name: str, asked: Flat) -> str:
    """Of a run; if nothing but its name is known, that up to its numbers. '' of a document."""
    return str(asked.get(STRATEGY, "") if asked else re.split(r"[-\s]", name)[0])


def _keys_apart(a: Flat, b: Flat) -> list[str]:
    """Keys whose values differ, those first that say most; without names."""
    apart = [
        key
        for key in dict.fromkeys([*a, *b])
        if key not in {"name", "description"} and (key in a, a.get(key)) != (key in b, b.get(key))
    ]
    return sorted(apart, key=lambda key: _order(key, a.get(key), b.get(key)))


def _decisive(a: Flat, b: Flat) -> list[str]:
    """The same without sources of numbers, which decide nothing."""
    return [key for key in _keys_apart(a, b) if not _of_a_number(key, a.get(key), b.get(key))]


def _of_a_number(key: str, *values: Any) -> bool:
    """Whether a key says where numbers are from. That of another meaning, such as the ``source``
    which a strategy reads from, has a single word."""
    *above, last = key.split(".")
    words = all(value is None or " " not in str(value) for value in values)
    return "source" in above or (last == "source" and not words)


def _order(key: str, *values: Any) -> tuple[bool, int]:
    place = next(place for place, start in enumerate(_FIRST) if key.startswith(start))
    return _of_a_number(key, *values), place


def matching(a: Asked, b: Asked, pairs: Mapping[str, str]) -> list[str]:
    """How runs of other names are matched, and which have no counterpart."""
    notes = []
    apart: dict[tuple[str, ...], list[str]] = {}
    for x, y in pairs.items():
        if x != y:
            keys = tuple(_decisive(a[x], b[y]))
            apart.setdefault(keys, []).append(f"'{x}' with '{y}'")
    for keys, names in apart.items():
        more = f" and {len(keys) - MOST_NAMED} other keys" if len(keys) > MOST_NAMED else ""
        differ = f" They differ in {', '.join(keys[:MOST_NAMED])}{more}." if keys else ""
        notes.append(f"Compared as most alike: {', '.join(names)}.{differ}")
    left: list[set[str]] = [{*a} - {*pairs}, {*b} - {*pairs.values()}]
    if not pairs:
        why = "they are too many to be tried"
        if len(a) * len(b) <= MOST_TRIED:
            of_a, of_b = (", ".join(dict.fromkeys(starmap(_strategy, x.items()))) for x in (a, b))
            why = f"they have no strategy in common (A: {of_a}; B: {of_b})"
        notes.append(f"No run of A is like one of B, so no values are compared: {why}.")
    for letter, of, alone in zip("AB", (a, b), left, strict=True):
        if alone:
            notes.append(_only(letter, "runs", [name for name in of if name in alone]))
    return notes


def _only(letter: str, what: str, names: Sequence[str]) -> str:
    return f"Only {letter} has these {what}: {', '.join(names)}."


def paired(a: Sequence[str], b: Sequence[str], what: str) -> tuple[dict[str, str], list[str]]:
    """Names of B by those of A that they are compared with: those that both have; the others in
    their order, if they are equally many. And notes on the others."""
    pairs = {name: name for name in a if name in set(b)}
    left, right = [n for n in a if n not in pairs], [n for n in b if n not in pairs]
    if len(left) == len(right):
        pairs |= dict(zip(left, right, strict=True))
        ordered = ", ".join(f"'{x}' with '{y}'" for x, y in zip(left, right, strict=True))
        return pairs, [f"Names of {what} differ; compared in their order: {ordered}."] * bool(left)
    return pairs, [_only(x, what, names) for x, names in (("A", left), ("B", right)) if names]


def asked_apart(a: Asked, b: Asked, pairs: Mapping[str, str]) -> pd.DataFrame:
    """What differs in what was asked: once where it is the same for all runs. Where runs have no
    counterpart, also what all runs of A have of a key, beside what those of B have."""
    found: dict[tuple[str, str, str], list[tuple[str, Any, Any]]] = {}
    for name, other in pairs.items():
        of_a, of_b = a[name], b[other]
        for key in _keys_apart(of_a, of_b):
            values = of_a.get(key), of_b.get(key)
            found.setdefault((key, repr(values[0]), repr(values[1])), []).append((name, *values))
    rows = [
        ("" if len(runs) == len(pairs) else name, key, *values)
        for (key, _, _), runs in found.items()
        for name, *values in (runs[:1] if len(runs) == len(pairs) else runs)
    ]
    if len(pairs) < max(len(a), len(b)):
        of_a, of_b = _together(a), _together(b)
        apart = [key for key in _keys_apart(of_a, of_b) if key not in {row[1] for row in rows}]
        if STRATEGY in apart:  # the keys of a strategy that the other has not follow from it
            below = STRATEGY.removesuffix("kind")
            apart = [key for key in apart if key == STRATEGY or not key.startswith(below)]
        rows += [("", key, of_a.get(key), of_b.get(key)) for key in apart]
    rows.sort(key=lambda row: _order(*row[1:]))
    return pd.DataFrame(rows, columns=["run", "key", "a", "b"], dtype=object)


def _together(of: Asked) -> Flat:
    """The value that all runs have, or the list of those that they have."""
    out = {}
    for key in dict.fromkeys(key for run in of.values() for key in run):
        values = {repr(run[key]): run[key] for run in of.values() if key in run}
        out[key] = next(iter(values.values())) if len(values) == 1 else [*values.values()]
    return out
