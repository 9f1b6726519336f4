"""Scenarios with fewer iterations an epoch, in which bytes and seconds keep their
proportions.
"""

from __future__ import annotations

from dataclasses import dataclass

from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.record import Spec
from simshuffle.workload.exchange.schedule import epoch_quota


@dataclass(frozen=True)
class Thinning:
    """A scenario whose epochs leave out iterations, each of a full batch of all ranks:
    a last batch that is not full stays. Page caches and cache tier shrink like the
    data set.
    """

    scenario: Scenario  # the thinned one, for plans
    left_out: int = 0  # iterations of every epoch that the thinned scenario lacks
    # samples of the original data set over those of the thinned one, at least 1
    factor: float = 1.0
    num_samples: int = 0  # of the original data set; 0 if no iteration is left out

    def sent_factor(self, epoch: int) -> float:
        """Return how many samples the original epoch sends for one sent in the thinned
        one: `factor` if the exchange has no fraction, or the thinned epoch sends none.
        """
        fraction = self.scenario.workload.exchange.fraction
        world_size = self.scenario.world_size
        if fraction is None or self.left_out == 0:
            return self.factor
        num_thinned = self.scenario.workload.dataset.num_samples
        counts = (num_thinned, self.num_samples)
        sent, all_sent = (
            epoch_quota(fraction, count, world_size, epoch) for count in counts
        )
        return all_sent / sent if sent else self.factor

    def read_factor(self, samples: int) -> float:
        """Return how many samples the original epoch trains on for each one of the
        thinned epoch, in which all ranks together train on ``samples`` (not 0).
        """
        batch = self.scenario.world_size * self.scenario.workload.local_batch_size
        return 1.0 + self.left_out * batch / samples


def thin_scenario(scenario: Scenario, iterations: int) -> Thinning:
    """Return ``scenario`` with at most ``iterations`` (2 or more) in its first epoch.

    Data set, page caches and cache tier shrink alike. A scenario that has no more
    iterations comes back unchanged, with 0 left out.
    """
    workload = scenario.workload
    all_iterations = workload.iterations(scenario.world_size)
    batch = workload.local_batch_size
    left_out = all_iterations - iterations
    dataset = workload.dataset
    memory = scenario.cluster.memory
    if left_out <= 0:
        return Thinning(scenario)
    # samples that no batch has shrink like all others, and shards differ by as many as before; a
    # last batch that lacks some is kept
    excess_samples = dataset.num_samples - all_iterations * scenario.world_size * batch
    unread_per_rank, unread_remainder = divmod(
        max(excess_samples, 0), scenario.world_size
    )
    unread = (
        round(unread_per_rank * iterations / all_iterations) * scenario.world_size
        + unread_remainder
    )
    samples = iterations * scenario.world_size * batch + unread + min(excess_samples, 0)
    cached = memory.cache_nbytes * samples / dataset.num_samples
    caches: dict[str, Spec] = {
        "memory": memory.model_copy(update={"page_cache": cached})
    }
    if (tier := scenario.cluster.cache_tier) is not None:
        room = tier.capacity * samples / dataset.num_samples
        caches["cache_tier"] = tier.model_copy(update={"capacity": room})
    update = {
        "workload": workload.model_copy(
            update={"dataset": dataset.model_copy(update={"num_samples": samples})}
        ),
        "cluster": scenario.cluster.model_copy(update=caches),
    }
    factor = dataset.num_samples / samples
    return Thinning(
        scenario.model_copy(update=update), left_out, factor, dataset.num_samples
    )
