"""How much can be exchanged while a warm epoch takes no longer, from closed forms.

What is left out (contention, samples that differ) makes the true number smaller; ranks that go on
before the slowest one has stored what it received make it larger.
"""

from __future__ import annotations

from dataclasses import replace

from simshuffle.errors import InputError
from simshuffle.job.plan.bounds import Bounds, bounds
from simshuffle.job.plan.exchange_bound import exchange_bound, moving_share
from simshuffle.job.plan.reading_bounds import SSD
from simshuffle.job.scenario.scenario import Scenario

WARM = 2
"""The epoch that is looked at: like all that follow."""
RESOLUTION = 100
"""A number of samples is known to this part of itself."""
FRACTION = "exchange_fraction"
LOCAL, PARTIAL = "local_shuffle", f"partial_local_shuffle:{FRACTION}=0.1"


def fraction_of(scenario: Scenario, samples: int) -> float:
    """Return Q for so many samples of each rank and epoch; 1 for as many as the smallest shard
    has."""
    shard = scenario.workload.dataset.num_samples / scenario.world_size
    return 1.0 if samples == int(shard) else samples / shard


def most_samples(scenario: Scenario) -> int:
    """Return the most samples that a rank can exchange: all of the smallest shard, or what its host
    has room for."""
    low, high = 1, scenario.workload.dataset.num_samples // scenario.world_size
    middle = high  # try all first
    while low < high:
        try:
            scenario.with_values({f"workload.exchange.{FRACTION}": fraction_of(scenario, middle)})
            low = middle
        except InputError:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


def without_exchange(scenario: Scenario) -> Scenario:
    """Return the scenario with nothing exchanged."""
    return scenario.with_values({"workload.exchange": LOCAL})


def unexchanged(scenario: Scenario) -> Bounds:
    """Return the bounds of a scenario's warm epoch without exchange."""
    return bounds(without_exchange(scenario).model_copy(update={"epochs": WARM}))


def unexchanged_seconds(alone: Bounds) -> float:
    """Return the s of an epoch without exchange, with what gradients that travel slow down."""
    return alone.epoch + alone.passes.slowed


def added_seconds(alone: Bounds, scenario: Scenario) -> float:
    """Return the s that the exchange of a scenario adds to the epoch ``alone``, from
    `unexchanged`."""
    reduced = alone.allreduce / alone.iterations
    exchange = exchange_bound(scenario, alone.iterations, reduced)
    resources = dict(alone.resources)
    if scenario.workload.source == "ssd":
        nbytes = exchange.samples * moving_share(scenario) * scenario.workload.dataset.stored.mean
        ranks = scenario.cluster.ranks_per_host(scenario.world_size)
        resources[SSD] += ranks * scenario.cluster.ssd.write_seconds(nbytes)
    return replace(alone, exchange=exchange, resources=resources).epoch - alone.epoch


def hidden_samples(alone: Bounds, scenario: Scenario, allowed: float, most: int) -> int:
    """Return the most samples of a rank, up to ``most``, whose exchange adds no more than
    ``allowed`` seconds, to 1 %.

    Args:
        alone: the epoch without exchange, from `unexchanged`.
        scenario: with an exchange that has a schedule; its own Q does not count.
    """
    low, high, middle = 0, most + 1, most  # try all first
    while high - low > max(1, low // RESOLUTION):
        added = added_seconds(alone, _exchanging(scenario, middle))
        low, high = (middle, high) if added <= allowed else (low, middle)
        middle = (low + high) // 2
    return low


def largest_hidden_fraction(scenario: Scenario, tolerance: float) -> float:
    """Return the largest Q that adds no more than ``tolerance``, a share of the epoch without
    exchange, as far as hosts have room; arguments as of `hidden_samples`."""
    alone = unexchanged(scenario)
    allowed = tolerance * unexchanged_seconds(alone)
    return fraction_of(scenario, hidden_samples(alone, scenario, allowed, most_samples(scenario)))


def _exchanging(scenario: Scenario, samples: int) -> Scenario:
    """Return the scenario with as many samples exchanged; nothing is checked again."""
    workload = scenario.workload
    fraction = {FRACTION: fraction_of(scenario, samples)}
    exchange = workload.exchange.model_copy(update=fraction)
    return scenario.model_copy(
        update={"workload": workload.model_copy(update={"exchange": exchange})}
    )
