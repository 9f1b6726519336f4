"""The folder of one training run: its tables, its exchange plans, and the digest of each file, so
that damage is seen."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.exchange.recording import read_plans, write_plans
from simshuffle.studies.training.record import (
    EPOCH_COLUMNS,
    IMPORTANCE_COLUMNS,
    ITERATION_COLUMNS,
    RunRecord,
)

ENTRY = "run.json"
PLANS = "plans.npz"
TABLES = {
    "epochs": EPOCH_COLUMNS,
    "iterations": ITERATION_COLUMNS,
    "importance": IMPORTANCE_COLUMNS,
}


@dataclass(frozen=True)
class StoredRun:
    """A run as its folder has it, but for the plans.

    Attributes:
        description: what was run, as plain values.
        status, message, seconds: as of `RunRecord`.
        epochs, iterations, importance: its tables.
        plans: the file of its exchange plans; None where nothing was exchanged.
    """

    description: dict[str, Any]
    status: str
    message: str
    seconds: float
    epochs: pd.DataFrame
    iterations: pd.DataFrame
    importance: pd.DataFrame
    plans: Path | None


def write_run(record: RunRecord, folder: Path) -> None:
    """Write ``record`` into ``folder``, which exists and is empty.

    Raises:
        ValueError: a table has other columns than it should have.
    """
    for name, columns in TABLES.items():
        table = getattr(record, name)
        if list(table.columns) != list(columns):
            raise ValueError(
                f"the table of {name} has the columns {', '.join(table.columns)}, not"
                f" {', '.join(columns)}"
            )
        table.to_parquet(folder / f"{name}.parquet", index=False, compression="zstd")
    if record.plans is not None:
        write_plans(folder / PLANS, record.plans)
    entry = {
        "description": record.description,
        "status": record.status,
        "message": record.message,
        "seconds": record.seconds,
        "files": {path.name: _digest(path) for path in sorted(folder.iterdir())},
    }
    entry["digest"] = _digest_of(entry)
    (folder / ENTRY).write_text(
        json.dumps(entry, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )


def check_run(folder: Path) -> None:
    """See that every file of a run is as it was written.

    Raises:
        InputError: one is missing or damaged; all are named.
    """
    entry = _entry(folder)
    problems = []
    for name, digest in entry["files"].items():
        try:
            found = _digest(folder / name)
        except OSError as error:
            problems.append(
                Problem(
                    str(folder / name), f"cannot be read: {error.strerror}", "", _remedy(folder)
                )
            )
            continue
        if found != digest:
            problems.append(
                Problem(
                    str(folder / name),
                    "is not what was written",
                    f"the SHA-256 {found[:12]}...",
                    _remedy(folder),
                )
            )
    if problems:
        raise InputError(problems, str(folder))


def read_run(folder: Path) -> StoredRun:
    """The run in ``folder``.

    Raises:
        InputError: a file is missing or damaged.
    """
    entry = _entry(folder)
    try:
        tables = {name: pd.read_parquet(folder / f"{name}.parquet") for name in TABLES}
        for name, columns in TABLES.items():
            if list(tables[name].columns) != list(columns):
                raise ValueError(f"{name}.parquet has other columns than {', '.join(columns)}")
    except (OSError, ValueError) as error:
        raise InputError(
            Problem(str(folder), "cannot be read", str(error), _remedy(folder)), str(folder)
        ) from None
    plans = folder / PLANS if PLANS in entry["files"] else None
    return StoredRun(
        entry["description"],
        entry["status"],
        entry["message"],
        entry["seconds"],
        **tables,
        plans=plans,
    )


def read_record(folder: Path) -> RunRecord:
    """The run in ``folder`` as it was made, with its plans.

    Raises:
        InputError: a file is missing or damaged.
    """
    check_run(folder)
    run = read_run(folder)
    plans = None if run.plans is None else read_plans(run.plans)
    status: Any = run.status
    return RunRecord(
        run.description,
        status,
        run.message,
        run.epochs,
        run.iterations,
        run.importance,
        plans,
        run.seconds,
    )


def _entry(folder: Path) -> dict[str, Any]:
    """What ``run.json`` holds."""
    try:
        entry = json.loads((folder / ENTRY).read_text(encoding="utf-8"))
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("description"), dict)
            or not isinstance(entry.get("files"), dict)
        ):
            raise ValueError("it holds something else than a run")
        if entry.get("status") not in {"done", "failed"} or not isinstance(
            entry.get("message"), str
        ):
            raise ValueError("its status is not known")
        if entry.pop("digest", None) != _digest_of(entry):
            raise ValueError("it is not what was written")
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = Problem(
            str(folder / ENTRY),
            "cannot be read as the record of a run",
            str(error),
            _remedy(folder),
        )
        raise InputError(problem, str(folder)) from None
    return entry


def _remedy(folder: Path) -> str:
    return f"Remove {folder} to repeat that run; the others are kept."


def _digest_of(entry: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
