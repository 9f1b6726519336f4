"""Describe measured runs beside their predictions as plain values, and say where a
prediction and a measurement do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.scenario.measured import MeasuredScenario, match_measured
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.uncertainty.narrowing import KinRun

MAX_FACTOR = 100.0
"""Factor between a measured and a predicted epoch from which on a unit is wrong."""
MOST_OF_EXCESS, ALL_OF_EXCESS = 0.5, 0.9
"""Shares of what a run takes longer, from which on one part is said to be most of it,
and all of it.
"""
LOOK_AT = {
    "FW+BW": "the step times of the model (a few epochs on 1 and 2 GPUs)",
    "GE+WU": "the bus bandwidth of the allreduce (nccl-tests)",
    "EXCHANGE": "the host work of the exchange (simshuffle machine probe)",
}
"""What to look at where a part takes longer than predicted; for 'I/O' it is the slowest
resource of reading.
"""


@dataclass(frozen=True)
class MeasuredPrediction:
    """A measured run with its prediction."""

    measured: MeasuredScenario
    seconds: float  # of an epoch, as predicted
    parts: Mapping[str, float] = field(default_factory=dict)  # s of an epoch by label

    def kin(self) -> KinRun:
        """Return it as a run whose error others share."""
        return KinRun(
            self.measured.name,
            self.measured.scenario,
            self.seconds,
            self.measured.epoch_seconds(),
            self.measured.row.fitted,
        )


def measured_runs(runs: Mapping[str, Scenario]) -> list[MeasuredScenario]:
    """Return the measured runs that scenarios of runs name, each once.

    Raises:
        InputError: as of `match_measured`; the runs are on several machines, or an epoch
            is `MAX_FACTOR` times shorter or longer than its bound.
    """
    rows = []
    for scenario in runs.values():
        rows += [row for row in scenario.measured if row not in rows]
    if not rows:
        return []
    machines = {scenario.cluster.name for scenario in runs.values()}
    if len(machines) > 1:
        rule = "are of one machine, and the runs are on several"
        remedy = "Give each machine its own scenario and its own measured runs."
        value = ", ".join(sorted(machines))[:80]
        raise InputError(Problem("measured", rule, value, remedy))
    matched = match_measured(rows, runs)
    problems = []
    for single in matched:
        least = bounds(single.scenario).epoch
        seconds = single.epoch_seconds()
        if not 1 / MAX_FACTOR < seconds / least < MAX_FACTOR:
            place = f"{single.name} {single.row.source}".strip()
            rule = f"must be within a factor of {MAX_FACTOR:g} of {least:.3g} s an epoch, its bound"
            remedy = "Write seconds and samples a second, without prefixes."
            problems.append(Problem(place, rule, f"{seconds:.3g} s", remedy))
    if problems:
        raise InputError(problems, "measured runs")
    return matched


def predict_by_bounds(measured: MeasuredScenario) -> MeasuredPrediction:
    """Return a measured run with the epoch and its parts by closed forms: what is neither
    compute, allreduce nor exchange is reading.
    """
    bound = bounds(measured.scenario)
    parts = {
        "FW+BW": bound.compute,
        "GE+WU": bound.allreduce,
        "EXCHANGE": bound.exchange.seconds,
    }
    reading = max(bound.epoch - sum(parts.values()), 0.0)
    return MeasuredPrediction(measured, bound.epoch, {**parts, "I/O": reading})


def measured_facts(
    predictions: Sequence[MeasuredPrediction], ends: Sequence[tuple[float, float]]
) -> list[dict[str, Any]]:
    """Return each measured run as plain values.

    'predicted_s' and 'measured_s' are of an epoch, 'low' and 'high' (s) the ends of the
    90 % interval that it has without any measured run, 'is_expected' whether the
    measured epoch lies within. 'parts' are pairs of predicted and measured seconds by
    label. 'misfit' is a clause on what to look at, '' for a run as expected.

    Args:
        predictions: the measured runs.
        ends: of the interval of each (s).
    """
    facts = []
    for prediction, (low, high) in zip(predictions, ends, strict=True):
        row = prediction.measured.row
        seconds = prediction.measured.epoch_seconds()
        is_expected = low <= seconds <= high
        facts.append(
            {
                "run": prediction.measured.name,
                "ranks": row.world_size,
                "predicted_s": prediction.seconds,
                "measured_s": seconds,
                "low": low,
                "high": high,
                "is_expected": is_expected,
                "fitted": row.fitted,
                "parts": {
                    label: [prediction.parts[label], measured]
                    for label, measured in row.parts.items()
                    if label in prediction.parts
                },
                "misfit": "" if is_expected else _describe_misfit(prediction),
            }
        )
    return facts


def _describe_misfit(prediction: MeasuredPrediction) -> str:
    """Return a clause on the part that is off, and on what to look at."""
    measured = prediction.measured
    excess = measured.epoch_seconds() - prediction.seconds
    differences = {
        label: seconds - prediction.parts[label]
        for label, seconds in measured.row.parts.items()
        if label in prediction.parts
    }
    if not differences:
        return f"its parts (columns io_s, fw_bw_s, ge_wu_s) say where; {_bottleneck(measured)}"
    label = max(
        differences, key=lambda name: differences[name] * math.copysign(1, excess)
    )
    share = differences[label] / excess
    amount = (
        f"all of it in {label}"
        if share >= ALL_OF_EXCESS
        else f"most of it in {label}"
        if share >= MOST_OF_EXCESS
        else "in several parts"
    )
    if share < MOST_OF_EXCESS:
        return f"{amount}: {_bottleneck(measured)}"
    return f"{amount}: look at {LOOK_AT.get(label) or _reading(measured)}"


def _bottleneck(measured: MeasuredScenario) -> str:
    """Return a clause on the bottleneck of a run."""
    return f"its bottleneck is {bounds(measured.scenario).bottleneck}"


def _reading(measured: MeasuredScenario) -> str:
    """Return the resource of a run that takes longest to read an epoch."""
    resources = bounds(measured.scenario).resources
    return max(resources, key=lambda name: resources[name])
