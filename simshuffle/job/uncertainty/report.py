"""Intervals of runs as plain values, which a result keeps: its texts and figures read no more than
these (`simshuffle.report.intervals`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import Any

from simshuffle.errors import refuse
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.uncertainty.inputs import Input, inputs
from simshuffle.job.uncertainty.interval import (
    DRAWS,
    INDEX_DRAWS,
    MOST_INPUTS,
    Uncertain,
    flip,
    hangs,
    mechanism,
    uncertain,
)
from simshuffle.job.uncertainty.residuals import MECHANISMS
from simshuffle.spec.units import readable
from simshuffle.study.options import COMMAND_LINE

MOST_NAMED = 6
"""Inputs that are named of a run, and runs that are compared: the fastest ones and the slowest."""
MOST_RUNS = 64
"""Runs that have intervals, each of which takes up to a second."""
FORMS_OF_HANGS, FORMS_OF_FLIP = INDEX_DRAWS * (MOST_INPUTS + 2), 500
"""Closed forms that are computed of a run for what its interval hangs on, at most, and of a pair of
runs for what would change their order, about: a measure of how far the work is."""
Ranges = Mapping[str, tuple[float, float]]
"""Lowest and highest values of inputs (SI units), by dotted key."""
MEASURED_BY = {
    "cluster.ssd.": "simshuffle machine probe",
    "cluster.memory.": "simshuffle machine probe",
    "workload.dataset.decode": "simshuffle machine probe",
    "workload.dataset.encode": "simshuffle machine probe",
    "workload.exchange.schedule.": "simshuffle machine probe",
    "cluster.parallel_file_system.read": "IOR, then simshuffle machine calibrate",
    "cluster.parallel_file_system.client": "IOR, then simshuffle machine calibrate",
    "cluster.parallel_file_system.": "mdtest, then simshuffle machine calibrate",
    "cluster.message_passing.": "osu_latency and osu_alltoall, then simshuffle machine calibrate",
    "workload.allreduce.": "nccl-tests, then simshuffle machine calibrate",
    "workload.model.": "a few epochs on 1 and 2 GPUs, then simshuffle machine calibrate",
    "cluster.": "osu_bw, then simshuffle machine calibrate",
}
"""What measures an input, by the beginning of its key; the first that fits."""


def ranges_of(
    interval: bool, ranges: Ranges, scenarios: Iterable[Scenario], runs: int
) -> Ranges | None:
    """The ranges, or None without intervals.

    Raises:
        InputError: there are ranges but no intervals, too many ``runs``, or a range is of no
            number of one of the scenarios, or does not contain it.
    """
    if not interval:
        if ranges:
            remedy = "Add --interval, or leave it out."
            refuse(
                "--range", "is used with --interval only", next(iter(ranges)), remedy, COMMAND_LINE
            )
        return None
    if runs > MOST_RUNS:
        remedy = "Ask for fewer runs, or leave it out."
        refuse("--interval", f"is of at most {MOST_RUNS} runs", str(runs), remedy, COMMAND_LINE)
    for scenario in scenarios:
        inputs(scenario, ranges)
    return ranges


def asked_of(ranges: Ranges | None) -> dict[str, Any]:
    """What a request says of intervals."""
    if ranges is None:
        return {}
    listed = {key: list(ends) for key, ends in ranges.items()}
    return {"interval": True, **({"ranges": listed} if listed else {})}


def asked_again(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a result, from what it says of itself."""
    ranges = {key: (low, high) for key, (low, high) in meta.get("ranges", {}).items()}
    return {"interval": meta.get("interval", False), "ranges": ranges}


def plain(
    runs: Mapping[str, tuple[Scenario, float]],
    ranges: Ranges,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Intervals of the epochs of runs, what their width hangs on, and how sure their order is.

    ``runs`` and ``ranges``, and errors, as of `simshuffle.job.uncertainty.interval.uncertain`;
    ``progress`` is told the share of the work that is done, from 0 to 1.
    """
    order = sorted(runs, key=lambda run: runs[run][1])
    shown = [*order[: MOST_NAMED - 1], *order[MOST_NAMED - 1 :][-1:]]
    pairs = [
        (first, second)
        for first, second in combinations(shown, 2)
        if runs[first][0].world_size == runs[second][0].world_size
    ]
    tell = progress or (lambda share: None)
    for_runs, for_hangs = DRAWS * len(runs), FORMS_OF_HANGS * len(shown)
    whole = for_runs + for_hangs + FORMS_OF_FLIP * len(pairs)
    found = uncertain(runs, ranges, lambda share: tell(share * for_runs / whole))
    hangs_of = {}
    for run in shown:
        hangs_of[run] = _hangs(found, run, runs[run][0])
        tell((for_runs + FORMS_OF_HANGS * len(hangs_of)) / whole)
    odds: list[dict[str, Any]] = []
    for first, second in pairs:
        odds.append(_odds(found, runs, first, second))
        tell((for_runs + for_hangs + FORMS_OF_FLIP * len(odds)) / whole)
    return {
        "runs": {run: _of_run(found, run, scenario) for run, (scenario, _) in runs.items()},
        "hangs": hangs_of,
        "odds": odds,
    }


def _of_run(found: Uncertain, run: str, scenario: Scenario) -> dict[str, Any]:
    of = found.intervals[run]
    parts = {name: list(ends) for name, ends in of.parts.items()}
    law = MECHANISMS[mechanism(scenario)]
    start = {"ranks": scenario.world_size}
    return {**start, "seconds": of.value, "low": of.low, "high": of.high, "law": law, **parts}


def _hangs(found: Uncertain, run: str, scenario: Scenario) -> list[dict[str, Any]]:
    return [
        {
            "key": of.input.key,
            "kind": of.input.kind,
            "value": _written(of.input, 1.0),
            "low": of.input.low,
            "high": of.input.high,
            "first": of.first,
            "total": of.total,
            "width": of.width,
            "measured_by": measured_by(of.input.key),
        }
        for of in hangs(scenario, found.intervals[run], found.inputs)[:MOST_NAMED]
    ]


def _odds(
    found: Uncertain, runs: Mapping[str, tuple[Scenario, float]], first: str, second: str
) -> dict[str, Any]:
    """How sure it is that the first is faster, and what would change that."""
    changes = flip(runs[first], runs[second], found.inputs)
    out: dict[str, Any] = {"first": first, "second": second, "share": found.faster(first, second)}
    if changes is not None:
        of, factor = changes
        ends = (_written(of, each) for each in (1.0, factor))
        out |= dict(zip(("key", "value", "flips_at"), (of.key, *ends), strict=True))
    return out


def measured_by(key: str) -> str:
    """What measures an input, as a command."""
    return next(command for start, command in MEASURED_BY.items() if key.startswith(start))


def _written(of: Input, factor: float) -> str:
    """The value times a factor, for people; of a curve at its last point."""
    return readable(of.value * factor, of.dimension, 3)
