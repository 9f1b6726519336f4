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
from simshuffle.extensions.calibration.validation.entries import (
    ENTRIES,
    compare_entries,
    read_entries,
)
from simshuffle.extensions.calibration.validation.figures import ratios_chart
from simshuffle.extensions.calibration.validation.predict import (
    TaskCell,
    answer_of,
    list_tasks,
    predict_rows,
)
from simshuffle.extensions.calibration.validation.table import (
    COLUMNS,
    SCHEMA,
    SUMMARY,
    ValidationRow,
    count_covered_rows,
    read_rows,
    summarize_sets,
    validation_table,
)
from simshuffle.report.table_io import plain_rows as rows_of
from simshuffle.spec.library import shipped_folder, suggest_nearest
from simshuffle.study.cell import Cell
from simshuffle.study.study import (
    Derived,
    Meta,
    Outcomes,
    Request,
    Result,
    Study,
    Tables,
)

Rows = Sequence[ValidationRow]
SEALED = "sealed.json"  # its name in the folder of a result


@dataclass(frozen=True)
class ValidationRequest:
    """The rows to predict, predictions by others, and maybe sealed predictions."""

    rows: Rows  # to predict
    entries: pd.DataFrame  # what others predict of them, columns of `ENTRIES`
    sealed: sealed.SealedPredictions | None = (
        None  # what predicts them, if nothing is to be simulated
    )


def request(
    only: Sequence[str] = (),
    folder: Path | None = None,
    *,
    seal: bool = False,
    sealed_file: Path | None = None,
    entry: Sequence[Path] = (),
) -> Request[ValidationRequest]:
    """Return the request to predict rows that were measured.

    Args:
        only: names of the sets of rows; all if empty. Entries of other sets are left
            out.
        folder: of the CSV files; None for those that come with simshuffle.
        seal: whether predictions are to be sealed: rows may have no measured value yet.
        sealed_file: predictions to compare with the CSV files, in place of new ones.
        entry: CSV files of what others predict.

    Raises:
        InputError: a file or a row is not valid, there is no such set, or ``seal`` is
            set and no row, or a row twice, is to be predicted.
    """
    rows = read_rows(
        folder or shipped_folder("validation"),
        unmeasured=seal or sealed_file is not None,
    )
    sealed_predictions = (
        None if sealed_file is None else sealed.read_seal_file(sealed_file)
    )
    if sealed_predictions is not None:
        rows = sealed.measured_rows(sealed_predictions, rows, str(sealed_file))
    sets = list(dict.fromkeys(row.set for row in rows))
    problems = [
        Problem("--only", "no such set", repr(name), suggest_nearest(name, sets))
        for name in only
        if name not in sets
    ]
    if problems:
        raise InputError(problems, "command line")
    entries = read_entries(entry, rows)
    chosen_rows = [row for row in rows if not only or row.set in only]
    if seal:
        sealed.check_rows(chosen_rows)
    return build_request(
        ValidationRequest(
            chosen_rows,
            entries[entries["set"].isin({row.set for row in chosen_rows})],
            sealed_predictions,
        )
    )


def shipped_sets() -> list[str]:
    """Return the names of the sets that come with simshuffle, in the order of files."""
    return list(
        dict.fromkeys(row.set for row in read_rows(shipped_folder("validation")))
    )


def repeat(folder: Path, meta: Meta) -> Request[ValidationRequest]:
    """Return the request of a result again, from the rows, entries and sealed
    predictions in its folder.

    Raises:
        InputError: a scenario that they name is not there.
    """
    tables = {name: STUDY.stored[name].read(folder / name) for name in STUDY.stored}
    results = tables["validation"]
    entries = tables["entries"]
    assert isinstance(results, pd.DataFrame)  # noqa: S101 - a CSV file
    assert isinstance(entries, pd.DataFrame)  # noqa: S101 - a CSV file
    rows = results[list(COLUMNS)]
    rows_of_objects = rows.astype(object).where(rows.notna(), None)
    chosen_rows = [
        ValidationRow(*row)
        for row in rows_of_objects.itertuples(index=False, name=None)
    ]
    sealed_predictions = (
        sealed.read_seal_file(file) if (file := folder / SEALED).is_file() else None
    )
    return build_request(ValidationRequest(chosen_rows, entries, sealed_predictions))


def build_request(validation: ValidationRequest) -> Request[ValidationRequest]:
    """Return the request of a validation; its fact 'rows' is a digest of all that its
    result depends on. The text of sealed predictions is its document `SEALED`.
    """
    rows = validation.rows
    entries = rows_of(validation.entries)
    tasks = (
        [] if validation.sealed else [TaskCell(task).key for task in list_tasks(rows)]
    )
    digested = [[asdict(row) for row in rows], tasks, entries]
    digest = hashlib.sha256(json.dumps(digested, sort_keys=True).encode()).hexdigest()
    documents = {SEALED: validation.sealed.text} if validation.sealed else {}
    return Request("validation", validation, documents, {"rows": digest})


def cells_of_tasks(
    validation: ValidationRequest, outcomes: Outcomes
) -> dict[str, Cell]:
    """Return the cell of every task that the rows need, by the text of the task."""
    return {f"{task}": TaskCell(task) for task in list_tasks(validation.rows)}


def collect_predictions(validation: ValidationRequest, outcomes: Outcomes) -> Tables:
    """Return the tables 'validation' (`SCHEMA`) and 'entries' (`ENTRIES`) from the
    outcomes of `cells_of_tasks`.

    Raises:
        InputError: a row's quantity or job is not valid.
    """
    answers = {
        task: answer_of(task, outcomes[f"{task}"])
        for task in list_tasks(validation.rows)
    }
    results = validation_table(validation.rows, predict_rows(validation.rows, answers))
    return {"validation": results, "entries": validation.entries}


def read_sealed_tables(validation: ValidationRequest, outcomes: Outcomes) -> Tables:
    """Return the tables 'validation' (`SCHEMA`) and 'entries' (`ENTRIES`) from sealed
    predictions.

    Raises:
        InputError: there are no sealed predictions.
    """
    if validation.sealed is None:
        refuse(
            SEALED,
            "must be there",
            "nothing",
            "Make the result again.",
            "result folder",
        )
    results = sealed.predictions_table(validation.sealed, validation.rows)
    return {"validation": results, "entries": validation.entries}


def seal_facts(
    validation: ValidationRequest, outcomes: Outcomes, tables: Tables
) -> Meta:
    """Return the origin of sealed predictions as 'sealed', for ``meta.json``; {} if
    none were sealed.
    """
    return (
        {} if validation.sealed is None else {"sealed": dict(validation.sealed.origin)}
    )


def text_parts(result: Result) -> Iterator[str | Table]:
    """Yield the tables and sentences of a result, in the form of a seal if it has one."""
    results = result.tables["validation"]
    if result.meta.get("sealed"):
        yield text.describe_seal(result.meta["sealed"])
        yield from text.opened_parts(results)
    else:
        yield from text.parts(results)
    yield from text.entry_parts(compare_entries(results, result.tables["entries"]))


def as_json(result: Result) -> Any:
    """Return a result for JSON: the keys rows, summary, coverage
    (`count_covered_rows`), entries (`compare_entries`) and, of a seal only, sealed.
    """
    results = result.tables["validation"]
    tables = {"rows": rows_of(results), "summary": rows_of(summarize_sets(results))}
    entries = rows_of(compare_entries(results, result.tables["entries"]))
    seal = {"sealed": result.meta["sealed"]} if "sealed" in result.meta else {}
    return {
        **tables,
        "coverage": count_covered_rows(results),
        "entries": entries,
        **seal,
    }


def comparison_tables(result: Result) -> Tables:
    """Return the table 'predicted' to compare with another validation: predicted and
    error, indexed by set, case and quantity. Of rows with one index, the first counts.
    """
    rows = result.tables["validation"].drop_duplicates(
        keys := ["set", "case", "quantity"]
    )
    return {"predicted": rows.set_index(keys)[["predicted", "error"]]}


STUDY: Study[ValidationRequest] = Study(
    kind="validation",
    verb="study validate",
    stages=(cells_of_tasks,),
    collect=collect_predictions,
    stored={"validation": SCHEMA, "entries": ENTRIES},
    derived={
        "summary": Derived(
            SUMMARY, lambda result: summarize_sets(result.tables["validation"])
        )
    },
    figures=lambda result: {"validation": ratios_chart(result.tables["validation"])},
    one_figure=True,
    parts=text_parts,
    as_json=as_json,
    compared=comparison_tables,
    again=f"{__name__}:repeat",
)
OPENED: Study[ValidationRequest] = replace(
    STUDY,
    kind="validation_opened",
    stages=(),
    collect=read_sealed_tables,
    documents=(SEALED,),
    facts=seal_facts,
)
"""The same of predictions that were sealed: nothing is simulated."""
