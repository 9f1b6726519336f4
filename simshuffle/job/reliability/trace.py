"""Read recorded faults: JSON of starts and ends by node, or CSV."""

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
MAX_NBYTES = 100_000_000
"""Bytes of a file of faults: 200,000 faults and more."""
COLUMNS = ("host", "start", "end", "class")
"""Columns of a CSV file of faults, in any order."""
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
"""Classes of stepfun-ai/InfiniteHBD-Trace, and the cause that each is here; another is
its own.
"""
HBM = "DBE"
"""Word in a description for a double bit error: the memory of a GPU failed."""


@dataclass(frozen=True)
class FaultTrace:
    """Recorded faults of the hosts of a machine."""

    faults: Faults  # in the order of their starts
    hosts: int  # that were watched
    length: float  # s for which they were
    open: int  # faults that had not ended then, which end with the trace
    sha256: str  # of the file, in hexadecimal


def read_trace(
    path: Path, hosts: int | None = None, length: float | None = None
) -> FaultTrace:
    """Read the faults of a file; a file that was read before is read again only if its
    time of change differs.

    Args:
        hosts: how many were watched; None for the hosts in the file.
        length: for how many s they were watched; None for until the last event.

    Raises:
        InputError: there is no such file, it is no trace, a fault ends before it
            starts, there is none, it has more hosts or a longer time than is said, or
            more than `MAX_NBYTES` bytes.
    """
    try:
        stamp = path.stat()
    except (OSError, ValueError):
        remedy = "Name a JSON or CSV file of faults."
        refuse("path", "no such file", repr(str(path)), remedy, "trace of faults")
    if stamp.st_size > MAX_NBYTES:
        rule = f"must have at most {MAX_NBYTES} bytes"
        refuse("path", rule, f"{stamp.st_size}", "Give fewer faults.", str(path))
    rows, names, sha256 = _read(path, stamp.st_mtime_ns)
    return build_trace(
        rows, names, sha256=sha256, hosts=hosts, length=length, source=str(path)
    )


Rows = tuple[tuple[str, float, float, str], ...]
"""A row for each fault: host, start and end in s (infinite if it has no end), and
cause.
"""


@lru_cache(4)
def _read(path: Path, stamp: int) -> tuple[Rows, tuple[str, ...], str]:
    """Return the rows, the hosts in order, and the hash of a file; kept by its
    ``stamp``.

    Raises:
        InputError: as `read_trace`.
    """
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        refuse(
            "path",
            "must be a text file in UTF-8",
            str(error)[:60],
            "Save it so.",
            str(path),
        )
    is_json = text.lstrip().startswith(("[", "{"))
    rows = tuple((parse_json if is_json else parse_csv)(text, str(path)))
    if not rows:
        refuse(
            "path", "must hold a fault", "none", "Give a trace with faults.", str(path)
        )
    names = tuple(dict.fromkeys(host for host, *_ in rows))
    return rows, names, hashlib.sha256(data).hexdigest()


def build_trace(
    rows: Rows,
    names: tuple[str, ...],
    *,
    sha256: str,
    hosts: int | None,
    length: float | None,
    source: str,
) -> FaultTrace:
    """Build the trace from its rows; ``hosts``, ``length`` and errors as in
    `read_trace`.

    Faults are sorted by start; those without an end last to the end of the trace.
    """
    start, end = (np.array([row[n] for row in rows]) for n in (1, 2))
    last = float(max(start.max(), end[np.isfinite(end)].max(initial=0.0)))
    if hosts is not None and hosts < len(names):
        rule = f"must be at least the {len(names)} hosts of the file"
        refuse("hosts", rule, str(hosts), "Say how many were watched.", source)
    if length is not None and length < last:
        rule = f"must be at least {last / DAY:.6g} d, the last event of the file"
        refuse(
            "length",
            rule,
            f"{length / DAY:.6g} d",
            "Say how long they were watched.",
            source,
        )
    if (total_length := length or last) <= 0:
        refuse(
            "path", "must end after 0 s", "all at 0 s", "Give times of events.", source
        )
    causes = tuple(dict.fromkeys(row[3] for row in rows))
    places, kinds = (
        {name: n for n, name in enumerate(names_in_order)}
        for names_in_order in (names, causes)
    )
    faults = Faults(
        np.array([places[row[0]] for row in rows]),
        start,
        np.where(np.isfinite(end), end, total_length),
        np.array([kinds[row[3]] for row in rows]),
        causes,
    )
    num_open = int(np.count_nonzero(~np.isfinite(end)))
    return FaultTrace(
        faults.sort_by_start(), hosts or len(names), total_length, num_open, sha256
    )


def parse_csv(text: str, source: str) -> Iterable[tuple[str, float, float, str]]:
    """Yield host, start (s), end (s) and cause of each line of a CSV file.

    The end is infinite if it is empty.

    Raises:
        InputError: columns, a number of values, a time or a fault are wrong.
    """
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    columns = tuple(reader.fieldnames or ())
    if set(columns) != set(COLUMNS) or len(columns) != len(COLUMNS):
        rule = f"must have the columns {', '.join(COLUMNS)}"
        remedy = "Name them in the first line; leave others out."
        refuse("path", rule, ", ".join(map(str, columns)) or "no line", remedy, source)
    try:
        for line in reader:
            where = f"line {reader.line_num}"
            if None in line or None in line.values():
                rule = f"must have {len(COLUMNS)} values"
                refuse(where, rule, "another number", "Correct that line.", source)
            start = _seconds(line["start"], where, source)
            end = (
                _seconds(line["end"], where, source)
                if line["end"].strip()
                else math.inf
            )
            yield check_fault(
                line["host"].strip(),
                start,
                end,
                classify_cause(line["class"]),
                where=where,
                source=source,
            )
    except csv.Error as error:
        refuse("path", "must be CSV", str(error)[:60], "Correct that line.", source)


def _seconds(text: str, where: str, source: str) -> float:
    """Return the seconds of a time with a unit; an InputError if it is none."""
    try:
        return parse_quantity(text, Dimension.SECONDS)
    except UnitError as error:
        refuse(where, str(error), repr(text)[:60], "Write for example '3.5 d'.", source)


def parse_json(text: str, source: str) -> Iterable[tuple[str, float, float, str]]:
    """Yield host, start (s), end (s) and cause of each fault in a list of events,
    sorted by start.

    An event has node_id, event_time (d), event_type and fault_type. An end belongs to
    the oldest open fault of its host and type; the end is infinite if there is none.

    Raises:
        InputError: it is no such list, or an end has no start.
    """
    try:
        events = json.loads(text)
    except (ValueError, RecursionError) as error:
        refuse("path", "must be JSON or CSV", str(error)[:60], "Correct it.", source)
    if not isinstance(events, list):
        refuse(
            "path", "must be a list of events", type(events).__name__, _EVENT, source
        )
    read = [
        parse_event(event, f"event {n}", source) for n, event in enumerate(events, 1)
    ]
    # of one moment the starts come first: some faults end when they start
    read.sort(key=lambda event: (event.time_s, not event.starts))
    open_by_kind: dict[tuple[str, str], list[_Event]] = {}
    ended: list[tuple[_Event, float]] = []
    for event in read:
        open_faults = open_by_kind.setdefault((event.host, event.kind), [])
        if event.starts:
            open_faults.append(event)
        elif open_faults:
            ended.append((open_faults.pop(0), event.time_s))
        else:
            rule = "must not end a fault before it starts"
            remedy = "Put its fault_start before it, with the same fault_type."
            refuse(
                event.where,
                rule,
                f"{event.host} at {event.time_s / DAY:g} d",
                remedy,
                source,
            )
    ended += [
        (event, math.inf)
        for open_faults in open_by_kind.values()
        for event in open_faults
    ]
    for event, end in sorted(ended, key=lambda event_and_end: event_and_end[0].time_s):
        yield check_fault(
            event.host, event.time_s, end, event.cause, where=event.where, source=source
        )


_EVENT = (
    "An event has node_id, event_time in days, event_type"
    " (fault_start, fault_end), fault_type."
)


@dataclass(frozen=True)
class _Event:
    """An event of a JSON list: the start or the end of a fault."""

    host: str
    time_s: float  # s
    starts: bool  # whether a fault starts, and does not end
    kind: str  # its fault_type as text, equal for the start and the end of a fault
    cause: str  # as of `classify_cause`
    where: str  # in the file, such as 'event 3'


def parse_event(event: Any, where: str, source: str) -> _Event:
    """Check an event of a JSON list and return it.

    Raises:
        InputError: keys are missing or unknown, or a value is not valid.
    """

    def wrong(rule: str, value: object) -> NoReturn:
        """Refuse the event."""
        refuse(where, rule, repr(value)[:60], _EVENT, source)

    expected_keys = {"node_id", "event_time", "event_type", "fault_type"}
    if not isinstance(event, dict) or set(event) != expected_keys:
        wrong("must be an event", list(event) if isinstance(event, dict) else event)
    days = event["event_time"]
    kind = event["fault_type"]
    if (
        isinstance(days, bool)
        or not isinstance(days, int | float)
        or not 0 <= days < 1e6
    ):
        wrong("event_time must be a number of days, not negative", days)
    if event["event_type"] not in ("fault_start", "fault_end"):
        wrong("event_type must be fault_start or fault_end", event["event_type"])
    if not isinstance(event["node_id"], str) or not isinstance(kind, dict | str):
        wrong("node_id must be text, fault_type a mapping or text", kind)
    return _Event(
        event["node_id"],
        days * DAY,
        event["event_type"] == "fault_start",
        json.dumps(kind, sort_keys=True),
        classify_cause(kind),
        where,
    )


def classify_cause(kind: Mapping[str, Any] | str) -> str:
    """Return the cause that a fault type stands for, see `CAUSES`.

    'hbm' for a GPU whose description has the word `HBM`. A class that is not listed is
    its own cause, in small letters; '' without a class.
    """
    name = str(kind if isinstance(kind, str) else kind.get("Class", "")).strip().lower()
    cause = CAUSES.get(name, name)
    is_hbm = (
        cause == "gpu"
        and not isinstance(kind, str)
        and HBM in str(kind.get("Desc", ""))
    )
    return "hbm" if is_hbm else cause


def check_fault(
    host: str, start: float, end: float, cause: str, *, where: str, source: str
) -> tuple[str, float, float, str]:
    """Return the fault as given, but for the cause: 'unknown' if it is ''.

    Raises:
        InputError: it has no host, or ends before it starts.
    """
    if not host:
        refuse(where, "must name a host", "nothing", "Correct that line.", source)
    if end < start:
        rule = "must not end before it starts"
        stated_times = f"from {start / DAY:.6g} d to {end / DAY:.6g} d"
        refuse(where, rule, stated_times, "Correct its times.", source)
    return host, start, end, cause or "unknown"
