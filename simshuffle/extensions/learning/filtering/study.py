"""The study behind ``simshuffle train`` where a training set is filtered.

Cells and tables come with the request, which needs torch; results are read and drawn
without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import TypedDict

from simshuffle.extensions.learning.filtering.figures import figures
from simshuffle.extensions.learning.filtering.tables import (
    STORED,
    SUMMARY,
    FilterTables,
    summary,
)
from simshuffle.extensions.learning.filtering.text import parts
from simshuffle.report.table_io import plain_rows
from simshuffle.studies.training.wording import report_fields
from simshuffle.study.study import Derived, Result, Study

if TYPE_CHECKING:
    from simshuffle.extensions.learning.filtering.request import Filtering


class FilteringFacts(TypedDict):
    """The facts of ``meta.json`` that the report is written from."""

    study: str  # its name
    description: str  # what the study's file says of it; '' if nothing
    # 'incomplete' where cells are lost, 'unfinished' where some have not been computed
    state: Literal["finished", "incomplete", "unfinished"]
    lost: dict[str, str]  # why a cell was lost, by the cell's name


def _json(result: Result) -> dict[str, Any]:
    """Return the rows of filters, runs and summary by name, without eps and points."""
    tables = {name: result.tables[name] for name in ("filters", "runs")}
    return {
        name: plain_rows(table)
        for name, table in (tables | dict(result.derived)).items()
    }


STUDY: Study[Filtering] = Study(
    kind="data_optimised",
    verb="train",
    stages=(
        lambda filtering, outcomes: filtering.extractions,
        lambda filtering, outcomes: filtering.retrainings(outcomes),
    ),
    collect=lambda filtering, outcomes: vars(filtering.tables(outcomes)),
    stored=STORED,
    documents=("study.yaml",),
    derived={
        "summary": Derived(SUMMARY, lambda result: summary(result.tables["runs"]))
    },
    figures=lambda result: figures(FilterTables(**result.tables)),
    **report_fields(lambda result: parts(FilterTables(**result.tables), result.meta)),
    as_json=_json,
    facts=lambda filtering, outcomes, tables: filtering.facts,
    says=FilteringFacts,
    again="simshuffle.extensions.learning.filtering.request:repeat",
    decides=("simshuffle.extensions.learning.filtering.request",),
    partial=True,
    versions=("numpy", "pandas", "torch", "scikit-learn"),
)
