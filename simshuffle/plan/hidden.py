"""How much can be exchanged while an epoch takes no longer, from closed forms."""

from __future__ import annotations

from dataclasses import replace

from simshuffle.plan.bounds import Bounds, bounds, exchange_bound, moving_share
from simshuffle.plan.reading_bounds import SSD
from simshuffle.scenario.scenario import Scenario

HALVINGS = 6
"""Of the interval in which the fraction lies: it is then known to 2 % of itself."""
SMALLEST = 2.0**-10
"""The smallest fraction that is tried."""
LOCAL, PARTIAL = "local_shuffle", "partial_local_shuffle:exchange_fraction=0.1"


def largest_hidden_fraction(scenario: Scenario, tolerance: float) -> float:
    """Return the largest Q whose exchange makes the bound of the last epoch at most ``tolerance``
    (a share of it) longer than without exchange; 0 for less than a sample of each rank.

    The epoch is that of `simshuffle.plan.bounds`, with the exchange of Q in place of none. What the
    bounds leave out (contention) makes the true fraction smaller. What they hide nothing in (ranks
    that wait for the slowest one) makes it larger.

    Args:
        scenario: with an exchange that has a schedule; its own Q does not count.
        tolerance: share of the epoch that may be added.
    """
    alone = bounds(scenario.with_values({"workload.exchange": LOCAL}))
    longest = (1.0 + tolerance) * alone.epoch

    def is_hidden(fraction: float) -> bool:
        return _with_exchange(alone, _exchanging(scenario, fraction)).epoch <= longest

    low, high = 0.0, SMALLEST
    while is_hidden(high):
        if high == 1.0:
            return 1.0
        low, high = high, min(2.0 * high, 1.0)
    for _ in range(HALVINGS if low else 0):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_hidden(middle) else (low, middle)
    # a fraction of less than one sample of a rank exchanges nothing
    return low if exchange_bound(_exchanging(scenario, low), alone.iterations).samples else 0.0


def _exchanging(scenario: Scenario, fraction: float) -> Scenario:
    """The scenario with another Q; nothing is checked again."""
    workload = scenario.workload
    exchange = workload.exchange.model_copy(update={"exchange_fraction": fraction})
    return scenario.model_copy(
        update={"workload": workload.model_copy(update={"exchange": exchange})}
    )


def _with_exchange(alone: Bounds, scenario: Scenario) -> Bounds:
    """The bounds of an epoch without exchange, with that of a scenario added."""
    exchange = exchange_bound(scenario, alone.iterations)
    resources = dict(alone.resources)
    if scenario.workload.source == "ssd":
        nbytes = exchange.samples * moving_share(scenario) * scenario.workload.dataset.stored.mean
        ranks = scenario.cluster.ranks_per_host(scenario.world_size)
        resources[SSD] += ranks * scenario.cluster.ssd.write_seconds(nbytes)
    return replace(alone, exchange=exchange, resources=resources)
