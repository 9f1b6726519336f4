"""The study behind ``simshuffle machine testbed``: what was measured in network
namespaces, beside what is predicted of them.

A measurement is never the same twice, so it is no cell that a store could hold: it is
made first and comes with the request. The study fits, predicts and compares.
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

import numpy as np
import pandas as pd
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from simshuffle.errors import Problem, refuse
from simshuffle.extensions.calibration.validation.testbed import (
    TcpOverhead,
    finish_times,
)
from simshuffle.extensions.calibration.validation.testbed_patterns import PATTERNS
from simshuffle.report.table_io import plain_rows
from simshuffle.study.schema import (
    REMEDY,
    Schema,
    amount,
    count,
    flag,
    real,
    share,
    text,
)
from simshuffle.study.study import (
    Derived,
    Meta,
    Outcomes,
    Request,
    Result,
    Study,
    Tables,
)
from simshuffle_testbed import commands, figures, worker
from simshuffle_testbed.measure import FIT, NO_TORCH, Measurement, Settings

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
QUESTIONS = (
    ("all_to_all", "pairs_random"),
    ("all_to_all", "random_permutations"),
    ("all_to_all", "pairs_across"),
    ("pairs_inside", "pairs_across"),
    ("pairs_inside", "all_to_all"),
    ("ring_allreduce", "ring_scattered"),
    ("gloo_partial", "gloo_pairs"),
)
"""Pairs of patterns in which every host sends the same bytes: which of the two is
faster?
"""
FIXED = "efficiency and startup of all rows"
"""What the rows that are fitted fixed."""
ALIKE = 0.03
"""Two makespans that differ by less are called alike."""

_PATTERN = text("name of the pattern", *PATTERNS)
_USE = text(
    "fit: the overhead was fitted on it; predict: nothing was", "fit", "predict"
)
_FASTER = ("a", "b", "alike")
STORED = {
    "flows": Schema(
        {
            "pattern": _PATTERN,
            "repetition": count("from 1 on", 1),
            "flow": count("number of the flow in the pattern, from 0 on"),
            "src": count("host that sends"),
            "dst": count("host that receives"),
            "step": count("step of the pattern, from 0 on"),
            "nbytes": count("bytes"),
            "measured_s": amount("from the common start to the last byte"),
            "predicted_s": amount("the same in the fluid network"),
            "error": real("predicted over measured, less 1", -1.0),
        }
    ),
    "runs": Schema(
        {
            "pattern": _PATTERN,
            "repetition": count(
                "from 1 on; twice where a run that was held up was measured again", 1
            ),
            "measured_s": amount("end of the last flow"),
            "late_s": amount(
                "longest time by which a sleeping process got a processor too late"
            ),
            "waited_s": amount(
                "longest time that the process of a host stood in the queue for a processor, in all"
            ),
            "busy": share(
                "share of the time of all processors in which they worked, for anyone"
            ),
            "steal": share("share in which they were taken away"),
            "held_up": flag(
                "True: a processor was missing for so long that the run does not count, unless no"
                " other is left"
            ),
        }
    ),
    "patterns": Schema(
        {
            "pattern": _PATTERN,
            "use": _USE,
            "flows": count("number of flows"),
            "nbytes": count("bytes of all flows"),
            "repetitions": count("runs that count"),
            "held_up": count("runs that were held up"),
            "measured_s": amount("median of the makespan", empty=True),
            "low_s": amount("smallest", empty=True),
            "high_s": amount("largest", empty=True),
            "predicted_s": amount("makespan in the fluid network", empty=True),
            "error": real("predicted over measured, less 1", -1.0, empty=True),
            "flow_error_p10": real(
                "tenth percentile over all flows and runs of their error",
                -1.0,
                empty=True,
            ),
            "flow_error_p50": real("median of the same", -1.0, empty=True),
            "flow_error_p90": real(
                "ninetieth percentile of the same", -1.0, empty=True
            ),
            "reason": text("why it was not measured; empty if it was", "", NO_TORCH),
        },
        key=("pattern",),
    ),
    "verdicts": Schema(
        {
            "a": text("a pattern", *PATTERNS),
            "b": text("another in which every host sends as much", *PATTERNS),
            "measured_ratio": amount("median makespan of a over that of b"),
            "predicted_ratio": amount("the same as predicted"),
            "measured": text("a, b or alike: which is faster", *_FASTER),
            "predicted": text("the same as predicted", *_FASTER),
            "same": flag("whether both say so"),
        },
        key=("a", "b"),
    ),
}
SUMMARY = Schema(
    {
        "set": text("testbed: the rows are judged together"),
        "case": _PATTERN,
        "quantity": text("makespan"),
        "unit": text("its SI unit"),
        "measured": amount("median of the makespan"),
        "low": amount("smallest"),
        "high": amount("largest"),
        "use": _USE,
        "kind": text("testbed: how it is predicted"),
        "scenario": text("empty: none is simulated"),
        "values": text("all that the prediction needs: KEY=VALUE, separated by ;"),
        "reason": text("of fit: what it fixed"),
        "source": text("date, kernel and repetitions"),
    },
    key=("case",),
)


class Says(TypedDict):
    """What ``meta.json`` holds for text and summary."""

    date: str
    kernel: str
    settings: Settings
    overhead: TcpOverhead


_SAYS = TypeAdapter(Says)


def request(measured: Measurement) -> Request[Measurement]:
    """What is compared: a measurement that was made on this machine."""
    runs = json.dumps([asdict(run) for run in measured.runs])
    asked = {
        "date": measured.date.isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "processors": os.cpu_count(),
        "settings": _plain(measured.settings),
        "bed": SETUP,
        "runs": hashlib.sha256(runs.encode()).hexdigest(),
    }
    return Request("testbed", measured, {}, asked)


def _plain(record: Settings | TcpOverhead) -> Any:
    """A record as JSON gives it back."""
    return json.loads(json.dumps(asdict(record)))


def overhead(measured: Measurement) -> TcpOverhead:
    """What TCP costs, fitted on the single flows."""
    sizes = [sum(measured.settings.pattern(name).nbytes) for name in FIT]
    times = [float(_makespans(measured, name).median()) for name in FIT]
    return fitted(
        (sizes[0], sizes[1]), (times[0], times[1]), measured.settings.shape.rate
    )


def fitted(
    sizes: tuple[int, int], times: tuple[float, float], rate: float
) -> TcpOverhead:
    """The line through two single flows.

    Args:
        sizes: bytes of each.
        times: s until each ended.
        rate: bytes/s that the links are shaped to.
    """
    efficiency = (sizes[1] - sizes[0]) / (times[1] - times[0]) / rate
    return TcpOverhead(efficiency, max(times[0] - sizes[0] / (efficiency * rate), 0.0))


def _makespans(measured: Measurement, name: str) -> pd.Series[float]:
    return pd.Series(
        [run.measured.makespan for run in measured.counted(name)], dtype=np.float64
    )


def collect(measured: Measurement, outcomes: Outcomes) -> Tables:
    """The stored tables: everything is predicted with the overhead that is fitted, and
    stands beside what was measured.
    """
    settings = measured.settings
    fit = overhead(measured)
    flows = pd.concat([_flows(measured, name, fit) for name in settings.patterns])
    asked = [
        name for name in PATTERNS if name in {*settings.patterns, *settings.left_out}
    ]
    patterns = pd.DataFrame([_pattern(measured, name, flows) for name in asked])
    return {
        "flows": flows.reset_index(drop=True),
        "runs": _runs(measured),
        "patterns": patterns,
        "verdicts": _verdicts(patterns[patterns["reason"] == ""]),
    }


def _flows(measured: Measurement, name: str, fit: TcpOverhead) -> pd.DataFrame:
    """The rows of the flows of a pattern."""
    pattern = measured.settings.pattern(name)
    known = {key: getattr(pattern, key) for key in ("src", "dst", "step", "nbytes")}
    known |= {"predicted_s": finish_times(measured.settings.testbed, pattern, fit)}
    parts = [
        pd.DataFrame(
            {**known, "repetition": run.repetition, "measured_s": run.measured.finish}
        )
        for run in measured.counted(name)
    ]
    table = pd.concat(parts).rename_axis("flow").reset_index()
    error = table["predicted_s"] / table["measured_s"] - 1.0
    return table.assign(pattern=name, error=error)[list(STORED["flows"].columns)]


def _runs(measured: Measurement) -> pd.DataFrame:
    found = [
        (
            run.pattern,
            run.repetition,
            m.makespan,
            m.late,
            m.waited,
            m.busy,
            m.steal,
            run.held_up,
        )
        for run in measured.runs
        for m in [run.measured]
    ]
    return STORED["runs"].framed(found)


def _pattern(measured: Measurement, name: str, flows: pd.DataFrame) -> dict[str, Any]:
    """The row of a pattern; what was to be measured is NaN where it was left out."""
    pattern = measured.settings.pattern(name)
    of = flows[flows["pattern"] == name]
    makespans = _makespans(measured, name)
    expected = of["predicted_s"].max()
    return {
        "pattern": name,
        "use": "fit" if name in FIT else "predict",
        "flows": len(pattern),
        "nbytes": sum(pattern.nbytes),
        "repetitions": len(makespans),
        "held_up": sum(run.held_up for run in measured.runs if run.pattern == name),
        "measured_s": makespans.median(),
        "low_s": makespans.min(),
        "high_s": makespans.max(),
        "predicted_s": expected,
        "error": expected / makespans.median() - 1.0,
        **{
            f"flow_error_p{part}": of["error"].quantile(part / 100)
            for part in (10, 50, 90)
        },
        "reason": measured.settings.left_out.get(name, ""),
    }


def _verdicts(known: pd.DataFrame) -> pd.DataFrame:
    times = known.set_index("pattern")[["measured_s", "predicted_s"]].T.to_dict("list")
    found = []
    for a, b in QUESTIONS:
        if a in times and b in times:
            ratios = [
                of_a / of_b for of_a, of_b in zip(times[a], times[b], strict=True)
            ]
            faster = [verdict(ratio) for ratio in ratios]
            found.append((a, b, *ratios, *faster, faster[0] == faster[1]))
    return STORED["verdicts"].framed(found)


def verdict(ratio: float) -> str:
    """Which is faster, if a takes ``ratio`` times as long as b."""
    if abs(ratio - 1.0) < ALIKE:
        return "alike"
    return "a" if ratio < 1.0 else "b"


def summary(result: Result) -> pd.DataFrame:
    """The rows that are kept beside the code, with all that is needed to predict them
    again (see `simshuffle.extensions.calibration.validation.testbed.predicted`);
    columns `SUMMARY`.
    """
    about = _SAYS.validate_python(dict(result.meta))
    patterns = result.tables["patterns"]
    settings = about["settings"]
    fit = about["overhead"]
    shape = about["settings"].shape
    origin = f"{about['date'][:10]}, Linux {about['kernel']}"
    out = []
    for row in patterns[patterns["reason"] == ""].to_dict("records"):
        needed = {
            "leaves": shape.leaves,
            "hosts_per_leaf": shape.hosts_per_leaf,
            "spines": shape.spines,
            "rate": f"{shape.rate * 8 / 1e6:.15g} Mbit/s",
            "pattern": row["pattern"],
            "nbytes": f"{settings.nbytes} B",
            "seed": settings.seed,
            "efficiency": f"{fit.efficiency:.6f}",
            "startup": f"{fit.startup:.6f} s",
        }
        measured = [
            round(row[column], 6) for column in ("measured_s", "low_s", "high_s")
        ]
        known = (
            "testbed",
            row["pattern"],
            "makespan",
            "s",
            *measured,
            row["use"],
            "testbed",
            "",
        )
        values = ";".join(f"{key}={value}" for key, value in needed.items())
        source = (
            f"simshuffle machine testbed on {origin}, {row['repetitions']} repetitions"
        )
        out.append((*known, values, FIXED if row["use"] == "fit" else "", source))
    return SUMMARY.framed(out)


def _as_json(result: Result) -> Any:
    shown = {name: plain_rows(result.tables[name]) for name in ("patterns", "verdicts")}
    return {**shown, "meta": result.meta}


def _faults(result: Result) -> Iterator[Problem]:
    """Patterns without numbers, ranges without their median; numbers that JSON does not
    have, and settings that are not whole.
    """
    patterns = result.tables["patterns"]
    known = patterns[patterns["reason"] == ""]
    if known.empty or known.isna().any(axis=None):
        rule = "must have rows, and numbers for every pattern that was measured"
        yield Problem("patterns.csv", rule, f"{len(known)} rows", REMEDY)
    elif not (known["measured_s"].between(known["low_s"], known["high_s"])).all():
        yield Problem(
            "patterns.csv", "must have measured_s from low_s to high_s", "", REMEDY
        )
    try:
        json.dumps(result.meta, allow_nan=False)
    except ValueError:
        yield Problem("meta.json", "must have finite numbers", "", REMEDY)
    about = _SAYS.validate_python(dict(result.meta))
    for key, value in (
        ("settings", about["settings"]),
        ("overhead", about["overhead"]),
    ):
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
    remedy = (
        "Measure again with simshuffle machine testbed, and compare the two folders."
    )
    refuse("", rule, "testbed", remedy, str(folder))


STUDY: Study[Measurement] = Study(
    kind="testbed",
    verb="machine testbed",
    stages=(),
    collect=collect,
    stored=STORED,
    derived={"summary": Derived(SUMMARY, summary)},
    figures=lambda result: {
        "testbed": figures.testbed_chart(result.tables["patterns"])
    },
    compared=_compared,
    one_figure=True,
    parts=lambda result: figures.parts(
        result.tables, _SAYS.validate_python(dict(result.meta))
    ),
    as_json=_as_json,
    facts=lambda measured, outcomes, made: {"overhead": _plain(overhead(measured))},
    says=Says,
    faults=_faults,
    again=f"{__name__}:again",
)
