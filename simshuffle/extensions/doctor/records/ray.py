"""Read the statistics of Ray Data on a loop over its batches: the text of `stats()` of
a dataset or iterator (ray 2.60), or its numbers as JSON.

The text is that of ray/data/_internal/stats.py, `IterStatsSummary.to_string` and
`OperatorStatsSummary`; numbers are rounded to two places of s, ms or us. As JSON it is
an object, or a list of one for each worker of Ray Train, with the names of its metrics:
`iter_total_blocked_s` and so on, or as its dashboard has them,
`data_iter_total_blocked_seconds`. The time that Ray's "user thread is blocked" is a
wait here, its "execution time for user thread" the steps.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.records.files import (
    read_json,
    read_unpacked,
    to_count,
    to_mapping,
    to_number,
)
from simshuffle.extensions.doctor.records.in_turn import rows_of_means
from simshuffle.extensions.doctor.records.record import Record, join_rows

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_TIME = r"([0-9.]+(?:e[+-]?\d+)?)(s|ms|us)\b"
_TEXT = {
    "iter_total_s": rf"Total time overall: {_TIME}",
    "iter_total_blocked_s": rf"user thread is blocked by Ray Data iter_batches: {_TIME}",
    "iter_user_s": rf"Total execution time for user thread: {_TIME}",
    "iter_collate_batch_s": rf"In collate_fn: .*?{_TIME} total",
    "iter_finalize_batch_s": rf"In host->device transfer: .*?{_TIME} total",
}
"""Pattern of each time in the text, by its name in JSON."""
_OPERATOR = re.compile(
    r"^\s*(?:Suboperator|Operator) \d+ (.+?): (\d+) tasks executed", re.MULTILINE
)
_MARKS = (
    b"Dataset iterator time breakdown",
    b"tasks executed, ",
    b"iter_total_blocked_s",
)


def is_ray(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` (unpacked) is of Ray Data."""
    return any(mark in head for mark in (*_MARKS, b"data_iter_total_blocked_seconds"))


def read_ray(path: Path) -> Record:
    """Read the record of a loop: for each rank, equal batches with the means of waits
    and steps; further rows of batch -1 with sums over the workers.

    The workers of a list (JSON) are the ranks, in its order; a text is of rank 0.

    Raises:
        InputError: the statistics of a rank do not have the waits, steps and number of
            batches.
    """
    source = str(path)
    text = read_unpacked(path)[0].decode("utf-8", "replace")
    if text.lstrip().startswith(("{", "[")):
        content = read_json(path)
        workers = content if isinstance(content, list) else [content]
        statistics_of_ranks = [_read_metrics(to_mapping(worker)) for worker in workers]
        parts = list[pd.DataFrame]()
    else:
        statistics_of_ranks = [_read_text(text)]
        parts = _rows_of_operators(text)
    notes = list[str]()
    for rank, statistics in enumerate(statistics_of_ranks):
        rows, notes_of_rank = _rows_of_rank(rank, statistics, source)
        parts += rows
        notes += [note for note in notes_of_rank if note not in notes]
    notes.append(
        "Rows of workers are sums over all tasks of Ray, which run beside the loop."
    )
    totals_s = [statistics["iter_total_s"] for statistics in statistics_of_ranks]
    total_s = max((seconds for seconds in totals_s if seconds >= 0), default=math.nan)
    about: dict[str, Any] = {
        "made_by": "ray",
        "ranks": len(statistics_of_ranks),
        **({} if math.isnan(total_s) else {"seconds": total_s}),
        "notes": notes,
    }
    return Record(join_rows(parts), about, source)


def _rows_of_rank(
    rank: int, statistics: dict[str, float], source: str
) -> tuple[list[pd.DataFrame], list[str]]:
    """Return the rows of a rank's batches and of its workers' sums, and notes on them.

    Sums of collating and copying are rows of batch -1 and worker 0; none where they are
    0 or not known.

    Raises:
        InputError: the waits, steps or number of batches are not known.
    """
    num_batches = int(statistics["iter_batches_total"])
    wait_s = statistics["iter_total_blocked_s"]
    step_s = statistics["iter_user_s"]
    if num_batches < 1 or math.isnan(wait_s + step_s):
        rule = "must tell how long a loop was blocked and computed, and its number of batches"
        remedy = (
            "Call stats() of a materialized dataset after the loop over its batches, or give"
            " its metrics as JSON: iter_total_blocked_s, iter_user_s, iter_batches_total."
        )
        refuse("RECORD", rule, f"{max(num_batches, 0)} batches", remedy, source)
    means = {"wait": wait_s / num_batches, "step": step_s / num_batches}
    batch_size = max(int(statistics["iter_rows_total"]), 0) // num_batches
    rows, notes = rows_of_means(rank, means, num_batches, count=batch_size)
    parts = [rows]
    for operation, metric in (
        ("collate", "iter_collate_batch_s"),
        ("copy", "iter_finalize_batch_s"),
    ):
        if statistics[metric] > 0:
            row = {
                "rank": rank,
                "worker": 0,
                "operation": operation,
                "seconds": statistics[metric],
                "start_s": 0.0,
                "batch": -1,
            }
            parts.append(pd.DataFrame([row]))
    return parts, notes


def _read_metrics(values: dict[str, Any]) -> dict[str, float]:
    """Return the times (s) and counts of an object of JSON, by `iter_...`; a missing
    time is nan, a missing count -1.
    """

    def metric(name: str) -> Any:
        dashboard_name = f"data_{re.sub('_s$', '_seconds', name)}"
        value = values.get(dashboard_name, values.get(f"ray_{dashboard_name}"))
        return values.get(name, value)

    counts = {
        name: to_count(metric(name))
        for name in ("iter_batches_total", "iter_rows_total")
    }
    return {**{name: to_number(metric(name)) for name in _TEXT}, **counts}


def _read_text(text: str) -> dict[str, float]:
    """Return the times (s) and counts of a text, by `iter_...`; a missing time is nan,
    a missing count -1.

    A missing number of batches is the total over the mean time of creating one.
    """
    statistics = {
        name: _seconds_of(re.search(pattern, text)) for name, pattern in _TEXT.items()
    }
    for name, label in (
        ("batches", "Total batches consumed"),
        ("rows", "Total rows consumed"),
    ):
        match = re.search(rf"{label}: (\d{{1,18}})\b", text)
        statistics[f"iter_{name}_total"] = int(match[1]) if match else -1
    if statistics["iter_batches_total"] < 0:
        # older versions do not write the number: each batch was created once
        creation = re.search(rf"In batch creation: .*?{_TIME} avg, {_TIME} total", text)
        mean_s = _seconds_of(creation)
        if mean_s > 0:
            num_batches = to_count((_seconds_of(creation, 3) / mean_s) + 0.5)
            statistics["iter_batches_total"] = num_batches
    return statistics


def _seconds_of(match: re.Match[str] | None, group: int = 1) -> float:
    """Return the s of a time of a match, whose number is in a group and whose unit is
    in the next one; nan if there is no match, or it has no number.
    """
    try:
        return (
            to_number(float(match[group]) * _UNITS[match[group + 1]])
            if match
            else math.nan
        )
    except ValueError:  # 1.2.3
        return math.nan


def _rows_of_operators(text: str) -> list[pd.DataFrame]:
    """Return a table of one row for each operator, with the sums over its tasks: a read
    if its name begins with Read or ListFiles, else a transform.

    The count is of tasks, the bytes of output. Rows are of batch -1 and worker 0, from
    0 s on. Operators without a wall time are left out.
    """
    parts = []
    heads = list(_OPERATOR.finditer(text))
    section_ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, section_end in zip(heads, section_ends, strict=False):
        section = text[head.end() : section_end]
        seconds = _seconds_of(
            re.search(rf"Remote wall time: .*?{_TIME} total", section)
        )
        nbytes = re.search(r"Output size bytes per block: .*?(\d{1,18}) total", section)
        if not math.isnan(seconds):
            row = {
                "operation": "read"
                if head[1].startswith(("Read", "ListFiles"))
                else "transform",
                "seconds": seconds,
                "cpu_s": _seconds_of(
                    re.search(rf"Remote cpu time: .*?{_TIME} total", section)
                ),
                "count": to_count(int(head[2][:18])),
                "nbytes": int(nbytes[1]) if nbytes else 0,
                "start_s": 0.0,
                "batch": -1,
                "worker": 0,
            }
            parts.append(pd.DataFrame([row]))
    return parts
