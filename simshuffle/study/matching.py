"""Choose which runs of two results are compared with each other, and find how their
requests differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any

import pandas as pd

MAX_PAIRS = 200 * 200
"""Pairs of runs that are looked at; of more, only those of one name are compared."""
MAX_NAMED_KEYS = 5  # keys that a sentence names; the rest are counted
STRATEGY = "workload.exchange.kind"
_FIRST = (
    *("cluster.name", "world_size", "workload.dataset.", "workload.model.", STRATEGY),
    *("epochs", "seed", "seeds", "workload.", ""),
)
"""What keys begin with, in the order in which their differences are told."""

Flat = Mapping[str, Any]  # values by dotted key
RequestsByRun = Mapping[str, Flat]  # what was asked of each run, by its name


def flat(value: Any, key: str = "") -> dict[str, Any]:
    """Return nested plain values by dotted key; a list without mappings is one value.

    Elements of other lists are numbered from 0. ``key`` stands before all keys. An
    empty mapping is one value, too. A ``value`` that is no mapping gives {} without a
    ``key``.
    """
    if isinstance(value, list) and any(isinstance(element, dict) for element in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict) or not value:
        return {key: value} if key else {}
    flattened: dict[str, Any] = {}
    for name, element in value.items():
        flattened |= flat(element, f"{key}.{name}" if key else str(name))
    return flattened


def match_runs(a: Mapping[str, Flat], b: Mapping[str, Flat]) -> dict[str, str]:
    """Match runs of A to runs of B; return names of B by names of A.

    Runs of one name match. The others match if they are of one strategy, those first
    that differ in the fewest keys, unless there are more than `MAX_PAIRS` pairs of runs
    in all. A single run of A and a single one of B always match. No run of B is matched
    twice, and runs of A without a match have no key. The order is that of A.

    ``a`` and ``b`` are what was asked of each run, flat, by its name; {} where that is
    not known.
    """
    pairs = {name: name for name in a if name in b}
    if not pairs and len(a) == len(b) == 1:
        return dict(zip(a, b, strict=True))
    if len(a) * len(b) > MAX_PAIRS:
        return pairs
    # fewest differing keys first, then in the order of A and of B
    candidates = sorted(
        (len(_decisive_keys(a[x], b[y])), i, j, x, y)
        for i, x in enumerate(a)
        for j, y in enumerate(b)
        if x not in pairs
        and y not in pairs
        and _strategy(x, a[x]) == _strategy(y, b[y])
    )
    for *_, x, y in candidates:
        if x not in pairs and y not in pairs.values():
            pairs[x] = y
    return {name: pairs[name] for name in a if name in pairs}


def _strategy(name: str, request: Flat) -> str:
    """Return the strategy of a run; '' for a document that is no run.

    If only the name of the run is known (``request`` is empty), it is the name up to
    its first hyphen or space.
    """
    return str(request.get(STRATEGY, "") if request else re.split(r"[-\s]", name)[0])


def _differing_keys(a: Flat, b: Flat) -> list[str]:
    """Return the keys whose values differ, in the order of `_sort_key`.

    The keys 'name' and 'description' are left out. A key that only one side has
    differs, even from None.
    """
    keys = [
        key
        for key in dict.fromkeys([*a, *b])
        if key not in {"name", "description"}
        and (key in a, a.get(key)) != (key in b, b.get(key))
    ]
    return sorted(keys, key=lambda key: _sort_key(key, a.get(key), b.get(key)))


def _decisive_keys(a: Flat, b: Flat) -> list[str]:
    """Return the keys whose values differ, without the sources of numbers, which decide
    nothing.
    """
    return [
        key
        for key in _differing_keys(a, b)
        if not _is_source_of_number(key, a.get(key), b.get(key))
    ]


def _is_source_of_number(key: str, *values: Any) -> bool:
    """Return whether a key says where numbers are from. A ``source`` of another
    meaning, such as the tier that a strategy reads from, is a single word.

    ``values`` are the values of the key on both sides, None where a side lacks it.
    """
    *above, last = key.split(".")
    are_single_words = all(value is None or " " not in str(value) for value in values)
    return "source" in above or (last == "source" and not are_single_words)


def _sort_key(key: str, *values: Any) -> tuple[bool, int]:
    """Return the sort key of a differing key: sources of numbers last, else as in
    `_FIRST`.
    """
    index = next(index for index, start in enumerate(_FIRST) if key.startswith(start))
    return _is_source_of_number(key, *values), index


def describe_pairs(
    a: RequestsByRun, b: RequestsByRun, pairs: Mapping[str, str]
) -> list[str]:
    """Describe in sentences how runs of different names are matched.

    Further ones name the runs that have no counterpart, and say why where no run has
    one. [] if every run has a counterpart of its name. ``pairs`` is from `match_runs`.
    """
    notes = []
    names_by_keys: dict[tuple[str, ...], list[str]] = {}
    for name_a, name_b in pairs.items():
        if name_a != name_b:
            keys = tuple(_decisive_keys(a[name_a], b[name_b]))
            names_by_keys.setdefault(keys, []).append(f"'{name_a}' with '{name_b}'")
    for keys, names in names_by_keys.items():
        more_keys = (
            f" and {len(keys) - MAX_NAMED_KEYS} other keys"
            if len(keys) > MAX_NAMED_KEYS
            else ""
        )
        difference = (
            f" They differ in {', '.join(keys[:MAX_NAMED_KEYS])}{more_keys}."
            if keys
            else ""
        )
        notes.append(f"Compared because most alike: {', '.join(names)}.{difference}")
    unmatched: list[set[str]] = [{*a} - {*pairs}, {*b} - {*pairs.values()}]
    if not pairs:
        reason = "there are too many pairs of runs to try"
        if len(a) * len(b) <= MAX_PAIRS:
            strategies_a, strategies_b = (
                ", ".join(dict.fromkeys(starmap(_strategy, requests.items())))
                for requests in (a, b)
            )
            reason = f"they have no strategy in common (A: {strategies_a}; B: {strategies_b})"
        notes.append(
            f"No run of A is like one of B, so no values are compared: {reason}."
        )
    for letter, requests, without_match in zip("AB", (a, b), unmatched, strict=True):
        if without_match:
            unmatched_names = [name for name in requests if name in without_match]
            notes.append(_unmatched_sentence(letter, "runs", unmatched_names))
    return notes


def _unmatched_sentence(letter: str, noun: str, names: Sequence[str]) -> str:
    """Return the sentence that names things only one of A and B has."""
    return f"Only {letter} has these {noun}: {', '.join(names)}."


def pair_names(
    a: Sequence[str], b: Sequence[str], noun: str
) -> tuple[dict[str, str], list[str]]:
    """Pair names of A with names of B: equal names, and then the others in their order
    if they are equally many; else the others stay without a counterpart.

    Args:
        noun: plural noun of the named things, for the notes.

    Returns:
        Names of B by names of A, and notes on names that differ or have no counterpart.
    """
    pairs = {name: name for name in a if name in set(b)}
    only_a = [name for name in a if name not in pairs]
    only_b = [name for name in b if name not in pairs]
    if len(only_a) == len(only_b):
        pairs |= dict(zip(only_a, only_b, strict=True))
        ordered = ", ".join(
            f"'{name_a}' with '{name_b}'"
            for name_a, name_b in zip(only_a, only_b, strict=True)
        )
        return pairs, [
            f"Names of {noun} differ; compared in their order: {ordered}."
        ] * bool(only_a)
    return pairs, [
        _unmatched_sentence(letter, noun, names)
        for letter, names in (("A", only_a), ("B", only_b))
        if names
    ]


def table_of_differing_requests(
    a: RequestsByRun, b: RequestsByRun, pairs: Mapping[str, str]
) -> pd.DataFrame:
    """Return a table of the keys in which the requests of matched runs differ.

    Columns are run (its name in A), key, a, b (values, None where a side lacks the
    key). A difference that all matched runs share is one row, of run ''; others are a
    row for each run. Where runs have no counterpart, rows of run '' follow for keys
    without a row: the value that all runs of A have, or the list of their values,
    beside that of B. If the strategy is among these keys, its other keys are left out.
    Rows are sorted as in `_FIRST`; sources of numbers stand last.
    """
    runs_by_difference: dict[tuple[str, str, str], list[tuple[str, Any, Any]]] = {}
    for name, name_b in pairs.items():
        request_a = a[name]
        request_b = b[name_b]
        for key in _differing_keys(request_a, request_b):
            values = request_a.get(key), request_b.get(key)
            runs_by_difference.setdefault(
                (key, repr(values[0]), repr(values[1])), []
            ).append((name, *values))
    rows = [
        ("" if len(runs) == len(pairs) else name, key, *values)
        for (key, _, _), runs in runs_by_difference.items()
        for name, *values in (runs[:1] if len(runs) == len(pairs) else runs)
    ]
    if len(pairs) < max(len(a), len(b)):
        request_a = _merge_requests(a)
        request_b = _merge_requests(b)
        keys = [
            key
            for key in _differing_keys(request_a, request_b)
            if key not in {row[1] for row in rows}
        ]
        if (
            STRATEGY in keys
        ):  # the keys of a strategy that the other has not follow from it
            below = STRATEGY.removesuffix("kind")
            keys = [key for key in keys if key == STRATEGY or not key.startswith(below)]
        rows += [("", key, request_a.get(key), request_b.get(key)) for key in keys]
    rows.sort(key=lambda row: _sort_key(*row[1:]))
    return pd.DataFrame(rows, columns=["run", "key", "a", "b"], dtype=object)


def _merge_requests(requests: RequestsByRun) -> Flat:
    """Return for each key the value of all runs that have it, or the list of their
    distinct values.
    """
    merged = {}
    for key in dict.fromkeys(key for run in requests.values() for key in run):
        values = {repr(run[key]): run[key] for run in requests.values() if key in run}
        merged[key] = (
            next(iter(values.values())) if len(values) == 1 else [*values.values()]
        )
    return merged
