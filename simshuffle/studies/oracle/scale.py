"""What all strategies have in common at a world size: reading, the exchange of samples, and waiting
for the slowest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simshuffle.exchange.sending import SendingStrategy
from simshuffle.parallelism import Data
from simshuffle.plan.bounds import Bounds, bounds
from simshuffle.plan.exchange_bounds import exchange_bound, expected_largest
from simshuffle.plan.host_work import payload_nbytes
from simshuffle.plan.reading_bounds import cable_bandwidth
from simshuffle.scenario.scenario import Scenario

Floats = NDArray[np.float64]
FRACTIONS: Floats = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 25)])
"""Exchange fractions whose cost is worked out; between them it is interpolated."""
ITERATIONS = 64
"""Iterations that an exchange is worked out for; in a longer epoch all are alike."""


@dataclass(frozen=True)
class Scale:
    """A world size."""

    scenario: Scenario  # at that world size, with data parallelism
    bounds: Bounds  # lower bounds of its epoch
    samples: float  # that a rank trains on in the epoch, in the mean
    slowest: float  # what the slowest rank takes for an iteration, over the mean of all
    # (len(FRACTIONS),) s an epoch of each exchange fraction, at least; None where no fraction is
    # exchanged
    exchange: Floats | None

    @property
    def io(self) -> tuple[str, float]:
        """The slowest resource through which samples come, and s an epoch of it."""
        name = max(self.bounds.resources, key=lambda each: self.bounds.resources[each])
        return name, self.bounds.resources[name]

    def shown(self, exchange: float, exposed: float) -> float:
        """What an exchange of ``exchange`` s an epoch adds to communication of ``exposed`` s that
        nothing hides: it may run beside it, where that overlaps with the backward pass."""
        return max(exchange - exposed, 0.0) if self.bounds.beside_exchange else exchange

    def hidden_fraction(self, loop: float, exposed: float, tolerance: float) -> float | None:
        """Q*: the largest exchange fraction that adds no more than ``tolerance`` of the loop
        without exchange, and whose bytes the cables carry within it; None where no fraction is
        exchanged.

        Args:
            loop: s an epoch without exchange.
            exposed: s of communication in it that nothing hides.
            tolerance: share of the loop.
        """
        if self.exchange is None:
            return None
        allowed = tolerance * loop + (exposed if self.bounds.beside_exchange else 0.0)
        largest = float(np.interp(allowed, self.exchange, FRACTIONS))
        scenario = self.scenario
        schedule = scenario.workload.exchange.exchange_schedule
        if schedule is None or scenario.hosts == 1:
            return largest
        ranks = scenario.cluster.ranks_per_host(scenario.world_size)
        nbytes = ranks * self.samples * payload_nbytes(schedule, scenario.workload.dataset)
        carried = scenario.cluster.host.hcas * cable_bandwidth(scenario) * loop
        return min(largest, carried / nbytes)


def scale_of(scenario: Scenario, world_size: int) -> Scale:
    """What all strategies have in common at a world size of ``scenario``, whose sweep is not
    followed."""
    workload = scenario.workload.model_copy(update={"parallelism": Data()})
    changes = {"world_size": world_size, "sweep": {}, "workload": workload}
    sized = scenario.model_copy(update=changes)
    found = bounds(sized)
    trained = float(found.iterations * workload.local_batch_size)
    if workload.last_batch != "carry":
        trained = min(trained, workload.dataset.num_samples / world_size)
    slowest = expected_largest(world_size, workload.jitter.compute)
    return Scale(sized, found, trained, slowest, _exchange(sized, found.iterations))


def _exchange(scenario: Scenario, iterations: int) -> Floats | None:
    """See `Scale`: what a part of the epoch takes, as often as it fits into the epoch."""
    workload, exchange = scenario.workload, scenario.workload.exchange
    if not isinstance(exchange, SendingStrategy) or scenario.world_size == 1:
        return None
    part = min(iterations, ITERATIONS)
    count = part * workload.local_batch_size * scenario.world_size
    samples = min(count, workload.dataset.num_samples)
    dataset = workload.dataset.model_copy(update={"num_samples": samples})
    seconds = []
    for fraction in FRACTIONS.tolist():
        own = exchange.model_copy(update={"exchange_fraction": fraction})
        sent = workload.model_copy(update={"dataset": dataset, "exchange": own})
        bound = exchange_bound(scenario.model_copy(update={"workload": sent}), part)
        seconds.append(bound.seconds * iterations / part)
    return np.maximum.accumulate(seconds)
