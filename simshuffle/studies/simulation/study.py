"""The studies behind ``simshuffle run``: every run of every scenario's sweep, with its seeds."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pandas as pd

from simshuffle.errors import Problem, refuse
from simshuffle.job.plan.faults import check_run
from simshuffle.job.plan.findings import batch_sizes, warn_of_partial_batches
from simshuffle.job.scenario.options import scenarios_of
from simshuffle.job.scenario.scenario import Scenario, all_runs, serialise_scenarios
from simshuffle.job.sim.cell import TABLES, concatenate_rows, table_of_run
from simshuffle.job.uncertainty.report import (
    interval_facts,
    interval_request,
    ranges_of,
    repeat_options,
)
from simshuffle.report import intervals, report
from simshuffle.report.chart import Chart
from simshuffle.report.console import html
from simshuffle.report.excerpt import shorten_numbers
from simshuffle.report.kept_phases import KeptRanks
from simshuffle.report.table_io import plain_rows
from simshuffle.report.timeline import Timeline
from simshuffle.studies.simulation import mishaps, text
from simshuffle.studies.simulation.contest import warm_epochs
from simshuffle.studies.simulation.figures import breakdown_chart
from simshuffle.studies.simulation.jobs import JOBS, jobs_listing, jobs_table, jobs_verdict
from simshuffle.studies.simulation.runs import (
    SimulatedRuns,
    SimulationMeta,
    facts_by_forms,
    side_by_side,
)
from simshuffle.studies.simulation.tables import (
    STORED,
    STORED_OVER_SEEDS,
    SUMMARY_OVER_SEEDS,
    Means,
    check_seeds,
    lengths,
    means,
    measures,
    summary,
)
from simshuffle.studies.simulation.verb import RunOptions
from simshuffle.studies.simulation.verdict import verdict
from simshuffle.studies.simulation.warm import is_of_dlio, warm_table
from simshuffle.study.cell import Cell, Outcome
from simshuffle.study.long_table import LazyTables, LongTable, get_long, join_tables
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.schema import problems_of_misfits
from simshuffle.study.standing import share_teller
from simshuffle.study.study import LINE, Derived, Meta, Outcomes, Request, Result, Study, Tables

if TYPE_CHECKING:
    from rich.table import Table


ROWS_OF_A_RANK = 8  # phases of an iteration, about
MOST_ROWS = 3e6  # of a timeline that is kept of all ranks if nobody says so
USUAL = {"labels": "cause", "timeline": "full", "seeds": 1}
"""What ``meta.json`` does not name."""


def request(options: RunOptions) -> tuple[Study[SimulatedRuns], Request[SimulatedRuns]]:
    """The study that simulates all runs of the scenarios, and what is asked of it. Of one seed,
    nothing speaks of seeds. Raises ScenarioError if two runs have the same name, a value of a sweep
    is not valid, or a run has too many packets; TopologyError if a routing or hosts are not known
    for its network; InputError if a scenario sweeps the seed itself, or has too many."""
    scenarios, seeds = scenarios_of(options.scenario, options.set), options.seeds
    runs, beside = side_by_side(all_runs(scenarios))
    if beside.jobs:
        _check_jobs(options)
    check_seeds(seeds, len(runs), any("seed" in scenario.sweep for scenario in scenarios))
    for single in runs.values():
        check_run(single)
    warn_of_partial_batches({name: batch_sizes(run) for name, run in runs.items()})
    ranges = ranges_of(options.interval, options.ranges, runs.values(), len(runs))
    rows = seeds * sum(map(_rows, runs.values()))
    kept = options.timeline or ("full" if rows <= MOST_ROWS else "ranks")
    if kept not in get_args(KeptRanks):
        rule, remedy = f"must be one of {', '.join(get_args(KeptRanks))}", "Write one of them."
        refuse("--timeline", rule, repr(kept)[:60], remedy, COMMAND_LINE)
    given = {"labels": options.labels, "timeline": kept, "seeds": seeds}
    asked = {name: value for name, value in given.items() if value != USUAL[name]}
    asked |= interval_request(ranges)
    text, files = serialise_scenarios(scenarios)
    of = replace(beside, timeline=kept, seeds=seeds, ranges=ranges)
    documents = {"scenario.yaml": text}
    study = OF_JOBS if beside.jobs else STUDY if seeds == 1 else OVER_SEEDS
    return study, Request(scenarios[0].name, of, documents, asked, files)


def _check_jobs(options: RunOptions) -> None:
    """See that nothing is asked of jobs that is known of single runs alone."""
    asked = {"--seeds": options.seeds > 1, "--interval": options.interval or bool(options.ranges)}
    for option, there in asked.items():
        if there:
            rule, remedy = "is not known for a scenario with jobs", "Leave it out, or the jobs."
            refuse(option, rule, "", remedy, COMMAND_LINE)


def _rows(single: Scenario) -> int:
    """Of its timeline, about."""
    ranks = single.world_size
    return ROWS_OF_A_RANK * ranks * single.epochs * single.workload.iterations(ranks)


def _cells(runs: SimulatedRuns, outcomes: Outcomes) -> dict[str, Cell]:
    return {name: runs.cell_of(name, run, seed) for name, run, seed in runs.cells()}


def _collect(runs: SimulatedRuns, outcomes: Outcomes) -> Tables:
    cells = [
        ({"run": run, **seed}, runs.outcome(outcomes, name, run))
        for name, run, seed in runs.cells()
    ]
    epochs = concatenate_rows(cells, "epochs")
    order = [*report.keys_of(epochs)[:-1], *list(report.EPOCH_COLUMNS)[1:]]
    return LazyTables(
        {
            **{table: join_tables(_named(cells, table, runs)) for table in TABLES},
            "epochs": epochs[order],
            "breakdown": report.drop_absent_labels(concatenate_rows(cells, "breakdown")),
        }
    )


def _named(
    cells: Sequence[tuple[Mapping[str, Any], Outcome]], table: str, runs: SimulatedRuns
) -> Iterator[LongTable]:
    for lead, outcome in cells:
        run = pd.Categorical([lead["run"]], list(runs.scenarios))
        first = pd.DataFrame({**lead, "run": run}, index=[0])
        yield table_of_run(outcome, table, runs.timeline).with_leading_columns(first)


def _facts(runs: SimulatedRuns, outcomes: Outcomes, tables: Tables) -> dict[str, Any]:
    """Of each run; of several seeds the times are means, and the seed is the first."""
    epochs = means(tables["epochs"], tables["breakdown"]).epochs
    of_runs: dict[str, Any] = {}
    for name, run, _ in runs.cells():
        if run not in of_runs:
            times = epochs[epochs["run"] == run][["staging_s", "samples_per_s"]].to_dict("list")
            times["staging_s"] = times["staging_s"][0]
            of_runs[run] = {**runs.outcome(outcomes, name, run).values["facts"], **times}
    seconds = epochs.drop_duplicates("run", keep="last").set_index("run")["epoch_s"].to_dict()
    about = {"runs": of_runs, **facts_by_forms(runs, seconds)}
    if runs.ranges is None:
        return about
    predicted = {run: (single, seconds[run]) for run, single in runs.scenarios.items()}
    return {**about, "intervals": interval_facts(predicted, runs.ranges, share_teller("intervals"))}


def _figures(result: Result) -> dict[str, Chart]:
    of, labels = means_of(result), labels_of(result.meta)
    half, about = of.epoch_half, of.about
    chart = breakdown_chart(of.breakdown, of.epochs, labels, half, about, ends=of.ends)
    return {"breakdown": chart}


def _parts(result: Result) -> Iterable[str | Table]:
    of = means_of(result)
    rows = warm_epochs(of.epochs, of.epoch_half)
    found = result.meta.get("intervals")
    labels, of_dlio = labels_of(result.meta), is_of_dlio(result)
    table = warm_table(of, rows, found, labels, of_dlio=of_dlio)
    return [table, *mishaps.tables(result), *text.cautions(result)]


def _details(result: Result) -> Iterable[str | Table]:
    """All epochs by label and cause, intervals, bytes, and how runs were computed."""
    of, labels = means_of(result), labels_of(result.meta)
    legend = textwrap.fill(report.legend(of.breakdown, labels), LINE)
    found = result.meta.get("intervals")
    more = [] if found is None else intervals.details(found)
    return [
        text.seconds_table(of, labels),
        legend,
        *more,
        *text.bytes_tables(of),
        *_notes(result),
    ]


def _exported(result: Result) -> Iterable[str | Table]:
    """Return tables of the warm epochs, with three significant digits, for a page of a paper."""
    of = means_of(result)
    warm = warm_epochs(of.epochs, of.epoch_half)
    found = result.meta.get("intervals")
    more = [] if found is None else [intervals.table(found)]
    last = of.epochs["epoch"] == of.epochs.groupby("run", observed=True)["epoch"].transform("max")
    of_warm = replace(of, epochs=of.epochs[last])
    labels = result.meta.get("labels")
    if labels is None:
        first = warm_table(of, warm, found, most_rows=math.inf)
    else:
        first = text.seconds_table(of_warm, labels)
    tables = [first, *more, *mishaps.tables(result), *text.bytes_tables(of_warm)]
    return [*map(shorten_numbers, tables), *_notes(result)]


def _notes(result: Result) -> list[str]:
    of = means_of(result)
    about = [] if of.epoch_half is None else [text.about_interval(of.about)]
    about += [] if of.half is None else ["summary.csv has that of every measure."]
    kept = timeline_of(result.meta)
    return [*about, *text.notes(result), *text.about_timeline(kept)]


def means_of(result: Result) -> Means:
    """What is shown of a result: means over its seeds, if it has several."""
    of = means(result.tables["epochs"], result.tables["breakdown"])
    return replace(of, ends=intervals.interval_ends(result.meta.get("intervals")))


def labels_of(meta: Meta) -> report.Booking:
    """How a result books waiting."""
    return "paper" if meta.get("labels") == "paper" else "cause"


def timeline_of(meta: Meta) -> KeptRanks:
    """The ranks of which a result has the timeline."""
    kept: KeptRanks = meta.get("timeline", "full")
    return kept


def _as_json(result: Result) -> Any:
    """The rows of the epochs, each with its rows of the breakdown; of several seeds, the
    summary."""
    table = result.tables["breakdown"]
    if labels_of(result.meta) == "paper":
        table = report.book_as_papers(table)
    keys = report.keys_of(table)
    parts: dict[tuple[str, ...], list[Any]] = {}
    for row in plain_rows(table):
        parts.setdefault(tuple(str(row.pop(key)) for key in keys), []).append(row)
    epochs = [
        {**row, "breakdown": parts[tuple(str(row[key]) for key in keys)]}
        for row in plain_rows(result.tables["epochs"])
    ]
    kept = {name: result.meta[name] for name in ("intervals",) if name in result.meta}
    return {
        "epochs": epochs,
        **{name: plain_rows(table) for name, table in result.derived.items()},
        **kept,
        **mishaps.happened(result),
    }


def _compared(result: Result) -> Tables:
    """Return seconds of each epoch by label and cause; its length and rate; the means of seeds."""
    keys = ["run", "epoch", "label"]
    shown = means_of(result)
    whole = shown.whole_epochs().assign(label=report.WHOLE)
    parts = report.by_cause(shown.breakdown)
    parts["label"] = list(map(report.part_name, parts["label"], parts["waiting"]))
    both = pd.concat([whole, parts.assign(half=0.0)]).astype({"run": str, "label": str})
    sums = both.groupby(keys, sort=False)[["seconds", "half"]].sum().reset_index()
    order = {run: place for place, run in enumerate(both["run"].unique())}
    sums = sums.assign(place=sums["run"].map(order)).sort_values(["place", "epoch"])
    seconds = sums.set_index(keys)[["seconds", "half"]]
    seconds.attrs["absent"] = 0.0  # waiting that there is none of has no row
    return {"rates": lengths(result.tables["epochs"], keys[:-1]), "seconds": seconds}


def _faults(result: Result) -> Iterator[Problem]:
    """Tables of other runs and epochs than epochs.csv, an epoch with other labels than the rest,
    and other numbers of seeds than ``meta.json`` says."""
    epochs, fits = _epochs_in(result, "epochs"), {}
    for name, schema in result.study.stored.items():
        nothing = name == "timeline" and timeline_of(result.meta) == "none"
        there = _epochs_in(result, name)
        fits[f"{name}{schema.suffix}"] = there == (set() if nothing else epochs)
    fits["meta.json: runs"] = {run for run, *_ in epochs} == set(result.meta["runs"])
    breakdown = result.tables["breakdown"]
    keys = report.keys_of(breakdown)
    own = breakdown[breakdown["cause"] == ""].groupby(keys, observed=True)["label"]
    fits["breakdown.csv"] &= own.apply(tuple).nunique() == 1
    if "seed" in result.tables["epochs"]:
        seeds = result.meta.get("seeds", 0)
        of_epoch = result.tables["epochs"].groupby(["run", "epoch"])["seed"].nunique()
        fits["meta.json: seeds"] = seeds > 1 and bool((of_epoch == seeds).all())
    return problems_of_misfits(fits)


def _epochs_in(result: Result, table: str) -> set[tuple[Any, ...]]:
    keys = report.keys_of(result.tables["epochs"])
    rows = get_long(result.tables, table).distinct(keys)[keys].astype({"run": str})
    return set(rows.itertuples(index=False, name=None))


def _summary(result: Result) -> pd.DataFrame:
    return summary(measures(result.tables["epochs"], result.tables["breakdown"]), ["run"])


class SimulationResult(Result):
    """What a run leaves behind: tables as in `simshuffle.studies.simulation.tables`, of several
    seeds with a column ``seed`` after the run. ``meta`` has for each run its hosts, storage per
    host, staging time and samples/s; of several seeds these two are means."""

    def _repr_html_(self) -> str:
        """What a notebook shows of it: all that a terminal shows with -v."""
        return html([*self.details(), *self.parts()])

    @cached_property
    def timeline(self) -> Timeline:
        """Who did what when, what crossed every link, and where every epoch's bytes came from."""
        return Timeline(self.tables["timeline"], self.tables["links"], self.tables["sources"])

    @property
    def epochs(self) -> pd.DataFrame:
        """A row for every epoch of every run: columns `simshuffle.report.report.EPOCH_COLUMNS`."""
        return self.tables["epochs"]

    @property
    def breakdown(self) -> pd.DataFrame:
        """Seconds of every epoch by label and cause: see `simshuffle.report.report.breakdown`."""
        return self.tables["breakdown"]

    @property
    def scenario_yaml(self) -> str:
        """The resolved scenarios."""
        return self.documents["scenario.yaml"]


def repeat(folder: Path, meta: Meta) -> Request[SimulatedRuns]:
    """Return the request of a result, from its folder."""
    asked = {name: meta[name] for name in ("labels", "seeds") if name in meta}
    asked |= repeat_options(meta)
    options = RunOptions(
        scenario=folder / "scenario.yaml", timeline=meta.get("timeline", "full"), **asked
    )
    return request(options)[1]


STUDY: Study[SimulatedRuns] = Study(
    kind="simulation",
    verb="run",
    stages=(_cells,),
    collect=_collect,
    stored=STORED,
    documents=("scenario.yaml",),
    figures=_figures,
    one_figure=True,
    verdict=verdict,
    parts=_parts,
    details=_details,
    exported=_exported,
    as_json=_as_json,
    compared=_compared,
    facts=_facts,
    says=SimulationMeta,
    faults=_faults,
    again=f"{__name__}:repeat",
    result=SimulationResult,
)
OVER_SEEDS = replace(
    STUDY,
    kind="simulation_over_seeds",
    stored=STORED_OVER_SEEDS,
    derived={"summary": Derived(SUMMARY_OVER_SEEDS, _summary)},
)
OF_JOBS = replace(
    STUDY,
    kind="simulation_of_jobs",
    derived={"jobs": Derived(JOBS, jobs_table)},
    verdict=jobs_verdict,
    parts=lambda result: [jobs_listing(result), *_parts(result)],
    exported=lambda result: [jobs_listing(result), *_exported(result)],
)
