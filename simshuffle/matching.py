"""Which runs of two results are compared with each other, and what differs in what was asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

Flat = Mapping[str, Any]
"""Values by dotted key."""
Runs = Mapping[str, Flat]
"""What was asked of each run, by its name."""

_ACCELERATORS, _HAS = "workload.model.accelerators.", "cluster.host.accelerator"
_NOT_ASKED = {"name", "description"}
_STRATEGY = "workload.exchange.kind"
COLUMNS = ("run", "key", "a", "b")
"""Of a table of differences: run is '' for what is true of all."""


def is_idle(key: str, accelerators: Collection[Any] = ()) -> bool:
    """Whether the value of a key changes no result: it says where another comes from, or is that of
    an accelerator that no host has."""
    if accelerators and key.startswith(_ACCELERATORS):
        return key.removeprefix(_ACCELERATORS).split(".")[0] not in accelerators
    return "source" in key.split(".")[:-1] or key.endswith(".source") or key.endswith("description")


def matched(a: Runs, b: Runs) -> dict[str, str]:
    """Runs of B by those of A with which they are compared.

    Runs of a side differ among themselves in some keys: exchange, ranks. A run is compared with
    that of the other side which has the same values there; else with that of its name; else with
    that of the same strategy from which it differs in the fewest of these keys, if each is the
    other's nearest and no second is as near.
    """
    keys = _varying(a) | _varying(b)
    out: dict[str, str] = {}

    def add(nearness: Callable[[str, str], float | None]) -> None:
        left, right = [n for n in a if n not in out], [n for n in b if n not in out.values()]
        for name in left:
            other = _nearest(name, right, nearness)
            if other is not None and name == _nearest(other, left, lambda y, x: nearness(x, y)):
                out[name] = other

    def differing(x: str, y: str) -> int:
        return sum(_value(a[x], key) != _value(b[y], key) for key in keys)

    add(lambda x, y: None if differing(x, y) else 0)
    add(lambda x, y: 0 if x == y else None)
    add(lambda x, y: differing(x, y) if a[x].get(_STRATEGY) == b[y].get(_STRATEGY) else None)
    return {name: out[name] for name in a if name in out}


def _nearest(
    name: str, others: Iterable[str], nearness: Callable[[str, str], float | None]
) -> str | None:
    """The one of the others that is nearer than all; None if there is none."""
    near = [(d, other) for other in others if (d := nearness(name, other)) is not None]
    least = min((d for d, _ in near), default=0)
    best = [other for d, other in near if d == least]
    return best[0] if len(best) == 1 else None


def differences(a: Runs, b: Runs, pairs: Mapping[str, str]) -> pd.DataFrame:
    """What differs in what was asked: of runs that are compared with each other, value beside
    value, and once where that is the same for all; of the others all values of each side. What
    changes no result is last, and its column ``idle`` says so."""
    found: dict[tuple[str, str, str], list[tuple[str, Any, Any]]] = {}
    for name, other in pairs.items():
        for key in dict.fromkeys([*a[name], *b[other]]):
            values = a[name].get(key), b[other].get(key)
            if key not in _NOT_ASKED and values[0] != values[1]:
                found.setdefault((key, repr(values[0]), repr(values[1])), []).append(
                    (name, *values)
                )
    rows = [
        ("" if len(runs) == len(pairs) else name, key, *values)
        for (key, _, _), runs in found.items()
        for name, *values in (runs[:1] if len(runs) == len(pairs) else runs)
    ]
    rows = rows if pairs else list(_of_all(a, b))
    out = pd.DataFrame(rows, columns=[*COLUMNS], dtype=object)
    used = {of[_HAS] for runs in (a, b) for of in runs.values() if _HAS in of}
    last = out["key"].map(lambda key: is_idle(key, used)).astype(bool)
    return pd.concat(
        [out[~last].assign(idle=False), out[last].assign(idle=True)], ignore_index=True
    )


def _of_all(a: Runs, b: Runs) -> Iterable[tuple[str, str, Any, Any]]:
    """Keys whose values on the two sides are not the same, each with all that it has there."""
    for key in dict.fromkeys(key for runs in (a, b) for of in runs.values() for key in of):
        of_a, of_b = (list(_values(runs, key).values()) for runs in (a, b))
        if key not in _NOT_ASKED and of_a != of_b:
            yield "", key, _one(of_a), _one(of_b)


def _one(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else list(values)


def unmatched(a: Runs, b: Runs, pairs: Mapping[str, str], what: str = "runs") -> list[str]:
    """Sentences on the runs that are compared under two names, or with none."""
    renamed = [f"'{x}' with '{y}'" for x, y in pairs.items() if x != y]
    out = [f"Compared, under the names of A: {', '.join(renamed)}."] if renamed else []
    if not pairs:
        return [f"No two of the {what} are alike: all that was asked is compared, no result is."]
    left, right = [n for n in a if n not in pairs], [n for n in b if n not in pairs.values()]
    return out + [
        f"Only {letter} has these {what}: {', '.join(names)}."
        for letter, names in (("A", left), ("B", right))
        if names
    ]


def _varying(runs: Runs) -> set[str]:
    """Keys in which the runs of a side differ among themselves."""
    keys = {key for of in runs.values() for key in of} - _NOT_ASKED
    return {k for k in keys if len(_values(runs, k)) > 1 and not is_idle(k)}


def _values(runs: Runs, key: str) -> dict[str, Any]:
    """Different values of a key, by how they are written, in the order of the runs."""
    return {_value(of, key): of.get(key) for of in runs.values()}


def _value(of: Flat, key: str) -> str:
    return repr(of[key]) if key in of else ""
