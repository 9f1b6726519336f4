"""What is computed of a scenario beside its simulation: on how many samples statistics rest, and
what it takes to sum them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.reading import identity_of
from simshuffle.job.scenario.scenario import Scenario, from_dict
from simshuffle.job.sim.cell import NetworkCell
from simshuffle.studies.collective import bench_of_scenario
from simshuffle.studies.training.running_statistics import Rests, rests_on
from simshuffle.study.cell import Outcome, PlainCell, Tell
from simshuffle.workload.exchange import LoaderShuffle, Strategy

NBYTES = 4
"""Of a statistic, a float32."""


def rests(scenario: Scenario, momentum: float, epochs: int) -> Rests:
    """On how many samples the statistics of a rank of the scenario rest after so many epochs."""
    workload, strategy = scenario.workload, _completed(scenario)
    world_size, batch = scenario.world_size, workload.local_batch_size
    each = workload.dataset.num_samples / world_size
    # 'nearest' and 'drop' leave the rest of a shard out
    drop_last = int(each) >= batch and workload.iterations(world_size) * batch < each
    places = None
    if strategy.needs_places or strategy.fetches:
        places = Resources(scenario.cluster, world_size, scenario.rng("placement")).places
    return rests_on(
        strategy,
        workload.dataset.num_samples,
        world_size,
        batch,
        momentum=momentum,
        epochs=epochs,
        drop_last=drop_last,
        seed=scenario.seed,
        places=places,
    )


def _completed(scenario: Scenario) -> Strategy:
    """The strategy, with what a loader's order takes from the scenario."""
    strategy, workload = scenario.workload.exchange, scenario.workload
    if not isinstance(strategy, LoaderShuffle):
        return strategy
    known = {"workers": workload.loader.workers, "sample_size": workload.dataset.stored.mean}
    return strategy.model_copy(update=known)


@dataclass(frozen=True)
class RestsCell(PlainCell):
    """`rests` of a scenario: n, its interval, and 1/n of global shuffle."""

    document: Mapping[str, Any]
    label: str
    momentum: float
    epochs: int

    @cached_property
    def _scenario(self) -> Scenario:
        return from_dict(self.document, self.label)

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [identity_of(self.document), self.momentum, self.epochs]

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`. ``host`` and ``all`` are the n of the statistics of all ranks of a host,
        or of the job, together; ``global_`` names are those of global shuffle."""
        scenario = self._scenario
        found, world_size = rests(scenario, self.momentum, self.epochs), scenario.world_size
        of, groups = found.forgetting, {"": 1, "host": ranks_of_host(scenario), "all": world_size}
        everywhere = of.number(1.0 / world_size)
        values = {
            "low": found.low,
            "high": found.high,
            "emulated": found.ranks,
            "iterations": len(of.batches),
        }
        for name, ranks in groups.items():
            values[f"n{name}"] = of.pooled(found.number, ranks, world_size)
            values[f"global{name}"] = of.pooled(everywhere, ranks, world_size)
        return Outcome(values)


def ranks_of_host(scenario: Scenario) -> int:
    """Ranks of a host that is full."""
    return scenario.cluster.ranks_per_host(scenario.world_size)


@dataclass(frozen=True)
class SumsCell(NetworkCell):
    """Seconds of summing statistics: a mean and a variance for each channel, as the scenario's
    allreduce does."""

    document: Mapping[str, Any]
    label: str
    channels: Sequence[int]  # of every layer

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [identity_of(self.document), list(self.channels)]

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: ``buffers``, all at once among all ranks; ``host`` and ``all``, those of
        every layer by itself, forward and backward, in one iteration."""
        scenario = from_dict(self.document, self.label)
        everywhere = bench_of_scenario(scenario)
        small = scenario.model_copy(update={"world_size": ranks_of_host(scenario)})
        values = {"buffers": everywhere.seconds(2.0 * NBYTES * sum(self.channels))}
        for name, bench in (("host", bench_of_scenario(small)), ("all", everywhere)):
            each = {count: bench.seconds(2.0 * NBYTES * count) for count in set(self.channels)}
            values[name] = 2.0 * sum(each[count] for count in self.channels)
        return Outcome(values)
