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
from simshuffle.extensions.planning.month.tables import (
    CAUSES,
    DAYS,
    INPUTS,
    PARTS,
    PERIODS,
    days_by_category,
)
from simshuffle.extensions.planning.month.text import list_details, list_parts, verdict
from simshuffle.job.plan.effort import check_size
from simshuffle.job.scenario.reading import by_content
from simshuffle.job.scenario.scenario import (
    Scenario,
    load_scenario,
    serialise_scenarios,
)
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
MAX_RUNS = 1000
"""Largest number of runs of a sweep."""
DURABLE_STORES = ("pfs", "object_store")
"""Where a checkpoint outlives the host that wrote it."""
TABLES = {"days": DAYS, "periods": PERIODS, "causes": CAUSES, "inputs": INPUTS}


@dataclass(frozen=True)
class MonthLength:
    """Length of the training, period of its checkpoints, and number of drawn months.

    Where days and epochs are None, `request` sets `DEFAULT_DAYS` days.
    """

    days: float | None = None  # days of the training; None if epochs count
    epochs: int | None = None  # epochs of the training; None if days count
    period: float | None = (
        None  # s of training between checkpoints; the scenario's if None
    )
    seeds: int = 20  # number of months that are drawn


@dataclass(frozen=True)
class MonthRequest:
    """The request of ``simshuffle month``: the scenarios of its runs, and their length."""

    # scenarios as plain values, by the name of the run
    documents: Mapping[str, Mapping[str, Any]]
    length: MonthLength

    def epochs_of(self) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """Return for each run the run that its epoch cell is named after, and that
        cell's scenario.

        Runs with equal epochs share a cell, named after the first of them. The scenario
        is that of `epoch_document`: no failures, no checkpoints.
        """
        run_by_content: dict[str, str] = {}
        epoch_of_run: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for run, document in self.documents.items():
            epoch = epoch_document(document)
            name = run_by_content.setdefault(
                json.dumps(by_content(epoch), sort_keys=True), run
            )
            epoch_of_run[run] = (name, epoch)
        return epoch_of_run


def request(
    scenario: Scenario, length: MonthLength, over: Mapping[str, Sequence[Any]]
) -> Request[MonthRequest]:
    """Return the request for every run of the scenario's sweep.

    Args:
        scenario: the scenario, with or without a sweep.
        length: of the training; `DEFAULT_DAYS` days if days and epochs are None.
        over: further axes of the sweep; an axis replaces one of the same key.

    Raises:
        InputError: both days and epochs are given, the period is below 1 s, a value is
            not valid, or there are more than `MAX_RUNS` runs.
        ScenarioError: a run has no checkpoints, or hosts fail and its checkpoints do
            not outlive a host; or a run has too many packets.
    """
    if length.days is not None and length.epochs is not None:
        remedy = "Give one of the two."
        refuse(
            "--epochs", "must not be given beside --days", "both", remedy, COMMAND_LINE
        )
    if length.days is None and length.epochs is None:
        length = MonthLength(DEFAULT_DAYS, None, length.period, length.seeds)
    if length.period is not None and length.period < 1.0:
        rule = "must be at least 1 s"
        refuse(
            "--period",
            rule,
            f"{length.period:g} s",
            "Give a longer period.",
            COMMAND_LINE,
        )
    axes = {**scenario.sweep, **{key: list(values) for key, values in over.items()}}
    swept = scenario.model_copy(update={"sweep": axes})
    runs = swept.runs()
    if len(runs) > MAX_RUNS:
        rule = f"must be at most {MAX_RUNS} runs"
        refuse("sweep", rule, str(len(runs)), "Sweep fewer values.", scenario.name)
    for run_scenario in runs.values():
        check_checkpoint(run_scenario)
        check_size(run_scenario)
    documents = {name: run_scenario.to_dict() for name, run_scenario in runs.items()}
    document, files = serialise_scenarios([swept])
    month_request = MonthRequest(documents, length)
    return Request(
        scenario.name, month_request, {"scenario.yaml": document}, asdict(length), files
    )


def check_checkpoint(scenario: Scenario) -> None:
    """Check that a scenario saves checkpoints, and where they outlive a failure.

    Without failures any place is allowed.

    Raises:
        ScenarioError: there are none, or hosts fail and a failed host takes them along.
    """
    path = "workload.checkpoint"
    checkpoint = scenario.workload.checkpoint
    if checkpoint is None:
        remedy = f"Add for example {path}: {{period: 30 min, mode: synchronous, layout: sharded}}."
        problem = Problem(
            path,
            "is required: without checkpoints a failure loses all training",
            "",
            remedy,
        )
        raise ScenarioError(problem, scenario.name)
    if scenario.failures is not None and checkpoint.kept_in not in DURABLE_STORES:
        rule = "must be kept where it outlives the host that wrote it"
        remedy = f"Set {path}.drain: pfs."
        raise ScenarioError(
            Problem(path, rule, checkpoint.describe(), remedy), scenario.name
        )


def repeat(folder: Path, meta: Meta) -> Request[MonthRequest]:
    """Return the request of a stored result, from its folder."""
    length = MonthLength(meta["days"], meta["epochs"], meta["period"], meta["seeds"])
    return request(load_scenario(folder / "scenario.yaml"), length, {})


def _epoch_cells(month_request: MonthRequest, outcomes: Outcomes) -> Mapping[str, Cell]:
    """Return the cells of the first stage, 'epochs of RUN', by name.

    Runs with equal epochs share a cell, named after the first of them.
    """
    return {
        f"epochs of {name}": EpochCell(document, name)
        for name, document in month_request.epochs_of().values()
    }


def _month_cells(month_request: MonthRequest, outcomes: Outcomes) -> Mapping[str, Cell]:
    """Return the cells of the second stage: the months of each run, by its name."""
    epoch_of_run = month_request.epochs_of()
    length = month_request.length
    return {
        run: MonthCell(
            document,
            outcomes[f"epochs of {epoch_of_run[run][0]}"].values,
            run,
            length.days,
            length.epochs,
            length.period,
            length.seeds,
        )
        for run, document in month_request.documents.items()
    }


def _collect(month_request: MonthRequest, outcomes: Outcomes) -> Tables:
    """Return the stored tables, by name, with the rows of every run in order."""
    rows_by_table: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for run in month_request.documents:
        values = outcomes[run].values
        for name in TABLES:
            rows = values[name] if isinstance(values[name], list) else [values[name]]
            rows_by_table[name] += [{"run": run, **row} for row in rows]
    return {name: schema.framed(rows_by_table[name]) for name, schema in TABLES.items()}


def _derive_parts(result: Result) -> pd.DataFrame:
    """Return the derived table ``parts`` of a result: mean days by run and category."""
    return days_by_category(result.tables["days"])


STUDY: Study[MonthRequest] = Study(
    kind="month",
    verb="month",
    stages=(_epoch_cells, _month_cells),
    collect=_collect,
    stored=TABLES,
    documents=("scenario.yaml",),
    derived={"parts": Derived(PARTS, _derive_parts)},
    figures=lambda result: {"month": month_chart({**result.tables, **result.derived})},
    one_figure=True,
    verdict=verdict,
    **documents_with_details(list_parts, list_details),
    again=f"{__name__}:repeat",
)
