"""What is compared: every variant of every pattern on the same bytes, by every network model, over
seeds and world sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import InputError, Problem, ScenarioError
from simshuffle.network import Packet
from simshuffle.network.models import MODELS
from simshuffle.plan.resources import routing
from simshuffle.scenario.scenario import Scenario, load_scenario, load_scenarios, stored
from simshuffle.spec.library import by_kind, nearest
from simshuffle.studies.congestion.cell import LINKS, NBYTES, Model, Place, SentCell, TrafficCell
from simshuffle.studies.congestion.patterns import (
    PATTERNS,
    Variant,
    needs_power_of_two,
    variants,
)
from simshuffle.studies.congestion.samples import Samples, samples
from simshuffle.studies.congestion.tables import STORED
from simshuffle.studies.congestion.verdict import compared
from simshuffle.study.cell import Cell
from simshuffle.study.study import Meta, Outcomes, Request, Tables


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
        jitter: of the sizes of samples where the packet model is asked (see `Samples.jittered`).
        routings: of the network, as `routed` reads them; () for the scenario's own.
    """

    patterns: tuple[str, ...] = tuple(PATTERNS)
    models: tuple[str, ...] = ("fluid", "packet")
    seeds: int = 5
    packet_seeds: int = 3
    packets: int = 2_000_000
    jitter: float = 0.1
    routings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """One world size, one routing and one set of bytes.

    Attributes:
        place: the ranks and the network between them.
        routing: of that network, by name.
        several: whether it is compared with others.
        samples: what they send.
        models: network models by name.
        seeds: how many.
        variants: what is run.
        for_packets: those of them that the packet model is run for.
        packet_seeds: how many seeds it is run for.
    """

    place: Place
    routing: str
    several: bool
    samples: Samples
    models: Mapping[str, Model]
    seeds: int
    variants: Sequence[Variant]
    for_packets: set[Variant]
    packet_seeds: int

    @property
    def name(self) -> str:
        """Of the job, for people."""
        ranks = self.samples.scenario.world_size
        routing = f", {self.routing}" if self.several else ""
        return f"{ranks} ranks{routing}{', short' if self.samples.bytes_set == 'short' else ''}"

    @property
    def sent(self) -> SentCell:
        """What is sent, and over which links."""
        return SentCell(self.place, self.samples, self.seeds, f"{self.name}: the network")

    def runs(self) -> Iterator[tuple[TrafficCell, dict[str, Any]]]:
        """Every run, with the first columns of its rows, in the order of the tables."""
        of_job = {
            "world_size": self.samples.scenario.world_size,
            "routing": self.routing,
            "bytes_set": self.samples.bytes_set,
        }
        noted: set[tuple[str, str]] = set()
        for seed in range(1, self.seeds + 1):
            for variant in self.variants:
                for name, model in self.models.items():
                    if name == "packet" and (
                        seed > self.packet_seeds or variant not in self.for_packets
                    ):
                        continue
                    case = (variant.pattern, variant.batching)
                    label = f"{self.name}: {variant}, {name}, seed {seed}"
                    with_links = case not in noted
                    noted.add(case)
                    cell = TrafficCell(
                        self.place, self.samples, variant, model, seed, label, with_links
                    )
                    yield cell, {**of_job, **asdict(variant), "model": name, "seed": seed}


def request(scenarios: Sequence[Scenario], settings: Settings) -> Request[list[Job]]:
    """What is asked for.

    Args:
        scenarios: without sweep, one for each world size.
        settings: what is compared. A model has the settings of the scenario's network if that is of
            its kind, else the default ones.

    Raises:
        InputError: the jitter is no share below 1, or a routing is not known.
        ScenarioError: a scenario exchanges nothing, or none of the patterns can be made for its
            world size.
    """
    if not 0.0 <= settings.jitter < 1.0:
        problem = Problem(
            "--jitter", "must be 0 or more and below 1", str(settings.jitter), "Try 0.1."
        )
        raise InputError(problem, "command line")
    jitter = settings.jitter if "packet" in settings.models else 0.0
    jobs = [
        job
        for scenario in scenarios
        for name, place in routed(scenario, settings.routings).items()
        for job in _jobs(scenario, name, place, settings, samples(scenario).jittered(jitter))
    ]
    asked = {
        "settings": asdict(settings),
        "jitter": jobs[0].samples.jitter,
        "sizes_equal": jobs[0].samples.alike,
        "message_latency_s": scenarios[0].cluster.message_passing.latency,
    }
    text, files = stored(scenarios)
    return Request(scenarios[0].name, jobs, {"scenario.yaml": text}, asked, files)


def again(folder: Path, meta: Meta) -> Request[list[Job]]:
    """The request of a result, from its folder."""
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in meta["settings"].items()
    }
    return request(load_scenarios(folder / "scenario.yaml"), Settings(**settings))


def routed(scenario: Scenario, routings: Sequence[str]) -> dict[str, Place]:
    """The ranks of a scenario by the name of the routing between them.

    Args:
        scenario: without sweep.
        routings: each a kind with keys, such as ``ecmp:queue_pairs=4``; none for that of the
            cluster, or of its topology.

    Raises:
        InputError: a routing is not known, or not for this network.
    """
    own = routing(scenario.cluster)
    if not routings:
        return {own.short(): Place.of(scenario)}
    out = {}
    for given in routings:
        try:
            named = scenario.with_values({"cluster.routing": by_kind(given)})
            name = routing(named.cluster).short()
        except InputError as error:
            problems = [
                replace(of, path=f"--routing{of.path.removeprefix('cluster.routing')}")
                for of in error.problems
            ]
            raise InputError(problems, "command line") from None
        out[name] = Place.of(named)
    return out


def _jobs(
    scenario: Scenario, routing_name: str, place: Place, settings: Settings, full: Samples
) -> list[Job]:
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
    several = len(settings.routings) > 1
    every = variants(possible)
    for_packets = _for_packets(every, scenario, settings)
    kept = [variant for variant in every if variant in for_packets]

    def job(what: Samples, of: dict[str, Model], seeds: int, of_these: list[Variant]) -> Job:
        return Job(
            place,
            routing_name,
            several,
            what,
            of,
            seeds,
            of_these,
            for_packets,
            settings.packet_seeds,
        )

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


def cells(jobs: Sequence[Job], outcomes: Outcomes) -> dict[str, Cell]:
    """Every run of every job, and what is sent in it."""
    found: list[Cell] = [job.sent for job in jobs]
    found += [cell for job in jobs for cell, _ in job.runs()]
    return {cell.label: cell for cell in found}


def collect(jobs: Sequence[Job], outcomes: Outcomes) -> Tables:
    """The stored tables."""
    rows: dict[str, list[dict[str, Any]]] = {"sets": [], "times": [], "tiers": []}
    links: list[pd.DataFrame] = []
    for job in jobs:
        sent = outcomes[job.sent.label]
        rows["sets"].append({**sent.values, "routing": job.routing})
        for cell, run in job.runs():
            outcome = outcomes[cell.label]
            rows["times"].append({**run, **outcome.values["times"]})
            rows["tiers"] += [{**run, **row} for row in outcome.values["tiers"]]
            if cell.with_links:
                found = sent.tables[LINKS].assign(
                    nbytes=np.frombuffer(outcome.content(NBYTES), "<f8")
                )
                links.append(found[found["nbytes"] > 0].assign(**run))
    tables = {name: pd.DataFrame(of) for name, of in rows.items()}
    tables["links"] = pd.concat(links, ignore_index=True)
    return {name: tables[name][list(schema.columns)] for name, schema in STORED.items()}


def chosen(
    settings: Settings,
    patterns: Sequence[str],
    models: Sequence[str],
    routings: Sequence[str] = (),
) -> Settings:
    """``settings`` with other patterns and models, in the order of the tables, and other routings,
    in that in which they are given; where none is given, those it has.

    Raises:
        InputError: a name is not known.
    """
    problems = [
        Problem(option, f"no such {what}", repr(name), nearest(name, list(known)))
        for option, what, names, known in (
            ("--pattern", "pattern", patterns, PATTERNS),
            ("--network", "network model", models, MODELS),
        )
        for name in names
        if name not in known
    ]
    if problems:
        raise InputError(problems, "command line")
    return replace(
        settings,
        patterns=tuple(name for name in PATTERNS if name in patterns) or settings.patterns,
        models=tuple(name for name in MODELS if name in models) or settings.models,
        routings=tuple(dict.fromkeys(routings)) or settings.routings,
    )


def scenarios(
    reference: str, values: Mapping[str, Any], world_sizes: Sequence[int]
) -> list[Scenario]:
    """The scenario for each world size, smallest first: those given, else those of its sweep, else
    its own. No other key is swept.

    Raises:
        ScenarioError: the scenario, or one of its world sizes, is not valid.
    """
    # a size that is given must not fail because the scenario's own does not fit to other values
    loaded = load_scenario(
        reference, {**values, "world_size": world_sizes[0]} if world_sizes else values
    )
    base = loaded.model_copy(update={"sweep": {}})
    wanted = world_sizes or loaded.sweep.get("world_size", [base.world_size])
    different = {json.dumps(size): size for size in wanted}.values()
    return sorted(
        (base.with_values({"world_size": size}) for size in different),
        key=lambda scenario: scenario.world_size,
    )
