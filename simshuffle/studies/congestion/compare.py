"""Run the comparison: every variant of every pattern on the same bytes, by every network model,
over seeds and world sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import Problem, ScenarioError
from simshuffle.network import Packet
from simshuffle.network.models import MODELS, Model
from simshuffle.plan.resources import Resources
from simshuffle.scenario.scenario import Scenario
from simshuffle.studies.congestion.measure import Floats, Measured, measure, tiers
from simshuffle.studies.congestion.patterns import (
    PATTERNS,
    REPEATED,
    Fabric,
    Traffic,
    Variant,
    exchange,
    first_samples,
    needs_power_of_two,
    variants,
)
from simshuffle.studies.congestion.samples import Samples, samples
from simshuffle.studies.congestion.tables import COLUMNS, Tables
from simshuffle.studies.congestion.verdict import compared

Progress = Callable[[str, float], None]
"""Called with what is being run and the share of all the work that is done, from 0 to 1."""

COST = {"analytic": 0.3, "fluid": 10.0, "packet": 0.7}
"""Seconds for a million messages, of packet for a million packets, on one core: weights of the
progress, and nothing else."""


@dataclass(frozen=True)
class Settings:
    """What is compared.

    Attributes:
        patterns: names, in the order of the tables.
        models: names of network models.
        seeds: how many, for analytic and fluid.
        packet_seeds: how many for the packet model, which is slow.
        packets: most packets in one run of the packet model; what is more is left out (see
            `Samples.shortened`).
    """

    patterns: tuple[str, ...] = tuple(PATTERNS)
    models: tuple[str, ...] = ("fluid", "packet")
    seeds: int = 5
    packet_seeds: int = 3
    packets: int = 2_000_000


@dataclass
class _Job:
    """One world size and one set of bytes."""

    fabric: Fabric
    samples: Samples
    models: dict[str, Model]
    seeds: int
    variants: list[Variant]
    for_packets: set[Variant]
    packet_seeds: int
    rows: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: {name: [] for name in COLUMNS}
    )
    # patterns and batchings whose links are in the rows
    noted: set[tuple[str, str]] = field(default_factory=set)

    @property
    def name(self) -> str:
        return (
            f"{self.fabric.world_size}"
            f" ranks{', short' if self.samples.bytes_set == 'short' else ''}"
        )

    @property
    def key(self) -> dict[str, Any]:
        return {"world_size": self.fabric.world_size, "bytes_set": self.samples.bytes_set}

    def wanted(self, variant: Variant, model: str, seed: int) -> bool:
        """Whether a run is part of the job."""
        return model != "packet" or (seed <= self.packet_seeds and variant in self.for_packets)

    def messages(self, variant: Variant) -> int:
        """Messages of a variant."""
        count = self.fabric.world_size
        return count * (
            count - 1
            if variant.pattern == "all_to_all"
            else len(first_samples(variant.batching, self.samples.iteration))
        )

    def cost(self, variant: Variant, model: str) -> float:
        """About the time that a run takes, relative to others."""
        work = float(self.messages(variant))
        if isinstance(packet := self.models[model], Packet):
            work += self.samples.count * self.fabric.world_size * self.samples.mean / packet.mtu
        elif variant.batching != "all" and not variant.barrier:
            work *= 2.0  # what has come out of step is never equal again
        return COST[model] * work

    def runs(self) -> Iterator[tuple[int, Variant, list[str]]]:
        """Seed, variant and models of the runs, in the order of the tables."""
        for seed in range(1, self.seeds + 1):
            for variant in self.variants:
                models = [name for name in self.models if self.wanted(variant, name, seed)]
                if models:
                    yield seed, variant, models

    def likeness(self, variant: Variant, model: str, seed: int) -> tuple[object, ...]:
        """What decides the outcome of a run: runs that agree in this need not be repeated."""
        first = first_samples(variant.batching, self.samples.iteration)
        chance = 0 if variant.pattern in REPEATED and self.samples.alike else seed
        return model, variant.pattern, variant.barrier, first.tobytes(), chance

    def total(self) -> float:
        """All the costs."""
        return sum(
            {
                self.likeness(v, m, s): self.cost(v, m)
                for s, v, models in self.runs()
                for m in models
            }.values()
        )


def compare(
    scenarios: Sequence[Scenario], settings: Settings, progress: Progress | None = None
) -> Tables:
    """Run the comparison.

    Args:
        scenarios: without sweep, one for each world size.
        settings: what is compared. A model has the settings of the scenario's network if that is of
            its kind, else the default ones.
        progress: told of the progress, if given.

    Returns:
        The tables; the same for the same arguments.

    Raises:
        ScenarioError: a scenario exchanges nothing, or none of the patterns can be made for its
            world size.
        TopologyError: the packet model could deadlock on these routes.
    """
    plans = [job for scenario in scenarios for job in _jobs(scenario, settings, samples(scenario))]
    total, done = sum(job.total() for job in plans), 0.0
    for job in plans:
        for spent in _run(job):
            done += spent
            if progress is not None:
                progress(job.name, min(done / total, 1.0))
    return Tables(
        **{
            name: pd.DataFrame(
                [r for job in plans for r in job.rows[name]], columns=list(COLUMNS[name])
            )
            for name in COLUMNS
        }
    )


def _jobs(scenario: Scenario, settings: Settings, full: Samples) -> list[_Job]:
    possible = [
        pattern
        for pattern in settings.patterns
        if not needs_power_of_two(pattern, scenario.world_size)
    ]
    if not possible:
        problem = Problem(
            "world_size",
            "must be a power of two for xor",
            str(scenario.world_size),
            "Use another, or other patterns.",
        )
        raise ScenarioError(problem, scenario.name)
    models = {
        name: scenario.network if scenario.network.kind == name else MODELS[name]()
        for name in settings.models
    }
    packet = models.get("packet")
    short = full.shortened(settings.packets, packet.mtu) if isinstance(packet, Packet) else full
    others = {name: model for name, model in models.items() if name != "packet"}
    fabric = Fabric(Resources(scenario.cluster, scenario.world_size, scenario.rng("placement")))
    every = variants(possible)
    for_packets = _for_packets(every, scenario, settings)
    kept = [variant for variant in every if variant in for_packets]

    def job(what: Samples, of: dict[str, Model], seeds: int, of_these: list[Variant]) -> _Job:
        return _Job(fabric, what, of, seeds, of_these, for_packets, settings.packet_seeds)

    if short is full:
        return [
            (
                job(full, models, settings.seeds, every)
                if others
                else job(full, models, settings.packet_seeds, kept)
            )
        ]
    jobs = [job(full, others, settings.seeds, every)] if others else []
    return [*jobs, job(short, models, settings.packet_seeds, kept)] if kept else jobs


def _for_packets(every: list[Variant], scenario: Scenario, settings: Settings) -> set[Variant]:
    """What the packet model is run for: what is judged; everything if nothing can be, or if there
    is no other model.

    An all-to-all only if a packet for each of its messages is allowed.
    """
    alone = settings.models == ("packet",)
    wanted = set(every) if alone else compared(every) or set(every)
    least = scenario.world_size * (scenario.world_size - 1)
    out = {
        variant
        for variant in wanted
        if variant.pattern != "all_to_all" or least <= settings.packets
    }
    if alone and not out:
        problem = Problem(
            "--packets",
            f"must be at least {least} for all_to_all",
            str(settings.packets),
            "Allow more, or use another model.",
        )
        raise ScenarioError(problem, scenario.name)
    return out


def _run(job: _Job) -> Iterator[float]:
    """Fill the rows of a job; yields the cost of each run that is done."""
    of_tier = tiers(job.fabric)
    known: dict[tuple[object, ...], Measured] = {}
    sent = np.array([job.samples.nbytes(seed).sum(axis=0) for seed in range(1, job.seeds + 1)])
    for seed, variant, models in job.runs():
        traffic: Traffic | None = None
        for name in models:
            like = job.likeness(variant, name, seed)
            if like not in known:
                traffic = traffic or _traffic(job, variant, seed)
                outcome = job.models[name].finish_times(job.fabric.links, traffic.flows)
                known[like] = measure(job.fabric.links, of_tier, traffic, outcome)
                yield job.cost(variant, name)
            _note(job, variant, name, seed, known[like])
    _note_bytes(job, sent)


def _traffic(job: _Job, variant: Variant, seed: int) -> Traffic:
    of = job.samples
    importance = of.scenario.rng("congestion.importance", seed).random(job.fabric.world_size)
    rng = of.scenario.rng(f"congestion.{variant.pattern}", seed)
    return exchange(variant, job.fabric, of.nbytes(seed), of.iteration, rng, importance)


def _note(job: _Job, variant: Variant, model: str, seed: int, measured: Measured) -> None:
    case = {**job.key, "pattern": variant.pattern, "batching": variant.batching}
    run = {**case, "barrier": variant.barrier, "model": model, "seed": seed}
    job.rows["times"].append({**run, **measured.times})
    job.rows["tiers"] += [{**run, **row} for row in measured.tiers]
    place = (variant.pattern, variant.batching)
    if place not in job.noted:
        job.noted.add(place)
        fabric = job.fabric
        for link in np.flatnonzero(measured.link_nbytes).tolist():
            about = {
                "link": fabric.links.name(link),
                "tier": fabric.tiers[link],
                "capacity": float(fabric.links.capacity[link]),
            }
            job.rows["links"].append({**case, **about, "nbytes": float(measured.link_nbytes[link])})


def _note_bytes(job: _Job, sent: Floats) -> None:
    """The row of `sets`; ``sent`` is (seeds, M) bytes of each rank."""
    ports, full = job.fabric.ports, samples(job.samples.scenario)
    injection = 0.0
    if ports[0] >= 0:
        used, which = np.unique(ports, return_inverse=True)
        loads = (
            np.array([np.bincount(which, weights=of_seed) for of_seed in sent])
            / job.fabric.links.capacity[used]
        )
        injection = float(loads.max(axis=1).mean())
    job.rows["sets"].append(
        {
            **job.key,
            "hosts": job.fabric.resources.num_hosts,
            "samples": job.samples.count,
            "sample_share": job.samples.share,
            "nbytes": float(sent.sum(axis=1).mean()),
            "byte_share": job.samples.count * job.samples.share / full.count,
            "seeds": job.seeds,
            "injection_s": injection,
        }
    )
