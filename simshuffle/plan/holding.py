"""What a host keeps of the samples: what is staged to it, or what its loaders fetched."""

from __future__ import annotations

from typing import Literal

from simshuffle.exchange import LoaderShuffle
from simshuffle.exchange.loader_shuffle import MOST_CHECKED
from simshuffle.plan.epochs import sample_nbytes
from simshuffle.plan.fetches import Fetches, NodeCaches
from simshuffle.scenario.context import shards_context
from simshuffle.scenario.scenario import Scenario


def held_in(scenario: Scenario) -> Literal["ssd", "memory"] | None:
    """Where a host keeps samples; None if it keeps none."""
    workload = scenario.workload
    if isinstance(workload.exchange, LoaderShuffle):
        return workload.exchange.held_in
    if not scenario.storage_per_host:
        return None
    return "memory" if workload.source == "memory" else "ssd"


def most_held(scenario: Scenario) -> float:
    """Bytes that a host keeps at most, before a run is simulated.

    What is staged; or under a loader's order what the fullest node fetches in the first epoch if it
    fetches nothing in the second, else the set; at most what its cache holds.
    """
    strategy, dataset = scenario.workload.exchange, scenario.workload.dataset
    if not isinstance(strategy, LoaderShuffle):
        return scenario.storage_per_host
    if dataset.num_samples <= MOST_CHECKED:
        found = fetches(scenario, min(scenario.epochs, 2))
        if strategy.cache_limit == 0 or len(found) == 1 or not found[1].requests.any():
            return float(found[-1].held_nbytes)
    room = strategy.room(scenario.cluster.capacity(strategy.cache_in), dataset.nbytes)
    return dataset.nbytes if room is None else float(room)


def fetches(scenario: Scenario, epochs: int) -> list[Fetches]:
    """What the loaders fetch in the first ``epochs`` epochs, counted without a clock; empty where
    they do not."""
    strategy, world_size = scenario.workload.exchange, scenario.world_size
    if not isinstance(strategy, LoaderShuffle):
        return []
    nbytes, found = sample_nbytes(scenario), []
    owner = strategy.first_owner(len(nbytes), world_size, scenario.rng("partition"))
    nodes: NodeCaches | None = None
    for epoch in range(1, epochs + 1):
        context = shards_context(
            scenario.cluster,
            scenario.workload,
            owner,
            world_size,
            epoch,
            scenario.rng("shuffle", epoch),
            scenario.seed,
        )
        nodes = nodes or NodeCaches(scenario, strategy, context, nbytes)
        shards = strategy.epoch_shards(context)
        found.append(nodes.epoch(shards, scenario.workload.iterations(world_size, epoch))[0])
    return found
