"""Read the events of a trace of PyTorch's profiler (Kineto), which is in the JSON of
Chrome.

The keys are those that Kineto's libkineto/src/output_json.cpp writes (torch 2.13):
`schemaVersion`, `distributedInfo`, `deviceProperties`, `host_name`,
`baseTimeNanoseconds` (of which `ts` is so many microseconds after) and `traceEvents`.
Older ones (torch 1.8) lack the base and begin the names of categories with a capital.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.records.files import (
    printable,
    read_unpacked,
    to_mapping,
    to_number,
)

SCHEMA = 1
"""The only version of Kineto's JSON so far."""
KINDS = {
    **{kind: kind for kind in ("cpu_op", "user_annotation", "kernel", "gpu_memcpy")},
    **{"operator": "cpu_op", "memcpy": "gpu_memcpy", "runtime": "launch"},
    **{"cuda_runtime": "launch", "cuda_driver": "launch", "fwdbwd": "flow"},
}
"""Kind of an event, by its category in small letters."""
_LONGEST_NS = 4 * 10**18
"""Time from which on it is not one of a trace, ns: the year 2096."""
_DAY_NS = 86_400 * 10**9
_ARRAY = re.compile(r'"traceEvents"\s*:\s*\[|^\s*\[')
_BETWEEN = re.compile(r"[\s,]*")


class ChromeTrace(NamedTuple):
    """The events of a trace.

    Attributes:
        events: in the order of ``start``, with kind (a value of `KINDS`), name, start
            and end (ns, int), process (a text) and args (a mapping).
        about: keys of the file beside the events.
        horizon: ns until which all events are in the trace: the last end if the trace
            is complete, else the start of the last event in the file.
        notes: sentences on what could not be read.
    """

    events: pd.DataFrame
    about: Mapping[str, Any]
    horizon: int
    notes: list[str]


def is_chrome(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` (unpacked) is a trace of Kineto:
    an object with one of its keys, or a list with events.
    """
    keys = (
        b'"traceEvents"',
        b'"schemaVersion"',
        b'"distributedInfo"',
        b'"deviceProperties"',
    )
    if head.lstrip().startswith(b"["):
        return b'"ph"' in head
    return head.lstrip().startswith(b"{") and any(key in head for key in keys)


def read_chrome(path: Path) -> ChromeTrace:
    """Read the trace of a file, plain or packed; of one that is cut, its complete
    events.

    Raises:
        InputError: the file cannot be read, its schema is another one, there are no
            events, or they are not of one clock (a day without any lies between two).
    """
    source = str(path)
    content, is_cut = read_unpacked(path)
    text = content.decode("utf-8", "replace")
    try:
        about = json.loads(text)
    except (ValueError, RecursionError):
        about = _parse_cut_trace(text)
        is_cut = True
    about = {"traceEvents": about} if isinstance(about, list) else to_mapping(about)
    if about.get("schemaVersion", SCHEMA) != SCHEMA:
        rule = f"must be {SCHEMA}"
        value = repr(about["schemaVersion"])[:40]
        refuse(
            "schemaVersion", rule, value, "Record it with a released PyTorch.", source
        )
    objects = about.pop("traceEvents", None)
    objects = objects if isinstance(objects, list) else []
    base = to_number(about.get("baseTimeNanoseconds", 0))
    base_ns = int(about["baseTimeNanoseconds"]) if 0 < base < _LONGEST_NS else 0
    columns = ("kind", "name", "start", "end", "process", "args")
    events = pd.DataFrame(list(_rows_of_events(objects, base_ns)), columns=columns)
    if events.empty:
        rule = "must have events of a training"
        value = f"{len(objects)} events of other kinds"
        remedy = (
            "Write it with torch.profiler's export_chrome_trace, with the activity CPU."
        )
        refuse("traceEvents", rule, value, remedy, source)
    horizon = int(events["start"].iloc[-1]) if is_cut else int(events["end"].max())
    events = events.sort_values("start", kind="stable", ignore_index=True)
    if (gap := int(events["start"].diff().max() if len(events) > 1 else 0)) > _DAY_NS:
        value = f"{gap / _DAY_NS:.0f} days between two events"
        remedy = (
            "Give the trace of one process, in microseconds, as the profiler wrote it."
        )
        refuse("traceEvents", "must have one clock", value, remedy, source)
    notes = (
        ["The trace is cut off: only its complete events were read."] if is_cut else []
    )
    return ChromeTrace(events, about, horizon, notes)


def _parse_cut_trace(text: str) -> dict[str, Any]:
    """Return the keys before the events, and the complete events as ``traceEvents``, of
    a text that is cut; {} if it has no list of events.

    Events from the first one on that is no JSON are left out.
    """
    if not (opening := _ARRAY.search(text)):
        return {}
    try:
        about = to_mapping(json.loads(f"{text[: opening.end()]}]}}"))
    except (ValueError, RecursionError):
        about = {}
    decoder = json.JSONDecoder()
    events = list[Any]()
    offset = opening.end()
    while True:
        try:
            begin = _BETWEEN.match(text, offset).end()  # type: ignore[union-attr]  # it matches ''
            event, offset = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            return {**about, "traceEvents": events}
        events.append(event)


def _rows_of_events(objects: list[Any], base_ns: int) -> Iterator[tuple[Any, ...]]:
    """Yield kind, name, start (ns), end (ns), process and args of each event.

    Left out are events without a valid start, with a category that is not in `KINDS`,
    and of other phases than "X" (complete) and "s" (start of a flow). An event without
    a duration ends as it starts.

    Args:
        objects: of the JSON.
        base_ns: ns that are added to all times.
    """
    for json_object in objects:
        event = to_mapping(json_object)
        kind = KINDS.get(str(event.get("cat")).lower())
        if kind is None or event.get("ph") not in ("X", "s"):
            continue
        start = base_ns + to_number(event.get("ts")) * 1e3
        duration = to_number(event.get("dur", 0)) * 1e3
        if start < _LONGEST_NS and duration < _LONGEST_NS:
            start_ns = base_ns + round(event["ts"] * 1000)
            name = printable(event.get("name"))
            process = printable(event.get("pid"))
            args = to_mapping(event.get("args"))
            yield kind, name, start_ns, start_ns + round(duration), process, args
