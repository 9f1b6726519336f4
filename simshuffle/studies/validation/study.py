"""The study behind ``simshuffle study validate``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.results.table_io import rows as rows_of
from simshuffle.spec.library import nearest, shipped
from simshuffle.studies.validation import text
from simshuffle.studies.validation.figures import ratios_chart
from simshuffle.studies.validation.predict import TaskCell, answer_of, predictions, tasks_of
from simshuffle.studies.validation.table import (
    COLUMNS,
    SCHEMA,
    SUMMARY,
    Row,
    coverage,
    read_rows,
    summary,
    table,
)
from simshuffle.study.cell import Cell
from simshuffle.study.study import Derived, Meta, Outcomes, Request, Result, Study, Tables

Rows = Sequence[Row]


def request(only: Sequence[str] | None = None, folder: Path | None = None) -> Request[Rows]:
    """What is predicted: the sets ``only``, or all, of the CSV files in ``folder``, or of those
    that come with simshuffle.

    Raises:
        InputError: a file or a row is not valid, or there is no such set.
    """
    rows = read_rows(folder or shipped("validation"))
    sets = list(dict.fromkeys(row.set for row in rows))
    problems = [
        Problem("--only", "no such set", repr(name), nearest(name, sets))
        for name in only or ()
        if name not in sets
    ]
    if problems:
        raise InputError(problems, "command line")
    return _request([row for row in rows if not only or row.set in only])


def shipped_sets() -> list[str]:
    """Names of the sets that come with simshuffle."""
    return list(dict.fromkeys(row.set for row in read_rows(shipped("validation"))))


def again(folder: Path, meta: Meta) -> Request[Rows]:
    """The request of a result, from the rows in its table.

    Raises:
        InputError: a scenario that they name is not there.
    """
    table = STUDY.stored["validation"].read(folder / "validation")
    assert isinstance(table, pd.DataFrame)  # noqa: S101 - a CSV file
    rows = table[list(COLUMNS)]
    plain = rows.astype(object).where(rows.notna(), None)
    return _request([Row(*row) for row in plain.itertuples(index=False, name=None)])


def _request(chosen: Rows) -> Request[Rows]:
    decided = [[asdict(row) for row in chosen], [TaskCell(t).key for t in tasks_of(chosen)]]
    digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()
    return Request("validation", chosen, {}, {"rows": digest})


def _cells(rows: Rows, outcomes: Outcomes) -> dict[str, Cell]:
    return {f"{task}": TaskCell(task) for task in tasks_of(rows)}


def _collect(rows: Rows, outcomes: Outcomes) -> Tables:
    answers = {task: answer_of(task, outcomes[f"{task}"]) for task in tasks_of(rows)}
    return {"validation": table(rows, predictions(rows, answers))}


def _as_json(result: Result) -> Any:
    results = result.tables["validation"]
    of_sets = {"rows": rows_of(results), "summary": rows_of(summary(results))}
    return {**of_sets, "coverage": coverage(results)}


def _compared(result: Result) -> Tables:
    """What was predicted; of a quantity that is there twice the first."""
    rows = result.tables["validation"].drop_duplicates(keys := ["set", "case", "quantity"])
    return {"predicted": rows.set_index(keys)[["predicted", "error"]]}


STUDY: Study[Rows] = Study(
    kind="validation",
    verb="study validate",
    stages=(_cells,),
    collect=_collect,
    stored={"validation": SCHEMA},
    derived={"summary": Derived(SUMMARY, lambda result: summary(result.tables["validation"]))},
    figures=lambda result: {"validation": ratios_chart(result.tables["validation"])},
    one_figure=True,
    parts=lambda result: text.parts(result.tables["validation"]),
    as_json=_as_json,
    compared=_compared,
    again=f"{__name__}:again",
)
