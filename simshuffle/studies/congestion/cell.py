"""One run of a network model as a cell, and what is noted of it; and what is sent as another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.fabric.network import FlowOutcome, Fluid, Packet
from simshuffle.fabric.network.models import load_model
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.reading import unnamed
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Ints64
from simshuffle.studies.congestion.measure import (
    NBYTES,
    bound_seconds,
    completion_seconds,
    measure,
)
from simshuffle.studies.congestion.messages import (
    Model,
    barrier_cost,
    ends_with_messages,
    seconds_with_messages,
)
from simshuffle.studies.congestion.patterns import FIXED, Variant
from simshuffle.studies.congestion.sampling import (
    FEWEST_STEPS,
    WORTH,
    TimeEstimate,
    busiest_seconds,
    choose_steps,
    drift_width,
    drifting_chain,
    paired_chain,
    sum_of_steps,
)
from simshuffle.studies.congestion.traffic import (
    ExchangeTraffic,
    SentSamples,
    UsedFabric,
    exchange,
    first_samples,
    samples,
)
from simshuffle.study import cell
from simshuffle.study.cell import SMALL_MEMORY, PlainCell, Tell
from simshuffle.study.store import TABLE

LINKS = "links"
"""The table of a `SentCell`: name, tier and capacity of every link."""
COST = {"analytic": 0.3, "fluid": 6.0, "packet": 1.5}
"""Seconds for a million messages, of packet for a million packets, on one core, roughly."""
COST_OF_SIZES = 0.1
"""Seconds to draw a million sizes of samples, roughly."""
OVERHEAD = 1.5
"""Seconds for the routes and bounds of a million messages, roughly."""
COST_OF_CROWDS = {"all_to_all": 23.0, "drifting": 35.0}
"""Seconds of the fluid model for a million messages of 2,048 ranks: where all are under way at
once, and where ranks with fresh partners are out of step. They grow as the number of ranks does to
the power of `CROWDING`."""
CROWDING = 0.85
COARSE = 0.02
"""Share of its bytes that a message of an all-to-all may have left when it ends, where only some of
an exchange is simulated: an eighth of the time at 2,048 ranks."""
COARSE_COST = 0.13
"""Share of the cost that is left then."""
PAIR_NBYTES = 150.0
"""Bytes of memory for each message, and for each pair of ranks in an all-to-all, roughly."""
PORT_NBYTES = 25.0
"""Bytes of memory for each pair of ranks in a fabric, roughly."""


@dataclass(frozen=True)
class RankPlacement:
    """The ranks of a scenario on its machine."""

    digest: str  # of the scenario, which two of the same content share
    scenario: Scenario = field(compare=False, repr=False)  # without sweep

    @classmethod
    def of(cls, scenario: Scenario) -> RankPlacement:
        """That of a scenario, whose name decides nothing."""
        text = json.dumps(unnamed(scenario.to_dict()), sort_keys=True)
        return cls(hashlib.sha256(text.encode()).hexdigest(), scenario)


@lru_cache(maxsize=8)
def fabric_of(place: RankPlacement) -> UsedFabric:
    """The network between the ranks, which a process builds once."""
    of = place.scenario
    return UsedFabric(Resources(of.cluster, of.world_size, of.rng("placement")))


@dataclass(frozen=True)
class SentCell(PlainCell):
    """The bytes of a job and the links for them: the row of `sets`, and the table `LINKS`."""

    place: RankPlacement  # the ranks
    samples: SentSamples  # what they send
    seeds: int  # how many
    label: str  # for people

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [self.place.digest, *self.samples.key, self.samples.bytes_set, self.seeds]

    @property
    def cost(self) -> float:
        """Return the s that it takes on one core, roughly."""
        sizes = self.seeds * self.samples.count * self.place.scenario.world_size
        return 0.02 + COST_OF_SIZES * sizes / 1e6

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return SMALL_MEMORY + PORT_NBYTES * self.place.scenario.world_size**2

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`."""
        return frozenset({f"{LINKS}{TABLE}"})

    def run(self, tell: Tell) -> cell.Outcome:
        """As for `Cell`."""
        of, fabric = self.samples, fabric_of(self.place)
        ports, links = fabric.ports, fabric.links
        sent = np.array([of.nbytes(seed).sum(axis=0) for seed in range(1, self.seeds + 1)])
        busiest = average = 0.0
        if ports[0] >= 0:
            used_ports, port_of_rank = np.unique(ports, return_inverse=True)
            # (seeds, ports) s that each port needs for what its ranks send
            nbytes = np.array([np.bincount(port_of_rank, weights=of_seed) for of_seed in sent])
            seconds = nbytes / links.capacity[used_ports]
            busiest = float(seconds.max(axis=1).mean())
            average = float((nbytes.sum(axis=1) / links.capacity[used_ports].sum()).mean())
        row = {
            "world_size": of.scenario.world_size,
            "bytes_set": of.bytes_set,
            "hosts": fabric.resources.num_hosts,
            "samples": of.count,
            "sample_share": of.share,
            "nbytes": float(sent.sum(axis=1).mean()),
            "byte_share": of.count * of.share / samples(of.scenario).count,
            "seeds": self.seeds,
            "port_s": average,
            "injection_s": busiest,
        }
        names = [links.name(link) for link in range(len(fabric.tiers))]
        table = {"link": names, "tier": fabric.tiers, "capacity": links.capacity}
        return cell.Outcome(row, {LINKS: pd.DataFrame(table)})


@dataclass(frozen=True)
class TrafficCell(PlainCell):
    """A run."""

    place: RankPlacement  # the ranks
    samples: SentSamples  # what they send
    variant: Variant  # how
    model: Model  # of the network
    seed: int  # from 1
    label: str  # for people
    with_links: bool  # whether the bytes on its links are asked for
    # whether it is run on the wire alone, and not also with what messages cost
    wire_only: bool = False
    most_messages: int = 0  # that are simulated of an exchange, roughly; 0 for all

    @cached_property
    def key(self) -> Any:
        """As for `Cell`: runs that agree in what decides the outcome need not be repeated, such as
        those of another seed where nothing is drawn."""
        first = first_samples(self.variant.batching, self.samples.iteration).tobytes()
        drawn = self.variant.pattern not in FIXED or not self.samples.alike
        return [
            self.place.digest,
            *self.samples.key,
            self.model.model_dump(mode="json"),
            self.variant.pattern,
            self.variant.barrier,
            hashlib.sha256(first).hexdigest(),
            self.seed if drawn else 0,
            *([] if self.wire_only else ["messages"]),
            *([["steps", self.steps_simulated]] if self.steps_simulated else []),
            *(["coarse"] if self.is_coarse else []),
        ]

    @property
    def messages(self) -> int:
        """Messages of all ranks."""
        ranks = self.place.scenario.world_size
        if self.variant.pattern == "all_to_all":
            return ranks * (ranks - 1)
        return ranks * len(first_samples(self.variant.batching, self.samples.iteration))

    @property
    def steps(self) -> int:
        """Return how many messages a rank sends one after the other."""
        if self.variant.pattern == "all_to_all":
            return 1
        return len(first_samples(self.variant.batching, self.samples.iteration))

    @cached_property
    def steps_simulated(self) -> int:
        """Return how many steps are simulated, from which the time of all of them is estimated; 0
        if all are."""
        if not self.most_messages or not isinstance(self.model, Fluid):
            return 0
        count = max(FEWEST_STEPS, self.most_messages // self.place.scenario.world_size)
        return count if self.steps > WORTH * count else 0

    @property
    def is_coarse(self) -> bool:
        """Whether messages of an all-to-all may end with `COARSE` of their bytes left."""
        fluid = isinstance(self.model, Fluid) and self.variant.pattern == "all_to_all"
        return fluid and 0 < self.most_messages < self.messages

    @property
    def _repeats(self) -> int:
        """Return how often the network model is asked for each message: once more with what
        messages cost, unless that has a closed form."""
        return 1 if self.wire_only or self.variant.pattern == "all_to_all" else 2

    @property
    def cost(self) -> float:
        """Return the s that it takes on one core, roughly."""
        ranks, messages = self.place.scenario.world_size, float(self.messages)
        overhead = 0.01 + OVERHEAD * messages / 1e6
        drifts = self.variant.batching != "all" and not self.variant.barrier
        rate = COST[self.model.kind]
        if isinstance(self.model, Packet):
            messages += self.samples.count * ranks * self.samples.mean / self.model.mtu
        elif isinstance(self.model, Fluid):
            crowd = "all_to_all" if self.variant.pattern == "all_to_all" else "drifting"
            if crowd == "all_to_all" or (drifts and not self.variant.keeps_partner):
                rate = COST_OF_CROWDS[crowd] * (ranks / 2048) ** CROWDING
            if self.steps_simulated:
                messages = float(self.steps_simulated * ranks)
            if self.is_coarse:
                rate *= COARSE_COST
        return overhead + self._repeats * rate * messages / 1e6

    @property
    def memory(self) -> float:
        """Return the bytes of the process, roughly."""
        pairs = PORT_NBYTES * self.place.scenario.world_size**2
        return SMALL_MEMORY + pairs + PAIR_NBYTES * (1 + self._repeats) * self.messages

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`."""
        return frozenset({NBYTES}) if self.with_links else frozenset()

    def make_ready(self) -> None:
        """Load the compiled network, and build the network between the ranks."""
        load_model(Fluid())
        fabric_of(self.place)

    def run(self, tell: Tell) -> cell.Outcome:
        """Return the columns of `times` and of `tiers` behind the seed, and `NBYTES`."""
        fabric, traffic = fabric_of(self.place), traffic_of(self)
        if self.steps_simulated:
            return self._run_some_steps(fabric, traffic)
        model = (
            self.model.model_copy(update={"tolerance": COARSE}) if self.is_coarse else self.model
        )
        wire = model.finish_times(fabric.links, traffic.flows)
        wire_s = TimeEstimate(wire.makespan, wire.makespan, wire.makespan)
        if self.is_coarse:
            # the answer is the exact one for messages that are smaller by this share at most
            skipped = wire.error_bound or 0.0
            low = max(wire.makespan, bound_seconds(fabric.links, traffic.flows))
            high = max(wire.makespan / (1 - skipped), low)
            wire_s = TimeEstimate((low + high) / 2, low, high)
        spent = completion_seconds(traffic, wire)
        time_s = (
            wire_s
            if self.wire_only
            else TimeEstimate(*self._with_messages(fabric, traffic, wire_s))
        )
        return measure(fabric, traffic, spent, wire_s=wire_s.seconds, time_s=time_s)

    def _with_messages(
        self, fabric: UsedFabric, traffic: ExchangeTraffic, wire_s: TimeEstimate
    ) -> tuple[float, float, float]:
        """Return seconds, low and high of an exchange whose messages cost something."""
        cluster = self.place.scenario.cluster
        if not traffic.at_once:
            seconds = seconds_with_messages(fabric, traffic, cluster, self.model, wire_s.seconds)
            return seconds, seconds, seconds
        seconds, low, high = (
            seconds_with_messages(fabric, traffic, cluster, self.model, wire)
            for wire in (wire_s.seconds, wire_s.low, wire_s.high)
        )
        return seconds, low, high

    def _run_some_steps(self, fabric: UsedFabric, traffic: ExchangeTraffic) -> cell.Outcome:
        """Return what `run` returns, estimated from some of the steps."""
        rng = self.samples.scenario.rng("congestion.steps", self.seed)
        chosen = choose_steps(traffic.steps, self.steps_simulated, rng)
        some = traffic.of_steps(chosen)
        wire = self.model.finish_times(fabric.links, some.flows)
        wire_s = self._estimate(fabric, traffic, chosen, wire)
        time_s = wire_s if self.wire_only else self._estimate(fabric, traffic, chosen, None)
        spent = completion_seconds(some, wire)
        return measure(fabric, traffic, spent, wire_s=wire_s.seconds, time_s=time_s)

    def _estimate(
        self, fabric: UsedFabric, traffic: ExchangeTraffic, chosen: Ints64, wire: FlowOutcome | None
    ) -> TimeEstimate:
        """Return the time of all steps of ``traffic`` from the ``chosen`` ones, whose outcome on
        the wire is ``wire``; with what messages cost if that is None."""
        cluster = self.place.scenario.cluster
        some = traffic.of_steps(chosen)
        outcome = wire or ends_with_messages(fabric, some, cluster, self.model)
        outcome = outcome or self.model.finish_times(fabric.links, some.flows)
        # (m, M) s at which each rank has ended each simulated step
        finish = outcome.finish[: some.messages].reshape(some.steps, some.senders)
        if traffic.barriers:
            barrier = barrier_cost(fabric, traffic, cluster) if wire is None else 0.0
            busiest = busiest_seconds(fabric.links, traffic)
            return sum_of_steps(finish.max(axis=1), barrier, busiest, chosen)
        if self.variant.keeps_partner:
            known, total = (bound_seconds(fabric.links, each.flows) for each in (some, traffic))
            return paired_chain(float(finish.max()), known, total)
        nbytes = traffic.flows.nbytes.reshape(traffic.steps, traffic.senders).sum(axis=1)
        by_distance = self.variant.pattern in FIXED
        width = drift_width(traffic.steps, some.steps, by_distance=by_distance)
        return drifting_chain(finish, nbytes, chosen, width)


def traffic_of(run: TrafficCell) -> ExchangeTraffic:
    """The flows of a run."""
    fabric, of = fabric_of(run.place), run.samples
    importance = of.scenario.rng("congestion.importance", run.seed).random(fabric.world_size)
    rng = of.scenario.rng(f"congestion.{run.variant.pattern}", run.seed)
    return exchange(run.variant, fabric, of.nbytes(run.seed), of.iteration, rng, importance)
