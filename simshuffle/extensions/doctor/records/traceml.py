"""Read the final summary that TraceML (traceml-ai 0.5.0) writes of a training.

Its name is `final_summary.json`.

Keys are those of its traceml_ai/reporting/SCHEMA.md, schema 1.7 to 1.9: for each rank
the means of a window of steps, in ms, null for what was not measured. A step of TraceML
is the wait for its batch (`input_wait_ms`) and what is traced after it
(`traced_step_time_ms`), which is a step here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.records.files import (
    printable,
    read_json,
    to_count,
    to_mapping,
    to_number,
)
from simshuffle.extensions.doctor.records.in_turn import rows_of_means
from simshuffle.extensions.doctor.records.record import Record, join_rows

SUMMARY = "final_summary.json"
"""Name of the summary in the folder of a session."""
SCHEMAS = (1.7, 1.8, 1.9)
METRICS = {
    "wait": "input_wait_ms",
    "step": "traced_step_time_ms",
    "copy": "h2d_ms",
    "forward": "forward_ms",
    "backward": "backward_ms",
    "optimizer": "optimizer_ms",
}
"""Name that TraceML has for each operation."""


def is_traceml(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` (unpacked) is a summary of
    TraceML.
    """
    return (
        head.lstrip().startswith(b"{")
        and b'"schema_version"' in head
        and any(
            key in head
            for key in (b'"primary_diagnosis"', b'"step_time"', b'"analysis_window"')
        )
    )


def read_traceml(path: Path) -> Record:
    """Read the record of a summary: equal batches for each rank with wait and step;
    ranks without them are left out, with a note.

    Batches have the means of the window's steps. At most 1000 have rows, with a note.

    Raises:
        InputError: the summary is not complete, of another schema, or has no steps.
    """
    source = str(path)
    summary = to_mapping(read_json(path))
    if (schema := summary.get("schema_version")) not in SCHEMAS:
        rule = f"must be one of {', '.join(map(str, SCHEMAS))}"
        remedy = "Record it with TraceML 0.5, or a version of that schema."
        refuse("schema_version", rule, printable(repr(schema)[:40]), remedy, source)
    section = to_mapping(summary.get("step_time"))
    window = to_mapping(to_mapping(section.get("global")).get("window"))
    steps = to_count(window.get("steps_analyzed"))
    parts = list[pd.DataFrame]()
    notes = list[str]()
    missing = set[str]()
    for name, row in to_mapping(to_mapping(section.get("groups")).get("rows")).items():
        means = _means(to_mapping(to_mapping(row).get("metrics")))
        missing |= METRICS.keys() - means.keys()
        rank = to_count(to_mapping(to_mapping(row).get("identity")).get("global_rank"))
        if steps > 0 and {"wait", "step"} <= means.keys():
            rank = rank if 0 <= rank < 2**31 else len(parts)
            rows, notes = rows_of_means(rank, means, steps)
            parts.append(rows)
        else:
            missing.add(f"rank {printable(name[:20])}")
    if not parts:
        rule = "must have steps with input_wait_ms and traced_step_time_ms"
        remedy = "Run the training with trace_step, not with `traceml watch`."
        refuse("step_time", rule, f"{max(steps, 0)} steps", remedy, source)
    if missing:
        notes.append(
            f"Not measured by TraceML for all ranks: {', '.join(sorted(missing))}."
        )
    clock = window.get("diagnosis_clock")
    if isinstance(clock, str):
        notes.append(f"TraceML chose the times of this clock: {printable(clock[:20])}.")
    duration_s = to_number(summary.get("duration_s"))
    about: dict[str, Any] = {
        "made_by": "traceml",
        "ranks": max(
            to_count(to_mapping(summary.get("meta")).get("world_size")), len(parts)
        ),
        **({} if np.isnan(duration_s) else {"seconds": duration_s}),
        "notes": notes,
    }
    return Record(join_rows(parts), about, source)


def _means(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the mean s of each operation of `METRICS` that was measured; others are
    left out.
    """
    means = {
        operation: to_number(metrics.get(metric)) / 1e3
        for operation, metric in METRICS.items()
    }
    return {
        operation: seconds
        for operation, seconds in means.items()
        if not np.isnan(seconds)
    }
