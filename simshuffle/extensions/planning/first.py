"""First answer of a plan, by closed forms, before anything is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simshuffle.extensions.planning.asked import PlanRequest
from simshuffle.extensions.planning.candidates import Candidate
from simshuffle.extensions.planning.costs import HOUR, cheapest_strategy
from simshuffle.job.plan.bounds import Bounds, bounds
from simshuffle.job.plan.holding import staging_seconds

MAX_OTHERS = 3  # strategies that are said beside the first
NEGLIGIBLE = 0.005  # share of a cost that is no difference in words


@dataclass(frozen=True)
class ClosedFormTraining:
    """A training by closed forms, which are lower bounds of its time and cost."""

    candidate: Candidate  # the strategy
    bounds: Bounds  # lower bounds of a warm epoch
    hours: float  # hours of the training, at least
    cost: float  # cost of the training, at least


def closed_form_answer(request: PlanRequest) -> Iterator[str]:
    """Yield sentences on the cheapest strategy and others, with lower bounds of costs.

    The others are the `MAX_OTHERS` cheapest and the most expensive one, also those
    above the budget. Strategies without room or without epochs to the target are left
    out. Where nothing meets the budget, the only sentence names the cheapest. Failures,
    saves and spare hosts do not count.
    """
    estimates = {
        candidate.name: _estimate(request, candidate)
        for candidate in request.feasible_candidates
        if candidate.epochs
    }
    if not estimates:
        yield "No strategy that fits the hosts reaches the target accuracy."
        return
    costs = {name: estimate.cost for name, estimate in estimates.items()}
    mixing = {candidate.name: candidate.mixing for candidate in request.candidates}
    best = cheapest_strategy(costs, mixing, request.tie_share, request.budget)
    if not best:
        cheapest_name = min(costs, key=lambda name: costs[name])
        min_cost = _format_cost(request, costs[cheapest_name])
        yield (
            f"No strategy meets the budget: the cheapest, {cheapest_name}, needs"
            f" {min_cost} at least."
        )
        return

    chosen_estimate = estimates[best]
    epoch_bounds = chosen_estimate.bounds
    yield (
        f"Train with {best}: {chosen_estimate.hours:,.3g} h on {request.base.hosts:,} hosts at"
        f" least, {_format_cost(request, chosen_estimate.cost)}"
        f" ({chosen_estimate.candidate.epochs} epochs of {epoch_bounds.epoch:,.3g} s,"
        f" bound by {epoch_bounds.bottleneck})."
    )

    other_names = sorted(
        (name for name in costs if name != best), key=lambda name: costs[name]
    )
    for name in other_names[:MAX_OTHERS]:
        yield _compare_estimates(estimates[name], chosen_estimate)
    if len(other_names) > MAX_OTHERS:
        yield _compare_estimates(estimates[other_names[-1]], chosen_estimate)


def _estimate(request: PlanRequest, candidate: Candidate) -> ClosedFormTraining:
    """Return lower bounds of a candidate's training and its cost, without spare hosts.

    The time is staging and all epochs as warm ones. The candidate must have a scenario
    and epochs.
    """
    assert candidate.scenario is not None  # noqa: S101 - it fits
    assert candidate.epochs is not None  # noqa: S101 - it reaches the target
    epoch_bounds = bounds(candidate.scenario)
    seconds = (
        staging_seconds(candidate.scenario) + candidate.epochs * epoch_bounds.epoch
    )
    cost = request.machine_needs(candidate, 0).cost(request.prices, seconds)
    return ClosedFormTraining(candidate, epoch_bounds, seconds / HOUR, cost)


def _compare_estimates(
    other_estimate: ClosedFormTraining, chosen_estimate: ClosedFormTraining
) -> str:
    """Return the sentence that compares the cost of another strategy with the chosen
    one.
    """
    extra_cost = (
        other_estimate.cost / chosen_estimate.cost - 1.0
        if chosen_estimate.cost
        else 0.0
    )
    if extra_cost >= 1.0:
        costs = f"{extra_cost + 1:.2g} times as much"
    elif abs(extra_cost) < NEGLIGIBLE:
        costs = "as much"
    else:
        costs = f"{100 * abs(extra_cost):.2g} % {'more' if extra_cost > 0 else 'less'}"
    return (
        f"{other_estimate.candidate.name} costs {costs}: its epochs take"
        f" {other_estimate.bounds.epoch:,.3g} s at least, bound by"
        f" {other_estimate.bounds.bottleneck}."
    )


def _format_cost(request: PlanRequest, cost: float) -> str:
    """Format a cost, in host-hours where nothing else has a price."""
    has_prices = request.prices != {"host-hour": 1.0}
    return f"a cost of {cost:,.4g}" if has_prices else f"{cost:,.4g} host-hours"
