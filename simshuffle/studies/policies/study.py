"""The study behind ``simshuffle study policies``: data-loading policies compared."""

from __future__ import annotations

from collections.abc import Iterator

from simshuffle.errors import InputError, Problem
from simshuffle.results.chart import Chart
from simshuffle.studies.policies import cases, text
from simshuffle.studies.policies.comparison import CaseCell, cells, collect
from simshuffle.studies.policies.figures import policies_chart
from simshuffle.studies.policies.tables import STORED
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Result, Study


def _figures(result: Result) -> dict[str, Chart]:
    return {"policies": policies_chart(result.tables["policies"])}


def _cases(result: Result) -> cases.Study:
    return cases.read(result.documents["study.yaml"], "study.yaml")


def _faults(result: Result) -> Iterator[Problem]:
    """A study that is none, and rows without numbers."""
    policies = result.tables["policies"]
    usable = policies[policies["problem"] == ""]
    if policies.empty or usable.isna().any(axis=None):
        rule = "must have rows, and numbers for every policy that can be used"
        yield Problem("policies.csv", rule, f"{len(policies)} rows", REMEDY)
    try:
        _cases(result)
    except InputError as error:
        yield from (problem.below("study.yaml") for problem in error.problems)


STUDY: Study[list[CaseCell]] = Study(
    kind="policies",
    verb="study policies",
    stages=(cells,),
    collect=collect,
    stored=STORED,
    documents=("study.yaml",),
    figures=_figures,
    one_figure=True,
    parts=lambda result: text.parts(_cases(result), result.tables["policies"]),
    faults=_faults,
    again="simshuffle.studies.policies.comparison:again",
)
