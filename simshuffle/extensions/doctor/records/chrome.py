"""A trace of PyTorch's profiler (Kineto) in the JSON of Chrome: its events as a table.

The keys are those that Kineto's libkineto/src/output_json.cpp writes (torch 2.13): `schemaVersion`,
`distributedInfo`, `deviceProperties`, `host_name`, `baseTimeNanoseconds` (of which `ts` is so many
microseconds after) and `traceEvents`. Older ones (torch 1.8) lack the base and begin the names of
categories with a capital.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.records.files import mapping, number, text, unpacked

SCHEMA = 1
"""The only version of Kineto's JSON there has been."""
KINDS = {
    **{kind: kind for kind in ("cpu_op", "user_annotation", "kernel", "gpu_memcpy")},
    **{"operator": "cpu_op", "memcpy": "gpu_memcpy", "runtime": "launch"},
    **{"cuda_runtime": "launch", "cuda_driver": "launch", "fwdbwd": "flow"},
}
"""Of the categories that are read, in small letters, what they are here."""
_LONGEST_NS = 4 * 10**18
"""After it, a time is not one of a trace: the year 2096 as ns."""
_DAY_NS = 86_400 * 10**9
_ARRAY = re.compile(r'"traceEvents"\s*:\s*\[|^\s*\[')
_BETWEEN = re.compile(r"[\s,]*")


class ChromeTrace(NamedTuple):
    """A trace.

    Attributes:
        events: in the order of ``start``, with kind (a value of `KINDS`), name, start and end (ns,
            int), process (a text) and args (a mapping).
        about: what is beside the events.
        horizon: ns until which the events are all there; that of the last one if the trace is
            whole.
        notes: sentences on what could not be read.
    """

    events: pd.DataFrame
    about: Mapping[str, Any]
    horizon: int
    notes: list[str]


def is_chrome(head: bytes) -> bool:
    """Whether a file that begins so is a trace of Kineto."""
    keys = (b'"traceEvents"', b'"schemaVersion"', b'"distributedInfo"', b'"deviceProperties"')
    if head.lstrip().startswith(b"["):
        return b'"ph"' in head
    return head.lstrip().startswith(b"{") and any(key in head for key in keys)


def read_chrome(path: Path) -> ChromeTrace:
    """The trace of a file, plain or packed; of one that is cut, what is whole of it. Raises an
    InputError if there are no events, or they are not of one clock."""
    source = str(path)
    content, cut = unpacked(path)
    written = content.decode("utf-8", "replace")
    try:
        about = json.loads(written)
    except (ValueError, RecursionError):
        about, cut = _whole_part(written), True
    about = {"traceEvents": about} if isinstance(about, list) else mapping(about)
    if about.get("schemaVersion", SCHEMA) != SCHEMA:
        rule, value = f"must be {SCHEMA}", repr(about["schemaVersion"])[:40]
        refuse("schemaVersion", rule, value, "Record it with a released PyTorch.", source)
    listed = about.pop("traceEvents", None)
    listed = listed if isinstance(listed, list) else []
    base = number(about.get("baseTimeNanoseconds", 0))
    base_ns = int(about["baseTimeNanoseconds"]) if 0 < base < _LONGEST_NS else 0
    columns = ("kind", "name", "start", "end", "process", "args")
    events = pd.DataFrame(list(_events(listed, base_ns)), columns=columns)
    if events.empty:
        rule, value = "must have events of a training", f"{len(listed)} events of other kinds"
        remedy = "Write it with torch.profiler's export_chrome_trace, with the activity CPU."
        refuse("traceEvents", rule, value, remedy, source)
    horizon = int(events["start"].iloc[-1]) if cut else int(events["end"].max())
    events = events.sort_values("start", kind="stable", ignore_index=True)
    if (gap := int(events["start"].diff().max() if len(events) > 1 else 0)) > _DAY_NS:
        value = f"{gap / _DAY_NS:.0f} days between two events"
        remedy = "Give the trace of one process, in microseconds, as the profiler wrote it."
        refuse("traceEvents", "must be of one clock", value, remedy, source)
    notes = ["The trace is cut: only what is whole of it was read."] if cut else []
    return ChromeTrace(events, about, horizon, notes)


def _whole_part(written: str) -> dict[str, Any]:
    """What is whole of a text that is no JSON: what is before the events, and the events."""
    if not (opening := _ARRAY.search(written)):
        return {}
    try:
        about = mapping(json.loads(f"{written[: opening.end()]}]}}"))
    except (ValueError, RecursionError):
        about = {}
    decoder, events, at = json.JSONDecoder(), list[Any](), opening.end()
    while True:
        try:
            begin = _BETWEEN.match(written, at).end()  # type: ignore[union-attr]  # it matches ''
            event, at = decoder.raw_decode(written, begin)
        except (ValueError, RecursionError):
            return {**about, "traceEvents": events}
        events.append(event)


def _events(listed: list[Any], base_ns: int) -> Iterator[tuple[Any, ...]]:
    """Rows of the table of events; those with times that are none are left out."""
    for event in listed:
        found = mapping(event)
        kind = KINDS.get(str(found.get("cat")).lower())
        if kind is None or found.get("ph") not in ("X", "s"):
            continue
        start = base_ns + number(found.get("ts")) * 1e3
        seconds = number(found.get("dur", 0)) * 1e3
        if start < _LONGEST_NS and seconds < _LONGEST_NS:
            start_ns = base_ns + round(found["ts"] * 1000)
            end_ns = start_ns + round(seconds)
            about = (text(found.get("pid")), mapping(found.get("args")))
            yield kind, text(found.get("name")), start_ns, end_ns, *about
