"""The study behind ``simshuffle study validate``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.extensions.calibration.validation import sealed, text
from simshuffle.extensions.calibration.validation.entries import ENTRIES, beside, read_entries
from simshuffle.extensions.calibration.validation.figures import ratios_chart
from simshuffle.extensions.calibration.validation.predict import (
    TaskCell,
    answer_of,
    predictions,
    tasks_of,
)
from simshuffle.extensions.calibration.validation.table import (
    COLUMNS,
    SCHEMA,
    SUMMARY,
    ValidationRow,
    coverage,
    read_rows,
    summary,
    table,
)
from simshuffle.report.table_io import plain_rows as rows_of
from simshuffle.spec.library import shipped_folder, suggest_nearest
from simshuffle.study.cell import Cell
from simshuffle.study.study import Derived, Meta, Outcomes, Request, Result, Study, Tables

Rows = Sequence[ValidationRow]
SEALED = "sealed.json"  # its name in the folder of a result


@dataclass(frozen=True)
class ValidationRequest:
    """What is asked of the study."""

    rows: Rows  # to predict
    entries: pd.DataFrame  # what others predict of them, columns of `ENTRIES`
    sealed: sealed.Sealed | None = None  # what predicts them, if nothing is to be simulated


def request(
    only: Sequence[str] = (),
    folder: Path | None = None,
    *,
    seal: bool = False,
    opened: Path | None = None,
    entry: Sequence[Path] = (),
) -> Request[ValidationRequest]:
    """What is predicted: the sets ``only``, or all, of the CSV files in ``folder``, or of those
    that come with simshuffle; with ``seal`` also what is not measured yet. With ``opened`` what is
    sealed there, beside what the CSV files measured. ``entry``: files of what others predict.

    Raises:
        InputError: a file or a row is not valid, or there is no such set.
    """
    rows = read_rows(folder or shipped_folder("validation"), unmeasured=seal or opened is not None)
    found = None if opened is None else sealed.read_sealed(opened)
    if found is not None:
        rows = sealed.measured_rows(found, rows, str(opened))
    sets = list(dict.fromkeys(row.set for row in rows))
    problems = [
        Problem("--only", "no such set", repr(name), suggest_nearest(name, sets))
        for name in only
        if name not in sets
    ]
    if problems:
        raise InputError(problems, "command line")
    entries = read_entries(entry, rows)
    chosen = [row for row in rows if not only or row.set in only]
    if seal:
        sealed.check_rows(chosen)
    return _request(
        ValidationRequest(chosen, entries[entries["set"].isin({r.set for r in chosen})], found)
    )


def shipped_sets() -> list[str]:
    """Names of the sets that come with simshuffle."""
    return list(dict.fromkeys(row.set for row in read_rows(shipped_folder("validation"))))


def repeat(folder: Path, meta: Meta) -> Request[ValidationRequest]:
    """The request of a result, from the rows in its table.

    Raises:
        InputError: a scenario that they name is not there.
    """
    tables = {name: STUDY.stored[name].read(folder / name) for name in STUDY.stored}
    results, entries = tables["validation"], tables["entries"]
    assert isinstance(results, pd.DataFrame)  # noqa: S101 - a CSV file
    assert isinstance(entries, pd.DataFrame)  # noqa: S101 - a CSV file
    rows = results[list(COLUMNS)]
    plain = rows.astype(object).where(rows.notna(), None)
    chosen = [ValidationRow(*row) for row in plain.itertuples(index=False, name=None)]
    found = sealed.read_sealed(file) if (file := folder / SEALED).is_file() else None
    return _request(ValidationRequest(chosen, entries, found))


def _request(asked: ValidationRequest) -> Request[ValidationRequest]:
    chosen, entries = asked.rows, rows_of(asked.entries)
    tasks = [] if asked.sealed else [TaskCell(t).key for t in tasks_of(chosen)]
    decided = [[asdict(row) for row in chosen], tasks, entries]
    digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()
    documents = {SEALED: asked.sealed.text} if asked.sealed else {}
    return Request("validation", asked, documents, {"rows": digest})


def _cells(asked: ValidationRequest, outcomes: Outcomes) -> dict[str, Cell]:
    return {f"{task}": TaskCell(task) for task in tasks_of(asked.rows)}


def _collect(asked: ValidationRequest, outcomes: Outcomes) -> Tables:
    answers = {task: answer_of(task, outcomes[f"{task}"]) for task in tasks_of(asked.rows)}
    results = table(asked.rows, predictions(asked.rows, answers))
    return {"validation": results, "entries": asked.entries}


def _opened(asked: ValidationRequest, outcomes: Outcomes) -> Tables:
    if asked.sealed is None:
        refuse(SEALED, "must be there", "nothing", "Make the result again.", "result folder")
    results = sealed.opened(asked.sealed, asked.rows)
    return {"validation": results, "entries": asked.entries}


def _facts(asked: ValidationRequest, outcomes: Outcomes, tables: Tables) -> Meta:
    return {} if asked.sealed is None else {"sealed": dict(asked.sealed.about)}


def _parts(result: Result) -> Iterator[str | Table]:
    results = result.tables["validation"]
    if result.meta.get("sealed"):
        yield text.sealed_text(result.meta["sealed"])
        yield from text.opened_parts(results)
    else:
        yield from text.parts(results)
    yield from text.entry_parts(beside(results, result.tables["entries"]))


def _as_json(result: Result) -> Any:
    results = result.tables["validation"]
    of_sets = {"rows": rows_of(results), "summary": rows_of(summary(results))}
    entries = rows_of(beside(results, result.tables["entries"]))
    said = {"sealed": result.meta["sealed"]} if "sealed" in result.meta else {}
    return {**of_sets, "coverage": coverage(results), "entries": entries, **said}


def _compared(result: Result) -> Tables:
    """What was predicted; of a quantity that is there twice the first."""
    rows = result.tables["validation"].drop_duplicates(keys := ["set", "case", "quantity"])
    return {"predicted": rows.set_index(keys)[["predicted", "error"]]}


STUDY: Study[ValidationRequest] = Study(
    kind="validation",
    verb="study validate",
    stages=(_cells,),
    collect=_collect,
    stored={"validation": SCHEMA, "entries": ENTRIES},
    derived={"summary": Derived(SUMMARY, lambda result: summary(result.tables["validation"]))},
    figures=lambda result: {"validation": ratios_chart(result.tables["validation"])},
    one_figure=True,
    parts=_parts,
    as_json=_as_json,
    compared=_compared,
    again=f"{__name__}:repeat",
)
OPENED: Study[ValidationRequest] = replace(
    STUDY, kind="validation_opened", stages=(), collect=_opened, documents=(SEALED,), facts=_facts
)
"""The same of predictions that were sealed: nothing is simulated."""
