"""The cells of an accuracy study beside simulations.

One counts the samples that statistics rest on, the other times the summing of
statistics.
"""

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
from simshuffle.studies.training.running_statistics import (
    EffectiveSamples,
    estimate_effective_samples,
)
from simshuffle.study.cell import Outcome, PlainCell, Tell
from simshuffle.workload.exchange import LoaderShuffle, Strategy

STATISTIC_NBYTES = 4
"""Bytes of a statistic, a float32."""


def estimate_samples(
    scenario: Scenario, momentum: float, epochs: int
) -> EffectiveSamples:
    """Estimate the samples that a rank's statistics rest on after ``epochs``.

    ``momentum`` is that of the running statistics. Ranks of strategies that are not
    known in closed form are emulated.
    """
    workload = scenario.workload
    strategy = _complete_strategy(scenario)
    world_size = scenario.world_size
    local_batch = workload.local_batch_size

    # 'nearest' and 'drop' leave out the end of a shard that fills no batch
    shard_samples = workload.dataset.num_samples / world_size
    trained_samples = workload.iterations(world_size) * local_batch
    drop_last = int(shard_samples) >= local_batch and trained_samples < shard_samples

    places = None
    if strategy.needs_places or strategy.fetches:
        places = Resources(
            scenario.cluster, world_size, scenario.rng("placement")
        ).places
    return estimate_effective_samples(
        strategy,
        workload.dataset.num_samples,
        world_size,
        local_batch,
        momentum=momentum,
        epochs=epochs,
        drop_last=drop_last,
        seed=scenario.seed,
        places=places,
    )


def _complete_strategy(scenario: Scenario) -> Strategy:
    """Return the strategy, with the values that a loader's order takes from the
    scenario.
    """
    workload = scenario.workload
    strategy = workload.exchange
    if not isinstance(strategy, LoaderShuffle):
        return strategy
    loader_values = {
        "workers": workload.loader.workers,
        "sample_size": workload.dataset.stored.mean,
    }
    return strategy.model_copy(update=loader_values)


@dataclass(frozen=True)
class EffectiveSamplesCell(PlainCell):
    """The samples n that statistics of a scenario rest on, and n of global shuffle."""

    document: Mapping[str, Any]  # the scenario as plain values
    label: str  # names the cell to people
    momentum: float  # m of the running statistics
    epochs: int  # epochs of the training

    @cached_property
    def _scenario(self) -> Scenario:
        """The scenario of ``document``."""
        return from_dict(self.document, self.label)

    @property
    def key(self) -> Any:
        """The scenario's identity, the momentum and the epochs."""
        return [identity_of(self.document), self.momentum, self.epochs]

    def run(self, tell: Tell) -> Outcome:
        """Return n, its interval and n of global shuffle as the values of an outcome.

        Keys are 'n', 'nhost', 'nall', 'global', 'globalhost', 'globalall': without
        suffix of a rank by itself, with ``host`` and ``all`` of the statistics of all
        ranks of a host, or of the job, together. 'low' and 'high' are the 90 % interval
        of 'n'; 'emulated' are the ranks that were followed, 0 where n is exact, and
        'iterations' those of an epoch.
        """
        scenario = self._scenario
        world_size = scenario.world_size
        estimate = estimate_samples(scenario, self.momentum, self.epochs)
        memory = estimate.memory
        global_number = memory.number_from_returns(1.0 / world_size)
        values = {
            "low": estimate.low,
            "high": estimate.high,
            "emulated": estimate.ranks,
            "iterations": len(memory.batches),
        }
        ranks_by_group = {"": 1, "host": ranks_of_host(scenario), "all": world_size}
        for name, ranks in ranks_by_group.items():
            values[f"n{name}"] = memory.pool_ranks(estimate.number, ranks, world_size)
            values[f"global{name}"] = memory.pool_ranks(
                global_number, ranks, world_size
            )
        return Outcome(values)


def ranks_of_host(scenario: Scenario) -> int:
    """Return the number of ranks on a full host; all ranks if they are fewer."""
    return scenario.cluster.ranks_per_host(scenario.world_size)


@dataclass(frozen=True)
class StatisticsSumCell(NetworkCell):
    """The seconds of summing statistics: a mean and a variance for each channel.

    The scenario's allreduce sums them, over an idle network.
    """

    document: Mapping[str, Any]  # the scenario as plain values
    label: str  # names the cell to people
    channels: Sequence[int]  # channels of every layer with statistics

    @property
    def key(self) -> Any:
        """The scenario's identity and the channels."""
        return [identity_of(self.document), list(self.channels)]

    def run(self, tell: Tell) -> Outcome:
        """Return seconds of summing, at the keys 'buffers', 'host' and 'all'.

        'buffers' sums all statistics at once among all ranks. 'host' and 'all' are of
        one iteration: the statistics of every layer by itself, forward and backward,
        among the ranks of a full host or of the job. One rank takes 0 s.
        """
        scenario = from_dict(self.document, self.label)
        job_bench = bench_of_scenario(scenario)
        host_scenario = scenario.model_copy(
            update={"world_size": ranks_of_host(scenario)}
        )
        values = {
            "buffers": job_bench.seconds(2.0 * STATISTIC_NBYTES * sum(self.channels))
        }
        for name, bench in (
            ("host", bench_of_scenario(host_scenario)),
            ("all", job_bench),
        ):
            seconds_by_channels = {
                count: bench.seconds(2.0 * STATISTIC_NBYTES * count)
                for count in set(self.channels)
            }
            values[name] = 2.0 * sum(
                seconds_by_channels[count] for count in self.channels
            )
        return Outcome(values)
