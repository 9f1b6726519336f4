"""Reading recorded faults: JSON of starts and ends by node, or CSV."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from simshuffle.errors import refuse
from simshuffle.job.reliability.faults import Faults
from simshuffle.spec.units import Dimension, UnitError, parse_quantity

DAY = 86_400.0
"""s."""
MOST_NBYTES = 100_000_000
"""Bytes of a file of faults: 200,000 faults and more."""
COLUMNS = ("host", "start", "end", "class")
CAUSES = {
    "gpu": "gpu",
    "nic": "network",
    "parameter plane cable": "network",
    "file system": "storage",
    "other failures": "software",
    "system crash": "host",
    "power supply": "host",
    "fan": "host",
    "motherboard battery": "host",
    "stress test failure": "test",
    "unknown error": "unknown",
}
"""Classes of stepfun-ai/InfiniteHBD-Trace, and the cause that each is here; another is its own."""
HBM = "DBE"
"""What a description says of a GPU whose memory failed: a double bit error."""


@dataclass(frozen=True)
class FaultTrace:
    """Recorded faults."""

    faults: Faults  # in the order of their starts
    hosts: int  # that were watched
    length: float  # s for which they were
    open: int  # faults that had not ended then, which end with the trace
    sha256: str  # of the file, in hexadecimal


def read_trace(path: Path, hosts: int | None = None, length: float | None = None) -> FaultTrace:
    """The faults of a file. ``hosts`` were watched, and for ``length`` s; if None those in the
    file, and until its last event.

    Raises:
        InputError: there is no such file, it is no trace, a fault ends before it starts, there is
            none, or it has more hosts or a longer time than is said.
    """
    try:
        stamp = path.stat()
    except (OSError, ValueError):
        remedy = "Name a JSON or CSV file of faults."
        refuse("path", "no such file", repr(str(path)), remedy, "trace of faults")
    if stamp.st_size > MOST_NBYTES:
        rule = f"must have at most {MOST_NBYTES} bytes"
        refuse("path", rule, f"{stamp.st_size}", "Give fewer faults.", str(path))
    rows, names, sha256 = _read(path, stamp.st_mtime_ns)
    return _made(rows, names, sha256, hosts, length, str(path))


Rows = tuple[tuple[str, float, float, str], ...]
"""Of each fault its host, start and end (s; infinite if it has none), and its cause."""


@lru_cache(4)
def _read(path: Path, stamp: int) -> tuple[Rows, tuple[str, ...], str]:
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        refuse("path", "must be a text file in UTF-8", str(error)[:60], "Save it so.", str(path))
    is_json = text.lstrip().startswith(("[", "{"))
    rows = tuple((_of_json if is_json else _of_csv)(text, str(path)))
    if not rows:
        refuse("path", "must hold a fault", "none", "Give a trace with faults.", str(path))
    names = tuple(dict.fromkeys(host for host, *_ in rows))
    return rows, names, hashlib.sha256(data).hexdigest()


def _made(
    rows: Rows,
    names: tuple[str, ...],
    sha256: str,
    hosts: int | None,
    length: float | None,
    source: str,
) -> FaultTrace:
    start, end = (np.array([row[n] for row in rows]) for n in (1, 2))
    last = float(max(start.max(), end[np.isfinite(end)].max(initial=0.0)))
    if hosts is not None and hosts < len(names):
        rule = f"must be at least the {len(names)} hosts of the file"
        refuse("hosts", rule, str(hosts), "Say how many were watched.", source)
    if length is not None and length < last:
        rule = f"must be at least {last / DAY:.6g} d, the last event of the file"
        refuse("length", rule, f"{length / DAY:.6g} d", "Say how long they were watched.", source)
    if (whole := length or last) <= 0:
        refuse("path", "must end after 0 s", "all at 0 s", "Give times of events.", source)
    causes = tuple(dict.fromkeys(row[3] for row in rows))
    places, kinds = ({of: n for n, of in enumerate(each)} for each in (names, causes))
    faults = Faults(
        np.array([places[row[0]] for row in rows]),
        start,
        np.where(np.isfinite(end), end, whole),
        np.array([kinds[row[3]] for row in rows]),
        causes,
    )
    still = int(np.count_nonzero(~np.isfinite(end)))
    return FaultTrace(faults.ordered(), hosts or len(names), whole, still, sha256)


def _of_csv(text: str, source: str) -> Iterable[tuple[str, float, float, str]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    given = tuple(reader.fieldnames or ())
    if set(given) != set(COLUMNS) or len(given) != len(COLUMNS):
        rule = f"must have the columns {', '.join(COLUMNS)}"
        remedy = "Name them in the first line; leave others out."
        refuse("path", rule, ", ".join(map(str, given)) or "no line", remedy, source)
    try:
        for line in reader:
            where = f"line {reader.line_num}"
            if None in line or None in line.values():
                rule = f"must have {len(COLUMNS)} values"
                refuse(where, rule, "another number", "Correct that line.", source)
            start = _seconds(line["start"], where, source)
            end = _seconds(line["end"], where, source) if line["end"].strip() else math.inf
            yield _checked(line["host"].strip(), start, end, _cause(line["class"]), where, source)
    except csv.Error as error:
        refuse("path", "must be CSV", str(error)[:60], "Correct that line.", source)


def _seconds(text: str, where: str, source: str) -> float:
    try:
        return parse_quantity(text, Dimension.SECONDS)
    except UnitError as error:
        refuse(where, str(error), repr(text)[:60], "Write for example '3.5 d'.", source)


def _of_json(text: str, source: str) -> Iterable[tuple[str, float, float, str]]:
    """Events of a list, each with node_id, event_time (d), event_type and fault_type."""
    try:
        events = json.loads(text)
    except (ValueError, RecursionError) as error:
        refuse("path", "must be JSON or CSV", str(error)[:60], "Correct it.", source)
    if not isinstance(events, list):
        refuse("path", "must be a list of events", type(events).__name__, _EVENT, source)
    read = [_event(event, f"event {n}", source) for n, event in enumerate(events, 1)]
    # of one moment the starts come first: some faults end when they start
    read.sort(key=lambda event: (event.at, not event.starts))
    going: dict[tuple[str, str], list[_Event]] = {}
    found: list[tuple[_Event, float]] = []
    for event in read:
        own = going.setdefault((event.host, event.kind), [])
        if event.starts:
            own.append(event)
        elif own:
            found.append((own.pop(0), event.at))
        else:
            rule = "must not end a fault before it starts"
            remedy = "Put its fault_start before it, with the same fault_type."
            refuse(event.where, rule, f"{event.host} at {event.at / DAY:g} d", remedy, source)
    found += [(event, math.inf) for own in going.values() for event in own]
    for event, end in sorted(found, key=lambda each: each[0].at):
        yield _checked(event.host, event.at, end, event.cause, event.where, source)


_EVENT = (
    "An event has node_id, event_time in days, event_type (fault_start, fault_end), fault_type."
)


@dataclass(frozen=True)
class _Event:
    host: str
    at: float  # s
    starts: bool
    kind: str  # what a fault of the same kind has too
    cause: str
    where: str  # in the file


def _event(event: Any, where: str, source: str) -> _Event:
    def wrong(rule: str, value: object) -> NoReturn:
        refuse(where, rule, repr(value)[:60], _EVENT, source)

    known = {"node_id", "event_time", "event_type", "fault_type"}
    if not isinstance(event, dict) or set(event) != known:
        wrong("must be an event", list(event) if isinstance(event, dict) else event)
    at, kind = event["event_time"], event["fault_type"]
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 1e6:
        wrong("event_time must be a number of days, not negative", at)
    if event["event_type"] not in ("fault_start", "fault_end"):
        wrong("event_type must be fault_start or fault_end", event["event_type"])
    if not isinstance(event["node_id"], str) or not isinstance(kind, dict | str):
        wrong("node_id must be text, fault_type a mapping or text", kind)
    return _Event(
        event["node_id"],
        at * DAY,
        event["event_type"] == "fault_start",
        json.dumps(kind, sort_keys=True),
        _cause(kind),
        where,
    )


def _cause(kind: Mapping[str, Any] | str) -> str:
    name = str(kind if isinstance(kind, str) else kind.get("Class", "")).strip().lower()
    cause = CAUSES.get(name, name)
    is_hbm = cause == "gpu" and not isinstance(kind, str) and HBM in str(kind.get("Desc", ""))
    return "hbm" if is_hbm else cause


def _checked(
    host: str, start: float, end: float, cause: str, where: str, source: str
) -> tuple[str, float, float, str]:
    if not host:
        refuse(where, "must name a host", "nothing", "Correct that line.", source)
    if end < start:
        rule = "must not end before it starts"
        found = f"from {start / DAY:.6g} d to {end / DAY:.6g} d"
        refuse(where, rule, found, "Correct its times.", source)
    return host, start, end, cause or "unknown"
