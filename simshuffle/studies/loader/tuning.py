"""Study how many workers a scenario needs, and how far ahead they must load
(``--tune``).
"""

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
from simshuffle.job.scenario.scenario import (
    Scenario,
    from_dict,
    load_scenario,
    serialise_scenarios,
)
from simshuffle.job.scenario.workload import Loader
from simshuffle.spec.arrays import Floats
from simshuffle.spec.rng import lognormal_factor
from simshuffle.studies.loader.cell import cells_by_label
from simshuffle.studies.loader.figures import tuning_chart
from simshuffle.studies.loader.options import LoaderOptions
from simshuffle.studies.loader.tables import (
    ANSWERS,
    DECODING,
    LOOP,
    MAX_LOSS,
    READING,
    SETTING_COLUMNS,
    SETTINGS,
    UNEVEN,
    choose_settings,
)
from simshuffle.studies.loader.text import tuning_parts, tuning_verdict
from simshuffle.study.cell import Outcome, PlainCell, Tell
from simshuffle.study.options import COMMAND_LINE, SHARED, fields_of
from simshuffle.study.study import Derived, Meta, Outcomes, Request, Study, Tables

DEFAULT_PREFETCH_FACTORS = (1, 2, 4)
"""Batches ahead for each worker, by default."""
DRAWN_BATCHES = 640
"""Batches of a rank that are drawn."""
MAX_DRAWN_RANKS = 512
"""Most ranks whose batches are drawn: the first ones stand for all, unless reads are
counted rank by rank.
"""
WARM_UP_PARTS = 4
"""The first of so many parts of the batches is not looked at: loaders begin with
nothing ahead.
"""
MAX_WORKERS = 256
"""Workers of a rank up to which settings are listed by default, and one more; those
that are requested may be more.
"""
MIN_STALL_SHARE = 0.05
"""A wait longer than this share of a step is a stall."""
WORKER_TOLERANCE = 1e-9
"""Share of a worker that is too small to count as one more."""
TUNING_OPTIONS = ("scenario", "set", "tune", "workers", "prefetch_factor", "threads")
"""Options that say what is tuned."""


SettingAxes = Mapping[str, Sequence[int]]
"""Settings to compare: 'workers' of a rank, 'factors' (batches ahead for each worker),
'threads' of a worker. Where a list is empty, the numbers follow from the scenario.
"""


@dataclass(frozen=True)
class TuningCell(PlainCell):
    """A run with all settings of its loader; its outcome has a row of `settings` for
    each.
    """

    label: str  # name of the run
    document: Mapping[str, Any]  # its scenario, without sweep, as plain values
    axes: SettingAxes  # the settings that are compared
    cost = 2.0  # s of one core, roughly

    @property
    def key(self) -> Any:
        """Return what decides the outcome: the scenario, and the settings that are
        compared.
        """
        return [
            identity_of(self.document),
            *(self.axes[name] for name in ("workers", "factors", "threads")),
        ]

    def run(self, tell: Tell) -> Outcome:
        """Estimate every setting, and return the rows of `settings` without the run."""
        scenario = from_dict(self.document, self.label)
        loader_settings = list_settings(scenario, self.axes)
        rows = []
        for index, loader in enumerate(loader_settings):
            rows.append(make_row(scenario, loader))
            tell((index + 1) / len(loader_settings))
        return Outcome({"settings": rows})


def replace_loader(scenario: Scenario, loader: Loader) -> Scenario:
    """Return the scenario with another loader, which begins anew at every epoch
    whatever its ``across_epochs``.
    """
    separate_loader = loader.model_copy(update={"across_epochs": False})
    workload = scenario.workload.model_copy(update={"loader": separate_loader})
    return scenario.model_copy(update={"workload": workload})


def list_settings(scenario: Scenario, axes: SettingAxes) -> list[Loader]:
    """Return the loaders that are compared, fewest workers first.

    The scenario's own loader is among them, unless other workers or threads are
    requested. By default workers are doubled up to the number beyond which nothing
    grows by the law load / max(step, the slowest shared resource), or up to
    `MAX_WORKERS` if it is larger; the last number and one more are tried, too. Loaders
    have defaults but for workers, threads and batches ahead, by which they are sorted.
    """
    scenario_loader = scenario.workload.loader
    all_threads = axes["threads"] or (scenario_loader.threads,)
    workers = set(axes["workers"])
    for threads in () if workers else all_threads:
        one_worker = Loader(workers=1, prefetch=2, threads=threads)
        demand = loader_demand(replace_loader(scenario, one_worker))
        useful_workers = demand.isolated_seconds / max(demand.step, demand.binding[1])
        knee = math.ceil(useful_workers - WORKER_TOLERANCE)
        knee = min(max(knee, 1), MAX_WORKERS)
        workers |= {
            knee,
            knee + 1,
            *(1 << power for power in range((knee - 1).bit_length())),
        }
    workers_threads_prefetch = {
        (num_workers, threads, num_workers * factor)
        for num_workers in workers
        for threads in all_threads
        for factor in axes["factors"] or DEFAULT_PREFETCH_FACTORS
    }
    own_workers = scenario_loader.workers
    own_threads = scenario_loader.threads
    if own_threads in all_threads and own_workers in (
        axes["workers"] or (own_workers,)
    ):
        workers_threads_prefetch.add(
            (own_workers, own_threads, scenario_loader.prefetch)
        )
    return [
        Loader(workers=num_workers, threads=threads, prefetch=prefetch)
        for num_workers, threads, prefetch in sorted(workers_threads_prefetch)
    ]


def make_row(scenario: Scenario, loader: Loader) -> dict[str, Any]:
    """Return the row of a setting in `settings`, without the run.

    Waits are those of drawn batches, without the first 1/`WARM_UP_PARTS` of them, and
    until the slowest rank has its batch. ``first_s`` is the wait for the very first
    batch. ``stalls``, their number, is no column of `SETTINGS`.
    """
    workload = scenario.workload
    cluster = scenario.cluster
    compared_scenario = replace_loader(scenario, loader)
    demand = loader_demand(compared_scenario)
    samples_per_step = workload.local_batch_size * scenario.world_size

    # s that the loops wait before each batch; loaders begin with nothing ahead
    load_s = draw_load_seconds(compared_scenario, demand)
    wait_s = wait_seconds(load_s, demand.step, loader.workers, loader.prefetch)
    num_warm_up = len(wait_s) // WARM_UP_PARTS if len(wait_s) > WARM_UP_PARTS else 1
    steady_wait_s = wait_s[num_warm_up:]
    mean_wait_s = float(steady_wait_s.mean()) if len(steady_wait_s) else 0.0
    num_stalls = int((steady_wait_s > MIN_STALL_SHARE * demand.step).sum())

    nbytes_per_sample = (loader.prefetch + 1) * workload.model.input_size
    nbytes_per_sample += (
        min(loader.workers, loader.prefetch) * workload.dataset.stored.mean
    )
    ranks = cluster.ranks_per_host(scenario.world_size)
    resource, resource_s = demand.binding
    setting = {name: getattr(loader, name) for name in SETTING_COLUMNS}
    return {
        **setting,
        "own": setting
        == {name: getattr(workload.loader, name) for name in SETTING_COLUMNS},
        "needed_per_s": samples_per_step / demand.step,
        "samples_per_s": samples_per_step / (demand.step + mean_wait_s),
        "waiting": mean_wait_s / (demand.step + mean_wait_s),
        "stalls": num_stalls,
        "stall_every": len(steady_wait_s) / num_stalls if num_stalls else math.nan,
        "stall_s": float(steady_wait_s.max()) if num_stalls else 0.0,
        "first_s": max(float(wait_s[0]), resource_s * demand.at_once),
        "memory_nbytes": ranks * workload.local_batch_size * nbytes_per_sample,
        "host_nbytes": cluster.memory.capacity,
        "step_s": demand.step,
        "read_s": float(demand.read.mean()),
        "decode_s": demand.decode,
        "resource": resource,
        "resource_s": resource_s,
        "binds": _find_bottleneck(demand, mean_wait_s),
    }


def _find_bottleneck(demand: LoaderDemand, mean_wait_s: float) -> str:
    """Return what keeps the loops from being faster.

    It is `LOOP` if they wait at most `MAX_LOSS` of a step, `UNEVEN` if workers and
    resources are fast enough in the mean, the shared resource if it is the slower, else
    `READING` or `DECODING`.

    Args:
        demand: what batches take of workers and of shared resources.
        mean_wait_s: mean s that a loop waits in a step.
    """
    if mean_wait_s <= MAX_LOSS * demand.step:
        return LOOP
    resource, resource_s = demand.binding
    worker_s = demand.isolated_seconds / demand.at_once
    if max(worker_s, resource_s) <= demand.step:
        return UNEVEN
    if resource_s >= worker_s:
        return resource
    return READING if float(demand.read.mean()) > demand.decode else DECODING


def draw_load_seconds(scenario: Scenario, demand: LoaderDemand) -> Floats:
    """Return (B, M) s that workers take for batches, drawn as the scenario varies them.

    Reads, sizes of samples and the cores of each host vary. All settings have the same
    draws. Under a loader's order, B batches and M ranks are those of ``demand.read``,
    and sizes vary decoding alone. Else B is `DRAWN_BATCHES`, and M at most
    `MAX_DRAWN_RANKS`.

    Args:
        scenario: the scenario.
        demand: what batches take of workers and of shared resources.
    """
    workload = scenario.workload
    rng = scenario.rng("tuning")
    has_counted_reads = demand.read.shape[0] > 1
    ranks = (
        demand.read.shape[1]
        if has_counted_reads
        else min(scenario.world_size, MAX_DRAWN_RANKS)
    )
    shape = (demand.read.shape[0] if has_counted_reads else DRAWN_BATCHES, ranks)
    read_factors = lognormal_factor(rng, workload.jitter.read, shape)
    sample_size = workload.dataset.stored
    spread = (
        sample_size.spread / sample_size.mean / math.sqrt(workload.local_batch_size)
    )
    size_factors = lognormal_factor(rng, spread, shape)
    host_of = scenario.cluster.host_of(scenario.world_size)[:ranks]
    host_factors = lognormal_factor(
        rng, workload.jitter.host_decode, (int(host_of.max()) + 1,)
    )
    if not has_counted_reads:
        read_factors = read_factors * size_factors
    return demand.load(read_factors, size_factors * host_factors[host_of])


def request(options: LoaderOptions) -> Request[Sequence[TuningCell]]:
    """Return the checked request: all settings of every run of the scenario's sweep.

    A number of workers is compared alone, in place of those that follow from the
    scenario; it must be 1 or more, which is not checked here.

    Raises:
        InputError: no scenario is named, an option is of the orders alone, a prefetch
            factor or a number of threads is below 1, or a run is invalid.
    """
    problems = []
    defaults = type(options)()
    if options.scenario is None:
        remedy = "For example simshuffle study loader quickstart --tune."
        problems.append(Problem("--tune", "needs a scenario", "none", remedy))
    for field in fields_of(type(options)):
        value = getattr(options, field.name)
        if field.name not in (*SHARED, *TUNING_OPTIONS) and value != getattr(
            defaults, field.name
        ):
            rule = "has no effect with --tune"
            remedy = "Leave it out, or use --set."
            problems.append(Problem(field.flag, rule, str(value), remedy))
        if field.name in {"prefetch_factor", "threads"} and any(
            number < 1 for number in value
        ):
            rule = "must be 1 or more"
            displayed = ", ".join(map(str, value))
            problems.append(
                Problem(field.flag, rule, displayed, "Give whole numbers from 1 on.")
            )
    if problems:
        raise InputError(problems, COMMAND_LINE)
    scenario = scenario_of(options.scenario, options.set)
    workers = [] if options.workers is None else [int(options.workers)]
    factors = list(options.prefetch_factor)
    threads = list(options.threads)
    return _make_request(
        scenario, {"workers": workers, "factors": factors, "threads": threads}
    )


def _make_request(
    scenario: Scenario, axes: SettingAxes
) -> Request[Sequence[TuningCell]]:
    """Return the request of a scenario and the settings that are compared, with a cell
    for each run of its sweep.
    """
    cells = [
        TuningCell(name, single.to_dict(), axes)
        for name, single in scenario.runs().items()
    ]
    document, files = serialise_scenarios([scenario])
    return Request(
        scenario.name, cells, {"scenario.yaml": document}, {"asked": axes}, files
    )


def repeat(folder: Path, meta: Meta) -> Request[Sequence[TuningCell]]:
    """Return the request of a stored result, from its folder."""
    return _make_request(load_scenario(folder / "scenario.yaml"), meta["asked"])


def _collect(cells: Sequence[TuningCell], outcomes: Outcomes) -> Tables:
    """Return the table `settings` of all cells."""
    rows = [
        {"run": cell.label, **settings_row}
        for cell in cells
        for settings_row in outcomes[cell.label].values["settings"]
    ]
    return {"settings": SETTINGS.framed(rows)}


STUDY: Study[Sequence[TuningCell]] = Study(
    kind="tuning",
    verb="loader",
    stages=(cells_by_label,),
    collect=_collect,
    stored={"settings": SETTINGS},
    derived={
        "answers": Derived(
            ANSWERS, lambda result: choose_settings(result.tables["settings"])
        )
    },
    documents=("scenario.yaml",),
    figures=lambda result: {"tuning": tuning_chart(**result.all_tables)},
    one_figure=True,
    verdict=lambda result: tuning_verdict(**result.all_tables),
    parts=lambda result: tuning_parts(**result.all_tables),
    again=f"{__name__}:repeat",
)
