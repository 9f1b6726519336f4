"""What closed forms answer, before anything is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simshuffle.extensions.planning.asked import Candidate, PlanRequest
from simshuffle.extensions.planning.costs import HOUR, cheapest
from simshuffle.job.plan.bounds import Bounds, bounds
from simshuffle.job.plan.holding import staging_seconds

MOST_OTHERS = 3  # strategies that are said beside the first
NONE = 0.005  # share of a cost that is no difference in words


@dataclass(frozen=True)
class ClosedFormTraining:
    """A training by closed forms, which say the least that it takes."""

    candidate: Candidate
    bounded: Bounds
    hours: float
    cost: float


def answer(asked: PlanRequest) -> Iterator[str]:
    """Yield the cheapest strategy and the others, each with the least that it costs."""
    estimates = {each.name: _estimate(asked, each) for each in asked.fitting if each.epochs}
    costs = {name: estimate.cost for name, estimate in estimates.items()}
    most = float("inf") if asked.budget is None else asked.budget
    within = {name: cost for name, cost in costs.items() if cost <= most}
    mixing = {each.name: each.mixing for each in asked.candidates}
    best = cheapest(within, mixing, asked.close)
    if not best:
        least = min(costs, key=lambda name: costs[name])
        yield f"Nothing meets the budget: {least} costs {_amount(asked, costs[least])} at least."
        return
    chosen = estimates[best]
    yield (
        f"Train with {best}: {chosen.hours:,.3g} h on {asked.base.hosts:,} hosts at least,"
        f" {_amount(asked, chosen.cost)} ({chosen.candidate.epochs} epochs of"
        f" {chosen.bounded.epoch:,.3g} s, which {chosen.bounded.bottleneck} bounds)."
    )
    others = sorted((name for name in costs if name != best), key=lambda name: costs[name])
    for name in others[:MOST_OTHERS]:
        yield _beside(estimates[name], chosen)
    if len(others) > MOST_OTHERS:
        yield _beside(estimates[others[-1]], chosen)


def _estimate(asked: PlanRequest, candidate: Candidate) -> ClosedFormTraining:
    assert candidate.scenario is not None  # noqa: S101 - it fits
    assert candidate.epochs is not None  # noqa: S101 - it reaches the target
    bounded = bounds(candidate.scenario)
    seconds = staging_seconds(candidate.scenario) + candidate.epochs * bounded.epoch
    cost = asked.needs(candidate, 0).cost(asked.prices, seconds)
    return ClosedFormTraining(candidate, bounded, seconds / HOUR, cost)


def _beside(other: ClosedFormTraining, chosen: ClosedFormTraining) -> str:
    more = other.cost / chosen.cost - 1.0 if chosen.cost else 0.0
    if more >= 1.0:
        costs = f"{more + 1:.2g} times as much"
    elif abs(more) < NONE:
        costs = "as much"
    else:
        costs = f"{100 * abs(more):.2g} % {'more' if more > 0 else 'less'}"
    return (
        f"{other.candidate.name} costs {costs}: epochs of {other.bounded.epoch:,.3g} s at least,"
        f" which {other.bounded.bottleneck} bounds."
    )


def _amount(asked: PlanRequest, cost: float) -> str:
    priced = asked.prices != {"host-hour": 1.0}
    return f"a cost of {cost:,.4g}" if priced else f"{cost:,.4g} host-hours"
