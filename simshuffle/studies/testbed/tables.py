"""The tables of a measurement, measured beside predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.studies.testbed.bed import Bed
from simshuffle.studies.testbed.measure import Run
from simshuffle.studies.testbed.patterns import FIT, PATTERNS, QUESTIONS
from simshuffle.studies.testbed.predict import Overhead, finish_times, fitted, values
from simshuffle.studies.testbed.settings import Settings

FIXED = "efficiency and startup of all rows"
"""What the rows that are fitted fixed."""
ALIKE = 0.03
"""Two makespans that differ by less are called alike."""

FLOW_COLUMNS = {
    "pattern": "name of the pattern",
    "repetition": "from 1 on",
    "flow": "number of the flow in the pattern, from 0 on",
    "src": "host that sends",
    "dst": "host that receives",
    "step": "step of the pattern, from 0 on",
    "nbytes": "bytes",
    "measured_s": "from the common start to the last byte",
    "predicted_s": "the same in the fluid network",
    "error": "predicted over measured, less 1",
}
RUN_COLUMNS = {
    "pattern": "name of the pattern",
    "repetition": "from 1 on; twice where a run that was held up was measured again",
    "measured_s": "end of the last flow",
    "late_s": "longest time by which a sleeping process got a processor too late",
    "waited_s": (
        "longest time that the process of a host stood in the queue for a processor, in all"
    ),
    "busy": "share of the time of all processors in which they worked, for anyone",
    "steal": "share in which they were taken away",
    "held_up": (
        "True: a processor was missing for so long that the run does not count, unless no other is"
        " left"
    ),
}
PATTERN_COLUMNS = {
    "pattern": "name of the pattern",
    "use": "fit: the overhead was fitted on it; predict: nothing was",
    "flows": "number of flows",
    "nbytes": "bytes of all flows",
    "repetitions": "runs that count",
    "held_up": "runs that do not",
    "measured_s": "median of the makespan",
    "low_s": "smallest",
    "high_s": "largest",
    "predicted_s": "makespan in the fluid network",
    "error": "predicted over measured, less 1",
    "flow_error_p10": "tenth percentile over all flows and runs of their error",
    "flow_error_p50": "median of the same",
    "flow_error_p90": "ninetieth percentile of the same",
    "reason": "why it was not measured",
}
VERDICT_COLUMNS = {
    "a": "a pattern",
    "b": "another in which every host sends as much",
    "measured_ratio": "median makespan of a over that of b",
    "predicted_ratio": "the same as predicted",
    "measured": "a, b or alike: which is faster",
    "predicted": "the same as predicted",
    "same": "whether both say so",
}


@dataclass(frozen=True)
class Tables:
    """What was measured and predicted.

    Attributes:
        flows: columns `FLOW_COLUMNS`.
        runs: columns `RUN_COLUMNS`.
        patterns: columns `PATTERN_COLUMNS`.
        verdicts: columns `VERDICT_COLUMNS`.
        overhead: as fitted.
    """

    flows: pd.DataFrame
    runs: pd.DataFrame
    patterns: pd.DataFrame
    verdicts: pd.DataFrame
    overhead: Overhead


def tables(bed: Bed, settings: Settings, runs: Sequence[Run]) -> Tables:
    """Fit the overhead on the single flows, predict everything, and put both beside each other."""
    counted = {
        name: _counted([run for run in runs if run.pattern == name]) for name in settings.patterns
    }
    middle = {
        name: float(np.median([run.measured.makespan for run in of]))
        for name, of in counted.items()
    }
    sizes = [PATTERNS[name](bed, settings.nbytes, settings.seed).nbytes[0] for name in FIT]
    overhead = fitted((sizes[0], sizes[1]), (middle[FIT[0]], middle[FIT[1]]), bed.shape.rate)
    flows = pd.concat(
        [_flows(bed, settings, name, of, overhead) for name, of in counted.items()],
        ignore_index=True,
    )
    patterns = _patterns(settings, flows, runs)
    return Tables(flows, _runs(runs), patterns, _verdicts(patterns), overhead)


def _counted(runs: Sequence[Run]) -> list[Run]:
    """Those that were not held up; all of them where none is left."""
    return [run for run in runs if not run.held_up] or list(runs)


def _flows(
    bed: Bed, settings: Settings, name: str, runs: Sequence[Run], overhead: Overhead
) -> pd.DataFrame:
    pattern = PATTERNS[name](bed, settings.nbytes, settings.seed)
    expected = finish_times(bed, pattern, overhead)
    parts = []
    for run in runs:
        finish = np.array(run.measured.finish)
        columns = {
            "src": pattern.src,
            "dst": pattern.dst,
            "step": pattern.step,
            "nbytes": pattern.nbytes,
        }
        known = {
            "pattern": name,
            "repetition": run.repetition,
            "flow": np.arange(len(pattern)),
            **columns,
        }
        parts.append(
            pd.DataFrame(
                {
                    **known,
                    "measured_s": finish,
                    "predicted_s": expected,
                    "error": expected / finish - 1.0,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _runs(runs: Sequence[Run]) -> pd.DataFrame:
    rows = [
        (run.pattern, run.repetition, m.makespan, m.late, m.waited, m.busy, m.steal, run.held_up)
        for run in runs
        for m in [run.measured]
    ]
    return pd.DataFrame(rows, columns=list(RUN_COLUMNS))


def _patterns(settings: Settings, flows: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for name in PATTERNS:
        known: dict[str, Any] = {"pattern": name, "use": "fit" if name in FIT else "predict"}
        if name in settings.left_out:
            rows.append({**known, "reason": settings.left_out[name]})
        if name not in settings.patterns:
            continue
        of = flows[flows["pattern"] == name]
        ends = of.groupby(["repetition"], sort=True)["measured_s"].max()
        middle, expected = float(ends.median()), float(of["predicted_s"].max())
        spread = {
            f"flow_error_p{share}": float(of["error"].quantile(share / 100))
            for share in (10, 50, 90)
        }
        rows.append(
            {
                **known,
                "flows": int(of["flow"].nunique()),
                "nbytes": int(
                    of.loc[of["repetition"] == of["repetition"].iloc[0]]
                    .drop_duplicates("flow")["nbytes"]
                    .sum()
                ),
                "repetitions": len(ends),
                "held_up": sum(run.held_up for run in runs if run.pattern == name),
                "measured_s": middle,
                "low_s": float(ends.min()),
                "high_s": float(ends.max()),
                "predicted_s": expected,
                "error": expected / middle - 1.0,
                **spread,
                "reason": "",
            }
        )
    return pd.DataFrame(rows, columns=list(PATTERN_COLUMNS))


def _verdicts(patterns: pd.DataFrame) -> pd.DataFrame:
    times = {
        row["pattern"]: (row["measured_s"], row["predicted_s"])
        for row in patterns.to_dict("records")
        if not row["reason"]
    }
    rows = []
    for a, b in QUESTIONS:
        if a in times and b in times:
            ratios = [float(of_a / of_b) for of_a, of_b in zip(times[a], times[b], strict=True)]
            faster = [verdict(ratio) for ratio in ratios]
            rows.append((a, b, *ratios, *faster, faster[0] == faster[1]))
    return pd.DataFrame(rows, columns=list(VERDICT_COLUMNS))


def verdict(ratio: float) -> str:
    """Which is faster, if a takes ``ratio`` times as long as b."""
    if abs(ratio - 1.0) < ALIKE:
        return "alike"
    return "a" if ratio < 1.0 else "b"


SUMMARY = (
    "set",
    "case",
    "quantity",
    "unit",
    "measured",
    "low",
    "high",
    "use",
    "kind",
    "scenario",
    "values",
    "reason",
    "source",
)


def summary(tables: Tables, settings: Settings, about: Mapping[str, str]) -> pd.DataFrame:
    """The rows that are kept beside the code, with all that is needed to predict them again;
    columns `SUMMARY`.

    Args:
        tables: of the measurement.
        settings: of the same.
        about: with the keys 'date' and 'kernel'.
    """
    rows = []
    for row in tables.patterns[tables.patterns["reason"] == ""].to_dict("records"):
        needed = values(
            settings.shape, row["pattern"], settings.nbytes, settings.seed, tables.overhead
        )
        source = (
            f"simshuffle testbed on {about['date'][:10]}, Linux {about['kernel']},"
            f" {int(row['repetitions'])} repetitions"
        )
        measured = [f"{row[column]:.6f}" for column in ("measured_s", "low_s", "high_s")]
        text = ";".join(f"{key}={value}" for key, value in needed.items())
        reason = FIXED if row["use"] == "fit" else ""
        rows.append(
            (
                "testbed",
                row["pattern"],
                "makespan",
                "s",
                *measured,
                row["use"],
                "testbed",
                "",
                text,
                reason,
                source,
            )
        )
    return pd.DataFrame(rows, columns=list(SUMMARY))
