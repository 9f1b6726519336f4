"""A scenario with fewer iterations an epoch, in which everything else is in the same proportion."""

from __future__ import annotations

from dataclasses import dataclass

from simshuffle.scenario.scenario import Scenario


@dataclass(frozen=True)
class Thinning:
    """What an epoch of fewer iterations leaves out.

    Whole iterations of all ranks are left out of the data set, so the last batch stays. Page caches
    shrink like the data set, so that the same share of it is found in them, at the same place of
    the epoch.

    Attributes:
        scenario: the thinned one, for plans.
        left_out: iterations of every epoch that it does not have.
        factor: how many samples of the whole data set stand for one of its samples, at least 1.
    """

    scenario: Scenario
    left_out: int = 0
    factor: float = 1.0


def thinned(scenario: Scenario, iterations: int) -> Thinning:
    """``scenario`` with at most so many iterations (at least 2) in its first epoch; itself if it
    has no more."""
    workload = scenario.workload
    whole, batch = workload.iterations(scenario.world_size), workload.local_batch_size
    left_out = whole - iterations
    if left_out <= 0:
        return Thinning(scenario)
    dataset, memory = workload.dataset, scenario.cluster.memory
    # samples that no batch has shrink like all others; a last batch that lacks some is kept
    over = dataset.num_samples - whole * scenario.world_size * batch
    unread = round(max(over, 0) * iterations / whole)
    samples = iterations * scenario.world_size * batch + unread + min(over, 0)
    cached = memory.cache_nbytes * samples / dataset.num_samples
    update = {
        "workload": workload.model_copy(
            update={"dataset": dataset.model_copy(update={"num_samples": samples})}
        ),
        "cluster": scenario.cluster.model_copy(
            update={"memory": memory.model_copy(update={"page_cache": cached})}
        ),
    }
    return Thinning(scenario.model_copy(update=update), left_out, dataset.num_samples / samples)
