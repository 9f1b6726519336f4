"""The study behind ``study loader SCENARIO --tune``: how many workers, and how far ahead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.job.plan.prefetching import LoaderDemand, loader_demand, wait_seconds
from simshuffle.job.scenario.options import scenario_of
from simshuffle.job.scenario.reading import identity_of
from simshuffle.job.scenario.scenario import Scenario, from_dict, load_scenario, serialise_scenarios
from simshuffle.job.scenario.workload import Loader
from simshuffle.spec.arrays import Floats
from simshuffle.spec.rng import lognormal_factor
from simshuffle.studies.loader.cell import by_label
from simshuffle.studies.loader.figures import tuning_chart
from simshuffle.studies.loader.options import LoaderOptions
from simshuffle.studies.loader.tables import (
    ANSWERS,
    DECODING,
    LOOP,
    LOST,
    READING,
    SETTING,
    SETTINGS,
    UNEVEN,
    answers,
)
from simshuffle.studies.loader.text import tuning_parts, tuning_verdict
from simshuffle.study.cell import Outcome, PlainCell, Tell
from simshuffle.study.options import COMMAND_LINE, SHARED, fields_of
from simshuffle.study.study import Derived, Meta, Outcomes, Request, Study, Tables

FACTORS = (1, 2, 4)
"""Batches ahead for each worker, by default."""
BATCHES, RANKS = 640, 512
"""Batches of a rank that are drawn, and ranks: the first ones stand for all."""
BEGUN = 4
"""The first of so many parts of the batches is not looked at: loaders begin with nothing ahead."""
MOST_WORKERS = 256
"""That are tried unless more are asked for."""
STALL = 0.05
"""A wait longer than this share of a step is a stall."""
NOT_BINDING = 1e-9
"""Of a worker too little to count one more."""
OPTIONS = ("scenario", "set", "tune", "workers", "prefetch_factor", "threads")
"""Options that say what is tuned."""


Axes = Mapping[str, Sequence[int]]
"""What is tried: 'workers' of a rank, 'factors', batches ahead for each of them, and 'threads' of a
worker; where nothing is named, what follows from the scenario."""


@dataclass(frozen=True)
class TuningCell(PlainCell):
    """All settings of one run."""

    label: str  # name of the run
    document: Mapping[str, Any]  # its scenario, without sweep, as plain values
    axes: Axes  # what is tried
    cost = 2.0

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [
            identity_of(self.document),
            *(self.axes[name] for name in ("workers", "factors", "threads")),
        ]

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`."""
        scenario = from_dict(self.document, self.label)
        loaders = settings(scenario, self.axes)
        rows = []
        for number, loader in enumerate(loaders):
            rows.append(row(scenario, loader))
            tell((number + 1) / len(loaders))
        return Outcome({"settings": rows})


def with_loader(scenario: Scenario, loader: Loader) -> Scenario:
    """The scenario with another loader, which begins anew at every epoch."""
    alone = loader.model_copy(update={"across_epochs": False})
    workload = scenario.workload.model_copy(update={"loader": alone})
    return scenario.model_copy(update={"workload": workload})


def settings(scenario: Scenario, axes: Axes) -> list[Loader]:
    """The loaders that are tried, fewest workers first; with the scenario's own, unless
    others are asked for.

    By default workers are doubled up to those beyond which nothing grows by the law,
    load / max(step, the slowest shared resource), and these and one more are tried.
    """
    own = scenario.workload.loader
    all_threads = axes["threads"] or (own.threads,)
    workers = set(axes["workers"])
    for threads in () if workers else all_threads:
        of = loader_demand(with_loader(scenario, Loader(workers=1, prefetch=2, threads=threads)))
        knee = math.ceil(of.isolated_seconds / max(of.step, of.binding[1]) - NOT_BINDING)
        knee = min(max(knee, 1), MOST_WORKERS)
        workers |= {knee, knee + 1, *(1 << power for power in range((knee - 1).bit_length()))}
    found = {
        (count, threads, count * factor)
        for count in workers
        for threads in all_threads
        for factor in axes["factors"] or FACTORS
    }
    if own.threads in all_threads and own.workers in (axes["workers"] or (own.workers,)):
        found.add((own.workers, own.threads, own.prefetch))
    return [
        Loader(workers=count, threads=threads, prefetch=prefetch)
        for count, threads, prefetch in sorted(found)
    ]


def row(scenario: Scenario, loader: Loader) -> dict[str, Any]:
    """The row of a setting in `settings`, without the run."""
    workload, cluster = scenario.workload, scenario.cluster
    tried, own = with_loader(scenario, loader), workload.loader
    of, batch = loader_demand(tried), workload.local_batch_size * scenario.world_size
    waited = wait_seconds(drawn(tried, of), of.step, loader.workers, loader.prefetch)
    steady = waited[len(waited) // BEGUN :] if len(waited) > BEGUN else waited[1:]
    mean = float(steady.mean()) if len(steady) else 0.0
    stalls = int((steady > STALL * of.step).sum())
    held = (loader.prefetch + 1) * workload.model.input_size
    held += min(loader.workers, loader.prefetch) * workload.dataset.stored.mean
    ranks = cluster.ranks_per_host(scenario.world_size)
    name, slowest = of.binding
    return {
        **{name: getattr(loader, name) for name in SETTING},
        "own": all(getattr(own, name) == getattr(loader, name) for name in SETTING),
        "needed_per_s": batch / of.step,
        "samples_per_s": batch / (of.step + mean),
        "waiting": mean / (of.step + mean),
        "stalls": stalls,
        "stall_every": len(steady) / stalls if stalls else math.nan,
        "stall_s": float(steady.max()) if stalls else 0.0,
        "first_s": max(float(waited[0]), slowest * of.at_once),
        "memory_nbytes": ranks * workload.local_batch_size * held,
        "host_nbytes": cluster.memory.capacity,
        "step_s": of.step,
        "read_s": float(of.read.mean()),
        "decode_s": of.decode,
        "resource": name,
        "resource_s": slowest,
        "binds": _binds(of, mean),
    }


def _binds(of: LoaderDemand, waiting: float) -> str:
    """What keeps the loops from being faster, where they wait so many s in the mean of a step."""
    if waiting <= LOST * of.step:
        return LOOP
    name, slowest = of.binding
    workers = of.isolated_seconds / of.at_once
    if max(workers, slowest) <= of.step:
        return UNEVEN
    if slowest >= workers:
        return name
    return READING if float(of.read.mean()) > of.decode else DECODING


def drawn(scenario: Scenario, of: LoaderDemand) -> Floats:
    """s that workers take for batches, (B, M), as the scenario varies them: reads, sizes of
    samples, and the cores of each host. The same draws for all settings."""
    workload, rng = scenario.workload, scenario.rng("tuning")
    counted = of.read.shape[0] > 1
    ranks = of.read.shape[1] if counted else min(scenario.world_size, RANKS)
    shape = (of.read.shape[0] if counted else BATCHES, ranks)
    reading = lognormal_factor(rng, workload.jitter.read, shape)
    size = workload.dataset.stored
    spread = size.spread / size.mean / math.sqrt(workload.local_batch_size)
    sizes = lognormal_factor(rng, spread, shape)
    host_of = scenario.cluster.host_of(scenario.world_size)[:ranks]
    hosts = lognormal_factor(rng, workload.jitter.host_decode, (int(host_of.max()) + 1,))
    return of.load(reading if counted else reading * sizes, sizes * hosts[host_of])


def request(options: LoaderOptions) -> Request[Sequence[TuningCell]]:
    """What is asked for: all settings of every run of the scenario's sweep.

    Raises:
        InputError: no scenario is named, an option is of the orders alone, or a run is not valid.
    """
    problems, other = [], type(options)()
    if options.scenario is None:
        remedy = "For example simshuffle study loader quickstart --tune."
        problems.append(Problem("--tune", "needs a scenario", "none", remedy))
    for field in fields_of(type(options)):
        given = getattr(options, field.name)
        if field.name not in (*SHARED, *OPTIONS) and given != getattr(other, field.name):
            rule, remedy = "is not looked at with --tune", "Leave it out, or use --set."
            problems.append(Problem(field.flag, rule, str(given), remedy))
        if field.name in {"prefetch_factor", "threads"} and any(of < 1 for of in given):
            rule, shown = "must be 1 or more", ", ".join(map(str, given))
            problems.append(Problem(field.flag, rule, shown, "Give whole numbers from 1 on."))
    if problems:
        raise InputError(problems, COMMAND_LINE)
    scenario = scenario_of(options.scenario, options.set)
    workers = [] if options.workers is None else [int(options.workers)]
    factors, threads = list(options.prefetch_factor), list(options.threads)
    return _request(scenario, {"workers": workers, "factors": factors, "threads": threads})


def _request(scenario: Scenario, axes: Axes) -> Request[Sequence[TuningCell]]:
    cells = [TuningCell(name, single.to_dict(), axes) for name, single in scenario.runs().items()]
    document, files = serialise_scenarios([scenario])
    return Request(scenario.name, cells, {"scenario.yaml": document}, {"asked": axes}, files)


def again(folder: Path, meta: Meta) -> Request[Sequence[TuningCell]]:
    """The request of a result, from its folder."""
    return _request(load_scenario(folder / "scenario.yaml"), meta["asked"])


def _collect(cells: Sequence[TuningCell], outcomes: Outcomes) -> Tables:
    rows = [
        {"run": cell.label, **line}
        for cell in cells
        for line in outcomes[cell.label].values["settings"]
    ]
    return {"settings": SETTINGS.framed(rows)}


STUDY: Study[Sequence[TuningCell]] = Study(
    kind="tuning",
    verb="loader",
    stages=(by_label,),
    collect=_collect,
    stored={"settings": SETTINGS},
    derived={"answers": Derived(ANSWERS, lambda result: answers(result.tables["settings"]))},
    documents=("scenario.yaml",),
    figures=lambda result: {"tuning": tuning_chart(**result.all_tables)},
    one_figure=True,
    verdict=lambda result: tuning_verdict(**result.all_tables),
    parts=lambda result: tuning_parts(**result.all_tables),
    again=f"{__name__}:again",
)
