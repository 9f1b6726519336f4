"""The study behind ``study tta``: accuracy by epoch of a training, joined with simulated time.
What is joined comes with the request, so that results are read without the simulator."""

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
    """Which runs of the training are joined."""

    variant: str
    batch_norm: Literal["per_rank", "sync", "none", "absent"]
    world_size: int


class JoinFacts(TypedDict):
    """What ``meta.json`` holds for report and figures."""

    study: str
    scenario: str
    rule: str
    model: NotRequired[str]
    schedules: NotRequired[list[str]]
    condition: Condition
    statistics: str
    epochs: int
    missing_runs: int
    drawn: NotRequired[bool]
    all_runs: int
    targets: list[float]


class TimeToAccuracy(Result):
    """What was found: ``tables`` curves, settings and targets; ``meta`` has study, scenario, rule
    (of the scaling), condition, statistics, trained scale, epochs, and more."""

    @property
    def report(self) -> str:
        """What was found, in words."""
        return str(self.study.texts["report.txt"](self))


def _faults(result: Result) -> Iterator[Problem]:
    """Rows of settings that are not there, and settings that were simulated without a result."""
    settings = result.tables["settings"]
    known = set(settings["setting"])
    measured = settings[settings["message"] == ""]
    needed = measured[["cold_epoch_s", "total_s", "accuracy"]].isna().any(axis=None)
    outside = (measured["low"] > measured["accuracy"]) | (measured["high"] < measured["accuracy"])
    if needed or outside.any():
        rule = "must have times, and an accuracy within its interval, where message is empty"
        yield Problem("settings.csv", rule, "others", REMEDY)
    for name in ("curves", "targets"):
        if others := sorted(set(result.tables[name]["setting"]) - known):
            rule = "must name settings of settings.csv"
            yield Problem(f"{name}.csv: setting", rule, repr(others[0]), REMEDY)


def _json(result: Result) -> dict[str, Any]:
    tables = {name: plain_rows(table) for name, table in result.tables.items()}
    return {"rule": result.meta["rule"], **tables}


def repeat(folder: Path, meta: Meta) -> Request[Join]:
    """Raise InputError: the training that was joined lies in a folder of its own."""
    rule = f"must hold the training '{meta['study']}' too, which lies in a folder of its own"
    remedy = (
        "Verify that folder, join it again (simshuffle study tta TRAINING SCENARIO), and simshuffle"
        " compare the two."
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
