"""The study behind ``simshuffle run``: every run of every scenario's sweep, simulated and
reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, get_args

import pandas as pd
from typing_extensions import TypedDict

from simshuffle.errors import InputError, Problem
from simshuffle.plan.packets import check_size
from simshuffle.plan.resources import check_machine
from simshuffle.results import report
from simshuffle.results.chart import Chart
from simshuffle.results.ranks import Kept
from simshuffle.results.table_io import rows
from simshuffle.scenario.scenario import Scenario, all_runs, load_scenarios, stored
from simshuffle.studies.simulation import text
from simshuffle.studies.simulation.cell import TABLES, RunCell, kept_of
from simshuffle.studies.simulation.figures import breakdown_chart
from simshuffle.studies.simulation.intervals import Means, means
from simshuffle.studies.simulation.result import SimulationResult
from simshuffle.studies.simulation.tables import STORED
from simshuffle.study.cell import Cell, Outcome
from simshuffle.study.long_table import LazyTables, LongTable, joined, long
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Meta, Outcomes, Request, Result, Study, Tables

if TYPE_CHECKING:
    from rich.table import Table

EVERY_INTERVAL = "summary.csv has that of every measure."
ROWS_OF_A_RANK = 8
"""Phases of an iteration, about."""
MOST_ROWS = 3e6
"""Of a timeline that is kept of all ranks if nobody says so."""


@dataclass(frozen=True)
class Runs:
    """What is simulated.

    Attributes:
        scenarios: without sweep, by the name of the run.
        timeline: the ranks of which the timeline is kept.
    """

    scenarios: Mapping[str, Scenario]
    timeline: Kept = "full"


def request(
    scenarios: Sequence[Scenario],
    labels: report.Booking = "cause",
    timeline: Kept | None = None,
    seeds: int = 1,
) -> Request[Runs]:
    """All runs of the scenarios.

    Args:
        scenarios: with their sweeps.
        labels: how the table and the figure book waiting: 'cause', by what is waited for; 'paper',
            where the authors' timers do.
        timeline: the ranks of which the timeline is kept; if None all, but a sample where that
            would take more than about `MOST_ROWS` rows.
        seeds: of each run.

    Raises:
        ScenarioError: two runs have the same name, a value of a sweep is not valid, or a run has
            too many packets.
        TopologyError: a routing or hosts that a run names are not known for its network.
        InputError: there is no such ``timeline``.
    """
    runs = all_runs(scenarios)
    for single in runs.values():
        check_size(single)
        check_machine(single.cluster)
    rows = seeds * sum(map(_rows, runs.values()))
    kept = timeline or ("full" if rows <= MOST_ROWS else "ranks")
    if kept not in get_args(Kept):
        rule, remedy = f"must be one of {', '.join(get_args(Kept))}", "Write one of them."
        raise InputError(Problem("--timeline", rule, repr(kept)[:60], remedy), "command line")
    asked = {
        **({"labels": labels} if labels != "cause" else {}),
        **({"timeline": kept} if kept != "full" else {}),
    }
    document, files = stored(scenarios)
    return Request(
        scenarios[0].name, Runs(runs, kept), {"scenario.yaml": document}, asked, inputs=files
    )


def _rows(single: Scenario) -> int:
    """Of its timeline, about."""
    ranks = single.world_size
    return ROWS_OF_A_RANK * ranks * single.epochs * single.workload.iterations(ranks)


def _cells(runs: Runs, outcomes: Outcomes) -> dict[str, Cell]:
    return {
        name: RunCell(single.to_dict(), name, timeline=runs.timeline)
        for name, single in runs.scenarios.items()
    }


def _collect(runs: Runs, outcomes: Outcomes) -> Tables:
    return reported([(name, None, outcome) for name, outcome in outcomes.items()], runs.timeline)


def reported(cells: Sequence[tuple[str, int | None, Outcome]], timeline: Kept) -> Tables:
    """The stored tables of runs.

    Args:
        cells: the name of a run, its seed if it has several, and its outcome.
        timeline: the ranks of which it is kept.
    """
    epochs, breakdown = _joined(cells, "epochs"), _joined(cells, "breakdown")
    run, *others = report.EPOCH_COLUMNS
    seeds = [name for name in epochs.columns if name == "seed"]
    return LazyTables(
        {
            **{table: joined(_named(cells, table, timeline)) for table in TABLES},
            "epochs": epochs[[run, *seeds, *others]],
            "breakdown": report.listed(breakdown),
        }
    )


def _named(
    cells: Sequence[tuple[str, int | None, Outcome]], table: str, timeline: Kept
) -> Iterator[LongTable]:
    """A table of each run with its name in front, and its seed if there are several."""
    names = list(dict.fromkeys(run for run, _, _ in cells))
    for run, seed, outcome in cells:
        lead = pd.DataFrame({"run": pd.Categorical([run], names)})
        if seed is not None:
            lead["seed"] = seed
        yield kept_of(outcome, table, timeline).behind(lead)


def _joined(cells: Sequence[tuple[str, int | None, Outcome]], table: str) -> pd.DataFrame:
    """A table of all runs: their rows below one another, with the name of the run in front, and
    the seed if there are several."""
    parts = [
        pd.DataFrame(
            {"run": run, **({} if seed is None else {"seed": seed}), **outcome.values[table]}
        )
        for run, seed, outcome in cells
    ]
    return pd.concat(parts, ignore_index=True)


def _facts(runs: Runs, outcomes: Outcomes, tables: Tables) -> dict[str, Any]:
    of_runs = {}
    for name, outcome in outcomes.items():
        epochs = outcome.values["epochs"]
        measured = {"staging_s": epochs["staging_s"][0], "samples_per_s": epochs["samples_per_s"]}
        of_runs[name] = {**outcome.values["facts"], **measured}
    return {"runs": of_runs}


def _figures(result: Result) -> dict[str, Chart]:
    of, labels = means_of(result), labels_of(result.meta)
    chart = breakdown_chart(of.breakdown, of.epochs, labels, of.epoch_half, of.about)
    return {"breakdown": chart}


def _parts(result: Result) -> Iterable[str | Table]:
    of = means_of(result)
    about = [] if of.epoch_half is None else [text.about_interval(of.about)]
    about += [] if of.half is None else [EVERY_INTERVAL]
    kept = text.about_timeline(timeline_of(result.meta))
    return [*text.tables(of, labels_of(result.meta)), *about, *text.notes(result), *kept]


def means_of(result: Result) -> Means:
    """What is shown of a result: means over its seeds, if it has several."""
    return means(result.tables["epochs"], result.tables["breakdown"])


def labels_of(meta: Meta) -> report.Booking:
    """How a result books waiting."""
    return "paper" if meta.get("labels") == "paper" else "cause"


def timeline_of(meta: Meta) -> Kept:
    """The ranks of which a result has the timeline."""
    kept: Kept = meta.get("timeline", "full")
    return kept


def epochs_as_json(result: Result) -> list[dict[Any, Any]]:
    """The rows of the epochs table, each with its rows of the breakdown."""
    table = result.tables["breakdown"]
    if labels_of(result.meta) == "paper":
        table = report.booked(table)
    keys = report.keys_of(table)
    parts: dict[tuple[str, ...], list[Any]] = {}
    for row in rows(table):
        parts.setdefault(tuple(str(row.pop(key)) for key in keys), []).append(row)
    epochs = rows(result.tables["epochs"])
    return [{**row, "breakdown": parts[tuple(str(row[key]) for key in keys)]} for row in epochs]


def _compared(result: Result) -> Tables:
    """Seconds of every epoch, of own work by label, and of waiting by what it is for; means over
    seeds, if there are several."""
    keys = ["run", "epoch", "label"]
    shown = means_of(result)
    whole = shown.epochs.assign(label=report.WHOLE, seconds=lambda of: of["epoch_s"])
    parts = report.by_cause(shown.breakdown)
    parts["label"] = parts["label"].where(~parts["waiting"], "waiting for " + parts["label"])
    both = pd.concat([of[[*keys, "seconds"]] for of in (whole, parts)])
    both = both.astype({"run": str, "label": str})
    sums = both.groupby(keys, sort=False)[["seconds"]].sum().reset_index()
    order = {run: place for place, run in enumerate(both["run"].unique())}
    sums = sums.assign(place=sums["run"].map(order)).sort_values(["place", "epoch"])
    seconds = sums.set_index(keys)[["seconds"]]
    seconds.attrs["absent"] = 0.0  # waiting that there is none of has no row
    return {"seconds": seconds}


def faults(result: Result) -> Iterator[Problem]:
    """Tables that speak of different epochs, and runs of which ``meta.json`` says nothing."""
    epochs = _epochs_in(result, "epochs")
    for name, schema in result.study.stored.items():
        nothing = name == "timeline" and timeline_of(result.meta) == "none"
        if _epochs_in(result, name) != (set() if nothing else epochs):
            rule = "must be of the runs and epochs of epochs.csv"
            yield Problem(f"{name}{schema.suffix}", rule, "others", REMEDY)
    if {run for run, *_ in epochs} != set(result.meta["runs"]):
        yield Problem("meta.json: runs", "must be those of epochs.csv", "others", REMEDY)
    breakdown = result.tables["breakdown"]
    keys = report.keys_of(breakdown)
    own = breakdown[breakdown["cause"] == ""].groupby(keys, observed=True)["label"]
    if own.apply(tuple).nunique() != 1:
        rule = "must have the same labels with an empty cause for every epoch"
        yield Problem("breakdown.csv", rule, "different ones", REMEDY)


def _epochs_in(result: Result, table: str) -> set[tuple[Any, ...]]:
    keys = report.keys_of(result.tables["epochs"])
    rows = long(result.tables, table).distinct(keys)[keys].astype({"run": str})
    return set(rows.itertuples(index=False, name=None))


class _Run(TypedDict):
    storage_per_host_nbytes: float
    staged_to: str | None
    staging_s: float
    routing: NotRequired[str]
    extrapolated: NotRequired[list[str]]


class Says(TypedDict):
    """What ``meta.json`` holds of a simulation."""

    runs: dict[str, _Run]
    labels: NotRequired[report.Booking]
    timeline: NotRequired[Kept]


def again(folder: Path, meta: Meta) -> Request[Runs]:
    """The request of a result, from its folder."""
    scenarios = load_scenarios(folder / "scenario.yaml")
    return request(scenarios, labels_of(meta), timeline_of(meta))


STUDY: Study[Runs] = Study(
    kind="simulation",
    verb="run",
    stages=(_cells,),
    collect=_collect,
    stored=STORED,
    documents=("scenario.yaml",),
    figures=_figures,
    one_figure=True,
    parts=_parts,
    as_json=epochs_as_json,
    compared=_compared,
    facts=_facts,
    says=Says,
    faults=faults,
    again=f"{__name__}:again",
    result=SimulationResult,
)
