"""Cases: explicit flows over explicit links as a JSON file, read with all its problems
at once.
"""

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

_REQUIRED = {
    "": ("links", "flows"),
    "links": ("capacity", "latency"),
    "flows": ("size", "route"),
}
_OPTIONAL = {"": ("name",), "links": ("name",), "flows": ("start", "after", "end")}
LARGEST = 1e30
"""Bound of every number, so that sums and quotients of all of them stay finite.
Capacities are at least its inverse.
"""
MOST_HOPS = 2**30
"""Entries of the padded table of routes: the compiled network numbers them with 32
bits.
"""
_MAX_LISTED = 3

_abbreviate = reprlib.Repr()
_abbreviate.maxlist = _abbreviate.maxdict = 6
_abbreviate.maxstring = _abbreviate.maxlong = _abbreviate.maxother = 40


def _strict_list(item: Any) -> Any:
    """Type of a strict list whose validation stops at the first bad element."""
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
    """Flows over links, as a file describes them."""

    links: Links  # the links
    flows: Flows  # the flows
    expected: Floats | None = (
        None  # (flows,) s, the ends that the file says; None if it says none
    )
    name: str = (
        ""  # what the file calls itself, else the name of the file without its suffixes
    )
    # whatever else is at the top of the file: a description, who computed ``expected``, ...
    metadata: Mapping[str, Any] = field(default_factory=dict)


def read_case(path: str | Path) -> FlowCase:
    """Read a case from a JSON file, which may be compressed with gzip; docs/network.md
    describes the format.

    A file that begins as gzip does, or is named .gz, is decompressed.

    Raises:
        InputError: the file cannot be read, is not JSON, or is not a case, does not fit
            into memory, or has flows that wait for each other in a circle; the first
            problem of every list is in it.
    """
    path = Path(path)
    # lists by the hundred thousand without a cycle among them: looking for cycles would take longer
    # than reading
    enabled = gc.isenabled()
    gc.disable()
    try:
        return _parse_case(_load_object(path), path)
    except MemoryError:
        problem = Problem(
            "", "does not fit into memory", "", "Put the flows into several cases."
        )
        raise InputError(problem, str(path)) from None
    finally:
        if enabled:
            gc.enable()


def _type_of_references(noun: str, num_targets: int | None) -> tuple[Any, str]:
    """Return the type of a column of lists of numbers of links or flows, and its
    description.

    ``num_targets`` is the number of links or flows of the file, None if it is not
    known.
    """
    upper_bound = "" if num_targets is None else f" to {num_targets - 1}"
    number = Annotated[
        int, Strict(), Field(ge=0, lt=2**31 - 1 if num_targets is None else num_targets)
    ]
    description = (
        f"lists of numbers of a {noun}, by its place in the file: from 0{upper_bound}"
    )
    return _strict_list(number), description


def _parse_case(data: dict[str, Any], path: Path) -> FlowCase:
    """Build the case from the mapping of a file, and keep its other keys as metadata.

    Name, links and flows are taken out of ``data``, which becomes the metadata.

    Raises:
        InputError: with the problems of all lists.
    """
    problems: list[Problem] = []
    _check_keys(data, "", problems)
    name = data.pop("name", path.name.removesuffix(".gz").removesuffix(".json"))
    if type(name) is not str:
        rule = "must be a text"
        remedy = "Write it in quotes, or leave it out."
        problems.append(Problem("name", rule, _abbreviate.repr(name), remedy))
    link_part, flow_part = (
        _take_part(data, key, problems) for key in ("links", "flows")
    )
    num_links = _length_of(link_part, "capacity")
    num_flows = _length_of(flow_part, "size")
    columns = {}
    for where, column_type in _COLUMNS.items():
        part, length = (
            (link_part, num_links) if where[0] == "l" else (flow_part, num_flows)
        )
        columns[where] = _parse_column(part, where, length, column_type, problems)
    for key, noun, num_targets in (
        ("route", "link", num_links),
        ("after", "flow", num_flows),
    ):
        column_type = _type_of_references(noun, num_targets)
        columns[key] = _parse_column(
            flow_part, f"flows.{key}", num_flows, column_type, problems
        )
    predecessors = columns["after"]
    own_predecessors = [
        flow
        for flow, flow_predecessors in enumerate(predecessors or ())
        if flow in flow_predecessors
    ]
    rule = "must not name the flow itself"
    problems += list_first_problems(
        "flows.after", rule, own_predecessors, str, "Give other flows."
    )
    routes = (
        None
        if columns["route"] is None
        else _pad_checked_routes(columns["route"], problems)
    )
    if problems or routes is None:
        raise InputError(problems, str(path))
    links = Links(
        columns["links.capacity"], columns["links.latency"], columns["links.name"] or ()
    )
    flows = Flows.from_lists(
        routes, columns["flows.size"], columns["flows.start"], predecessors
    )
    _refuse_circles(flows, str(path))
    end = columns["flows.end"]
    return FlowCase(links, flows, None if end is None else as_floats(end), name, data)


def _load_object(path: Path) -> dict[str, Any]:
    """Load the mapping of a JSON file, decompressed if it is gzip.

    Raises:
        InputError: the file cannot be read or decompressed, is not JSON in UTF-8, has a
            key twice, or holds no mapping.
    """
    remedy = "Write it as docs/network.md says."
    try:
        raw = path.read_bytes()
        if raw.startswith(b"\x1f\x8b") or path.suffix == ".gz":
            raw = gzip.decompress(raw)
        data = json.loads(raw, object_pairs_hook=_refuse_duplicate_keys)
        if isinstance(data, dict):
            return data
        rule = "must be a mapping with the keys 'links' and 'flows'"
        problem = Problem("", rule, _abbreviate.repr(data), remedy)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        remedy = "Write it again; a name without .gz means that it is not compressed."
        problem = Problem("", "must be a whole gzip file", str(error), remedy)
    except OSError as error:
        rule = f"cannot be read: {error.strerror or error}"
        problem = Problem("", rule, "", "Give the path of a JSON file.")
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        problem = Problem(place, "must be JSON", error.msg, "Correct that place.")
    except (
        ValueError,
        RecursionError,
    ) as error:  # not UTF-8, or a path with a zero byte, too
        problem = Problem("", "must be JSON in UTF-8", str(error), remedy)
    raise InputError(problem, str(path))


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a mapping of the keys and values of a JSON object; raises a ValueError if a
    key is written twice.
    """
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in mapping if keys.count(key) > 1)
        raise ValueError(f"the key {_abbreviate.repr(duplicate)} is written twice")
    return mapping


def _take_part(
    data: dict[str, Any], name: str, problems: list[Problem]
) -> dict[str, Any]:
    """Take the mapping ``name`` out of ``data``; empty if there is none, or something
    else. Wrong keys, and anything but a mapping, are added to ``problems``.
    """
    if name not in data:
        return {}
    part = data.pop(name)
    if isinstance(part, dict):
        _check_keys(part, name, problems)
        return part
    rule = "must be a mapping of lists"
    remedy = "Write it as docs/network.md says."
    problems.append(Problem(name, rule, _abbreviate.repr(part), remedy))
    return {}


def _check_keys(part: Mapping[str, Any], parent: str, problems: list[Problem]) -> None:
    """Add to ``problems`` the required keys that are missing, and the keys that look
    like a misspelling of one that is missing, required or not.

    Other unknown keys are left alone. ``parent`` is '' for the top of the file, else
    'links' or 'flows'.
    """
    known_keys = (*_REQUIRED[parent], *_OPTIONAL[parent])
    unknown_keys = [key for key in part if key not in known_keys]
    for key in known_keys:
        if key in part:
            continue
        # two letters that changed places, or capitals; or nearly the same letters
        similar_keys = [
            unknown
            for unknown in unknown_keys
            if sorted(unknown.lower()) == sorted(key)
        ]
        if similar_keys := similar_keys or difflib.get_close_matches(
            key, unknown_keys, 1, 0.75
        ):
            rule = "is not a key of a case"
            remedy = f"Did you mean '{key}'?"
            value = _abbreviate.repr(part[similar_keys[0]])
            problems.append(Problem(similar_keys[0], rule, value, remedy).below(parent))
        elif key in _REQUIRED[parent]:
            problems.append(Problem(key, "is required", "", "Add it.").below(parent))


def _length_of(part: Mapping[str, Any], key: str) -> int | None:
    """Return the number of elements of the list ``key``, which all lists beside it must
    have; None if it is no list.
    """
    values = part.get(key)
    return len(values) if isinstance(values, list) else None


def _parse_column(
    part: Mapping[str, Any],
    path: str,
    count: int | None,
    column_type: tuple[Any, str],
    problems: list[Problem],
) -> Any:
    """Parse one list of the file.

    Args:
        part: the mapping that holds the list.
        path: where the list stands in the file; its last word is the key.
        count: how many elements it must have; None if that is not known.
        column_type: the type of an element, and a text that says what the elements are;
            see `_COLUMNS`.
        problems: problems are added to it.

    Returns:
        The list; None if there is none, or an element is wrong. A list of a wrong
        length is returned, and its problem added.
    """
    key = path.rpartition(".")[2]
    if key not in part:
        return None
    try:
        column = TypeAdapter(_strict_list(column_type[0])).validate_python(part[key])
    except ValidationError as error:
        first_error = error.errors(include_url=False)[0]
        place = "".join(f"[{step}]" for step in first_error["loc"])
        rule = f"must be a list of {column_type[1]}"
        value = _abbreviate.repr(first_error["input"])
        problems.append(
            Problem(path + place, rule, value, "Correct it; units are left out.")
        )
        return None
    if count is not None and len(column) != count:
        rule = f"must have {count} elements, as the lists beside it"
        problems.append(Problem(path, rule, str(len(column)), "Give one for each."))
    return column


def _pad_checked_routes(
    routes: list[list[int]], problems: list[Problem]
) -> Ints32 | None:
    """Pad routes to a (routes, longest) int32 table with -1; None if it would have more
    than `MOST_HOPS` entries.

    ``problems`` gets that, and routes that use a link twice.
    """
    lengths = np.fromiter(map(len, routes), np.int64, len(routes))
    width = max(int(lengths.max(initial=0)), 1)
    if len(routes) * width > MOST_HOPS:
        rule = f"flows times links of the longest route must be at most {MOST_HOPS}"
        remedy = "Put the flows with long routes into a case of their own."
        problems.append(
            Problem("flows.route", rule, f"{len(routes)} x {width}", remedy)
        )
        return None
    padded = np.full((len(routes), width), -1, np.int32)
    # all links in a row fill the table row by row, as many columns as the route is long
    links = np.fromiter(chain.from_iterable(routes), np.int32, int(lengths.sum()))
    padded[np.arange(width) < lengths[:, None]] = links
    sorted_links = np.sort(padded, axis=1)
    has_duplicate = (
        (sorted_links[:, 1:] == sorted_links[:, :-1]) & (sorted_links[:, 1:] >= 0)
    ).any(axis=1)
    rule = "must not use a link twice"
    remedy = "Give a route without a loop."
    bad_flows = np.flatnonzero(has_duplicate)
    problems += list_first_problems(
        "flows.route", rule, bad_flows, lambda i: _abbreviate.repr(routes[i]), remedy
    )
    return padded


def list_first_problems(
    path: str,
    rule: str,
    bad_elements: list[int] | Ints,
    describe_value: Callable[[int], str],
    remedy: str,
) -> list[Problem]:
    """List the problems of the first three elements that break one rule, and one
    problem that says how many more there are; none if none break it.

    Args:
        path: the list in the file.
        rule: the rule that is broken.
        bad_elements: indices of the elements that break it.
        describe_value: returns the text of the value of an element, by its index.
        remedy: a sentence that says what to write instead.
    """
    problems = [
        Problem(f"{path}[{i}]", rule, describe_value(int(i)), remedy)
        for i in list(bad_elements[:_MAX_LISTED])
    ]
    if num_unlisted := len(bad_elements[_MAX_LISTED:]):
        rule_of_rest = "as many more break the same rule"
        problems.append(
            Problem(path, rule_of_rest, str(num_unlisted), "Correct them likewise.")
        )
    return problems


def _refuse_circles(flows: Flows, source: str) -> None:
    """Raise an InputError if flows wait for each other in a circle."""
    if not len(flows.after_to):
        return
    # compiled code, which few cases need
    from simshuffle.fabric.network.deadlock import find_circle

    circle = find_circle(*successors(flows))
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
