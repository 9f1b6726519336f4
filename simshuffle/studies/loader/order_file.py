"""Files of orders: a row for each sample that a loader handed out, with the columns `COLUMNS`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.order import COLUMNS, EpochOrder

MOST = {"epoch": 100_000, "rank": 2**20, "worker": 4096, "position": 2**28, "sample": 2**28}
"""No number of these columns is as large."""


@dataclass(frozen=True)
class RecordedOrder:
    """What a loader handed out."""

    epochs: list[EpochOrder]  # the order of each
    ranks: int  # M
    workers: int  # of a rank, at most
    samples: int  # the largest number of a sample, and one


def digest(path: Path) -> str:
    """Sixteen hexadecimal digits that stand for the contents of a file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise _unreadable(path, error) from None


def read(path: Path) -> RecordedOrder:
    """The order in a CSV or Parquet file; other columns than `COLUMNS` are passed over.

    Raises:
        InputError: it cannot be read, lacks a column, or a row is not as it should be, which is
            named by its number from 1 on.
    """
    table = _table(path)
    if missing := [name for name in COLUMNS if name not in table]:
        rule, given = f"must have the columns {', '.join(COLUMNS)}", ", ".join(table.columns)
        remedy = f"Add {' and '.join(missing)}; docs/loaders.md shows how to record an order."
        refuse("", rule, given or "none", remedy, str(path))
    if table.empty:
        rule, remedy = "must have a row for each sample that was handed out", "Record an epoch."
        refuse("", rule, "no rows", remedy, str(path))
    problems = [problem for name in COLUMNS for problem in _not_whole(table[name], name)]
    if problems:
        raise InputError(problems, str(path))
    columns = {name: table[name].to_numpy(np.int64) for name in COLUMNS}
    if problem := next(_gaps(columns), None):
        raise InputError(problem, str(path))
    by_epoch = np.argsort(columns["epoch"], kind="stable")
    ends = np.cumsum(np.bincount(columns["epoch"]))[:-1]
    rows = np.split(by_epoch, ends)
    epochs = [EpochOrder(*(columns[name][of] for name in COLUMNS[1:])) for of in rows]
    most = {name: int(columns[name].max()) + 1 for name in COLUMNS}
    return RecordedOrder(epochs, most["rank"], most["worker"], most["sample"])


def _table(path: Path) -> pd.DataFrame:
    readers: dict[str, Any] = {".csv": pc.read_csv, ".parquet": pq.read_table}
    if path.suffix not in readers:
        rule, remedy = "must be a CSV or Parquet file", "Name one that ends in .csv or .parquet."
        refuse("--check", rule, repr(str(path)), remedy, "command line")
    try:
        table: pd.DataFrame = readers[path.suffix](path).to_pandas()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None
    return table


def _unreadable(path: Path, error: Exception) -> InputError:
    why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    remedy = f"Name a file with the columns {', '.join(COLUMNS)}."
    return InputError(Problem("--check", f"cannot be read: {why}", repr(str(path)), remedy))


def _not_whole(values: pd.Series[Any], name: str) -> Iterator[Problem]:
    """What is wrong with the first value of a column that is no whole number in its range."""
    plain = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    numbers = values if plain else pd.to_numeric(values.astype(str), errors="coerce")
    known = numbers.to_numpy(np.float64, na_value=np.nan)
    with np.errstate(invalid="ignore"):
        wrong = ~((known >= 0) & (known < MOST[name]) & (known == np.rint(known)))
    if wrong.any():
        row = int(wrong.argmax())
        given = "nothing" if pd.isna(values.iloc[row]) else str(values.iloc[row])
        rule = f"must be a whole number from 0 to {MOST[name] - 1}"
        yield Problem(f"row {row + 1}: {name}", rule, given[:60], f"Correct the {name}.")


def _gaps(columns: dict[str, Ints64]) -> Iterator[Problem]:
    """What is wrong with the numbers of epochs, ranks and positions; the first problem counts."""
    epoch, rank, rows = columns["epoch"], columns["rank"], np.arange(len(columns["epoch"]))
    counts, ranks = np.bincount(epoch), int(columns["rank"].max()) + 1

    def first(number: int) -> str:
        return f"row {int((epoch == number).argmax()) + 1}"

    if not counts.all():
        gap = int((counts == 0).argmax())
        beyond = int(epoch[epoch > gap].min())
        rule = f"epochs must be numbered from 0 on without a gap: there is no epoch {gap}"
        yield Problem(f"{first(beyond)}: epoch", rule, str(beyond), "Number them so.")
    every = "every rank must hand out samples in every epoch:"
    remedy = "Number ranks from 0 on, record all of them, or leave that epoch out."
    if len(counts) * ranks > 4 * len(rows) + 2**20:  # most have none, and memory is short
        yield Problem("rank", f"{every} there are {ranks} ranks", f"{len(rows)} rows", remedy)
    there = np.bincount(epoch * ranks + rank, minlength=len(counts) * ranks)
    if not there.all():
        of, missing = divmod(int((there == 0).argmax()), ranks)
        rule = f"{every} epoch {of} has none of rank {missing}"
        yield Problem(f"{first(of)}: rank", rule, "", remedy)
    order = np.lexsort(tuple(columns[name] for name in ("position", "worker", "rank", "epoch")))
    owner = np.stack([columns[name][order] for name in ("epoch", "rank", "worker")])
    position, begins = columns["position"][order], np.ones(len(rows), np.bool_)
    begins[1:] = (owner[:, 1:] != owner[:, :-1]).any(axis=0)
    wanted = rows - np.maximum.accumulate(np.where(begins, rows, 0))
    if (wrong := position != wanted).any():
        place = int(wrong.argmax())
        of, number, worker = owner[:, place]
        what = "is there twice" if position[place] < wanted[place] else "follows a gap"
        whose = f"positions of worker {worker} of rank {number} in epoch {of}"
        rule, remedy = f"{whose} must be 0, 1, 2 and so on: this one {what}", "Number them from 0."
        yield Problem(f"row {order[place] + 1}: position", rule, str(position[place]), remedy)
    if (wrong := counts != counts[0]).any():
        other = int(wrong.argmax())
        rule = f"every epoch must have as many rows as epoch 0, {counts[0]}"
        remedy = "Record every epoch to its end, or leave that one out."
        yield Problem(f"{first(other)}: epoch", rule, f"{counts[other]} rows", remedy)
