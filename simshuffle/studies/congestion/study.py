"""Compare every variant of every exchange pattern by every network model, over seeds
and world sizes, and judge which is faster (``simshuffle congestion``). All of them move
equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from simshuffle.errors import InputError, Problem, ScenarioError
from simshuffle.fabric.network import Packet
from simshuffle.fabric.network.models import MODELS
from simshuffle.job.plan.wiring import routing_of
from simshuffle.job.scenario.options import scenario_of
from simshuffle.job.scenario.scenario import Scenario, serialise_scenarios
from simshuffle.job.scenario.swept import EXCHANGE, WORLD_SIZE, runs_followed
from simshuffle.report.chart import Chart
from simshuffle.report.table_io import plain_rows
from simshuffle.spec.library import parse_kind
from simshuffle.studies.congestion import answer, details, text
from simshuffle.studies.congestion.cell import (
    LINKS,
    RankPlacement,
    SentCell,
    TrafficCell,
)
from simshuffle.studies.congestion.effort import BUDGET, effort_meta, efforts
from simshuffle.studies.congestion.figures import heat_chart, times_chart
from simshuffle.studies.congestion.measure import NBYTES
from simshuffle.studies.congestion.messages import Model, describe_costs
from simshuffle.studies.congestion.meta import CongestionMeta
from simshuffle.studies.congestion.patterns import (
    PATTERNS,
    Variant,
    needs_power_of_two,
    variants,
)
from simshuffle.studies.congestion.tables import HOTTEST, STORED, find_faults, hottest
from simshuffle.studies.congestion.traffic import SentSamples, samples_to_send
from simshuffle.studies.congestion.verdict import (
    ABLATION,
    COMPARISONS,
    ROUTINGS,
    VERDICTS,
    ablation,
    comparisons,
    judged_variants,
    verdicts,
    verdicts_over_routings,
)
from simshuffle.study.cell import Cell
from simshuffle.study.options import COMMAND_LINE
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
    """The runs of one world size, one routing and one set of bytes."""

    place: RankPlacement  # the ranks and the network between them
    routing: str  # of that network, by name
    name: str  # of the job, for people
    samples: SentSamples  # what the ranks send
    models: Mapping[str, Model]  # network models by name
    seeds: int  # number of seeds, from 1 on
    variants: Sequence[Variant]  # the variants that are run
    packet_variants: set[Variant]  # the variants that the packet model runs
    packet_seeds: int  # number of seeds that the packet model runs
    wire_only: bool  # whether what messages cost is left out
    most_messages: int = (
        0  # messages of an exchange simulated at most, roughly; 0 for all
    )

    @property
    def sent_cell(self) -> SentCell:
        """Return the cell of the bytes that are sent, and of the links for them."""
        return SentCell(
            self.place, self.samples, self.seeds, f"{self.name}: the network"
        )

    def runs(self) -> Iterator[tuple[TrafficCell, dict[str, Any]]]:
        """Yield every run, with the first columns of its rows, in the order of the
        tables.

        The packet model has the first ``packet_seeds`` seeds and its own variants.
        Bytes on links are measured by the first run of each pattern and batching.
        """
        job_columns = {
            "world_size": self.samples.scenario.world_size,
            "routing": self.routing,
            "bytes_set": self.samples.bytes_set,
        }
        measured_exchanges: set[tuple[str, str]] = set()
        combinations = product(
            range(1, self.seeds + 1), self.variants, self.models.items()
        )
        for seed, variant, (name, model) in combinations:
            for_packet_model = (
                seed <= self.packet_seeds and variant in self.packet_variants
            )
            if name == "packet" and not for_packet_model:
                continue
            exchange = (variant.pattern, variant.batching)
            label = f"{self.name}: {variant.label}, {name}, seed {seed}"
            with_links = exchange not in measured_exchanges
            measured_exchanges.add(exchange)
            cell = TrafficCell(
                place=self.place,
                samples=self.samples,
                variant=variant,
                model=model,
                seed=seed,
                label=label,
                with_links=with_links,
                wire_only=self.wire_only,
                most_messages=self.most_messages,
            )
            yield cell, {**job_columns, **asdict(variant), "model": name, "seed": seed}


def request(
    options: CongestionOptions, sized_scenarios: Sequence[Scenario] = ()
) -> Request[list[CongestionJob]]:
    """Return the checked request of a comparison: its jobs, and what limits them.

    Unless ``exact``, seeds, packets and messages are reduced until the cells cost at
    most `BUDGET`, or to the smallest of `efforts`. A network model has the settings of
    the scenario's network if that is of the same kind, else the default settings.
    Samples have jitter only if the packet model is run.

    Args:
        options: the command line's answers.
        sized_scenarios: scenarios without sweep, one for each world size; () for those
            of the options.

    Raises:
        InputError: a routing is not known.
        ScenarioError: a scenario exchanges nothing, or no pattern can be made for its
            world size.
    """
    options = replace(
        options,
        pattern=tuple(
            name for name in PATTERNS if name in (options.pattern or PATTERNS)
        ),
        network=tuple(
            name for name in MODELS if name in (options.network or DEFAULT_MODELS)
        ),
        routing=tuple(dict.fromkeys(options.routing)),
    )
    sized_scenarios = sized_scenarios or scenarios(
        options.scenario, options.set, options.world_size
    )
    jitter = options.jitter if "packet" in options.network else 0.0
    placements = [
        (samples_to_send(scenario).with_jitter(jitter), name, place)
        for scenario in sized_scenarios
        for name, place in placements_by_routing(scenario, options.routing).items()
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
            for full_samples, name, place in placements
            for job in _jobs(place, name, full_samples, limited)
        ]
        if sum(cell.cost for cell in cells(jobs, {}).values()) <= BUDGET:
            break
    meta = {
        **effort_meta(effort, options),
        "settings": {
            stored_as: getattr(options, name) for name, stored_as in SETTINGS.items()
        },
        "jitter": jobs[0].samples.jitter,
        "sizes_equal": jobs[0].samples.has_equal_sizes,
        "message_latency_s": sized_scenarios[0].cluster.message_passing.latency,
    }
    if not options.wire_only:
        largest_samples = max(
            jobs, key=lambda job: job.samples.scenario.world_size
        ).samples
        meta["messages"] = describe_costs(
            largest_samples, "all_to_all" in options.pattern
        )
    text, files = serialise_scenarios(sized_scenarios)
    note = f"All patterns send the samples of {sized_scenarios[0].label().rpartition(' @')[0]}."
    return Request(
        sized_scenarios[0].name, jobs, {"scenario.yaml": text}, meta, files, about=note
    )


def placements_by_routing(
    scenario: Scenario, routings: Sequence[str]
) -> dict[str, RankPlacement]:
    """Return the placement of a scenario's ranks by the name of the routing between
    them.

    ``routings`` are kinds with keys, such as ``ecmp:queue_pairs=4``; () for the routing
    of the cluster, or of its topology. Routings with one short name are one entry.

    Raises:
        InputError: a routing is not known, or not for this network; its problems are
            of ``--routing``.
    """
    cluster_routing = routing_of(scenario.cluster)
    if not routings:
        return {cluster_routing.short(): RankPlacement.of_scenario(scenario)}
    placements = {}
    for routing_text in routings:
        try:
            routed_scenario = scenario.with_values(
                {"cluster.routing": parse_kind(routing_text)}
            )
            name = routing_of(routed_scenario.cluster).short()
        except InputError as error:
            problems = [
                replace(
                    problem,
                    path=f"--routing{problem.path.removeprefix('cluster.routing')}",
                )
                for problem in error.problems
            ]
            raise InputError(problems, COMMAND_LINE) from None
        placements[name] = RankPlacement.of_scenario(routed_scenario)
    return placements


def _jobs(
    place: RankPlacement,
    routing_name: str,
    full_samples: SentSamples,
    options: CongestionOptions,
) -> list[CongestionJob]:
    """Return the jobs of one world size and routing: on all bytes, and on shortened
    ones.

    If the packet model needs shortened bytes, all models run the packet model's
    variants on these, and the other models all variants on all bytes. Patterns that the
    number of ranks does not allow are left out. So is the packet model if it has no
    variant. Jobs on shortened bytes, or of packets alone, have the packet seeds.

    Raises:
        ScenarioError: no pattern is left.
    """
    scenario = full_samples.scenario
    ranks = full_samples.scenario.world_size
    possible = [name for name in options.pattern if not needs_power_of_two(name, ranks)]
    if not possible:
        rule = "must be a power of two for xor"
        remedy = "Use another world size, or other patterns."
        raise ScenarioError(
            Problem("world_size", rule, str(ranks), remedy), scenario.name
        )
    scenario_network = scenario.network
    models = {
        name: scenario_network if scenario_network.kind == name else MODELS[name]()
        for name in options.network
    }
    packet = models.get("packet")
    short_samples = full_samples
    if isinstance(packet, Packet):
        short_samples = full_samples.shorten(options.packets, packet.mtu)
    other_models = {name: model for name, model in models.items() if name != "packet"}
    all_variants = variants(possible)
    packet_variants = _packet_variants(all_variants, scenario, options)
    short_variants = [variant for variant in all_variants if variant in packet_variants]
    label = f"{ranks} ranks" + (f", {routing_name}" if len(options.routing) > 1 else "")

    def job(
        sent: SentSamples,
        job_models: dict[str, Model],
        seeds: int,
        job_variants: list[Variant],
    ) -> CongestionJob:
        """Return a job on ``sent``, with the fields that all jobs share."""
        return CongestionJob(
            place=place,
            routing=routing_name,
            name=label + ", short" * (sent.bytes_set == "short"),
            samples=sent,
            models=job_models,
            seeds=seeds,
            variants=job_variants,
            packet_variants=packet_variants,
            packet_seeds=options.packet_seeds,
            wire_only=options.wire_only,
        )

    if short_samples is full_samples and other_models:
        return [job(full_samples, models, options.seeds, all_variants)]
    jobs = []
    if other_models:
        jobs.append(job(full_samples, other_models, options.seeds, all_variants))
    if short_variants:
        jobs.append(job(short_samples, models, options.packet_seeds, short_variants))
    return jobs


def _packet_variants(
    all_variants: list[Variant], scenario: Scenario, options: CongestionOptions
) -> set[Variant]:
    """Return the variants that the packet model runs.

    These are the judged variants, or all of them if none can be judged or if there is
    no other model. An all-to-all is among them only if a packet for each of its
    messages is allowed.

    Raises:
        ScenarioError: packets are the only model, and no variant is left.
    """
    packet_only = options.network == ("packet",)
    chosen_variants = (
        set(all_variants)
        if packet_only
        else judged_variants(all_variants) or set(all_variants)
    )
    min_packets = scenario.world_size * (scenario.world_size - 1)
    if min_packets > options.packets:
        chosen_variants = {
            variant for variant in chosen_variants if variant.pattern != "all_to_all"
        }
    if packet_only and not chosen_variants:
        rule = f"must be at least {min_packets} for all_to_all"
        remedy = "Allow more packets, or use another model."
        problem = Problem("--packets", rule, str(options.packets), remedy)
        raise ScenarioError(problem, scenario.name)
    return chosen_variants


def cells(jobs: Sequence[CongestionJob], outcomes: Outcomes) -> dict[str, Cell]:
    """Return every run of every job, and the cells of what is sent, by label.

    Cells of what is sent come first.
    """
    job_cells: list[Cell] = [job.sent_cell for job in jobs]
    job_cells += [cell for job in jobs for cell, _ in job.runs()]
    return {cell.label: cell for cell in job_cells}


def collect(jobs: Sequence[CongestionJob], outcomes: Outcomes) -> Tables:
    """Return the stored tables, from the outcomes of all cells: columns of `STORED`.

    Table ``links`` has the links that bytes crossed in a measured run, and no others.
    """
    rows: dict[str, list[dict[str, Any]]] = {"sets": [], "times": [], "tiers": []}
    links: list[pd.DataFrame] = []
    for job in jobs:
        sent_outcome = outcomes[job.sent_cell.label]
        rows["sets"].append({**sent_outcome.values, "routing": job.routing})
        for cell, run_columns in job.runs():
            outcome = outcomes[cell.label]
            rows["times"].append({**run_columns, **outcome.values["times"]})
            rows["tiers"] += [{**run_columns, **row} for row in outcome.values["tiers"]]
            if cell.with_links:
                link_rows = sent_outcome.tables[LINKS].assign(
                    nbytes=np.frombuffer(outcome.content(NBYTES), "<f8")
                )
                links.append(link_rows[link_rows["nbytes"] > 0].assign(**run_columns))
    tables = {name: pd.DataFrame(table_rows) for name, table_rows in rows.items()}
    tables["links"] = pd.concat(links, ignore_index=True)
    return {name: tables[name][list(schema.columns)] for name, schema in STORED.items()}


VERB = "simshuffle congestion"


def scenarios(
    reference: Scenario | str | Path,
    values: Mapping[str, Any],
    world_sizes: Sequence[int],
) -> list[Scenario]:
    """Return the scenario of each world size, smallest first: of ``world_sizes``, else
    of the reference's sweep, else of the reference alone. Of a swept exchange the first
    one that sends samples is taken, else the first. None has a sweep; equal sizes count
    once.

    Raises:
        ScenarioError: one of them is not valid, or another key is swept.
    """
    # a size that is given must not fail because the scenario's own does not fit to other values
    first = {"world_size": world_sizes[0]} if world_sizes else {}
    loaded = scenario_of(reference, {**values, **first})
    exchanges = {
        key: values for key, values in loaded.sweep.items() if key != WORLD_SIZE
    }
    swept = loaded.model_copy(update={"sweep": exchanges})
    runs = list(runs_followed(swept, VERB, (EXCHANGE,)).values())
    base = next((run for run in runs if run.workload.exchange.fraction), runs[0])
    base = base.model_copy(update={"sweep": {}})
    requested_sizes = world_sizes or loaded.sweep.get("world_size", [base.world_size])
    distinct_sizes = {json.dumps(size): size for size in requested_sizes}.values()
    sized_scenarios = (
        base.with_values({"world_size": size}) for size in distinct_sizes
    )
    return sorted(sized_scenarios, key=lambda scenario: scenario.world_size)


SHOWN = ("sets", "times", "comparisons", "verdicts", "routings", "ablation")
"""The tables that ``--json`` prints."""


def _figures(result: Result) -> dict[str, Chart]:
    """Return the charts of times and of contention on links, by the name of their file."""
    return {"times": times_chart(result.tables), "heat": heat_chart(result.tables)}


def _verdicts(result: Result) -> pd.DataFrame:
    """Return the derived table `VERDICTS` of a result."""
    return verdicts(comparisons(result.tables["times"]))


STUDY: Study[list[CongestionJob]] = Study(
    kind="congestion",
    verb="congestion",
    stages=(cells,),
    collect=collect,
    stored=STORED,
    documents=("scenario.yaml",),
    derived={
        "comparisons": Derived(
            COMPARISONS, lambda result: comparisons(result.tables["times"])
        ),
        "verdicts": Derived(VERDICTS, _verdicts),
        "routings": Derived(
            ROUTINGS, lambda result: verdicts_over_routings(_verdicts(result))
        ),
        "ablation": Derived(ABLATION, lambda result: ablation(result.tables["times"])),
        "hottest": Derived(HOTTEST, lambda result: hottest(result.tables)),
    },
    figures=_figures,
    verdict=lambda result: answer.verdict(result.all_tables),
    parts=lambda result: text.parts(result.all_tables, result.meta),
    details=lambda result: details.details(result.all_tables, result.meta),
    as_json=lambda result: {
        name: plain_rows(result.all_tables[name]) for name in SHOWN
    },
    says=CongestionMeta,
    faults=find_faults,
    again="simshuffle.studies.congestion.verb:repeat",
)
