"""Say which measurement is worth making: by how much a run on fewer ranks, or a benchmark
of an input, would narrow the interval of a run, and what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simshuffle.job.plan.bounds import bounds
from simshuffle.job.scenario.measured import name_without_ranks
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.uncertainty.inputs import keys_of
from simshuffle.job.uncertainty.interval import Interval, UncertainRuns
from simshuffle.job.uncertainty.kinship import LEARNED, expected_size_factor
from simshuffle.job.uncertainty.narrowing import KinRun, kin_errors

EPOCHS = 2
"""Epochs of a run that is worth making: the cold one, and a warm one that counts."""
STEP, MAX_RUNS = 4, 3
"""Factor between the ranks of the runs that are considered, and how many there are."""
MAX_INPUTS = 3
"""Inputs whose measurement is considered, the strongest ones."""
MIN_NARROWING = 0.02
"""Share by which half an interval must shrink for a measurement to be named."""
BENCHMARK_HOSTS = {"simshuffle machine probe": 1, "a few epochs": 1}
"""Hosts of a command that measures an input, by its beginning; others need two."""
BENCHMARK_HOURS = 1 / 6
"""Hours that a benchmark takes (estimate: ten minutes)."""


def worth_measuring(
    uncertain: UncertainRuns,
    runs: Mapping[str, Scenario],
    kin: Sequence[KinRun],
    ranges: Mapping[str, tuple[float, float]],
    command_of_key: Mapping[str, str],
) -> dict[str, Any]:
    """Return what would narrow the interval of the fastest run on the most ranks.

    Args:
        uncertain: the runs with intervals, narrowed or not.
        runs: their scenarios, by name.
        kin: the measured runs that there are.
        ranges: of inputs by dotted key, lowest and highest (SI units).
        command_of_key: the command that measures an input that was drawn, by its key.

    Returns:
        'run', the name of the run; 'now', half its interval as a share of its middle;
        and 'measurements', the cheapest first: 'what', 'host_hours' and 'then', half
        the interval that is expected after it.
    """
    max_ranks = max(scenario.world_size for scenario in runs.values())
    run = min(
        (name for name in runs if runs[name].world_size == max_ranks),
        key=lambda name: uncertain.intervals[name].value,
    )
    now = half_width(uncertain.intervals[run])
    candidates = candidate_runs(run, runs[run], {single.name for single in kin})
    errors, _ = kin_errors(uncertain, runs, [*kin, *candidates], ranges)
    index = errors.targets.index(run)
    known = range(len(kin))
    today = errors.with_kin(known).posterior(size_known=True).deviation[index]
    size = expected_size_factor(LEARNED.freedom, len(kin)) ** 0.5
    measurements: list[dict[str, Any]] = []
    for number, candidate in enumerate(candidates, len(kin)):
        with_it = errors.with_kin([*known, number]).posterior(size_known=True)
        measurements.append(
            {
                "what": f"run {candidate.name} for {EPOCHS} epochs (--measured)",
                "host_hours": candidate.scenario.hosts
                * EPOCHS
                * candidate.seconds
                / 3600,
                "then": float(now * size * with_it.deviation[index] / today),
            }
        )
    scenario_keys = keys_of(runs[run])
    for key in [key for key in command_of_key if key in scenario_keys][:MAX_INPUTS]:
        without = errors.with_kin(known).posterior(without=key, size_known=True)
        command = command_of_key[key]
        hosts = next(
            (n for start, n in BENCHMARK_HOSTS.items() if command.startswith(start)), 2
        )
        measurements.append(
            {
                "what": f"measure {key} ({command})",
                "host_hours": hosts * BENCHMARK_HOURS,
                "then": float(now * min(without.deviation[index] / today, 1.0)),
            }
        )
    useful = [row for row in measurements if row["then"] < now - MIN_NARROWING * now]
    return {
        "run": run,
        "now": now,
        "measurements": sorted(useful, key=lambda row: row["host_hours"]),
    }


def candidate_runs(run: str, scenario: Scenario, measured: set[str]) -> list[KinRun]:
    """Return runs on fewer ranks, each `STEP` times fewer, that are not measured yet; [] of
    a run on one host.
    """
    name = name_without_ranks(run, scenario)
    gpus = scenario.cluster.host.gpus
    candidates: list[KinRun] = []
    ranks = scenario.world_size
    while (
        len(candidates) < MAX_RUNS and (ranks := ranks // STEP // gpus * gpus) >= gpus
    ):
        smaller = scenario.model_copy(update={"world_size": ranks, "measured": []})
        candidate = KinRun(f"{name} @{ranks}", smaller, bounds(smaller).epoch)
        if candidate.name not in measured:
            candidates.append(candidate)
    return candidates


def half_width(interval: Interval) -> float:
    """Return half the width of an interval, as a share of its middle if measured runs have
    moved it, else of the prediction.
    """
    middle = interval.value if interval.centre is None else interval.centre
    return (interval.high - interval.low) / 2 / middle
