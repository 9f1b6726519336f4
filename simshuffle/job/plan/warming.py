"""Caches that still fill in the last epoch of a scenario: how much shorter later epochs
are, by closed forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.reading_bounds import reads_elsewhere
from simshuffle.job.scenario.scenario import Scenario

LATE = 100
"""The epoch that stands for all late ones (chosen: few trainings have more)."""
ALIKE = 0.005
"""Share of an epoch by which epochs differ and count as alike, as for the verdict of
``run``.
"""
NOTABLE = 0.01
"""Share of an epoch from which on it is said that later ones are shorter."""


@dataclass(frozen=True)
class Warming:
    """The change of the epochs of a run after the last one that is simulated."""

    # share of the last epoch by which late ones are shorter; below 0 they are longer
    saved_share: float
    steady_from: int  # the first epoch that is like all later ones
    cache: str  # what fills: 'page cache', or 'caches' where a cache tier is used


def find_warming(scenario: Scenario) -> Warming | None:
    """Return how later epochs differ from the last one; None if they are alike.

    Alike are bounds of an iteration within the share `ALIKE`. None, too, for loaders'
    orders, whose closed form follows every sample, and from `LATE` epochs on.
    """
    last = scenario.epochs
    if last >= LATE or scenario.workload.exchange.fetches:
        return None
    if reads_elsewhere(scenario, last) == reads_elsewhere(scenario, LATE):
        return None

    def iteration_seconds(epoch: int) -> float:
        bound = bounds(scenario.model_copy(update={"epochs": epoch}))
        return bound.epoch / bound.iterations

    now = iteration_seconds(last)
    late = iteration_seconds(LATE)

    def is_steady(seconds: float) -> bool:
        return abs(seconds - late) <= ALIKE * late

    if is_steady(now):
        return None
    low = last
    high = LATE
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if is_steady(iteration_seconds(middle)) else (middle, high)
        )
    cache = "page cache" if scenario.used_tier is None else "caches"
    return Warming(1.0 - late / now, high, cache)


def warming_sentence(runs: Mapping[str, Scenario], seconds: Mapping[str, float]) -> str:
    """Return a sentence on runs whose caches still fill in their last epoch; '' if no
    epoch changes by more than `NOTABLE` later and the fastest runs stay the fastest.

    It names the run that changes most. Only runs that differ in their exchange alone
    are ranked against one another.

    Args:
        runs: without sweep, by their names.
        seconds: of the last epoch of each run, by its name.
    """
    warming_runs = {
        run: change for run, single in runs.items() if (change := find_warming(single))
    }
    if not warming_runs:
        return ""
    late = {
        **seconds,
        **{
            run: seconds[run] * (1.0 - warming_runs[run].saved_share)
            for run in warming_runs
        },
    }
    rivals: dict[str, list[str]] = {}
    for run, single in runs.items():
        rivals.setdefault(_without_exchange(single), []).append(run)
    reordered = [
        run
        for names in rivals.values()
        if _fastest(names, seconds) != _fastest(names, late)
        for run in names
    ]
    notable = [
        run
        for run in warming_runs
        if abs(warming_runs[run].saved_share) > NOTABLE or run in reordered
    ]
    if not notable:
        return ""
    strongest = max(notable, key=lambda run: abs(warming_runs[run].saved_share))
    change = warming_runs[strongest]
    num_others = len(notable) - 1
    steady_from = max(warming_runs[run].steady_from for run in notable)
    fill = (
        f" and {num_others} more still fill their" if num_others else " still fills its"
    )
    quantifier = "up to" if num_others else "about"
    difference = (
        f"{100 * abs(change.saved_share):.2g} %"
        f" {'less' if change.saved_share > 0 else 'more'}"
    )
    return (
        f"Not steady yet: {strongest}{fill} {change.cache}; an epoch takes {quantifier}"
        f" {difference} from epoch {steady_from} on"
        f"{', and the ranking changes' * bool(reordered)}: set epochs: {steady_from}."
    )


def _without_exchange(scenario: Scenario) -> str:
    """Return text that is equal for runs whose world size, cluster and workload are
    equal, whatever the exchange.
    """
    document = scenario.to_dict()
    return repr(
        (
            scenario.world_size,
            document["cluster"],
            document["workload"] | {"exchange": None},
        )
    )


def _fastest(runs: list[str], seconds: Mapping[str, float]) -> set[str]:
    """Return the runs whose epochs are the shortest, or longer by up to `ALIKE`."""
    shortest = min(seconds[run] for run in runs)
    return {run for run in runs if seconds[run] <= (1.0 + ALIKE) * shortest}
