"""How much exchange an epoch hides, from closed forms: where a search begins, and the answer that
is given before anything is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from simshuffle.plan.bounds import Bounds, bounds, exchange_bound, moving_share
from simshuffle.plan.reading_bounds import SSD
from simshuffle.scenario.scenario import Scenario
from simshuffle.studies.mechanisms.border import RESOLUTION, largest
from simshuffle.studies.mechanisms.variants import exchanging, fraction_of, without


@dataclass(frozen=True)
class ExchangeForms:
    """Closed forms of the epoch of a scenario in which samples are exchanged in one way."""

    scenario: Scenario  # from `simshuffle.studies.mechanisms.variants.prepared`
    variant: str

    @cached_property
    def _baseline(self) -> Bounds:
        return bounds(without(self.scenario))

    @cached_property
    def _exchanging(self) -> Scenario:
        return exchanging(self.scenario, self.variant, 1, {})

    @property
    def baseline_seconds(self) -> float:
        """s of the epoch without exchange."""
        return self._baseline.epoch + self._baseline.passes.slowed

    def added_seconds(self, samples: int, changes: Mapping[str, Any] | None = None) -> float:
        """s by which the epoch is longer if each rank exchanges ``samples`` samples, with other
        values of the scenario by dotted key (``changes``)."""
        scenario, baseline = self._sized(samples, changes or {}), self._baseline
        exchange = exchange_bound(scenario, baseline.iterations)
        resources = dict(baseline.resources)
        if scenario.workload.source == "ssd":
            nbytes = exchange.samples * scenario.workload.dataset.stored.mean
            ranks = scenario.cluster.ranks_per_host(scenario.world_size)
            stored = scenario.cluster.ssd.write_seconds(moving_share(scenario) * nbytes)
            resources[SSD] += ranks * stored
        epoch = replace(baseline, exchange=exchange, resources=resources).epoch
        return epoch - baseline.epoch

    def _sized(self, samples: int, changes: Mapping[str, Any]) -> Scenario:
        if changes:
            return exchanging(self.scenario, self.variant, samples, changes)
        scenario = self._exchanging
        fraction = {"exchange_fraction": fraction_of(scenario, samples)}
        exchange = scenario.workload.exchange.model_copy(update=fraction)
        workload = scenario.workload.model_copy(update={"exchange": exchange})
        return scenario.model_copy(update={"workload": workload})

    def hidden_samples(self, allowed_seconds: float, most: int) -> int:
        """Most samples of a rank, up to ``most``, that make the epoch no longer than by
        ``allowed_seconds``."""
        return largest(self.added_seconds, allowed_seconds, most, RESOLUTION)[0]
