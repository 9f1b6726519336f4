"""The studies behind ``simshuffle run``: every run of every scenario's sweep, with its
seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from simshuffle.errors import Problem, refuse
from simshuffle.job.plan.faults import check_run
from simshuffle.job.plan.findings import batch_sizes, warn_of_partial_batches
from simshuffle.job.scenario.options import scenarios_of, with_measured
from simshuffle.job.scenario.scenario import Scenario, all_runs, serialise_scenarios
from simshuffle.job.sim.cell import TABLES, concatenate_rows, table_of_run
from simshuffle.job.uncertainty.measured_facts import measured_runs
from simshuffle.job.uncertainty.report import (
    interval_facts,
    interval_request,
    ranges_of,
    repeat_options,
)
from simshuffle.report import report
from simshuffle.report.chart import Chart
from simshuffle.report.console import html
from simshuffle.report.kept_phases import KeptRanks
from simshuffle.report.table_io import plain_rows
from simshuffle.report.timeline import Timeline
from simshuffle.studies.simulation import mishaps
from simshuffle.studies.simulation.figures import breakdown_chart
from simshuffle.studies.simulation.jobs import JOBS, jobs_table, jobs_verdict, list_jobs
from simshuffle.studies.simulation.measured import measured_cells, predict_measured
from simshuffle.studies.simulation.parts import (
    booking_of,
    export_parts,
    list_details,
    list_parts,
    means_of,
    timeline_of,
)
from simshuffle.studies.simulation.runs import (
    SimulatedRuns,
    SimulationMeta,
    closed_form_facts,
    divide_jobs,
)
from simshuffle.studies.simulation.tables import (
    STORED,
    STORED_OVER_SEEDS,
    SUMMARY_OVER_SEEDS,
    check_seeds,
    epoch_lengths,
    means_over_seeds,
    measures_of_epochs,
    summarise_seeds,
)
from simshuffle.studies.simulation.verb import RunOptions
from simshuffle.studies.simulation.verdict import verdict
from simshuffle.study.cell import Cell, Outcome
from simshuffle.study.long_table import LazyTables, LongTable, get_long, join_tables
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.schema import problems_of_misfits
from simshuffle.study.standing import share_teller
from simshuffle.study.study import (
    Derived,
    Meta,
    Outcomes,
    Request,
    Result,
    Study,
    Tables,
)

ROWS_OF_ITERATION = 8  # rows of the timeline of an iteration of one rank, about
MAX_FULL_ROWS = (
    3e6  # largest number of rows of a timeline that has all ranks by default
)
DEFAULT_META = {"labels": "cause", "timeline": "full", "seeds": 1}
"""Values that ``meta.json`` leaves out."""


def request(options: RunOptions) -> tuple[Study[SimulatedRuns], Request[SimulatedRuns]]:
    """Return the study that simulates all runs of the scenarios, and its request.

    The study is `OF_JOBS` with jobs, `STUDY` for one seed, whose tables have no column
    of seeds, else `OVER_SEEDS`. Partial batches give a warning. The timeline is of all
    ranks by default, or of a sample where that would be over `MAX_FULL_ROWS` rows.

    Raises:
        ScenarioError: two runs have one name, a swept value is not valid, or a run has
            too many packets.
        TopologyError: a routing or hosts are not known for the network.
        InputError: seeds are requested where a scenario sweeps the seed itself, or
            there are too many. Also if the timeline is none of `KeptRanks`, or an
            option does not go with jobs.
    """
    scenarios = scenarios_of(options.scenario, options.set)
    scenarios = with_measured(scenarios, options.measured)
    seeds = options.seeds
    runs, divided_runs = divide_jobs(all_runs(scenarios))
    if divided_runs.jobs:
        _check_jobs(options)
    check_seeds(
        seeds, len(runs), any("seed" in scenario.sweep for scenario in scenarios)
    )
    for scenario in runs.values():
        check_run(scenario)
    warn_of_partial_batches({name: batch_sizes(run) for name, run in runs.items()})
    measured = measured_runs(runs)
    interval = options.interval or bool(measured)
    ranges = ranges_of(interval, options.ranges, runs.values(), len(runs))
    num_rows = seeds * sum(map(_estimate_rows, runs.values()))
    timeline = options.timeline or ("full" if num_rows <= MAX_FULL_ROWS else "ranks")
    if timeline not in get_args(KeptRanks):
        rule = f"must be one of {', '.join(get_args(KeptRanks))}"
        remedy = "Write one of them."
        refuse("--timeline", rule, repr(timeline)[:60], remedy, COMMAND_LINE)
    meta = {"labels": options.labels, "timeline": timeline, "seeds": seeds}
    stored_meta = {
        name: value for name, value in meta.items() if value != DEFAULT_META[name]
    }
    stored_meta |= interval_request(ranges)
    scenario_text, files = serialise_scenarios(scenarios)
    simulated_runs = replace(
        divided_runs,
        timeline=timeline,
        seeds=seeds,
        ranges=ranges,
        measured=measured,
    )
    documents = {"scenario.yaml": scenario_text}
    study = OF_JOBS if divided_runs.jobs else STUDY if seeds == 1 else OVER_SEEDS
    return study, Request(
        scenarios[0].name, simulated_runs, documents, stored_meta, files
    )


def _check_jobs(options: RunOptions) -> None:
    """Check that jobs are not combined with options that only single runs have.

    Raises:
        InputError: seeds or intervals are requested.
    """
    requested = {
        "--seeds": options.seeds > 1,
        "--interval": options.interval or bool(options.ranges),
        "--measured": options.measured is not None,
    }
    for option, is_requested in requested.items():
        if is_requested:
            rule = "is not possible for a scenario with jobs"
            remedy = "Leave out this option, or the jobs."
            refuse(option, rule, "", remedy, COMMAND_LINE)


def _estimate_rows(scenario: Scenario) -> int:
    """Estimate the rows of the timeline of a run with all ranks, for one seed."""
    ranks = scenario.world_size
    return (
        ROWS_OF_ITERATION
        * ranks
        * scenario.epochs
        * scenario.workload.iterations(ranks)
    )


def _cells(runs: SimulatedRuns, outcomes: Outcomes) -> dict[str, Cell]:
    """Return the cell of each run and seed, by its name; jobs that run together share
    one. Measured runs have cells, too.
    """
    cells = {name: runs.cell_of(name, run, seed) for name, run, seed in runs.cells()}
    return {**cells, **measured_cells(runs.measured)}


def _collect(runs: SimulatedRuns, outcomes: Outcomes) -> Tables:
    """Return the stored tables; long ones are lazy, and the breakdown lacks
    `report.OPTIONAL_LABELS` that no run has.
    """
    cells = [
        ({"run": run, **seed}, runs.outcome(outcomes, name, run))
        for name, run, seed in runs.cells()
    ]
    epochs = concatenate_rows(cells, "epochs")
    order = [*report.keys_of(epochs)[:-1], *list(report.EPOCH_COLUMNS)[1:]]
    return LazyTables(
        {
            **{
                table: join_tables(_tables_of_runs(cells, table, runs))
                for table in TABLES
            },
            "epochs": epochs[order],
            "breakdown": report.drop_absent_labels(
                concatenate_rows(cells, "breakdown")
            ),
        }
    )


def _tables_of_runs(
    cells: Sequence[tuple[Mapping[str, Any], Outcome]], table: str, runs: SimulatedRuns
) -> Iterator[LongTable]:
    """Yield a long table of each cell, with its run and its seed as first columns."""
    for leading_values, outcome in cells:
        run = pd.Categorical([leading_values["run"]], list(runs.scenarios))
        leading_columns = pd.DataFrame({**leading_values, "run": run}, index=[0])
        yield table_of_run(outcome, table, runs.timeline).with_leading_columns(
            leading_columns
        )


def _collect_facts(
    runs: SimulatedRuns, outcomes: Outcomes, tables: Tables
) -> dict[str, Any]:
    """Return the facts on each run for ``meta.json``, by run, and the intervals.

    Facts are those of the first seed; staging and samples/s are means over seeds.
    Staging is that before the first epoch, samples/s a list by epoch. Intervals are
    there where they were requested.
    """
    epochs = means_over_seeds(tables["epochs"], tables["breakdown"]).epochs
    facts_by_run: dict[str, Any] = {}
    for name, run, _ in runs.cells():
        if run not in facts_by_run:
            rows = epochs[epochs["run"] == run]
            facts_by_run[run] = {
                **runs.outcome(outcomes, name, run).values["facts"],
                "staging_s": rows["staging_s"].tolist()[0],
                "samples_per_s": rows["samples_per_s"].tolist(),
            }
    seconds = (
        epochs.drop_duplicates("run", keep="last").set_index("run")["epoch_s"].to_dict()
    )
    facts = {"runs": facts_by_run, **closed_form_facts(runs, seconds)}
    if runs.ranges is None:
        return facts
    predicted = {
        run: (scenario, seconds[run]) for run, scenario in runs.scenarios.items()
    }
    return {
        **facts,
        "intervals": interval_facts(
            predicted,
            runs.ranges,
            share_teller("intervals"),
            predict_measured(runs.measured, outcomes),
        ),
    }


def _figures(result: Result) -> dict[str, Chart]:
    """Return the breakdown chart of the last epochs, by the name of its file."""
    run_means = means_of(result)
    chart = breakdown_chart(
        run_means.breakdown,
        run_means.epochs,
        booking_of(result.meta),
        half_intervals=run_means.epoch_half,
        interval_subject=run_means.interval_subject,
        interval_ends=run_means.ends,
        num_measured=run_means.num_measured,
    )
    return {"breakdown": chart}


def _as_json(result: Result) -> Any:
    """Return the result as plain values for JSON.

    ``epochs`` has a row for each run, seed and epoch, its labels under ``breakdown``,
    booked as the result says. Derived tables, intervals and the mishaps that there are
    follow, each under its name.
    """
    table = result.tables["breakdown"]
    if booking_of(result.meta) == "paper":
        table = report.book_as_papers(table)
    keys = report.keys_of(table)
    parts: dict[tuple[str, ...], list[Any]] = {}
    for row in plain_rows(table):
        parts.setdefault(tuple(str(row.pop(key)) for key in keys), []).append(row)
    epochs = [
        {**row, "breakdown": parts[tuple(str(row[key]) for key in keys)]}
        for row in plain_rows(result.tables["epochs"])
    ]
    interval_meta = {
        name: result.meta[name] for name in ("intervals",) if name in result.meta
    }
    return {
        "epochs": epochs,
        **{name: plain_rows(table) for name, table in result.derived.items()},
        **interval_meta,
        **mishaps.mishaps_by_kind(result),
    }


def _compared_tables(result: Result) -> Tables:
    """Return the tables of a comparison, as means over seeds: ``rates`` and
    ``seconds``.

    ``seconds`` has a row for each run, epoch and label (waiting apart), 'epoch' for the
    whole, with half its 95 % interval; half is 0 for labels. A label that an epoch lacks
    counts as 0, as ``attrs['absent']`` says. ``rates`` is of `epoch_lengths`. Waiting is
    booked by cause.
    """
    keys = ["run", "epoch", "label"]
    run_means = means_of(result)
    whole_epochs = run_means.whole_epochs().assign(label=report.WHOLE)
    parts = report.by_cause(run_means.breakdown)
    parts["label"] = list(map(report.part_name, parts["label"], parts["waiting"]))
    rows = pd.concat([whole_epochs, parts.assign(half=0.0)]).astype(
        {"run": str, "label": str}
    )
    sums = rows.groupby(keys, sort=False)[["seconds", "half"]].sum().reset_index()
    index_of_run = {run: index for index, run in enumerate(rows["run"].unique())}
    sums = sums.assign(place=sums["run"].map(index_of_run)).sort_values(
        ["place", "epoch"]
    )
    seconds = sums.set_index(keys)[["seconds", "half"]]
    seconds.attrs["absent"] = 0.0  # waiting that there is none of has no row
    return {
        "rates": epoch_lengths(result.tables["epochs"], keys[:-1]),
        "seconds": seconds,
    }


def _find_faults(result: Result) -> Iterator[Problem]:
    """Yield the faults of a stored result; none if it fits together.

    They are tables of other runs or epochs than epochs.csv, an epoch with labels that
    others lack, and other runs or numbers of seeds than ``meta.json`` says. The timeline
    must be empty where the result keeps none.
    """
    epochs = _epochs_in(result, "epochs")
    fits = {}
    for name, schema in result.study.stored.items():
        is_left_out = name == "timeline" and timeline_of(result.meta) == "none"
        table_epochs = _epochs_in(result, name)
        fits[f"{name}{schema.suffix}"] = table_epochs == (
            set() if is_left_out else epochs
        )
    fits["meta.json: runs"] = {run for run, *_ in epochs} == set(result.meta["runs"])
    breakdown = result.tables["breakdown"]
    keys = report.keys_of(breakdown)
    own_labels = breakdown[breakdown["cause"] == ""].groupby(keys, observed=True)[
        "label"
    ]
    fits["breakdown.csv"] &= own_labels.apply(tuple).nunique() == 1
    if "seed" in result.tables["epochs"]:
        seeds = result.meta.get("seeds", 0)
        seeds_of_epoch = (
            result.tables["epochs"].groupby(["run", "epoch"])["seed"].nunique()
        )
        fits["meta.json: seeds"] = seeds > 1 and bool((seeds_of_epoch == seeds).all())
    return problems_of_misfits(fits)


def _epochs_in(result: Result, table: str) -> set[tuple[Any, ...]]:
    """Return (run, seed, epoch) of all rows of a stored table, without the seed where
    epochs.csv has none.
    """
    keys = report.keys_of(result.tables["epochs"])
    rows = get_long(result.tables, table).distinct(keys)[keys].astype({"run": str})
    return set(rows.itertuples(index=False, name=None))


def _summary(result: Result) -> pd.DataFrame:
    """Return means and 95 % intervals over the seeds of each run: the derived table, a
    row for each run, epoch and measure.
    """
    return summarise_seeds(
        measures_of_epochs(result.tables["epochs"], result.tables["breakdown"]), ["run"]
    )


class SimulationResult(Result):
    """The result of a simulation: tables as in `simshuffle.studies.simulation.tables`,
    and facts on each run.

    With several seeds the tables have a column ``seed`` after the run. ``meta["runs"]``
    has for each run its hosts, storage per host (bytes), staging time (s) and samples/s,
    a list by epoch; of several seeds the latter two are means.
    """

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: all that a terminal shows with -v."""
        return html([*self.details(), *self.parts()])

    @cached_property
    def timeline(self) -> Timeline:
        """Return the timeline: phases of ranks, bytes on every link, and sources of
        every epoch's bytes.

        Phases are of a sample of ranks, or empty, where the result keeps no more. The
        whole timeline is loaded into memory, and kept.
        """
        return Timeline(
            self.tables["timeline"], self.tables["links"], self.tables["sources"]
        )

    @property
    def epochs(self) -> pd.DataFrame:
        """A row for every epoch of every run: columns
        `simshuffle.report.report.EPOCH_COLUMNS`.
        """
        return self.tables["epochs"]

    @property
    def breakdown(self) -> pd.DataFrame:
        """Seconds of every epoch by label and cause: see
        `simshuffle.report.report.breakdown`.
        """
        return self.tables["breakdown"]

    @property
    def scenario_yaml(self) -> str:
        """Return the text of the resolved scenarios."""
        return self.documents["scenario.yaml"]


def repeat(folder: Path, meta: Meta) -> Request[SimulatedRuns]:
    """Return the request of a result, from its folder, with the options in ``meta``."""
    stored_options = {name: meta[name] for name in ("labels", "seeds") if name in meta}
    stored_options |= repeat_options(meta)
    options = RunOptions(
        scenario=folder / "scenario.yaml",
        timeline=meta.get("timeline", "full"),
        **stored_options,
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
    parts=list_parts,
    details=list_details,
    exported=export_parts,
    as_json=_as_json,
    compared=_compared_tables,
    facts=_collect_facts,
    says=SimulationMeta,
    faults=_find_faults,
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
    parts=lambda result: [list_jobs(result), *list_parts(result)],
    exported=lambda result: [list_jobs(result), *export_parts(result)],
)
