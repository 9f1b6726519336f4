"""Cases: explicit flows over explicit links as a JSON file. Read with all its problems at once;
written so that reading gives it back."""

from __future__ import annotations

import difflib
import gc
import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike

from simshuffle.errors import InputError, Problem
from simshuffle.network.batch import as_floats
from simshuffle.network.case_columns import LARGEST, Columns, shown
from simshuffle.network.flows import Flows, Links, successors
from simshuffle.network.whole_file import whole_file
from simshuffle.spec.arrays import Floats

_REQUIRED = {"": ("links", "flows"), "links": ("capacity", "latency"), "flows": ("size", "route")}
_OPTIONAL = {"": ("name",), "links": ("name",), "flows": ("start", "after", "end")}
_GZIP = b"\x1f\x8b"
_AT_ONCE = 1 << 16
_ANY = 2**31 - 1


@dataclass(frozen=True)
class Case:
    """Flows over links, as a file holds them."""

    links: Links  # the links
    flows: Flows  # the flows
    expected: Floats | None = None  # (flows,) s, the ends that the file says; None if it says none
    name: str = ""  # what the file calls itself, else the name of the file without its suffixes
    # whatever else is at the top of the file: a description, who computed ``expected``, ...
    about: Mapping[str, Any] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------ reading


def read_case(path: str | Path) -> Case:
    """The case in a JSON file, which may be compressed with gzip. The format is described in
    docs/replay.md.

    Raises:
        InputError: the file cannot be read, is not JSON, or is not a case; all problems that can be
            told apart are in it.
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


def _case(data: dict[str, Any], path: Path) -> Case:
    columns = Columns()
    _check_keys(data, "", columns)
    name = data.pop("name", path.name.removesuffix(".gz").removesuffix(".json"))
    if type(name) is not str:
        columns.add("name", "must be a text", shown(name), "Write it in quotes, or leave it out.")
    link_part, flow_part = (_part(data, key, columns) for key in ("links", "flows"))
    n_links = _count(link_part, "capacity")
    links = _links(link_part, columns)
    flows, expected = _flows(flow_part, _ANY if n_links is None else n_links, columns)
    if links is None or flows is None:
        raise InputError(columns.problems, str(path))
    _refuse_circles(flows, str(path))
    return Case(links, flows, expected, name, data)


def _load(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file."""
    where, rule, remedy = "", "must be JSON", "Write it as docs/replay.md says."
    try:
        raw = _bytes(path)
        if raw.startswith(_GZIP) or path.suffix == ".gz":
            raw = gzip.decompress(raw)
        data = json.loads(raw, object_pairs_hook=_unique)
        if isinstance(data, dict):
            return data
        rule, value = "must be a mapping with the keys 'links' and 'flows'", shown(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        rule, value, remedy = (
            "must be a whole gzip file",
            str(error),
            "Write it again; a name without .gz means that it is not compressed.",
        )
    except OSError as error:
        rule, value, remedy = (
            f"cannot be read: {error.strerror or error}",
            "",
            "Give the path of a JSON file.",
        )
    except json.JSONDecodeError as error:
        where, value, remedy = (
            f"line {error.lineno}, column {error.colno}",
            error.msg,
            "Correct that place.",
        )
    except UnicodeDecodeError:
        value, remedy = "bytes that are not UTF-8", "Save it as UTF-8."
    except (ValueError, RecursionError) as error:
        value = str(error)
    raise InputError(Problem(where, rule, value, remedy), str(path))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except ValueError as error:  # a zero byte in it
        raise OSError(str(error)) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(
            f"the key {shown(next(key for key in out if keys.count(key) > 1))} is written twice"
        )
    return out


def _part(data: dict[str, Any], name: str, columns: Columns) -> dict[str, Any]:
    """The mapping ``name``, taken out of ``data``; empty if there is none."""
    if name not in data:
        return {}
    part = data.pop(name)
    if isinstance(part, dict):
        _check_keys(part, name, columns)
        return part
    columns.add(name, "must be a mapping of lists", shown(part), "Write it as docs/replay.md says.")
    return {}


def _check_keys(part: Mapping[str, Any], where: str, columns: Columns) -> None:
    """Note the keys that are missing, and those that look like a slip for one that is missing."""
    dot = f"{where}." if where else ""
    known = (*_REQUIRED[where], *_OPTIONAL[where])
    strange = [key for key in part if key not in known]
    for key in known:
        if key in part:
            continue
        near = _likeness(key, strange)
        if near:
            rule, remedy = "is not a key of a case", f"Did you mean '{key}'?"
            columns.add(f"{dot}{near}", rule, shown(part[near]), remedy)
        elif key in _REQUIRED[where]:
            columns.add(f"{dot}{key}", "is required", remedy="Add it.")


def _likeness(key: str, strange: list[str]) -> str:
    """The one of ``strange`` that was probably meant to be ``key``, or an empty text."""
    for other in strange:
        if sorted(other.lower()) == sorted(key):  # two letters changed places, or capitals
            return other
    return next(iter(difflib.get_close_matches(key, strange, 1, 0.75)), "")


def _links(part: Mapping[str, Any], columns: Columns) -> Links | None:
    count = _count(part, "capacity")
    capacity = columns.numbers(part, "links.capacity", count, "bytes/s", 1 / LARGEST)
    latency = columns.numbers(part, "links.latency", count, "s")
    names = columns.texts(part["name"], "links.name", count) if "name" in part else None
    if columns.problems or capacity is None or latency is None:
        return None
    return Links(capacity, latency, names or ())


def _flows(
    part: dict[str, Any], n_links: int, columns: Columns
) -> tuple[Flows | None, Floats | None]:
    count = _count(part, "size")
    table = None
    edges = np.empty((2, 0), np.int64)
    size = columns.numbers(part, "flows.size", count, "bytes")
    start = columns.numbers(part, "flows.start", count, "s")
    start = start if "start" in part else np.zeros(count or 0)
    expected = columns.numbers(part, "flows.end", count, "s")
    if "route" in part:
        route = columns.ragged(part.pop("route"), "flows.route", count, "link", n_links)
        table = None if route is None else columns.table("flows.route", *route)
    if "after" in part:
        after = columns.ragged(
            part.pop("after"), "flows.after", count, "flow", _ANY if count is None else count
        )
        if after is not None:
            lengths, before = after
            edges = np.stack([before, np.repeat(np.arange(len(lengths)), lengths)])
            itself = np.unique(edges[0, edges[0] == edges[1]]).tolist()
            rule = "must not name the flow itself"
            columns.each("flows.after", rule, itself, str, "Give other flows.")
    if columns.problems or size is None or start is None or table is None:
        return None, None
    return Flows(table, size, start, edges[0], edges[1]), expected


def _count(part: Mapping[str, Any], key: str) -> int | None:
    """How many elements every list beside ``key`` must have; None if that is not known."""
    values = part.get(key)
    return len(values) if isinstance(values, list) else None


def _refuse_circles(flows: Flows, source: str) -> None:
    """See that no flows wait for each other."""
    if not np.any(flows.after_from > flows.after_to):
        return  # everything waits for what stands before it in the file
    offsets, following = (values.tolist() for values in successors(flows))
    waiting = np.bincount(flows.after_to, minlength=len(flows)).tolist()
    free = [flow for flow, count in enumerate(waiting) if count == 0]
    while free:
        flow = free.pop()
        for other in following[offsets[flow] : offsets[flow + 1]]:
            waiting[other] -= 1
            if waiting[other] == 0:
                free.append(other)
    stuck = [flow for flow, count in enumerate(waiting) if count]
    if not stuck:
        return
    held = np.array(waiting)[flows.after_from] > 0  # a stuck flow waits for another one that is
    awaits = dict(zip(flows.after_to[held].tolist(), flows.after_from[held].tolist(), strict=True))
    path = [stuck[0]]
    seen = {stuck[0]: 0}
    while (flow := awaits[path[-1]]) not in seen:
        seen[flow] = len(path)
        path.append(flow)
    ring = [*path[seen[flow] :], flow]
    text = " waits for ".join(str(flow) for flow in ring[:6]) + (
        f" ... ({len(ring) - 1} flows)" if len(ring) > 6 else ""
    )
    rule = f"flows must not wait for each other in a circle, and {len(stuck)} would never start"
    raise InputError(
        Problem(f"flows.after[{ring[0]}]", rule, f"flow {text}", "Take one of them out of it."),
        source,
    )


# ------------------------------------------------------------------------------------------ writing


def write_case(
    path: str | Path,
    links: Links,
    flows: Flows,
    *,
    expected: ArrayLike | None = None,
    name: str = "",
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a case that `read_case` reads back to the last bit: whole or not at all, compressed if
    ``path`` ends in .gz.

    Args:
        path: the file; one that is there is replaced.
        links: the links.
        flows: the flows.
        expected: (flows,) s, when they are expected to end; None to say nothing.
        name: of the case; empty for the name of the file.
        about: anything else that JSON can hold, for the top of the file.

    Raises:
        ValueError: a route names a link that does not exist, ``expected`` has another length, or
            ``about`` holds a key of the format.
        OSError: the file cannot be written.
    """
    reserved = {"links", "flows", "name"} & set(about or ())
    if reserved:
        raise ValueError(f"'{min(reserved)}' cannot be in about: it is a key of the case itself")
    if flows.routes.size and flows.routes.max() >= len(links):
        raise ValueError(
            f"a route names link {flows.routes.max()}, and there are {len(links)} links"
        )
    ends = None if expected is None else as_floats(expected)
    if ends is not None and ends.shape != (len(flows),):
        raise ValueError(
            f"expected {ends.shape} must have one entry for each of the {len(flows)} flows"
        )
    with whole_file(Path(path)) as file:
        file.write("{")
        for key, value in {**({"name": name} if name else {}), **(about or {})}.items():
            file.write(f"{json.dumps(key)}: {json.dumps(value)},\n")
        file.write('"links": {')
        if len(links.names):
            _write_list(file, "name", _pieces(list(links.names)))
        _write_list(file, "capacity", _pieces(links.capacity))
        _write_list(file, "latency", _pieces(links.latency), last=True)
        file.write('},\n"flows": {')
        _write_list(file, "size", _pieces(flows.nbytes))
        _write_list(file, "start", _pieces(flows.start))
        if len(flows.after_to):
            _write_list(file, "after", _predecessors(flows))
        if ends is not None:
            _write_list(file, "end", _pieces(ends))
        _write_list(file, "route", _routes(flows), last=True)
        file.write("}}\n")


def _write_list(file: TextIO, key: str, pieces: Iterable[list[Any]], *, last: bool = False) -> None:
    """Write a long list piece by piece: the text of the whole would need more memory than the
    arrays."""
    file.write(f'"{key}": [')
    for number, piece in enumerate(pieces):
        file.write((", " if number else "") + json.dumps(piece)[1:-1])
    file.write("]" if last else "],\n")


def _pieces(values: Floats | list[str]) -> Iterable[list[Any]]:
    for first in range(0, len(values), _AT_ONCE):
        piece = values[first : first + _AT_ONCE]
        yield piece if isinstance(piece, list) else piece.tolist()


def _routes(flows: Flows) -> Iterable[list[list[int]]]:
    for first in range(0, len(flows), _AT_ONCE):
        table = flows.routes[first : first + _AT_ONCE]
        lengths = np.count_nonzero(table >= 0, axis=1).tolist()
        yield [row[:length] for row, length in zip(table.tolist(), lengths, strict=True)]


def _predecessors(flows: Flows) -> Iterable[list[list[int]]]:
    before = flows.after_from[np.argsort(flows.after_to, kind="stable")]
    ends = np.cumsum(np.bincount(flows.after_to, minlength=len(flows)))
    for first in range(0, len(flows), _AT_ONCE):
        begin = int(ends[first - 1]) if first else 0
        cuts = ends[first : first + _AT_ONCE]
        yield [
            piece.tolist() for piece in np.split(before[begin : int(cuts[-1])], cuts[:-1] - begin)
        ]
