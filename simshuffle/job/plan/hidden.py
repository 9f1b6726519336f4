"""The number of samples that can be exchanged while a warm epoch takes no longer, from
closed forms.

What is left out (contention, samples that differ) makes the true number smaller; ranks
that go on before the slowest one has stored what it received make it larger.
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
LOCAL = "local_shuffle"
PARTIAL = f"partial_local_shuffle:{FRACTION}=0.1"


def fraction_of(scenario: Scenario, samples: int) -> float:
    """Return Q for so many samples of each rank and epoch; 1 for as many as the
    smallest shard has.
    """
    shard = scenario.workload.dataset.num_samples / scenario.world_size
    return 1.0 if samples == int(shard) else samples / shard


def most_samples(scenario: Scenario) -> int:
    """Return the most samples that a rank can exchange, at least 1.

    All of the smallest shard, or what its host has room for; 1 even without room.
    """
    low = 1
    high = scenario.workload.dataset.num_samples // scenario.world_size
    middle = high  # try all first
    while low < high:
        try:
            scenario.with_values(
                {f"workload.exchange.{FRACTION}": fraction_of(scenario, middle)}
            )
            low = middle
        except InputError:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


def without_exchange(scenario: Scenario) -> Scenario:
    """Return the scenario with local shuffle in place of its exchange."""
    return scenario.with_values({"workload.exchange": LOCAL})


def bounds_without_exchange(scenario: Scenario) -> Bounds:
    """Return the bounds of a scenario's warm epoch, `WARM`, without exchange, however
    many epochs it has.
    """
    return bounds(without_exchange(scenario).model_copy(update={"epochs": WARM}))


def unexchanged_seconds(baseline: Bounds) -> float:
    """Return the least seconds of an epoch without exchange, and those by which
    gradients that travel slow its backward passes.
    """
    return baseline.epoch + baseline.passes.slowed


def added_seconds(baseline: Bounds, scenario: Scenario) -> float:
    """Return the s that the exchange of a scenario adds to the epoch ``baseline``, from
    `bounds_without_exchange`; 0 if all is hidden. Storing on an SSD from which samples
    are read counts as use of the SSD.
    """
    reduced = baseline.allreduce / baseline.iterations
    exchange = exchange_bound(scenario, baseline.iterations, reduced)
    resources = dict(baseline.resources)
    if scenario.workload.source == "ssd":
        nbytes = (
            exchange.samples
            * moving_share(scenario)
            * scenario.workload.dataset.stored.mean
        )
        ranks = scenario.cluster.ranks_per_host(scenario.world_size)
        resources[SSD] += ranks * scenario.cluster.ssd.write_seconds(nbytes)
    return (
        replace(baseline, exchange=exchange, resources=resources).epoch - baseline.epoch
    )


def hidden_samples(
    baseline: Bounds, scenario: Scenario, allowed: float, max_samples: int
) -> int:
    """Return the most samples of a rank, up to ``max_samples``, whose exchange adds no
    more than ``allowed`` seconds, rounded down to 1 %; 0 if there are none.

    Args:
        baseline: the epoch without exchange, from `bounds_without_exchange`.
        scenario: with an exchange that has a schedule; its own Q does not count.
        allowed: s of an epoch.
        max_samples: of a rank in an epoch, as from `most_samples`.
    """
    low, high, middle = 0, max_samples + 1, max_samples  # try all first
    while high - low > max(1, low // RESOLUTION):
        added = added_seconds(baseline, _with_samples_exchanged(scenario, middle))
        low, high = (middle, high) if added <= allowed else (low, middle)
        middle = (low + high) // 2
    return low


def largest_hidden_fraction(scenario: Scenario, tolerance: float) -> float:
    """Return the largest Q that adds no more than ``tolerance``, a share of the epoch
    without exchange, as far as hosts have room; 0 if there is none, to 1 % of itself.

    ``scenario`` needs an exchange with a schedule; its own Q does not count.
    """
    baseline = bounds_without_exchange(scenario)
    allowed = tolerance * unexchanged_seconds(baseline)
    return fraction_of(
        scenario, hidden_samples(baseline, scenario, allowed, most_samples(scenario))
    )


def _with_samples_exchanged(scenario: Scenario, samples: int) -> Scenario:
    """Return the scenario with Q for ``samples`` exchanged by each rank in an epoch;
    nothing is checked again.
    """
    workload = scenario.workload
    fraction = {FRACTION: fraction_of(scenario, samples)}
    exchange = workload.exchange.model_copy(update=fraction)
    return scenario.model_copy(
        update={"workload": workload.model_copy(update={"exchange": exchange})}
    )
