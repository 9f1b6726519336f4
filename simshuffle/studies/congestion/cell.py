"""Cells of a comparison: one run of a network model with what is measured in it, and
the bytes that the ranks send.
"""

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
from simshuffle.job.scenario.reading import identity_of
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Ints64
from simshuffle.studies.congestion.measure import (
    NBYTES,
    bound_seconds,
    completion_seconds,
    measure_exchange,
)
from simshuffle.studies.congestion.messages import (
    Model,
    barrier_cost,
    seconds_with_messages,
    simulate_with_messages,
)
from simshuffle.studies.congestion.patterns import FIXED, Variant
from simshuffle.studies.congestion.sampling import (
    FEWEST_STEPS,
    WORTH,
    TimeEstimate,
    busiest_seconds,
    choose_steps,
    drift_width,
    estimate_barrier_steps,
    estimate_drifting_chain,
    estimate_paired_chain,
)
from simshuffle.studies.congestion.traffic import (
    ExchangeTraffic,
    SentSamples,
    UsedFabric,
    build_exchange,
    first_sample_of_messages,
    samples_to_send,
)
from simshuffle.study import cell
from simshuffle.study.cell import SMALL_MEMORY, PlainCell, Tell
from simshuffle.study.store import TABLE

LINKS = "links"
"""The table of a `SentCell`: name, tier and capacity of every link."""
COST = {"analytic": 0.3, "fluid": 6.0, "packet": 1.5}
"""Seconds for a million messages, of packet for a million packets, on one core,
roughly.
"""
COST_OF_SIZES = 0.1
"""Seconds to draw a million sizes of samples, roughly."""
OVERHEAD = 1.5
"""Seconds for the routes and bounds of a million messages, roughly."""
COST_OF_CROWDS = {"all_to_all": 23.0, "drifting": 35.0}
"""Seconds of the fluid model for a million messages of 2,048 ranks: where all are under
way at once, and where ranks with fresh partners are out of step. They grow as the
number of ranks does to the power of `CROWDING`.
"""
CROWDING = 0.85
COARSE = 0.02
"""Share of its bytes that a message of an all-to-all may have left when it ends, where
only some of an exchange is simulated: an eighth of the time at 2,048 ranks.
"""
COARSE_COST = 0.13
"""Share of the cost that is left then."""
PAIR_NBYTES = 150.0
"""Bytes of memory for each message, and for each pair of ranks in an all-to-all,
roughly.
"""
PORT_NBYTES = 25.0
"""Bytes of memory for each pair of ranks in a fabric, roughly."""


@dataclass(frozen=True)
class RankPlacement:
    """The ranks of a scenario on its machine."""

    digest: str  # of the scenario, which two of the same content share
    scenario: Scenario = field(compare=False, repr=False)  # without sweep

    @classmethod
    def of_scenario(cls, scenario: Scenario) -> RankPlacement:
        """Return the placement of a scenario; the scenario's name decides nothing."""
        text = json.dumps(identity_of(scenario.to_dict()), sort_keys=True)
        return cls(hashlib.sha256(text.encode()).hexdigest(), scenario)


@lru_cache(maxsize=8)
def build_fabric(place: RankPlacement) -> UsedFabric:
    """Return the network between the ranks of ``place``.

    A process caches the last 8, and all callers share them; ranks are placed by the
    scenario's seed.
    """
    scenario = place.scenario
    return UsedFabric(
        Resources(scenario.cluster, scenario.world_size, scenario.rng("placement"))
    )


@dataclass(frozen=True)
class SentCell(PlainCell):
    """The bytes of a job and the links for them: the row of `sets`, and the table
    `LINKS`.
    """

    place: RankPlacement  # the ranks on their machine
    samples: SentSamples  # the samples that each rank sends
    seeds: int  # how many seeds are drawn, from 1 on
    label: str  # name of the cell for people

    @property
    def key(self) -> Any:
        """Return what decides the outcome: scenario, samples, set of bytes, and number
        of seeds.
        """
        return [
            self.place.digest,
            *self.samples.key,
            self.samples.bytes_set,
            self.seeds,
        ]

    @property
    def cost(self) -> float:
        """Return the s that drawing the samples' sizes takes on one core, roughly."""
        sizes = self.seeds * self.samples.count * self.place.scenario.world_size
        return 0.02 + COST_OF_SIZES * sizes / 1e6

    @property
    def memory(self) -> float:
        """Return the bytes of memory of the process, roughly."""
        return SMALL_MEMORY + PORT_NBYTES * self.place.scenario.world_size**2

    @property
    def parts(self) -> frozenset[str]:
        """Return the file of the outcome beside its values: the table `LINKS`."""
        return frozenset({f"{LINKS}{TABLE}"})

    def run(self, tell: Tell) -> cell.Outcome:
        """Draw the sizes for every seed, and return the row of `sets` and the table
        `LINKS`. Bytes and seconds are means over the seeds.

        ``port_s`` is the time of all bytes through all ports, ``injection_s`` that of
        the busiest port; both are 0 where ranks need no port. ``rack_s`` is the time of
        an all-to-all's bytes out of the fullest rack.
        """
        samples_sent = self.samples
        fabric = build_fabric(self.place)
        ports = fabric.ports
        links = fabric.links
        # (seeds, M) bytes that each rank sends
        sent = np.array(
            [samples_sent.nbytes(seed).sum(axis=0) for seed in range(1, self.seeds + 1)]
        )
        busiest = average = 0.0
        if ports[0] >= 0:
            used_ports, port_of_rank = np.unique(ports, return_inverse=True)
            # (seeds, ports) s that each port needs for what its ranks send
            nbytes = np.array(
                [np.bincount(port_of_rank, weights=of_seed) for of_seed in sent]
            )
            seconds = nbytes / links.capacity[used_ports]
            busiest = float(seconds.max(axis=1).mean())
            average = float(
                (nbytes.sum(axis=1) / links.capacity[used_ports].sum()).mean()
            )
        row = {
            "world_size": samples_sent.scenario.world_size,
            "bytes_set": samples_sent.bytes_set,
            "hosts": fabric.resources.num_hosts,
            "samples": samples_sent.count,
            "sample_share": samples_sent.share,
            "nbytes": float(sent.sum(axis=1).mean()),
            "byte_share": samples_sent.count
            * samples_sent.share
            / samples_to_send(samples_sent.scenario).count,
            "seeds": self.seeds,
            "port_s": average,
            "injection_s": busiest,
            "rack_s": float(np.mean([fabric.rack_seconds(nbytes) for nbytes in sent])),
        }
        names = [links.name(link) for link in range(len(fabric.tiers))]
        table = {"link": names, "tier": fabric.tiers, "capacity": links.capacity}
        return cell.Outcome(row, {LINKS: pd.DataFrame(table)})


@dataclass(frozen=True)
class TrafficCell(PlainCell):
    """The cell of an exchange: a variant, simulated by a network model with a seed."""

    place: RankPlacement  # the ranks on their machine
    samples: SentSamples  # the samples that each rank sends
    variant: Variant  # pattern, batching and barrier
    model: Model  # network model
    seed: int  # from 1
    label: str  # name of the cell for people
    with_links: bool  # whether the bytes on every link are part of the outcome
    # whether the wire alone is simulated, without what messages cost
    wire_only: bool = False
    most_messages: int = 0  # messages that are simulated at most, roughly; 0 for all

    @cached_property
    def key(self) -> Any:
        """Return what decides the outcome. Runs with equal keys are simulated once,
        such as runs of two seeds where nothing is drawn.
        """
        first_sample_bytes = first_sample_of_messages(
            self.variant.batching, self.samples.iteration
        ).tobytes()
        depends_on_seed = (
            self.variant.pattern not in FIXED or not self.samples.has_equal_sizes
        )
        return [
            self.place.digest,
            *self.samples.key,
            self.model.model_dump(mode="json"),
            self.variant.pattern,
            self.variant.barrier,
            hashlib.sha256(first_sample_bytes).hexdigest(),
            self.seed if depends_on_seed else 0,
            *([] if self.wire_only else ["messages"]),
            *([["steps", self.steps_simulated]] if self.steps_simulated else []),
            *(["coarse"] if self.is_coarse else []),
        ]

    @property
    def messages(self) -> int:
        """Return the number of messages of all ranks, simulated or not."""
        ranks = self.place.scenario.world_size
        if self.variant.pattern == "all_to_all":
            return ranks * (ranks - 1)
        return ranks * len(
            first_sample_of_messages(self.variant.batching, self.samples.iteration)
        )

    @property
    def steps(self) -> int:
        """Return how many messages a rank sends one after the other; 1 for an
        all-to-all, which sends all at once.
        """
        if self.variant.pattern == "all_to_all":
            return 1
        return len(
            first_sample_of_messages(self.variant.batching, self.samples.iteration)
        )

    @cached_property
    def steps_simulated(self) -> int:
        """Return how many steps are simulated; 0 if all steps are.

        Only the fluid model samples steps, where an exchange has more than `WORTH`
        times as many. The time of all steps is then estimated.
        """
        if not self.most_messages or not isinstance(self.model, Fluid):
            return 0
        count = max(FEWEST_STEPS, self.most_messages // self.place.scenario.world_size)
        return count if self.steps > WORTH * count else 0

    @property
    def is_coarse(self) -> bool:
        """Return true if messages of an all-to-all end with `COARSE` of their bytes
        left.

        So it is under the fluid model where there are more than ``most_messages``.
        """
        is_fluid_all_to_all = (
            isinstance(self.model, Fluid) and self.variant.pattern == "all_to_all"
        )
        return is_fluid_all_to_all and 0 < self.most_messages < self.messages

    @property
    def _repeats(self) -> int:
        """Return how often the network model is asked for each message: once more with
        what messages cost, unless that has a closed form.
        """
        return 1 if self.wire_only or self.variant.pattern == "all_to_all" else 2

    @property
    def cost(self) -> float:
        """Return the s that the simulation takes on one core, roughly."""
        ranks = self.place.scenario.world_size
        messages = float(self.messages)
        overhead = 0.01 + OVERHEAD * messages / 1e6
        drifts = self.variant.batching != "all" and not self.variant.barrier
        rate = COST[self.model.kind]
        if isinstance(self.model, Packet):
            messages += (
                self.samples.count * ranks * self.samples.mean_nbytes / self.model.mtu
            )
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
        """Return the file of the outcome beside its values: `NBYTES`, if the bytes on
        links are asked for.
        """
        return frozenset({NBYTES}) if self.with_links else frozenset()

    def make_ready(self) -> None:
        """Load the compiled network, and build the network between the ranks."""
        load_model(Fluid())
        build_fabric(self.place)

    def run(self, tell: Tell) -> cell.Outcome:
        """Return the columns of `times` and of `tiers` behind the seed, and `NBYTES`.

        Low and high equal the time, unless the run `is_coarse` or some steps stand for
        all.
        """
        fabric = build_fabric(self.place)
        traffic = build_traffic(self)
        if self.steps_simulated:
            return self._run_some_steps(fabric, traffic)
        model = (
            self.model.model_copy(update={"tolerance": COARSE})
            if self.is_coarse
            else self.model
        )
        wire_outcome = model.finish_times(fabric.links, traffic.flows)
        wire_s = TimeEstimate(
            wire_outcome.makespan, wire_outcome.makespan, wire_outcome.makespan
        )
        if self.is_coarse:
            # the answer is the exact one for messages that are smaller by this share at most
            skipped_share = wire_outcome.error_bound or 0.0
            low = max(wire_outcome.makespan, bound_seconds(fabric.links, traffic.flows))
            high = max(wire_outcome.makespan / (1 - skipped_share), low)
            wire_s = TimeEstimate((low + high) / 2, low, high)
        message_seconds = completion_seconds(traffic, wire_outcome)
        time_s = (
            wire_s
            if self.wire_only
            else TimeEstimate(*self._with_messages(fabric, traffic, wire_s))
        )
        return measure_exchange(
            fabric, traffic, message_seconds, wire_s=wire_s.seconds, time_s=time_s
        )

    def _with_messages(
        self, fabric: UsedFabric, traffic: ExchangeTraffic, wire_s: TimeEstimate
    ) -> tuple[float, float, float]:
        """Return seconds, low and high of an exchange whose messages cost something.

        Without an all-to-all the three are equal, from one more simulation.
        """
        cluster = self.place.scenario.cluster
        if not traffic.at_once:
            seconds = seconds_with_messages(
                fabric, traffic, cluster, self.model, wire_s.seconds
            )
            return seconds, seconds, seconds
        seconds, low, high = (
            seconds_with_messages(fabric, traffic, cluster, self.model, wire_seconds)
            for wire_seconds in (wire_s.seconds, wire_s.low, wire_s.high)
        )
        return seconds, low, high

    def _run_some_steps(
        self, fabric: UsedFabric, traffic: ExchangeTraffic
    ) -> cell.Outcome:
        """Return the outcome of `run`, estimated from some of the steps."""
        rng = self.samples.scenario.rng("congestion.steps", self.seed)
        chosen = choose_steps(traffic.steps, self.steps_simulated, rng)
        sampled_traffic = traffic.select_steps(chosen)
        wire_outcome = self.model.finish_times(fabric.links, sampled_traffic.flows)
        wire_s = self._estimate(fabric, traffic, chosen, wire_outcome)
        time_s = (
            wire_s if self.wire_only else self._estimate(fabric, traffic, chosen, None)
        )
        message_seconds = completion_seconds(sampled_traffic, wire_outcome)
        return measure_exchange(
            fabric, traffic, message_seconds, wire_s=wire_s.seconds, time_s=time_s
        )

    def _estimate(
        self,
        fabric: UsedFabric,
        traffic: ExchangeTraffic,
        chosen: Ints64,
        wire_outcome: FlowOutcome | None,
    ) -> TimeEstimate:
        """Estimate the time of all steps of ``traffic`` from the ``chosen`` steps.

        ``wire_outcome`` is the outcome of the chosen steps on the wire; None to count
        what messages cost.
        """
        cluster = self.place.scenario.cluster
        sampled_traffic = traffic.select_steps(chosen)
        outcome = wire_outcome or simulate_with_messages(
            fabric, sampled_traffic, cluster, self.model
        )
        outcome = outcome or self.model.finish_times(
            fabric.links, sampled_traffic.flows
        )
        # (m, M) s at which each rank has ended each simulated step
        finish = outcome.finish[: sampled_traffic.messages].reshape(
            sampled_traffic.steps, sampled_traffic.senders
        )
        if traffic.barriers:
            barrier = (
                barrier_cost(fabric, traffic, cluster) if wire_outcome is None else 0.0
            )
            busiest = busiest_seconds(fabric.links, traffic)
            return estimate_barrier_steps(finish.max(axis=1), barrier, busiest, chosen)
        if self.variant.keeps_partner:
            sampled_bound, total_bound = (
                bound_seconds(fabric.links, part.flows)
                for part in (sampled_traffic, traffic)
            )
            return estimate_paired_chain(
                float(finish.max()), sampled_bound, total_bound
            )
        nbytes = traffic.flows.nbytes.reshape(traffic.steps, traffic.senders).sum(
            axis=1
        )
        by_distance = self.variant.pattern in FIXED
        width = drift_width(
            traffic.steps, sampled_traffic.steps, by_distance=by_distance
        )
        return estimate_drifting_chain(finish, nbytes, chosen, width)


def build_traffic(run: TrafficCell) -> ExchangeTraffic:
    """Return the flows of a run: its variant's messages on the routes between its
    ranks. Equal runs draw equal flows.
    """
    fabric = build_fabric(run.place)
    samples_sent = run.samples
    importance = samples_sent.scenario.rng("congestion.importance", run.seed).random(
        fabric.world_size
    )
    rng = samples_sent.scenario.rng(f"congestion.{run.variant.pattern}", run.seed)
    return build_exchange(
        run.variant,
        fabric,
        samples_sent.nbytes(run.seed),
        samples_sent.iteration,
        rng=rng,
        importance=importance,
    )
