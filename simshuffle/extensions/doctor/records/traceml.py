"""The final summary that TraceML (traceml-ai 0.5.0) writes of a training, `final_summary.json`.

Keys are those of its traceml_ai/reporting/SCHEMA.md, schema 1.7 to 1.9: for each rank the means of
a window of steps, in ms, null for what was not measured. A step of TraceML is the wait for its
batch (`input_wait_ms`) and what is traced after it (`traced_step_time_ms`), which is a step here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.records.files import json_of, mapping, number, text, whole
from simshuffle.extensions.doctor.records.in_turn import of_means
from simshuffle.extensions.doctor.records.record import Record, joined

SUMMARY = "final_summary.json"
"""Its name, in the folder of a session."""
SCHEMAS = (1.7, 1.8, 1.9)
METRICS = {
    "wait": "input_wait_ms",
    "step": "traced_step_time_ms",
    "copy": "h2d_ms",
    "forward": "forward_ms",
    "backward": "backward_ms",
    "optimizer": "optimizer_ms",
}
"""Of each operation the name that TraceML has for it."""


def is_traceml(head: bytes) -> bool:
    """Whether a file that begins so is a summary of TraceML."""
    return (
        head.lstrip().startswith(b"{")
        and b'"schema_version"' in head
        and any(
            key in head for key in (b'"primary_diagnosis"', b'"step_time"', b'"analysis_window"')
        )
    )


def read_traceml(path: Path) -> Record:
    """The record of a summary. Raises an InputError if it is not whole, of another schema, or has
    no steps."""
    source, summary = str(path), mapping(json_of(path))
    if (schema := summary.get("schema_version")) not in SCHEMAS:
        rule = f"must be one of {', '.join(map(str, SCHEMAS))}"
        remedy = "Record it with TraceML 0.5, or a version of that schema."
        refuse("schema_version", rule, text(repr(schema)[:40]), remedy, source)
    section = mapping(summary.get("step_time"))
    window = mapping(mapping(section.get("global")).get("window"))
    steps = whole(window.get("steps_analyzed"))
    parts, notes, missing = list[pd.DataFrame](), list[str](), set[str]()
    for name, row in mapping(mapping(section.get("groups")).get("rows")).items():
        means = _means(mapping(mapping(row).get("metrics")))
        missing |= METRICS.keys() - means.keys()
        rank = whole(mapping(mapping(row).get("identity")).get("global_rank"))
        if steps > 0 and {"wait", "step"} <= means.keys():
            rank = rank if 0 <= rank < 2**31 else len(parts)
            rows, notes = of_means(rank, means, steps)
            parts.append(rows)
        else:
            missing.add(f"rank {text(name[:20])}")
    if not parts:
        rule, remedy = (
            "must have steps with input_wait_ms and traced_step_time_ms",
            ("Run the training with trace_step, not with `traceml watch`."),
        )
        refuse("step_time", rule, f"{max(steps, 0)} steps", remedy, source)
    if missing:
        notes.append(f"Not measured by TraceML for all ranks: {', '.join(sorted(missing))}.")
    clock = window.get("diagnosis_clock")
    if isinstance(clock, str):
        notes.append(f"TraceML chose times of this clock: {text(clock[:20])}.")
    took = number(summary.get("duration_s"))
    about: dict[str, Any] = {
        "made_by": "traceml",
        "ranks": max(whole(mapping(summary.get("meta")).get("world_size")), len(parts)),
        **({} if np.isnan(took) else {"seconds": took}),
        "notes": notes,
    }
    return Record(joined(parts), about, source)


def _means(metrics: dict[str, Any]) -> dict[str, float]:
    """The mean of each operation that was measured, s."""
    found = {name: number(metrics.get(metric)) / 1e3 for name, metric in METRICS.items()}
    return {name: seconds for name, seconds in found.items() if not np.isnan(seconds)}
