"""The study behind ``study oracle``: which way to divide training, at what scale,
within what memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from simshuffle.errors import Problem
from simshuffle.report.chart import Chart
from simshuffle.report.intervals import ModelError
from simshuffle.studies.oracle import text
from simshuffle.studies.oracle.cell import (
    closed_forms,
    collect,
    facts_of,
    model_error,
    simulations,
)
from simshuffle.studies.oracle.figures import memory_chart, times_chart
from simshuffle.studies.oracle.request import Oracle
from simshuffle.studies.oracle.tables import KEY, RECOMMENDED, STORED, recommended
from simshuffle.study.schema import LARGEST, REMEDY
from simshuffle.study.study import Derived, Result, Study, documents_with_details


class OracleFacts(TypedDict):
    """The facts in ``meta.json`` that figures and texts state beside the tables."""

    what: str  # model, machine and batch size
    assumptions: list[str]  # phrases, which texts list
    # the budget is left out where there is none
    budget_nbytes: NotRequired[Annotated[float, Field(gt=0, le=LARGEST)]]
    budget_from: NotRequired[str]


_Size = Annotated[int, Field(ge=1)]


class OracleQuestion(TypedDict):
    """The answers to the options, beside the scenario, as ``meta.json`` holds them."""

    strategies: list[str]  # [] for all
    # those that were looked at; [] in results of earlier versions
    world_sizes: list[_Size]
    budget: str | None
    # names as they were requested, and world sizes
    simulate: list[tuple[str, _Size]]
    # the third is the s of the epoch
    measured: list[tuple[str, _Size, Annotated[float, Field(gt=0, le=LARGEST)]]]


class OracleMeta(TypedDict):
    """The content of ``meta.json`` of an oracle."""

    says: OracleFacts
    asked: OracleQuestion
    # of `simshuffle.studies.oracle.cell.model_error`
    model_error: NotRequired[ModelError]


def _figures(result: Result) -> dict[str, Chart]:
    """Return the charts 'times' and 'memory', by the name of their file without suffix."""
    tables = result.all_tables
    budget = result.meta["says"].get("budget_nbytes")
    return {"times": times_chart(tables), "memory": memory_chart(tables, budget)}


def _faults(result: Result) -> Iterator[Problem]:
    """Yield a problem for each table that does not fit the others.

    There must be points, every possible point must have its numbers, and other tables
    must be of points that are there.
    """
    points = result.tables["points"]
    point_keys = set(points[list(KEY)].itertuples(index=False, name=None))
    if not point_keys:
        yield Problem("points.csv", "must have a row for each point", "none", REMEDY)
    numbers = points.loc[points["feasible"], ["epoch_s", "loop_s", "memory_nbytes"]]
    if numbers.isna().any(axis=None):
        rule = "must have numbers for every point that is possible"
        yield Problem("points.csv", rule, f"{len(points)} rows", REMEDY)
    for name in ("communication", "simulated", "measured"):
        table = result.tables[name]
        if not set(table[list(KEY)].itertuples(index=False, name=None)) <= point_keys:
            rule = "must only have rows for points of points.csv"
            yield Problem(f"{name}.csv", rule, f"{len(table)} rows", REMEDY)


STUDY: Study[Oracle] = Study(
    kind="oracle",
    verb="oracle",
    stages=(closed_forms, simulations),
    collect=collect,
    stored=STORED,
    documents=("scenario.yaml",),
    derived={
        "recommended": Derived(
            RECOMMENDED, lambda result: recommended(result.tables["points"])
        )
    },
    figures=_figures,
    verdict=lambda result: text.verdict(
        result.derived["recommended"],
        result.meta["says"],
        result.meta.get("model_error"),
    ),
    **documents_with_details(
        lambda result: text.parts(
            result.all_tables, result.meta["says"], result.meta.get("model_error")
        ),
        lambda result: text.details(result.all_tables, result.meta["says"]),
    ),
    facts=lambda of, outcomes, tables: {
        "says": facts_of(of),
        **({"model_error": off} if (off := model_error(tables)) else {}),
    },
    says=OracleMeta,
    faults=_faults,
    again="simshuffle.studies.oracle.request:repeat",
)
