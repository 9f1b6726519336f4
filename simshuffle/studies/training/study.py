"""The study behind ``simshuffle train``: shuffling strategies by the accuracy that they
reach.

The cells come with the request, so that results are read, drawn and joined without
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import TypedDict

from simshuffle.report.table_io import plain_rows
from simshuffle.studies.training.figures import figures
from simshuffle.studies.training.summary import SUMMARY, summary
from simshuffle.studies.training.tables import (
    PLANS,
    STORED,
    TIMELINE,
    TrainingTables,
    collect_tables,
)
from simshuffle.studies.training.text import details, parts
from simshuffle.studies.training.wording import report_fields
from simshuffle.study.cell import Cell
from simshuffle.study.study import Derived, Files, Outcomes, Result, Study


@dataclass(frozen=True)
class Trainings:
    """The runs of a study of trainings, before they are trained."""

    name: str  # name of the study
    description: str  # the study in words
    device: str  # device that trains: cpu or cuda
    # the cell of each run, by the run's name; outcomes are of
    # `simshuffle.studies.training.tables.run_outcome`
    cells: Mapping[str, Cell]
    # description of each run, by the run's name: values of
    # `simshuffle.studies.training.tables.DESCRIPTION_COLUMNS`
    descriptions: Mapping[str, Mapping[str, Any]]


class TrainingFacts(TypedDict):
    """The facts of a training study in ``meta.json``, with the description of each run.

    ``device`` stands there too, but is not checked when a folder is read.
    """

    study: str  # name of the study
    description: str  # the study in words
    # 'incomplete': runs are lost; 'unfinished': the study was stopped before its end
    state: Literal["finished", "incomplete", "unfinished"]
    lost: dict[str, str]  # why a run is lost, by the run's name
    # what is known of each run, also of lost and missing ones, by the run's name
    runs: dict[str, dict[str, Any]]


def _collect(trainings: Trainings, outcomes: Outcomes) -> dict[str, Any]:
    """Return the tables runs, epochs, iterations and importance, by name."""
    return vars(collect_tables(trainings.descriptions, outcomes))


def _facts(trainings: Trainings, outcomes: Outcomes, tables: object) -> dict[str, Any]:
    """Return study, description, device and runs: facts of the study in ``meta.json``.

    The facts ``state`` and ``lost`` are not among them. A run's facts are what its
    outcome records; values of its description replace these. Runs that are lost or not
    done yet have their description alone.
    """
    recorded = {
        name: outcome.values.get("description", {})
        for name, outcome in outcomes.items()
    }
    return {
        "study": trainings.name,
        "description": trainings.description,
        "device": trainings.device,
        "runs": {
            name: recorded.get(name, {}) | description
            for name, description in trainings.descriptions.items()
        },
    }


def _files_by_run(outcomes: Outcomes, file: str, suffix: str) -> Files:
    """Return file ``file`` of every run that has it, by run and ``suffix``."""
    contents = {name: outcome.files.get(file) for name, outcome in outcomes.items()}
    return {
        f"{name}{suffix}": content
        for name, content in contents.items()
        if content is not None
    }


def _json(result: Result) -> dict[str, Any]:
    """Return the rows of ``runs`` and ``summary`` as plain values, by table."""
    return {
        "runs": plain_rows(result.tables["runs"]),
        "summary": plain_rows(result.derived["summary"]),
    }


STUDY: Study[Trainings] = Study(
    kind="training",
    verb="train",
    stages=(lambda trainings, outcomes: trainings.cells,),
    collect=_collect,
    stored=STORED,
    documents=("study.yaml",),
    derived={
        "summary": Derived(SUMMARY, lambda result: summary(result.tables["runs"]))
    },
    files_in={
        "plans": lambda trainings, outcomes: _files_by_run(outcomes, PLANS, ".npz"),
        "timelines": lambda trainings, outcomes: _files_by_run(
            outcomes, TIMELINE, ".parquet"
        ),
    },
    figures=lambda result: figures(TrainingTables(**result.tables)),
    **report_fields(
        lambda result: parts(TrainingTables(**result.tables), result.meta),
        lambda result: details(TrainingTables(**result.tables), result.meta),
    ),
    as_json=_json,
    facts=_facts,
    says=TrainingFacts,
    again="simshuffle.train.shuffling:repeat",
    measured=("samples_per_s",),
    decides=("simshuffle.studies.training.tables", "simshuffle.train.cell"),
    partial=True,
    versions=("numpy", "pandas", "torch"),
)
