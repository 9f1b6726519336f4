"""The study behind ``simshuffle month``: a steady epoch, then failures over many days."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import Problem, ScenarioError, refuse
from simshuffle.extensions.planning.month.cell import MonthCell
from simshuffle.extensions.planning.month.epoch import EpochCell, epoch_document
from simshuffle.extensions.planning.month.figures import month_chart
from simshuffle.extensions.planning.month.tables import CAUSES, DAYS, INPUTS, PARTS, PERIODS, parts
from simshuffle.extensions.planning.month.text import details, parts_shown, verdict
from simshuffle.job.plan.effort import check_size
from simshuffle.job.scenario.reading import by_content
from simshuffle.job.scenario.scenario import Scenario, load_scenario, serialise_scenarios
from simshuffle.study.cell import Cell
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.study import (
    Derived,
    Meta,
    Outcomes,
    Request,
    Result,
    Study,
    Tables,
    documents_with_details,
)

DEFAULT_DAYS = 30.0
MOST_RUNS = 1000
"""Runs of a sweep."""
KEPT = ("pfs", "object_store")
"""Where a checkpoint outlives the host that wrote it."""
TABLES = {"days": DAYS, "periods": PERIODS, "causes": CAUSES, "inputs": INPUTS}


@dataclass(frozen=True)
class Length:
    """How long the training is, how often it saves, and how many months are drawn."""

    days: float | None = None
    epochs: int | None = None
    period: float | None = None  # s
    seeds: int = 20


@dataclass(frozen=True)
class Months:
    """What is followed."""

    documents: Mapping[str, Mapping[str, Any]]  # scenarios as plain values, by the name of the run
    length: Length

    def epochs_of(self) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """For each run the name of the cell with its epochs, which runs may share, and that
        scenario."""
        known: dict[str, str] = {}
        out: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for run, document in self.documents.items():
            epoch = epoch_document(document)
            name = known.setdefault(json.dumps(by_content(epoch), sort_keys=True), run)
            out[run] = (name, epoch)
        return out


def request(
    scenario: Scenario, length: Length, over: Mapping[str, Sequence[Any]]
) -> Request[Months]:
    """What is asked of every run of the scenario's sweep, to which ``over`` adds.

    Raises:
        InputError: both days and epochs are given, or a run has no checkpoints, or none that
            outlive a host; or a value is not valid.
    """
    if length.days is not None and length.epochs is not None:
        remedy = "Give one of them."
        refuse("--epochs", "must not be given beside --days", "both", remedy, COMMAND_LINE)
    if length.days is None and length.epochs is None:
        length = Length(DEFAULT_DAYS, None, length.period, length.seeds)
    if length.period is not None and length.period < 1.0:
        rule = "must be at least 1 s"
        refuse("--period", rule, f"{length.period:g} s", "Give more.", COMMAND_LINE)
    axes = {**scenario.sweep, **{key: list(values) for key, values in over.items()}}
    swept = scenario.model_copy(update={"sweep": axes})
    runs = swept.runs()
    if len(runs) > MOST_RUNS:
        rule = f"must be at most {MOST_RUNS} runs"
        refuse("sweep", rule, str(len(runs)), "Sweep fewer values.", scenario.name)
    for single in runs.values():
        check_saved(single)
        check_size(single)
    documents = {name: single.to_dict() for name, single in runs.items()}
    document, files = serialise_scenarios([swept])
    months = Months(documents, length)
    return Request(scenario.name, months, {"scenario.yaml": document}, asdict(length), files)


def check_saved(scenario: Scenario) -> None:
    """Refuse a scenario that saves nothing, or only where a failure takes it along."""
    path, checkpoint = "workload.checkpoint", scenario.workload.checkpoint
    if checkpoint is None:
        remedy = f"Add it, as {path}: {{period: 30 min, mode: synchronous, layout: sharded}}."
        problem = Problem(path, "is required: what is not saved is lost", "", remedy)
        raise ScenarioError(problem, scenario.name)
    if scenario.failures is not None and checkpoint.kept_in not in KEPT:
        rule = "must end where it outlives the host that wrote it"
        remedy = f"Set {path}.drain: pfs."
        raise ScenarioError(Problem(path, rule, checkpoint.describe(), remedy), scenario.name)


def repeat(folder: Path, meta: Meta) -> Request[Months]:
    """The request of a result, from its folder."""
    length = Length(meta["days"], meta["epochs"], meta["period"], meta["seeds"])
    return request(load_scenario(folder / "scenario.yaml"), length, {})


def _epochs(months: Months, outcomes: Outcomes) -> Mapping[str, Cell]:
    return {f"epochs of {name}": EpochCell(of, name) for name, of in months.epochs_of().values()}


def _months(months: Months, outcomes: Outcomes) -> Mapping[str, Cell]:
    names, of = months.epochs_of(), months.length
    return {
        run: MonthCell(
            document,
            outcomes[f"epochs of {names[run][0]}"].values,
            run,
            of.days,
            of.epochs,
            of.period,
            of.seeds,
        )
        for run, document in months.documents.items()
    }


def _collect(months: Months, outcomes: Outcomes) -> Tables:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for run in months.documents:
        values = outcomes[run].values
        for name in TABLES:
            rows = values[name] if isinstance(values[name], list) else [values[name]]
            found[name] += [{"run": run, **row} for row in rows]
    return {name: schema.framed(found[name]) for name, schema in TABLES.items()}


def _parts(result: Result) -> pd.DataFrame:
    return parts(result.tables["days"])


STUDY: Study[Months] = Study(
    kind="month",
    verb="month",
    stages=(_epochs, _months),
    collect=_collect,
    stored=TABLES,
    documents=("scenario.yaml",),
    derived={"parts": Derived(PARTS, _parts)},
    figures=lambda result: {"month": month_chart({**result.tables, **result.derived})},
    one_figure=True,
    verdict=verdict,
    **documents_with_details(parts_shown, details),
    again=f"{__name__}:repeat",
)
