"""The result folder of a study: begun before the first run, its tables written when the last one
has ended, and read back.

Every run has a folder of its own in ``runs``, which is there whole or not at all
(`simshuffle.studies.training.stored`). So a stopped study loses nothing but what was running.
``meta.json`` says whether the tables are there.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
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
from simshuffle.studies.training.figures import figures
from simshuffle.studies.training.stored import PLANS
from simshuffle.studies.training.summary import SUMMARY_COLUMNS, summary
from simshuffle.studies.training.tables import COLUMNS, Tables, collect
from simshuffle.studies.training.text import report

KIND = "training"
RUNS = "runs"
STORED = {
    "runs": "runs.csv",
    "epochs": "epochs.parquet",
    "iterations": "iterations.parquet",
    "importance": "importance.csv",
}
FILES = ("meta.json", "study.yaml", "columns.json", "summary.csv", "report.txt", *STORED.values())
REPEAT = "Give the same command again; finished runs are not repeated."
_TEXTS = (
    "run",
    "variant",
    "batch_norm",
    "strategy",
    "data",
    "model",
    "partition",
    "status",
    "message",
    "source",
)


@dataclass(frozen=True)
class Result:
    """A study as its folder has it.

    Attributes:
        tables: of all its runs.
        meta: kind, state ('finished', 'incomplete' if runs were lost, 'unfinished'), study,
            description, fingerprint, versions, runs (their descriptions by name) and lost (why, by
            name).
    """

    tables: Tables
    meta: dict[str, Any]


def begin(folder: Path, meta: Mapping[str, Any], study_yaml: str, *, force: bool = False) -> None:
    """Make ``folder`` ready for the runs of a study, which its ``meta`` describes.

    A folder that holds the same study, by its name, keeps its runs: those that the study still has
    are not repeated. With ``force`` all that a result folder holds is removed first.

    Raises:
        InputError: the folder holds something else.
    """
    check(folder, str(meta["study"]), force=force)
    if force and folder.exists():
        shutil.rmtree(folder)
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    _replace(
        folder / "meta.json", _json(dict(meta) | {"kind": KIND, "state": "unfinished", "lost": {}})
    )
    _replace(folder / "study.yaml", study_yaml)


def check(folder: Path, study: str, *, force: bool) -> None:
    """See that the study of that name may be written to ``folder``.

    Raises:
        InputError: it may not.
    """
    if force or not (holds(folder) and meta_of(folder).get("study") == study):
        check_place(folder, replace=force)


def finish(folder: Path, lost: Mapping[str, str]) -> Result:
    """Write tables, report and figures from the runs of ``folder``, and then note in ``meta.json``
    that they are there.

    Args:
        folder: of a study that was begun.
        lost: why runs have no result, by name.

    Raises:
        InputError: a stored run is damaged.
    """
    meta = meta_of(folder)
    tables = collect(meta["runs"], folder / RUNS, lost)
    state = (
        "incomplete"
        if lost
        else "unfinished"
        if (tables.runs["status"] == "missing").any()
        else "finished"
    )
    meta |= {"state": state, "lost": dict(lost)}
    with tempfile.TemporaryDirectory(
        dir=folder, prefix=".tables.part-", ignore_cleanup_errors=True
    ) as room:
        draft = Path(room)
        for name, table in {**vars(tables), "summary": summary(tables.runs)}.items():
            write_table(table, draft / (STORED.get(name) or f"{name}.csv"))
        columns = {STORED[name]: about for name, about in COLUMNS.items()} | {
            "summary.csv": SUMMARY_COLUMNS
        }
        (draft / "columns.json").write_text(_json(columns), encoding="utf-8")
        (draft / "report.txt").write_text(report(tables, meta), encoding="utf-8")
        draw(tables, draft)
        for path in sorted(draft.iterdir()):
            path.replace(folder / path.name)
    _link_plans(folder, meta["runs"])
    _replace(folder / "meta.json", _json(meta))
    return Result(tables, meta)


def _link_plans(folder: Path, names: Iterable[str]) -> None:
    """``plans/RUN.npz`` for each run: the same files as in its folder, or copies where the file
    system has no links."""
    place = folder / "plans"
    place.mkdir(exist_ok=True)
    for name in names:
        plans, wanted = folder / RUNS / name / PLANS, place / f"{name}.npz"
        if plans.is_file() and not wanted.exists():
            try:
                os.link(plans, wanted)
            except OSError:
                shutil.copyfile(plans, wanted)


def draw(tables: Tables, folder: Path) -> list[Path]:
    """Draw the figures into ``folder``, which is made if need be; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        path
        for name, figure in figures(tables).items()
        for path in plots.save(figure, folder / name)
    ]


def holds(folder: Path) -> bool:
    """Whether ``folder`` says that it is the result of a study, finished or not."""
    return meta_of(folder).get("kind") == KIND


def existing(folder: Path, fingerprint: str) -> Result | None:
    """The study in ``folder`` if it is finished and has that fingerprint; None otherwise."""
    meta = meta_of(folder)
    complete = (
        meta.get("kind") == KIND
        and meta.get("state") == "finished"
        and all((folder / name).is_file() for name in FILES)
    )
    return read(folder) if complete and meta.get("fingerprint") == fingerprint else None


def read(folder: Path) -> Result:
    """The study in ``folder``. Of one that is not finished, the tables are made from the runs that
    are there.

    Raises:
        InputError: a file is missing or cannot be read, or no run is there.
    """
    meta = meta_of(folder)
    if meta.get("kind") != KIND or not isinstance(meta.get("runs"), dict):
        problem = Problem(
            "meta.json",
            "must be that of a study",
            "another one",
            "Give a folder that 'simshuffle train' wrote.",
        )
        raise InputError(problem, str(folder))
    if meta.get("state") == "unfinished":
        tables = collect(meta["runs"], folder / RUNS, meta.get("lost", {}))
        if (tables.runs["status"] == "missing").all():
            raise InputError(
                Problem("", "no run of this study is there yet", "", REPEAT), str(folder)
            )
        return Result(tables, meta)
    return Result(
        Tables(**{name: _checked(folder / file, name) for name, file in STORED.items()}), meta
    )


def _checked(path: Path, name: str) -> pd.DataFrame:
    try:
        table = _read_table(path)
        if list(table.columns) != list(COLUMNS[name]):
            raise ValueError(f"other columns than {', '.join(COLUMNS[name])}")
    except (OSError, ValueError) as error:
        raise InputError(
            Problem(str(path), "cannot be read", str(error), f"Remove it. {REPEAT}"),
            str(path.parent),
        ) from None
    return table


def write_table(table: pd.DataFrame, path: Path) -> None:
    """As CSV or Parquet, by the name of ``path``."""
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path, index=False, compression="zstd")


def _read_table(path: Path) -> pd.DataFrame:
    """A table with its numbers to the last bit; an empty text stays one."""
    if path.suffix != ".csv":
        return pd.read_parquet(path)
    texts = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(_TEXTS, pa.string()), strings_can_be_null=False
    )
    table: pd.DataFrame = pyarrow.csv.read_csv(path, convert_options=texts).to_pandas()
    return table


def as_json(tables: Tables) -> str:
    """Runs and summary as one JSON object of lists of rows; what is empty becomes null."""
    return json_of({"runs": tables.runs, "summary": summary(tables.runs)})


def _json(values: Any) -> str:
    return json.dumps(values, indent=1) + "\n"


def _replace(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    draft = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink()
