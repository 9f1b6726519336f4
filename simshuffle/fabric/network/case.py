"""Cases: explicit flows over explicit links as a JSON file, read with all its problems at once."""

from __future__ import annotations

import difflib
import gc
import gzip
import json
import reprlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import FailFast, Field, Strict, TypeAdapter, ValidationError

from simshuffle.errors import InputError, Problem
from simshuffle.fabric.network.batch import as_floats
from simshuffle.fabric.network.flows import Flows, Links, successors
from simshuffle.spec.arrays import Floats, Ints, Ints32

_REQUIRED = {"": ("links", "flows"), "links": ("capacity", "latency"), "flows": ("size", "route")}
_OPTIONAL = {"": ("name",), "links": ("name",), "flows": ("start", "after", "end")}
LARGEST = 1e30
"""Bound of every number, so that sums and quotients of all of them stay finite. Capacities are at
least its inverse."""
MOST_HOPS = 2**30
"""Entries of the padded table of routes: the compiled network numbers them with 32 bits."""
_MOST_SHOWN = 3

_short = reprlib.Repr()
_short.maxlist = _short.maxdict = 6
_short.maxstring = _short.maxlong = _short.maxother = 40


def _each(item: Any) -> Any:
    """A list of which the first bad element is told."""
    return Annotated[list[item], Strict(), FailFast()]


_POSITIVE = Annotated[float, Strict(), Field(ge=1 / LARGEST, le=LARGEST)]
_NUMBER = Annotated[float, Strict(), Field(ge=0, le=LARGEST)]
_TEXT = Annotated[str, Strict()]
_FROM_0 = f"at least 0 and at most {LARGEST:g}"
_COLUMNS: dict[str, tuple[Any, str]] = {
    "links.capacity": (
        _POSITIVE,
        f"numbers of bytes/s, greater than 0 (at least {1 / LARGEST:g}) and at most {LARGEST:g}",
    ),
    "links.latency": (_NUMBER, f"numbers of s, {_FROM_0}"),
    "links.name": (_TEXT, "texts"),
    "flows.size": (_NUMBER, f"numbers of bytes, {_FROM_0}"),
    "flows.start": (_NUMBER, f"numbers of s, {_FROM_0}"),
    "flows.end": (_NUMBER, f"numbers of s, {_FROM_0}"),
}
"""The lists of a file: of what, and in words."""


@dataclass(frozen=True)
class FlowCase:
    """Flows over links, as a file holds them."""

    links: Links  # the links
    flows: Flows  # the flows
    expected: Floats | None = None  # (flows,) s, the ends that the file says; None if it says none
    name: str = ""  # what the file calls itself, else the name of the file without its suffixes
    # whatever else is at the top of the file: a description, who computed ``expected``, ...
    about: Mapping[str, Any] = field(default_factory=dict)


def read_case(path: str | Path) -> FlowCase:
    """The case in a JSON file, which may be compressed with gzip. The format is described in
    docs/network.md.

    Raises:
        InputError: the file cannot be read, is not JSON, or is not a case; the first problem of
            every list is in it.
    """
    path = Path(path)
    # lists by the hundred thousand without a cycle among them: looking for cycles would take longer
    # than reading
    enabled = gc.isenabled()
    gc.disable()
    try:
        return _case(_load(path), path)
    except MemoryError:
        problem = Problem("", "does not fit into memory", "", "Put the flows into several cases.")
        raise InputError(problem, str(path)) from None
    finally:
        if enabled:
            gc.enable()


def _case(data: dict[str, Any], path: Path) -> FlowCase:
    problems: list[Problem] = []
    _check_keys(data, "", problems)
    name = data.pop("name", path.name.removesuffix(".gz").removesuffix(".json"))
    if type(name) is not str:
        rule, remedy = "must be a text", "Write it in quotes, or leave it out."
        problems.append(Problem("name", rule, _short.repr(name), remedy))
    link_part, flow_part = (_part(data, key, problems) for key in ("links", "flows"))
    n_links, count = _count(link_part, "capacity"), _count(flow_part, "size")
    found = {}
    for where, kinds in _COLUMNS.items():
        part, length = (link_part, n_links) if where[0] == "l" else (flow_part, count)
        found[where] = _column(part, where, length, kinds, problems)
    for key, noun, below in (("route", "link", n_links), ("after", "flow", count)):
        item = Annotated[int, Strict(), Field(ge=0, lt=2**31 - 1 if below is None else below)]
        last = "" if below is None else f" to {below - 1}"
        kinds = _each(item), f"lists of numbers of a {noun}, by its place in the file: from 0{last}"
        found[key] = _column(flow_part, f"flows.{key}", count, kinds, problems)
    after = found["after"]
    itself = [flow for flow, others in enumerate(after or ()) if flow in others]
    rule = "must not name the flow itself"
    problems += first_of_many("flows.after", rule, itself, str, "Give other flows.")
    table = None if found["route"] is None else _table(found["route"], problems)
    if problems or table is None:
        raise InputError(problems, str(path))
    links = Links(found["links.capacity"], found["links.latency"], found["links.name"] or ())
    flows = Flows.of(table, found["flows.size"], found["flows.start"], after)
    _refuse_circles(flows, str(path))
    end = found["flows.end"]
    return FlowCase(links, flows, None if end is None else as_floats(end), name, data)


def _load(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file."""
    remedy = "Write it as docs/network.md says."
    try:
        raw = path.read_bytes()
        if raw.startswith(b"\x1f\x8b") or path.suffix == ".gz":
            raw = gzip.decompress(raw)
        data = json.loads(raw, object_pairs_hook=_unique)
        if isinstance(data, dict):
            return data
        rule = "must be a mapping with the keys 'links' and 'flows'"
        problem = Problem("", rule, _short.repr(data), remedy)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        remedy = "Write it again; a name without .gz means that it is not compressed."
        problem = Problem("", "must be a whole gzip file", str(error), remedy)
    except OSError as error:
        rule = f"cannot be read: {error.strerror or error}"
        problem = Problem("", rule, "", "Give the path of a JSON file.")
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        problem = Problem(where, "must be JSON", error.msg, "Correct that place.")
    except (ValueError, RecursionError) as error:  # not UTF-8, or a path with a zero byte, too
        problem = Problem("", "must be JSON in UTF-8", str(error), remedy)
    raise InputError(problem, str(path))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in out if keys.count(key) > 1)
        raise ValueError(f"the key {_short.repr(twice)} is written twice")
    return out


def _part(data: dict[str, Any], name: str, problems: list[Problem]) -> dict[str, Any]:
    """The mapping ``name``, taken out of ``data``; empty if there is none."""
    if name not in data:
        return {}
    part = data.pop(name)
    if isinstance(part, dict):
        _check_keys(part, name, problems)
        return part
    rule, remedy = "must be a mapping of lists", "Write it as docs/network.md says."
    problems.append(Problem(name, rule, _short.repr(part), remedy))
    return {}


def _check_keys(part: Mapping[str, Any], where: str, problems: list[Problem]) -> None:
    """Note the keys that are missing, and those that look like a slip for one that is missing."""
    known = (*_REQUIRED[where], *_OPTIONAL[where])
    strange = [key for key in part if key not in known]
    for key in known:
        if key in part:
            continue
        # two letters that changed places, or capitals; or nearly the same letters
        close = [other for other in strange if sorted(other.lower()) == sorted(key)]
        if close := close or difflib.get_close_matches(key, strange, 1, 0.75):
            rule, remedy = "is not a key of a case", f"Did you mean '{key}'?"
            value = _short.repr(part[close[0]])
            problems.append(Problem(close[0], rule, value, remedy).below(where))
        elif key in _REQUIRED[where]:
            problems.append(Problem(key, "is required", "", "Add it.").below(where))


def _count(part: Mapping[str, Any], key: str) -> int | None:
    """How many elements every list beside ``key`` must have; None if that is not known."""
    values = part.get(key)
    return len(values) if isinstance(values, list) else None


def _column(
    part: Mapping[str, Any],
    where: str,
    count: int | None,
    kinds: tuple[Any, str],
    problems: list[Problem],
) -> Any:
    """The list of a part of the file that the last word of ``where`` names; None if there is none,
    or with a problem in it. See `_COLUMNS` for ``kinds``."""
    key = where.rpartition(".")[2]
    if key not in part:
        return None
    try:
        column = TypeAdapter(_each(kinds[0])).validate_python(part[key])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f"[{step}]" for step in first["loc"])
        rule, value = f"must be a list of {kinds[1]}", _short.repr(first["input"])
        problems.append(Problem(where + place, rule, value, "Correct it; units are left out."))
        return None
    if count is not None and len(column) != count:
        rule = f"must have {count} elements, as the lists beside it"
        problems.append(Problem(where, rule, str(len(column)), "Give one for each."))
    return column


def _table(routes: list[list[int]], problems: list[Problem]) -> Ints32 | None:
    """(routes, longest) int32, padded with -1; None if it would be too large. A link that a route
    has twice is noted."""
    lengths = np.fromiter(map(len, routes), np.int64, len(routes))
    width = max(int(lengths.max(initial=0)), 1)
    if len(routes) * width > MOST_HOPS:
        rule = f"flows times links of the longest route must be at most {MOST_HOPS}"
        remedy = "Put the flows with long routes into a case of their own."
        problems.append(Problem("flows.route", rule, f"{len(routes)} x {width}", remedy))
        return None
    out = np.full((len(routes), width), -1, np.int32)
    flat = np.fromiter(chain.from_iterable(routes), np.int32, int(lengths.sum()))
    out[np.arange(width) < lengths[:, None]] = flat
    ordered = np.sort(out, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
    rule, remedy = "must not use a link twice", "Give a route without a loop."
    bad = np.flatnonzero(twice)
    problems += first_of_many("flows.route", rule, bad, lambda i: _short.repr(routes[i]), remedy)
    return out


def first_of_many(
    path: str, rule: str, bad: list[int] | Ints, value: Callable[[int], str], remedy: str
) -> list[Problem]:
    """Problems of the first of the elements at the places ``bad``, which break one rule, each with
    its ``value``; and one of how many more there are."""
    first = [Problem(f"{path}[{i}]", rule, value(int(i)), remedy) for i in list(bad[:_MOST_SHOWN])]
    if more := len(bad[_MOST_SHOWN:]):
        again = "as many more break the same rule"
        first.append(Problem(path, again, str(more), "Correct them likewise."))
    return first


def _refuse_circles(flows: Flows, source: str) -> None:
    """See that no flows wait for each other."""
    if not len(flows.after_to):
        return
    from simshuffle.fabric.network.deadlock import circle_in  # compiled code, which few cases need

    circle = circle_in(*successors(flows))
    if circle is None:
        return
    # from each to one that it waits for
    ring = [circle[0], *circle[:0:-1], circle[0]]
    text = " waits for ".join(map(str, ring[:6])) + " ..." * (len(ring) > 6)
    raise InputError(
        Problem(
            f"flows.after[{ring[0]}]",
            f"flows must not wait for each other in a circle, as {len(circle)} do",
            f"flow {text}",
            "Take one of them out of it.",
        ),
        source,
    )
