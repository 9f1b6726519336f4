"""One run of a network model as a cell, and what is noted of it; and what is sent as another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.network import Flows, Fluid, Links, Outcome, Packet
from simshuffle.network.analytic import unhindered
from simshuffle.network.contention import first_stage
from simshuffle.network.models import make_ready
from simshuffle.plan.resources import Resources
from simshuffle.scenario.reading import unnamed
from simshuffle.scenario.scenario import Scenario
from simshuffle.studies.congestion.messages import Model, seconds_with_messages
from simshuffle.studies.congestion.patterns import FIXED, Variant
from simshuffle.studies.congestion.traffic import (
    Fabric,
    Samples,
    Traffic,
    exchange,
    first_samples,
    samples,
)
from simshuffle.study import cell
from simshuffle.study.cell import SMALL_MEMORY, PlainCell, Tell
from simshuffle.study.store import TABLE

Floats = NDArray[np.float64]

LINKS = "links"
"""The table of a `SentCell`: name, tier and capacity of every link."""
NBYTES = "link_nbytes"
"""The file of a `TrafficCell`: bytes on each of these links, as floats of 64 bits."""
COST = {"analytic": 0.3, "fluid": 10.0, "packet": 0.7}
"""Seconds for a million messages, of packet for a million packets, on one core, roughly."""
PAIR_NBYTES = 150.0
"""Bytes of memory for each pair of ranks in a fabric, and as many for each message, roughly."""


@dataclass(frozen=True)
class Place:
    """The ranks of a scenario on its machine."""

    digest: str  # of the scenario, which two of the same content share
    scenario: Scenario = field(compare=False, repr=False)  # without sweep

    @classmethod
    def of(cls, scenario: Scenario) -> Place:
        """That of a scenario, whose name decides nothing."""
        text = json.dumps(unnamed(scenario.to_dict()), sort_keys=True)
        return cls(hashlib.sha256(text.encode()).hexdigest(), scenario)


@lru_cache(maxsize=8)
def fabric_of(place: Place) -> Fabric:
    """The network between the ranks, which a process builds once."""
    of = place.scenario
    return Fabric(Resources(of.cluster, of.world_size, of.rng("placement")))


@dataclass(frozen=True)
class SentCell(PlainCell):
    """The bytes of a job and the links for them: the row of `sets`, and the table `LINKS`."""

    place: Place  # the ranks
    samples: Samples  # what they send
    seeds: int  # how many
    label: str  # for people

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [self.place.digest, *self.samples.key, self.samples.bytes_set, self.seeds]

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return SMALL_MEMORY + PAIR_NBYTES * self.place.scenario.world_size**2

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`."""
        return frozenset({f"{LINKS}{TABLE}"})

    def run(self, tell: Tell) -> cell.Outcome:
        """As for `Cell`."""
        of, fabric = self.samples, fabric_of(self.place)
        ports, links = fabric.ports, fabric.links
        sent = np.array([of.nbytes(seed).sum(axis=0) for seed in range(1, self.seeds + 1)])
        injection = 0.0
        if ports[0] >= 0:
            used, which = np.unique(ports, return_inverse=True)
            loads = np.array([np.bincount(which, weights=of_seed) for of_seed in sent])
            injection = float((loads / links.capacity[used]).max(axis=1).mean())
        row = {
            "world_size": of.scenario.world_size,
            "bytes_set": of.bytes_set,
            "hosts": fabric.resources.num_hosts,
            "samples": of.count,
            "sample_share": of.share,
            "nbytes": float(sent.sum(axis=1).mean()),
            "byte_share": of.count * of.share / samples(of.scenario).count,
            "seeds": self.seeds,
            "injection_s": injection,
        }
        names = [links.name(link) for link in range(len(fabric.tiers))]
        table = {"link": names, "tier": fabric.tiers, "capacity": links.capacity}
        return cell.Outcome(row, {LINKS: pd.DataFrame(table)})


@dataclass(frozen=True)
class TrafficCell(PlainCell):
    """A run."""

    place: Place  # the ranks
    samples: Samples  # what they send
    variant: Variant  # how
    model: Model  # of the network
    seed: int  # from 1
    label: str  # for people
    with_links: bool  # whether the bytes on its links are asked for
    # whether it is run on the wire alone, and not also with what messages cost
    wire_only: bool = False

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
        ]

    @property
    def messages(self) -> int:
        """Messages of all ranks."""
        ranks = self.place.scenario.world_size
        if self.variant.pattern == "all_to_all":
            return ranks * (ranks - 1)
        return ranks * len(first_samples(self.variant.batching, self.samples.iteration))

    @property
    def _asked(self) -> int:
        """How often the network model is: for messages in steps that cost something once more."""
        return 1 if self.wire_only or self.variant.pattern == "all_to_all" else 2

    @property
    def cost(self) -> float:
        """As for `Cell`."""
        of, work = self.samples, float(self.messages)
        if isinstance(self.model, Packet):
            work += of.count * self.place.scenario.world_size * of.mean / self.model.mtu
        elif self.variant.batching != "all" and not self.variant.barrier:
            work *= 2.0  # what has come out of step is never equal again
        return 0.01 + self._asked * COST[self.model.kind] * work / 1e6

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        pairs = self.place.scenario.world_size**2
        return SMALL_MEMORY + PAIR_NBYTES * (pairs + self._asked * self.messages)

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`."""
        return frozenset({NBYTES}) if self.with_links else frozenset()

    @staticmethod
    def make_ready() -> None:
        """As for `Cell`: loads the compiled network."""
        make_ready(Fluid())

    def run(self, tell: Tell) -> cell.Outcome:
        """As for `Cell`: the columns of `times` and of `tiers` behind the seed, and `NBYTES`."""
        fabric, traffic = fabric_of(self.place), traffic_of(self)
        wire = self.model.finish_times(fabric.links, traffic.flows)
        seconds, cluster = wire.makespan, self.place.scenario.cluster
        if not self.wire_only:
            seconds = seconds_with_messages(fabric, traffic, cluster, self.model, wire)
        return measure(fabric, traffic, wire, seconds)


def traffic_of(run: TrafficCell) -> Traffic:
    """The flows of a run."""
    fabric, of = fabric_of(run.place), run.samples
    importance = of.scenario.rng("congestion.importance", run.seed).random(fabric.world_size)
    rng = of.scenario.rng(f"congestion.{run.variant.pattern}", run.seed)
    return exchange(run.variant, fabric, of.nbytes(run.seed), of.iteration, rng, importance)


def measure(fabric: Fabric, traffic: Traffic, outcome: Outcome, seconds: float) -> cell.Outcome:
    """What is noted of ``outcome``, the answer of a network model to ``traffic``, and of
    ``seconds``, its end with what messages cost."""
    links, tiers = fabric.links, np.array(fabric.tiers)
    nbytes = traffic.flows.link_bytes(links)
    bound = bound_seconds(links, traffic.flows, nbytes)
    alone = unhindered(links, traffic.flows)
    spent = completion_seconds(traffic, outcome)
    p50, p99 = np.percentile(spent, [50, 99])
    share = nbytes / links.capacity / outcome.makespan
    times = {
        "time_s": seconds,
        "wire_s": outcome.makespan,
        "bound_s": bound,
        "slowdown": outcome.makespan / bound,
        "alone_s": alone,
        "self_contention": outcome.makespan / alone,
        "first_contention": first_stage(links, traffic.flows)[0],
        "flow_p50_s": float(p50),
        "flow_p99_s": float(p99),
        "flow_max_s": float(spent.max()),
        "messages": traffic.messages,
        "barriers": traffic.barriers,
        "nbytes": float(traffic.flows.nbytes.sum()),
    }
    rows = [
        {
            "tier": tier,
            "links": len(used),
            "mean_utilisation": float(used.mean()),
            "max_utilisation": float(used.max()),
        }
        for tier in dict.fromkeys(fabric.tiers)  # in the order of the links
        for used in [share[tiers == tier]]
    ]
    files = {NBYTES: nbytes.astype("<f8").tobytes()}
    return cell.Outcome({"times": times, "tiers": rows}, files=files)


def bound_seconds(links: Links, flows: Flows, nbytes: Floats) -> float:
    """Least time (s) for these bytes on these routes, in whatever order: that of the link which
    needs longest for its ``nbytes`` (links,), and before it, while that is idle, the smallest
    latency of the routes over it."""
    busy = nbytes / links.capacity
    slowest = int(np.argmax(busy))
    crossing = np.zeros(len(flows), bool)
    for hop in flows.routes.T:  # column by column: the table of an all-to-all is large
        crossing |= hop == slowest
    return float(busy[slowest] + flows.latencies(links)[crossing].min(initial=np.inf))


def completion_seconds(traffic: Traffic, outcome: Outcome) -> Floats:
    """(messages,) s from the post of each message to its end."""
    flows = traffic.flows
    posted = flows.posted.copy()  # the flows are not changed: another model may be given them
    np.maximum.at(posted, flows.after_to, outcome.finish[flows.after_from])
    return np.asarray((outcome.finish - posted)[: traffic.messages])
