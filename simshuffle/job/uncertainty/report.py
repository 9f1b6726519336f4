"""Describe intervals of runs as plain values that a result keeps.

The result's texts and figures read only these values (`simshuffle.report.intervals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from simshuffle.errors import refuse
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.uncertainty.inputs import Input, inputs
from simshuffle.job.uncertainty.interval import (
    DRAWS,
    INDEX_DRAWS,
    MAX_INPUTS,
    ScaledRun,
    UncertainRuns,
    estimate_intervals,
    find_order_flip,
    mechanism,
    rank_influences,
)
from simshuffle.job.uncertainty.measured_facts import (
    MeasuredPrediction,
    measured_facts,
    measured_runs,
    predict_by_bounds,
)
from simshuffle.job.uncertainty.narrowing import NarrowedRuns, narrow_intervals
from simshuffle.job.uncertainty.residuals import MECHANISMS
from simshuffle.job.uncertainty.worth import worth_measuring
from simshuffle.spec.units import readable
from simshuffle.study.options import COMMAND_LINE

MAX_NAMED = 6
"""Inputs that are named of a run, and runs that are compared: the fastest ones and the
slowest.
"""
MAX_RUNS = 64
"""Runs that have intervals, each of which takes up to a second."""
FORMS_PER_RANKING = INDEX_DRAWS * (MAX_INPUTS + 2)
FORMS_PER_FLIP = 500
"""Closed forms that are computed of a run for what its interval hangs on, at most, and
of a pair of runs for what would change their order, about: a measure of how far the
work is.
"""
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
    "cluster.object_store.": "warp get with 1 and with many connections",
    "workload.allreduce.overlap.": "a batch timed with and without DistributedDataParallel",
    "workload.allreduce.": "nccl-tests, then simshuffle machine calibrate",
    "workload.model.": "a few epochs on 1 and 2 GPUs, then simshuffle machine calibrate",
    "cluster.": "osu_bw, then simshuffle machine calibrate",
}
"""Command that measures an input, by the beginning of its key; the first match counts."""


def ranges_of(
    interval: bool, ranges: Ranges, scenarios: Iterable[Scenario], runs: int
) -> Ranges | None:
    """Check the ranges and return them as they are; None without ``interval``.

    Raises:
        InputError: there are ranges but no intervals, more ``runs`` than `MAX_RUNS`, or
            a range is of no number of one of the scenarios, or does not contain it.
    """
    if not interval:
        if ranges:
            remedy = "Add --interval, or leave it out."
            refuse(
                "--range",
                "is used with --interval only",
                next(iter(ranges)),
                remedy,
                COMMAND_LINE,
            )
        return None
    if runs > MAX_RUNS:
        remedy = "Ask for fewer runs, or leave it out."
        refuse(
            "--interval",
            f"is of at most {MAX_RUNS} runs",
            str(runs),
            remedy,
            COMMAND_LINE,
        )
    for scenario in scenarios:
        inputs(scenario, ranges)
    return ranges


def interval_request(ranges: Ranges | None) -> dict[str, Any]:
    """Return the keys of a request that tell about intervals: 'interval', and 'ranges'
    if there are any, with lists of two; {} for None.
    """
    if ranges is None:
        return {}
    listed = {key: list(ends) for key, ends in ranges.items()}
    return {"interval": True, **({"ranges": listed} if listed else {})}


def repeat_options(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options 'interval' and 'ranges' that repeat a result's intervals, from
    its metadata; False and {} if it has none.
    """
    ranges = {key: (low, high) for key, (low, high) in meta.get("ranges", {}).items()}
    return {"interval": meta.get("interval", False), "ranges": ranges}


def interval_facts(
    runs: Mapping[str, tuple[Scenario, float]],
    ranges: Ranges,
    progress: Callable[[float], None] | None = None,
    measured: Sequence[MeasuredPrediction] = (),
    *,
    with_worth: bool = False,
) -> dict[str, Any]:
    """Estimate intervals of runs' epochs, inputs' influence, and how sure orders are.

    Influences and pairs are of the `MAX_NAMED` - 1 fastest runs and the slowest. Only
    runs with equal numbers of ranks are paired, the faster one first. Errors are as of
    `estimate_intervals`.

    Args:
        runs: a scenario and its predicted epoch (s), by name.
        ranges: of inputs by dotted key, lowest and highest (SI units).
        progress: called with the share of the work done, from 0 to 1.
        measured: runs that were measured, which narrow the intervals.
        with_worth: whether 'worth' says which measurements are worth making, as of
            `worth_measuring`.

    Returns:
        plain values: 'runs' (all of them) and 'hangs' (the influential inputs of the
        named ones) by run, and 'odds', a list of pairs. With measured runs 'measured'
        has those of `measured_facts`.
    """
    order = sorted(runs, key=lambda run: runs[run][1])
    named_runs = [*order[: MAX_NAMED - 1], *order[MAX_NAMED - 1 :][-1:]]
    pairs = [
        (first, second)
        for first, second in combinations(named_runs, 2)
        if runs[first][0].world_size == runs[second][0].world_size
    ]
    tell = progress or (lambda share: None)
    for_runs = DRAWS * (len(runs) + len(measured))
    for_hangs = FORMS_PER_RANKING * len(named_runs)
    total_forms = for_runs + for_hangs + FORMS_PER_FLIP * len(pairs)
    share_of_targets = DRAWS * len(runs) / total_forms
    uncertain_runs = estimate_intervals(
        runs, ranges, lambda share: tell(share * share_of_targets)
    )
    scenarios = {run: scenario for run, (scenario, _) in runs.items()}
    uncertain_runs = narrow_intervals(
        uncertain_runs,
        scenarios,
        [prediction.kin() for prediction in measured],
        ranges,
        lambda share: tell(
            share_of_targets + share * (for_runs / total_forms - share_of_targets)
        ),
    )
    influences = {}
    for run in named_runs:
        influences[run] = _influence_facts(uncertain_runs, run, runs[run][0])
        tell((for_runs + FORMS_PER_RANKING * len(influences)) / total_forms)
    scaled_runs = {run: ScaledRun(*runs[run]) for run in named_runs}
    odds: list[dict[str, Any]] = []
    for first, second in pairs:
        odds.append(_odds_facts(uncertain_runs, scaled_runs, first, second))
        tell((for_runs + for_hangs + FORMS_PER_FLIP * len(odds)) / total_forms)
    return {
        "runs": {
            run: _run_facts(uncertain_runs, run, scenario)
            for run, (scenario, _) in runs.items()
        },
        "hangs": influences,
        "odds": odds,
        **_further_facts(uncertain_runs, scenarios, measured, ranges, with_worth),
    }


def _further_facts(
    uncertain_runs: UncertainRuns,
    scenarios: Mapping[str, Scenario],
    measured: Sequence[MeasuredPrediction],
    ranges: Ranges,
    with_worth: bool,
) -> dict[str, Any]:
    """Return the facts on measured runs as 'measured', if there are any, and ``with_worth``
    those on measurements that are worth making as 'worth'.
    """
    facts: dict[str, Any] = {}
    if isinstance(uncertain_runs, NarrowedRuns):
        facts["measured"] = measured_facts(measured, uncertain_runs.kin_ends)
    if with_worth:
        kin = [prediction.kin() for prediction in measured]
        commands = {
            found.key: measured_by(found.key) for found in uncertain_runs.inputs
        }
        facts["worth"] = worth_measuring(
            uncertain_runs, scenarios, kin, ranges, commands
        )
    return facts


def bound_facts(
    runs: Mapping[str, Scenario], interval: bool, ranges: Ranges
) -> dict[str, Any]:
    """Return the `interval_facts` of runs that are predicted by closed forms alone, their
    measured runs, too.

    Raises:
        InputError: as of `ranges_of` and `measured_runs`.
    """
    measured = measured_runs(runs)
    checked = ranges_of(interval or bool(measured), ranges, runs.values(), len(runs))
    return interval_facts(
        {run: (scenario, bounds(scenario).epoch) for run, scenario in runs.items()},
        checked or {},
        measured=[predict_by_bounds(single) for single in measured],
        with_worth=True,
    )


def _run_facts(
    uncertain_runs: UncertainRuns, run: str, scenario: Scenario
) -> dict[str, Any]:
    """Return the ranks, the epoch, its interval (s) and its law; and the intervals that
    'inputs', 'model' and 'chance' alone give, as factors on the epoch. With measured
    runs there are 'centre', the middle of the interval, and 'before', its ends without
    these runs (s).
    """
    interval = uncertain_runs.intervals[run]
    parts = {name: list(ends) for name, ends in interval.parts.items()}
    law = MECHANISMS[mechanism(scenario)]
    start = {"ranks": scenario.world_size}
    return {
        **start,
        "seconds": interval.value,
        "low": interval.low,
        "high": interval.high,
        "law": law,
        **parts,
        **(
            {}
            if interval.centre is None or interval.before is None
            else {"centre": interval.centre, "before": list(interval.before)}
        ),
    }


def _influence_facts(
    uncertain_runs: UncertainRuns, run: str, scenario: Scenario
) -> list[dict[str, Any]]:
    """Return at most `MAX_NAMED` inputs of the most influence on a run, the first the
    most; [] if no input moves it.

    'low' and 'high' are factors on 'value', which is text. 'first' and 'total' are
    Sobol' indices, and 'width' is the interval's, over that of now, if it was measured.
    """
    return [
        {
            "key": influence.input.key,
            "kind": influence.input.kind,
            "value": _readable_value(influence.input, 1.0),
            "low": influence.input.low,
            "high": influence.input.high,
            "first": influence.first,
            "total": influence.total,
            "width": uncertain_runs.width_without(run, influence.input.key)
            if isinstance(uncertain_runs, NarrowedRuns)
            else influence.width,
            "measured_by": measured_by(influence.input.key),
        }
        for influence in rank_influences(
            scenario, uncertain_runs.intervals[run], uncertain_runs.inputs
        )[:MAX_NAMED]
    ]


def _odds_facts(
    uncertain_runs: UncertainRuns,
    runs: Mapping[str, ScaledRun],
    first: str,
    second: str,
) -> dict[str, Any]:
    """Return the share of draws in which the first run is faster, and what would change
    it.

    'key', and the texts 'value' and 'flips_at' of the value at which the second run
    gets faster, are there only if an input would.
    """
    changes = find_order_flip(runs[first], runs[second], uncertain_runs.inputs)
    out: dict[str, Any] = {
        "first": first,
        "second": second,
        "share": uncertain_runs.faster(first, second),
    }
    if changes is not None:
        moved_input, factor = changes
        values = (_readable_value(moved_input, scale) for scale in (1.0, factor))
        out |= dict(
            zip(("key", "value", "flips_at"), (moved_input.key, *values), strict=True)
        )
    return out


def measured_by(key: str) -> str:
    """Return the command that measures an input of that dotted key.

    Raises:
        StopIteration: no entry of `MEASURED_BY` begins the key.
    """
    return next(
        command for start, command in MEASURED_BY.items() if key.startswith(start)
    )


def _readable_value(uncertain_input: Input, factor: float) -> str:
    """Return the value times a factor as text; of a curve at its last point."""
    return readable(uncertain_input.value * factor, uncertain_input.dimension, 3)
