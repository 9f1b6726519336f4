"""The study behind ``study tta``: accuracy by epoch of a training, joined with
simulated time.

The join comes with the request, so that results are read without the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired

from typing_extensions import TypedDict

from simshuffle.errors import Problem, refuse
from simshuffle.extensions.learning.time_to_accuracy.figures import figures
from simshuffle.extensions.learning.time_to_accuracy.tables import STORED, JoinTables
from simshuffle.extensions.learning.time_to_accuracy.text import details, parts, verdict
from simshuffle.report.table_io import plain_rows
from simshuffle.studies.training.wording import report_fields
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Meta, Request, Result, Study

if TYPE_CHECKING:
    from simshuffle.extensions.learning.time_to_accuracy.join import Join


class Condition(TypedDict):
    """The runs of the training that are joined."""

    variant: str  # what else the study varied, as key=value; '' if nothing
    batch_norm: Literal["per_rank", "sync", "none", "absent"]
    world_size: int  # M of the training


class JoinFacts(TypedDict):
    """The facts of ``meta.json`` that report and figures are written from."""

    study: str  # name of the training study
    scenario: str  # name of the scenario
    rule: str  # how the simulated scale follows from the trained one, a sentence
    model: NotRequired[str]  # networks and data that were trained, in words
    schedules: NotRequired[list[str]]  # names of the exchange schedules, each once
    condition: Condition
    statistics: str  # batch-norm statistics of the evaluation
    epochs: int  # epochs of the training
    missing_runs: int  # runs of the condition that are missing or lost
    drawn: NotRequired[bool]  # whether exchanges were drawn anew, not replayed
    all_runs: int  # runs of the condition
    targets: list[float]  # accuracies that the user gave; [] for the default ones


class TimeToAccuracy(Result):
    """A result with ``tables`` curves, settings and targets.

    ``meta`` has study, scenario, rule (of the scaling), condition, statistics, trained
    scale, epochs, and more.
    """

    @property
    def report(self) -> str:
        """The report of the result, as one text."""
        return str(self.study.texts["report.txt"](self))


def _faults(result: Result) -> Iterator[Problem]:
    """Yield the problems of tables that do not fit together.

    Simulated settings need times and an accuracy within its interval, if it has one.
    Curves and targets must name settings that there are.
    """
    settings = result.tables["settings"]
    setting_names = set(settings["setting"])
    measured = settings[settings["message"] == ""]
    lacks_values = (
        measured[["cold_epoch_s", "total_s", "accuracy"]].isna().any(axis=None)
    )
    is_outside = (measured["low"] > measured["accuracy"]) | (
        measured["high"] < measured["accuracy"]
    )
    if lacks_values or is_outside.any():
        rule = "must have times, and an accuracy within its interval, where message is empty"
        yield Problem("settings.csv", rule, "others", REMEDY)
    for name in ("curves", "targets"):
        if unknown_settings := sorted(
            set(result.tables[name]["setting"]) - setting_names
        ):
            rule = "must name settings of settings.csv"
            yield Problem(
                f"{name}.csv: setting", rule, repr(unknown_settings[0]), REMEDY
            )


def _json(result: Result) -> dict[str, Any]:
    """Return the rule of the scale and all tables as plain values."""
    tables = {name: plain_rows(table) for name, table in result.tables.items()}
    return {"rule": result.meta["rule"], **tables}


def repeat(folder: Path, meta: Meta) -> Request[Join]:
    """Refuse to do a join again: the training that was joined is in another folder.

    Raises:
        InputError: always.
    """
    rule = (
        f"must also hold the training '{meta['study']}', which lies in another folder"
    )
    remedy = (
        "Verify the folder of the training, join it again (simshuffle study tta TRAINING SCENARIO),"
        " and compare both results with simshuffle compare."
    )
    refuse("", rule, "time_to_accuracy", remedy, str(folder))


STUDY: Study[Join] = Study(
    kind="time_to_accuracy",
    verb="tta",
    stages=(lambda join, outcomes: join.cells,),
    collect=lambda join, outcomes: vars(join.tables(outcomes)),
    stored=STORED,
    documents=("scenario.yaml",),
    figures=lambda result: figures(JoinTables(**result.tables), result.meta),
    verdict=lambda result: verdict(JoinTables(**result.tables)),
    **report_fields(
        lambda result: parts(JoinTables(**result.tables), result.meta),
        lambda result: details(JoinTables(**result.tables), result.meta),
    ),
    as_json=_json,
    says=JoinFacts,
    faults=_faults,
    again=f"{__name__}:repeat",
    decides=("simshuffle.extensions.learning.time_to_accuracy.join",),
    result=TimeToAccuracy,
)
