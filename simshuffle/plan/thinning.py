"""A scenario with fewer iterations an epoch, in which everything else is in the same proportion."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simshuffle.exchange.schedule import epoch_quota
from simshuffle.plan.reading_bounds import OPENS, PFS, REQUESTS, STORE, ReadingBounds
from simshuffle.scenario.scenario import Scenario
from simshuffle.scenario.workload import Loader

LEAST = 12
"""Iterations of the first window."""
LEAST_SENDINGS = 2.5
"""Iterations of the first window after which samples are sent."""
TRANSIENT = 2
"""Times that workers load a batch each until those of different ranks are no longer in step."""
BEGIN = 2
"""Iterations at the beginning of an epoch that are not like the others, where loaders keep up."""
FEWEST_BATCHES = 6
"""Means that an interval rests on at least: fewer say little of their own variance."""
BINDS = 2.0
"""How many times as long as its compute a batch has to wait for a server, from which on that is
what an epoch waits for."""
WORTH_LEAVING_OUT = 0.75
"""Share of the iterations of an epoch from which on all of them are simulated."""


def first_window(scenario: Scenario) -> int:
    """Iterations of the first window of an epoch."""
    workload = scenario.workload
    each = (workload.exchange.fraction or 0.0) * workload.local_batch_size
    sending = math.ceil(LEAST_SENDINGS / min(each, 1.0)) if each else 0
    measuring = 0
    if workload.exchange.inference_pass:
        # the transient, two parts of the rest that are compared, and the last, which may be smaller
        measuring = (TRANSIENT + 2) * workload.loader.at_once + 2
    least = max(LEAST, sending, measuring)
    if measuring or not waits_for_server(scenario):
        return least
    return max(least, served_window(workload.loader, workload.iterations(scenario.world_size)))


def served_window(loader: Loader, iterations: int, least: int = 0) -> int:
    """Iterations of a window of an epoch of so many, in which all ranks wait for one server: at
    least two turns of the workers between filling the loaders and running them empty. It ends at
    the same turn as the epoch, so that the last batches come alike."""
    turns = max(2 * loader.at_once, FEWEST_BATCHES)
    found = max(max(loader.prefetch, BEGIN) + turns + loader.prefetch, least)
    return found + (iterations - found) % loader.at_once


def waits_for_server(scenario: Scenario) -> bool:
    """Whether an epoch waits for one server that all ranks share, where nothing is cached."""
    found = ReadingBounds(scenario).seconds(scenario.workload.local_batch_size, 0.0)
    slowest = max(found.get(name, 0.0) for name in (OPENS, PFS, REQUESTS, STORE))
    return slowest > BINDS * compute_seconds(scenario)


def compute_seconds(scenario: Scenario) -> float:
    """What a rank computes for a batch (s)."""
    workload = scenario.workload
    times = scenario.step_times
    batch = np.asarray(workload.local_batch_size * workload.mean_work)
    return float(times.forward_of(batch) + times.backward_of(batch)) + times.update


@dataclass(frozen=True)
class Thinning:
    """What an epoch of fewer iterations leaves out.

    Whole iterations of all ranks are left out of the data set, so the last batch stays. Page caches
    shrink like the data set, so that the same share of it is found in them, at the same place of
    the epoch."""

    scenario: Scenario  # the thinned one, for plans
    left_out: int = 0  # iterations of every epoch that it does not have
    # how many samples of the whole data set stand for one of its samples, at least 1
    factor: float = 1.0
    num_samples: int = 0  # of the whole data set, if any are left out

    def sent_factor(self, epoch: int) -> float:
        """How many samples are sent in the whole epoch for one that is sent in the thinned one."""
        fraction, world_size = self.scenario.workload.exchange.fraction, self.scenario.world_size
        if fraction is None or self.left_out == 0:
            return self.factor
        thinned = self.scenario.workload.dataset.num_samples
        sent, all_sent = (
            epoch_quota(fraction, count, world_size, epoch) for count in (thinned, self.num_samples)
        )
        return all_sent / sent if sent else self.factor

    def read_factor(self, samples: int) -> float:
        """How many samples are trained on in the whole epoch for one of the ``samples`` here."""
        batch = self.scenario.world_size * self.scenario.workload.local_batch_size
        return 1.0 + self.left_out * batch / samples


def thinned(scenario: Scenario, iterations: int) -> Thinning:
    """``scenario`` with at most so many iterations (at least 2) in its first epoch."""
    workload = scenario.workload
    whole, batch = workload.iterations(scenario.world_size), workload.local_batch_size
    left_out = whole - iterations
    dataset, memory = workload.dataset, scenario.cluster.memory
    if left_out <= 0:
        return Thinning(scenario)
    # samples that no batch has shrink like all others, and shards differ by as many as before; a
    # last batch that lacks some is kept
    over = dataset.num_samples - whole * scenario.world_size * batch
    each, rest = divmod(max(over, 0), scenario.world_size)
    unread = round(each * iterations / whole) * scenario.world_size + rest
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
    factor = dataset.num_samples / samples
    return Thinning(scenario.model_copy(update=update), left_out, factor, dataset.num_samples)
