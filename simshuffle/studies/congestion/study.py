"""The study behind ``simshuffle congestion``: every variant of every exchange pattern on the
same bytes, by every network model, over seeds and world sizes; with a verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

import numpy as np
import pandas as pd
from pydantic import Field
from typing_extensions import TypedDict

from simshuffle.errors import InputError, Problem, ScenarioError
from simshuffle.fabric.network import Packet
from simshuffle.fabric.network.models import MODELS
from simshuffle.job.plan.wiring import routing
from simshuffle.job.scenario.options import scenario_of
from simshuffle.job.scenario.scenario import Scenario, stored
from simshuffle.job.scenario.swept import EXCHANGE, WORLD_SIZE, runs_followed
from simshuffle.report.chart import Chart
from simshuffle.report.table_io import plain_rows
from simshuffle.spec.library import by_kind
from simshuffle.studies.congestion import answer, details, text
from simshuffle.studies.congestion.cell import LINKS, RankPlacement, SentCell, TrafficCell
from simshuffle.studies.congestion.effort import BUDGET, effort_said, efforts
from simshuffle.studies.congestion.figures import heat_chart, times_chart
from simshuffle.studies.congestion.measure import NBYTES
from simshuffle.studies.congestion.messages import Model, described
from simshuffle.studies.congestion.patterns import PATTERNS, Variant, needs_power_of_two, variants
from simshuffle.studies.congestion.tables import HOTTEST, SIZE, STORED, VARIANT, hottest
from simshuffle.studies.congestion.traffic import SentSamples, samples
from simshuffle.studies.congestion.verdict import (
    ABLATION,
    COMPARISONS,
    ROUTINGS,
    VERDICTS,
    ablation,
    compared,
    comparisons,
    over_routings,
    verdicts,
)
from simshuffle.study.cell import Cell
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.schema import LARGEST, problems_of_misfits
from simshuffle.study.study import Derived, Outcomes, Request, Result, Study, Tables

if TYPE_CHECKING:
    from simshuffle.studies.congestion.verb import CongestionOptions


SETTINGS = {
    "pattern": "patterns",
    "network": "models",
    "seeds": "seeds",
    "packet_seeds": "packet_seeds",
    "packets": "packets",
    "jitter": "jitter",
    "routing": "routings",
    "wire_only": "wire_only",
    "exact": "exact",
}
"""Options that ``meta.json`` keeps, and what it calls them."""
DEFAULT_MODELS = ("fluid", "packet")


@dataclass(frozen=True)
class CongestionJob:
    """One world size, one routing and one set of bytes."""

    place: RankPlacement  # the ranks and the network between them
    routing: str  # of that network, by name
    name: str  # of the job, for people
    samples: SentSamples  # what the ranks send
    models: Mapping[str, Model]  # network models by name
    seeds: int  # how many
    variants: Sequence[Variant]  # what is run
    for_packets: set[Variant]  # those of them that the packet model is run for
    packet_seeds: int  # how many seeds it is run for
    wire_only: bool  # whether what messages cost is left out
    most_messages: int = 0  # of an exchange that are simulated, roughly; 0 for all

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
        every = product(range(1, self.seeds + 1), self.variants, self.models.items())
        for seed, variant, (name, model) in every:
            packets = seed <= self.packet_seeds and variant in self.for_packets
            if name == "packet" and not packets:
                continue
            case = (variant.pattern, variant.batching)
            label = f"{self.name}: {variant.label}, {name}, seed {seed}"
            with_links = case not in noted
            noted.add(case)
            how = (variant, model, seed, label, with_links, self.wire_only, self.most_messages)
            cell = TrafficCell(self.place, self.samples, *how)
            yield cell, {**of_job, **asdict(variant), "model": name, "seed": seed}


def request(
    options: CongestionOptions, sized: Sequence[Scenario] = ()
) -> Request[list[CongestionJob]]:
    """What is asked for. A model has the settings of the scenario's network if that is of its kind,
    else the default ones. ``sized`` are scenarios without sweep, one for each world size; () for
    those of the options. Raises InputError if a routing is not known, and ScenarioError if a
    scenario exchanges nothing, or no pattern can be made for its world size."""
    options = replace(
        options,
        pattern=tuple(name for name in PATTERNS if name in (options.pattern or PATTERNS)),
        network=tuple(name for name in MODELS if name in (options.network or DEFAULT_MODELS)),
        routing=tuple(dict.fromkeys(options.routing)),
    )
    sized = sized or scenarios(options.scenario, options.set, options.world_size)
    jitter = options.jitter if "packet" in options.network else 0.0
    places = [
        (samples(scenario).jittered(jitter), name, place)
        for scenario in sized
        for name, place in routed(scenario, options.routing).items()
    ]
    for effort in efforts(options):
        limited = replace(
            options,
            packets=effort.packets,
            seeds=effort.seeds,
            packet_seeds=effort.packet_seeds,
        )
        jobs = [
            replace(job, most_messages=effort.most_messages)
            for full, name, place in places
            for job in _jobs(place, name, full, limited)
        ]
        if sum(cell.cost for cell in cells(jobs, {}).values()) <= BUDGET:
            break
    asked = {
        **effort_said(effort, options),
        "settings": {stored_as: getattr(options, name) for name, stored_as in SETTINGS.items()},
        "jitter": jobs[0].samples.jitter,
        "sizes_equal": jobs[0].samples.alike,
        "message_latency_s": sized[0].cluster.message_passing.latency,
    }
    if not options.wire_only:
        most = max(jobs, key=lambda job: job.samples.scenario.world_size).samples
        asked["messages"] = described(most, "all_to_all" in options.pattern)
    text, files = stored(sized)
    about = f"All patterns send the samples of {sized[0].label().rpartition(' @')[0]}."
    return Request(sized[0].name, jobs, {"scenario.yaml": text}, asked, files, about=about)


def routed(scenario: Scenario, routings: Sequence[str]) -> dict[str, RankPlacement]:
    """The ranks of a scenario by the name of the routing between them: each a kind with keys, such
    as ``ecmp:queue_pairs=4``; none for that of the cluster, or of its topology. An InputError if
    one is not known, or not for this network."""
    own = routing(scenario.cluster)
    if not routings:
        return {own.short(): RankPlacement.of(scenario)}
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
            raise InputError(problems, COMMAND_LINE) from None
        out[name] = RankPlacement.of(named)
    return out


def _jobs(
    place: RankPlacement, routing_name: str, full: SentSamples, options: CongestionOptions
) -> list[CongestionJob]:
    scenario, ranks = full.scenario, full.scenario.world_size
    possible = [name for name in options.pattern if not needs_power_of_two(name, ranks)]
    if not possible:
        rule, remedy = "must be a power of two for xor", "Use another, or other patterns."
        raise ScenarioError(Problem("world_size", rule, str(ranks), remedy), scenario.name)
    own = scenario.network
    models = {name: own if own.kind == name else MODELS[name]() for name in options.network}
    packet = models.get("packet")
    short = full.shortened(options.packets, packet.mtu) if isinstance(packet, Packet) else full
    others = {name: model for name, model in models.items() if name != "packet"}
    every = variants(possible)
    for_packets = _for_packets(every, scenario, options)
    kept = [variant for variant in every if variant in for_packets]
    label = f"{ranks} ranks" + (f", {routing_name}" if len(options.routing) > 1 else "")

    def job(
        what: SentSamples, of: dict[str, Model], seeds: int, of_these: list[Variant]
    ) -> CongestionJob:
        name = label + ", short" * (what.bytes_set == "short")
        each = (place, routing_name, name, what, of, seeds, of_these)
        return CongestionJob(*each, for_packets, options.packet_seeds, options.wire_only)

    if short is full and others:
        return [job(full, models, options.seeds, every)]
    jobs = [job(full, others, options.seeds, every)] if others else []
    return [*jobs, job(short, models, options.packet_seeds, kept)] if kept else jobs


def _for_packets(
    every: list[Variant], scenario: Scenario, options: CongestionOptions
) -> set[Variant]:
    """What the packet model is run for: what is judged; everything if nothing can be, or if there
    is no other model. An all-to-all only if a packet for each of its messages is allowed."""
    alone = options.network == ("packet",)
    wanted = set(every) if alone else compared(every) or set(every)
    least = scenario.world_size * (scenario.world_size - 1)
    if least > options.packets:
        wanted = {variant for variant in wanted if variant.pattern != "all_to_all"}
    if alone and not wanted:
        rule = f"must be at least {least} for all_to_all"
        remedy = "Allow more, or use another model."
        problem = Problem("--packets", rule, str(options.packets), remedy)
        raise ScenarioError(problem, scenario.name)
    return wanted


def cells(jobs: Sequence[CongestionJob], outcomes: Outcomes) -> dict[str, Cell]:
    """Every run of every job, and what is sent in it."""
    found: list[Cell] = [job.sent for job in jobs]
    found += [cell for job in jobs for cell, _ in job.runs()]
    return {cell.label: cell for cell in found}


def collect(jobs: Sequence[CongestionJob], outcomes: Outcomes) -> Tables:
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


VERB = "simshuffle congestion"


def scenarios(
    reference: Scenario | str | Path, values: Mapping[str, Any], world_sizes: Sequence[int]
) -> list[Scenario]:
    """Return the scenario for each world size, smallest first: those given, else those of its
    sweep, else its own. Of a swept exchange it is the first one that sends samples.

    Raises:
        ScenarioError: one of them is not valid, or another key is swept.
    """
    # a size that is given must not fail because the scenario's own does not fit to other values
    first = {"world_size": world_sizes[0]} if world_sizes else {}
    loaded = scenario_of(reference, {**values, **first})
    exchanges = {key: values for key, values in loaded.sweep.items() if key != WORLD_SIZE}
    swept = loaded.model_copy(update={"sweep": exchanges})
    runs = list(runs_followed(swept, VERB, (EXCHANGE,)).values())
    base = next((run for run in runs if run.workload.exchange.fraction), runs[0])
    base = base.model_copy(update={"sweep": {}})
    wanted = world_sizes or loaded.sweep.get("world_size", [base.world_size])
    different = {json.dumps(size): size for size in wanted}.values()
    sized = (base.with_values({"world_size": size}) for size in different)
    return sorted(sized, key=lambda scenario: scenario.world_size)


SHOWN = ("sets", "times", "comparisons", "verdicts", "routings", "ablation")
"""The tables that ``--json`` prints."""


class MessageCost(TypedDict):
    """What a message costs."""

    what: str  # it carries
    nbytes: Annotated[float, Field(ge=0, le=LARGEST)]
    host_s: Annotated[float, Field(ge=0, le=LARGEST)]
    trips: Annotated[int, Field(ge=1)]


class StatedValue(TypedDict):
    """A number that this rests on."""

    key: str
    value: str
    source: str  # '' where one text is for all


class Messages(TypedDict):
    """What ``meta.json`` holds of what messages cost."""

    costs: list[MessageCost]
    values: list[StatedValue]
    source: str  # of all of them; '' where each has its own


class EffortSaid(TypedDict):
    """What ``meta.json`` holds of how much was simulated at most."""

    most_messages: Annotated[int, Field(ge=0)]
    packets: Annotated[int, Field(ge=1)]
    seeds: Annotated[int, Field(ge=1)]
    packet_seeds: Annotated[int, Field(ge=1)]
    seeds_asked: Annotated[int, Field(ge=1)]


class CongestionMeta(TypedDict):
    """What ``meta.json`` holds of a comparison."""

    message_latency_s: Annotated[float, Field(ge=0, le=LARGEST)]
    messages: NotRequired[Messages]  # what they cost, if that is counted
    jitter: NotRequired[Annotated[float, Field(ge=0, lt=1)]]
    sizes_equal: NotRequired[bool]
    effort: NotRequired[EffortSaid]  # where not all was simulated


def _figures(result: Result) -> dict[str, Chart]:
    return {"times": times_chart(result.tables), "heat": heat_chart(result.tables)}


def _verdicts(result: Result) -> pd.DataFrame:
    return verdicts(comparisons(result.tables["times"]))


def _faults(result: Result) -> Iterator[Problem]:
    """Tables that lack rows which others speak of; ``times`` needs the first seed of each run."""
    tables = result.tables
    times = tables["times"]
    first = times[times["seed"] == times["seed"].min()]
    size, run = SIZE, [*VARIANT, "model"]
    links = tables["links"].groupby([*size, *VARIANT[:2], "tier"]).size()
    tiers = tables["tiers"]
    room = tiers.groupby([*size, *VARIANT[:2], "tier"])["links"].min()
    return problems_of_misfits(
        {
            "times.csv": len(times) > 0 and _same(times, first, [*size, *run]),
            "sets.csv": _same(tables["sets"], times, size),
            "tiers.parquet": _same(tiers, times, [*size, *run, "seed"]),
            "links.parquet": _same(tables["links"], times, [*size, *VARIANT[:2]])
            and bool((links <= room.reindex(links.index)).all()),
        }
    )


def _same(table: pd.DataFrame, other: pd.DataFrame, columns: list[str]) -> bool:
    """Whether two tables have the same values in these columns."""
    found, wanted = (set(of[columns].itertuples(index=False, name=None)) for of in (table, other))
    return found == wanted


STUDY: Study[list[CongestionJob]] = Study(
    kind="congestion",
    verb="congestion",
    stages=(cells,),
    collect=collect,
    stored=STORED,
    documents=("scenario.yaml",),
    derived={
        "comparisons": Derived(COMPARISONS, lambda result: comparisons(result.tables["times"])),
        "verdicts": Derived(VERDICTS, _verdicts),
        "routings": Derived(ROUTINGS, lambda result: over_routings(_verdicts(result))),
        "ablation": Derived(ABLATION, lambda result: ablation(result.tables["times"])),
        "hottest": Derived(HOTTEST, lambda result: hottest(result.tables)),
    },
    figures=_figures,
    verdict=lambda result: answer.verdict(result.all_tables),
    parts=lambda result: text.parts(result.all_tables, result.meta),
    details=lambda result: details.details(result.all_tables, result.meta),
    as_json=lambda result: {name: plain_rows(result.all_tables[name]) for name in SHOWN},
    says=CongestionMeta,
    faults=_faults,
    again="simshuffle.studies.congestion.verb:repeat",
)
