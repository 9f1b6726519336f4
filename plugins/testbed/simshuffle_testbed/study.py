"""The study behind ``simshuffle machine testbed``: what was measured in network namespaces, beside
what is predicted of them.

A measurement is never the same twice, so it is no cell that a store could hold: it is made first
and comes with the request. The study fits, predicts and compares.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simshuffle.errors import Problem, refuse
from simshuffle.results.chart import Chart
from simshuffle.results.table_io import rows
from simshuffle.studies.validation.testbed import Overhead
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Derived, Meta, Request, Result, Study, Tables
from simshuffle_testbed import commands, tables, text, worker
from simshuffle_testbed.figures import testbed_chart
from simshuffle_testbed.measure import Measurement, Run, Settings

SETUP = {
    "mtu_bytes": commands.MTU,
    "burst_bytes": commands.BURST,
    "queue_packets": commands.QUEUE,
    "receive_buffer_bytes": commands.WINDOW,
    "in_flight_bytes": worker.IN_FLIGHT,
    "unshaped_below_bytes": commands.SMALL,
    "congestion_control": commands.CONGESTION_CONTROL,
}
"""What every testbed has."""


def request(measured: Measurement) -> Request[Measurement]:
    """What is compared: a measurement that was made on this machine."""
    runs = json.dumps([_plain(run) for run in measured.runs])
    asked = {
        "date": measured.date.isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "processors": os.cpu_count(),
        "settings": _plain(measured.settings),
        "bed": SETUP,
        "runs": hashlib.sha256(runs.encode()).hexdigest(),
    }
    return Request("testbed", measured, {}, asked)


def _plain(record: Settings | Overhead | Run) -> Any:
    """A record as JSON gives it back."""
    return json.loads(json.dumps(asdict(record)))


def _figures(result: Result) -> dict[str, Chart]:
    return {"testbed": testbed_chart(result.tables["patterns"])}


def _as_json(result: Result) -> Any:
    shown = {name: rows(result.tables[name]) for name in ("patterns", "verdicts")}
    return {**shown, "meta": result.meta}


def _faults(result: Result) -> Iterator[Problem]:
    """Patterns without numbers, ranges without their median; numbers that JSON does not have, and
    settings that are not whole."""
    patterns = result.tables["patterns"]
    known = patterns[patterns["reason"] == ""]
    if known.empty or known.isna().any(axis=None):
        rule = "must have rows, and numbers for every pattern that was measured"
        yield Problem("patterns.csv", rule, f"{len(known)} rows", REMEDY)
    elif not (known["measured_s"].between(known["low_s"], known["high_s"])).all():
        yield Problem("patterns.csv", "must have measured_s from low_s to high_s", "", REMEDY)
    try:
        json.dumps(result.meta, allow_nan=False)
    except ValueError:
        yield Problem("meta.json", "must have finite numbers", "", REMEDY)
    about = tables.said(result.meta)
    for key, value in (("settings", about["settings"]), ("overhead", about["overhead"])):
        if _plain(value) != result.meta[key]:
            rule = "must have all of its values, and no other"
            yield Problem(f"meta.json: {key}", rule, f"{result.meta[key]}"[:60], REMEDY)


def _compared(result: Result) -> Tables:
    """Measured and predicted seconds of every pattern."""
    patterns = result.tables["patterns"].set_index("pattern")
    return {"patterns": patterns[["measured_s", "low_s", "high_s", "predicted_s"]]}


def again(folder: Path, meta: Meta) -> Request[Measurement]:
    """No request: the runs of a testbed are not in its folder, and no two are the same.

    Raises:
        InputError: always.
    """
    rule = "must not hold measurements: they are never the same twice"
    remedy = "Measure again with simshuffle machine testbed, and compare the two folders."
    refuse("", rule, "testbed", remedy, str(folder))


STUDY: Study[Measurement] = Study(
    kind="testbed",
    verb="machine testbed",
    stages=(),
    collect=tables.collect,
    stored=tables.STORED,
    derived={"summary": Derived(tables.SUMMARY, tables.summary)},
    figures=_figures,
    compared=_compared,
    one_figure=True,
    parts=text.parts,
    as_json=_as_json,
    facts=lambda measured, outcomes, made: {"overhead": _plain(tables.overhead(measured))},
    says=tables.Says,
    faults=_faults,
    again=f"{__name__}:again",
)
