"""The result folder of a study of data-optimised training. Extractions and runs have folders of
their own, so a stopped study goes on."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv

from simshuffle.errors import InputError, Problem
from simshuffle.results import style as plots
from simshuffle.results.folders import check_place, meta_of
from simshuffle.results.table_io import json_of
from simshuffle.studies.filtering.figures import figures
from simshuffle.studies.filtering.tables import COLUMNS, SUMMARY_COLUMNS, FilterTables, summary
from simshuffle.studies.filtering.text import report

KIND = "data_optimised"
RUNS, EXTRACTIONS = "runs", "extractions"
STORED = {
    "filters": "filters.csv",
    "eps": "eps.csv",
    "points": "points.parquet",
    "runs": "runs.csv",
}
FILES = ("meta.json", "study.yaml", "columns.json", "summary.csv", "report.txt", *STORED.values())
_TEXTS = ("extractor", "run", "subset", "status", "message")


@dataclass(frozen=True)
class FilterResult:
    """A study as its folder has it.

    Attributes:
        tables: of all its filters and runs.
        meta: kind, state ('finished', 'incomplete' if runs were lost, 'unfinished'), study,
            description, fingerprint, device, versions and lost (why, by name).
    """

    tables: FilterTables
    meta: dict[str, Any]


def begin(folder: Path, meta: Mapping[str, Any], study_yaml: str, *, force: bool = False) -> None:
    """Make ``folder`` ready for a study. One that holds a study of the same name keeps its
    extractions and runs, unless ``force`` is given.

    Raises:
        InputError: the folder holds something else.
    """
    same = meta_of(folder).get("kind") == KIND and meta_of(folder).get("study") == meta["study"]
    if force or not same:
        check_place(folder, replace=force)
    if force and folder.exists():
        shutil.rmtree(folder)
    for name in (RUNS, EXTRACTIONS):
        (folder / name).mkdir(parents=True, exist_ok=True)
    _replace(
        folder / "meta.json",
        json.dumps(
            dict(meta) | {"kind": KIND, "state": "unfinished", "lost": {}}, indent=1, sort_keys=True
        ),
    )
    _replace(folder / "study.yaml", study_yaml)


def store_filters(folder: Path, tables: FilterTables) -> None:
    """Write what is known of the filters before anything is trained on what they leave."""
    for name in ("filters", "eps"):
        _write(getattr(tables, name), folder / STORED[name])


def finish(folder: Path, tables: FilterTables, lost: Mapping[str, str]) -> FilterResult:
    """Write tables, report and figures, and then note in ``meta.json`` that they are there."""
    meta = meta_of(folder) | {"state": "incomplete" if lost else "finished", "lost": dict(lost)}
    with tempfile.TemporaryDirectory(
        dir=folder, prefix=".tables.part-", ignore_cleanup_errors=True
    ) as room:
        draft = Path(room)
        for name, file in STORED.items():
            _write(getattr(tables, name), draft / file)
        _write(summary(tables.runs), draft / "summary.csv")
        columns = {STORED[name]: about for name, about in COLUMNS.items()} | {
            "summary.csv": SUMMARY_COLUMNS
        }
        (draft / "columns.json").write_text(json.dumps(columns, indent=1) + "\n", encoding="utf-8")
        (draft / "report.txt").write_text(report(tables, meta), encoding="utf-8")
        draw(tables, draft)
        for path in sorted(draft.iterdir()):
            path.replace(folder / path.name)
    _replace(folder / "meta.json", json.dumps(meta, indent=1, sort_keys=True))
    return FilterResult(tables, meta)


def draw(tables: FilterTables, folder: Path) -> list[Path]:
    """Draw the figures into ``folder``, which is made if need be; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        path
        for name, figure in figures(tables).items()
        for path in plots.save(figure, folder / name)
    ]


def existing(folder: Path, fingerprint: str) -> FilterResult | None:
    """The study in ``folder`` if it is finished and has that fingerprint; None otherwise."""
    meta = meta_of(folder)
    complete = (
        meta.get("kind") == KIND
        and meta.get("state") == "finished"
        and all((folder / name).is_file() for name in FILES)
    )
    return read(folder) if complete and meta.get("fingerprint") == fingerprint else None


def read(folder: Path) -> FilterResult:
    """The finished study in ``folder``.

    Raises:
        InputError: it holds no such study, or one that is not finished, or a table cannot be read.
    """
    meta = meta_of(folder)
    if meta.get("kind") != KIND or meta.get("state") == "unfinished":
        remedy = (
            "Give a folder that 'simshuffle train' has finished; the same command goes on with a"
            " stopped one."
        )
        raise InputError(
            Problem(
                "meta.json",
                "must be that of a finished study of data-optimised training",
                "",
                remedy,
            ),
            str(folder),
        )
    tables = {}
    for name, file in STORED.items():
        try:
            table = _read(folder / file)
            if list(table.columns) != list(COLUMNS[name]):
                raise ValueError(f"other columns than {', '.join(COLUMNS[name])}")
        except (OSError, ValueError) as error:
            remedy = "Remove it and give the same command again; finished runs are not repeated."
            raise InputError(
                Problem(file, "cannot be read", str(error), remedy), str(folder)
            ) from None
        tables[name] = table
    return FilterResult(FilterTables(**tables), meta)


def holds(folder: Path) -> bool:
    """Whether ``folder`` says that it is the result of such a study, finished or not."""
    return meta_of(folder).get("kind") == KIND


def as_json(tables: FilterTables) -> str:
    """Filters, runs and summary as one JSON object of lists of rows; what is empty becomes null."""
    return json_of(
        {"filters": tables.filters, "runs": tables.runs, "summary": summary(tables.runs)}
    )


def _read(path: Path) -> pd.DataFrame:
    """A table with its numbers to the last bit; an empty message stays one."""
    if path.suffix != ".csv":
        return pd.read_parquet(path)
    texts = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(_TEXTS, pa.string()), strings_can_be_null=False
    )
    table: pd.DataFrame = pyarrow.csv.read_csv(path, convert_options=texts).to_pandas()
    return table


def _write(table: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path, index=False, compression="zstd")


def _replace(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    draft = path.with_name(f".{path.name}.part-{os.getpid()}")
    draft.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    draft.replace(path)
