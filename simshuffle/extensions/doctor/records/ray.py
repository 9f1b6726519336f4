"""What Ray Data tells of a loop over its batches: the text of `stats()` of a dataset or iterator
(ray 2.60), or the same numbers as JSON.

The text is that of ray/data/_internal/stats.py, `IterStatsSummary.to_string` and
`OperatorStatsSummary`; numbers are rounded to two places of s, ms or us. As JSON it is an object,
or a list of one for each worker of Ray Train, with the names of its metrics: `iter_total_blocked_s`
and so on, or as its dashboard has them, `data_iter_total_blocked_seconds`. The time that Ray's
"user thread is blocked" is a wait here, its "execution time for user thread" the steps.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.records.files import json_of, mapping, number, unpacked, whole
from simshuffle.extensions.doctor.records.in_turn import of_means
from simshuffle.extensions.doctor.records.record import Record, joined

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_TIME = r"([0-9.]+(?:e[+-]?\d+)?)(s|ms|us)\b"
_TEXT = {
    "iter_total_s": rf"Total time overall: {_TIME}",
    "iter_total_blocked_s": rf"user thread is blocked by Ray Data iter_batches: {_TIME}",
    "iter_user_s": rf"Total execution time for user thread: {_TIME}",
    "iter_collate_batch_s": rf"In collate_fn: .*?{_TIME} total",
    "iter_finalize_batch_s": rf"In host->device transfer: .*?{_TIME} total",
}
"""Of each time, by its name in JSON, what stands in the text."""
_OPERATOR = re.compile(
    r"^\s*(?:Suboperator|Operator) \d+ (.+?): (\d+) tasks executed", re.MULTILINE
)
_MARKS = (b"Dataset iterator time breakdown", b"tasks executed, ", b"iter_total_blocked_s")


def is_ray(head: bytes) -> bool:
    """Whether a file that begins so is of Ray Data."""
    return any(mark in head for mark in (*_MARKS, b"data_iter_total_blocked_seconds"))


def read_ray(path: Path) -> Record:
    """The record of a loop. Raises an InputError if it does not tell how long its batches were
    waited for, and how many there were."""
    source, content = str(path), unpacked(path)[0]
    text = content.decode("utf-8", "replace")
    if text.lstrip().startswith(("{", "[")):
        found = json_of(path)
        told = [_named(mapping(each)) for each in (found if isinstance(found, list) else [found])]
        parts = list[pd.DataFrame]()
    else:
        told, parts = [_in_text(text)], _operators(text)
    notes = list[str]()
    for rank, of in enumerate(told):
        batches = int(of["iter_batches_total"])
        wait, steps = of["iter_total_blocked_s"], of["iter_user_s"]
        if batches < 1 or math.isnan(wait + steps):
            rule = (
                "must tell of a loop: times that it was blocked and that it computed, and batches"
            )
            remedy = (
                "Call stats() of a materialized dataset after the loop over its batches, or give"
                " its metrics as JSON: iter_total_blocked_s, iter_user_s, iter_batches_total."
            )
            refuse("RECORD", rule, f"{max(batches, 0)} batches", remedy, source)
        means = {"wait": wait / batches, "step": steps / batches}
        size = max(int(of["iter_rows_total"]), 0) // batches
        rows, notes = of_means(rank, means, batches, count=size)
        parts.append(rows)
        for name, key in {
            "collate": "iter_collate_batch_s",
            "copy": "iter_finalize_batch_s",
        }.items():
            if of[key] > 0:
                whole_of = {"operation": name, "seconds": of[key], "start_s": 0.0, "batch": -1}
                parts.append(pd.DataFrame([{"rank": rank, "worker": 0, **whole_of}]))
    notes.append("Rows of workers are sums over all tasks of Ray, which run beside the loop.")
    took = max((of["iter_total_s"] for of in told if of["iter_total_s"] >= 0), default=math.nan)
    about: dict[str, Any] = {
        "made_by": "ray",
        "ranks": len(told),
        **({} if math.isnan(took) else {"seconds": took}),
        "notes": notes,
    }
    return Record(joined(parts), about, source)


def _named(values: dict[str, Any]) -> dict[str, float]:
    """The times (s) and counts of an object of JSON, by `iter_...`; nan or -1 if not told."""

    def value(name: str) -> Any:
        dashboard = f"data_{re.sub('_s$', '_seconds', name)}"
        return values.get(name, values.get(dashboard, values.get(f"ray_{dashboard}")))

    counts = {name: whole(value(name)) for name in ("iter_batches_total", "iter_rows_total")}
    return {**{name: number(value(name)) for name in _TEXT}, **counts}


def _in_text(text: str) -> dict[str, float]:
    """The same of a text."""
    found = {name: _seconds(re.search(of, text)) for name, of in _TEXT.items()}
    for name, words in (("batches", "Total batches consumed"), ("rows", "Total rows consumed")):
        count = re.search(rf"{words}: (\d{{1,18}})\b", text)
        found[f"iter_{name}_total"] = int(count[1]) if count else -1
    if found["iter_batches_total"] < 0:
        # older ones do not tell: each batch was made once
        made = re.search(rf"In batch creation: .*?{_TIME} avg, {_TIME} total", text)
        if (mean := _seconds(made)) > 0:
            found["iter_batches_total"] = whole((_seconds(made, 3) / mean) + 0.5)
    return found


def _seconds(match: re.Match[str] | None, group: int = 1) -> float:
    """s of a time of a match, whose number is that group; nan if there is none."""
    try:
        return number(float(match[group]) * _UNITS[match[group + 1]]) if match else math.nan
    except ValueError:  # 1.2.3
        return math.nan


def _operators(text: str) -> list[pd.DataFrame]:
    """Rows of what tasks did, one for each operator: reading, or the rest of samples."""
    out = []
    heads = list(_OPERATOR.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=False):
        part = text[head.end() : end]
        seconds = _seconds(re.search(rf"Remote wall time: .*?{_TIME} total", part))
        size = re.search(r"Output size bytes per block: .*?(\d{1,18}) total", part)
        if not math.isnan(seconds):
            row = {
                "operation": "read" if head[1].startswith(("Read", "ListFiles")) else "transform",
                "seconds": seconds,
                "cpu_s": _seconds(re.search(rf"Remote cpu time: .*?{_TIME} total", part)),
                "count": whole(int(head[2][:18])),
                "nbytes": int(size[1]) if size else 0,
                **{"start_s": 0.0, "batch": -1, "worker": 0},
            }
            out.append(pd.DataFrame([row]))
    return out
