"""Read files of orders, with a row for each sample that a loader handed out."""

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

UPPER_BOUND = {
    "epoch": 100_000,
    "rank": 2**20,
    "worker": 4096,
    "position": 2**28,
    "sample": 2**28,
}
"""No number of these columns is as large."""


@dataclass(frozen=True)
class RecordedOrder:
    """The order that a loader handed out, as a file recorded it."""

    epochs: list[EpochOrder]  # the order of each
    ranks: int  # M
    workers: int  # of the rank that has most: the largest number of a worker plus one
    samples: int  # the largest number of a sample plus one


def digest(path: Path) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a file.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise _make_read_error(path, error) from None


def read_order(path: Path) -> RecordedOrder:
    """Read the order in a CSV or Parquet file; other columns than `COLUMNS` are
    ignored.

    Rows may stand in any order. Epochs, ranks and the positions of each worker are
    numbered from 0 without gaps. Every rank has rows in every epoch, and all epochs
    have equally many rows.

    Raises:
        InputError: the file cannot be read, lacks a column or has no rows, or a row is
            invalid or missing; the message has the number of the row, from 1.
    """
    table = _read_table(path)
    if missing_columns := [name for name in COLUMNS if name not in table]:
        rule = f"must have the columns {', '.join(COLUMNS)}"
        present_columns = ", ".join(table.columns) or "none"
        remedy = f"Add {' and '.join(missing_columns)};"
        remedy += " docs/loaders.md shows how to record an order."
        refuse("", rule, present_columns, remedy, str(path))
    if table.empty:
        rule = "must have a row for each sample that was handed out"
        remedy = "Record an epoch."
        refuse("", rule, "no rows", remedy, str(path))
    problems = [
        problem
        for name in COLUMNS
        for problem in _find_invalid_value(table[name], name)
    ]
    if problems:
        raise InputError(problems, str(path))
    columns = {name: table[name].to_numpy(np.int64) for name in COLUMNS}
    if problem := next(_find_gaps(columns), None):
        raise InputError(problem, str(path))

    sort_columns = ("position", "worker", "rank", "epoch")
    rows_by_epoch = np.lexsort(tuple(columns[name] for name in sort_columns))
    ends = np.cumsum(np.bincount(columns["epoch"]))[:-1]
    epochs = [
        EpochOrder(*(columns[name][epoch_rows] for name in COLUMNS[1:]))
        for epoch_rows in np.split(rows_by_epoch, ends)
    ]
    count_of = {name: int(columns[name].max()) + 1 for name in COLUMNS}
    return RecordedOrder(
        epochs, count_of["rank"], count_of["worker"], count_of["sample"]
    )


def _read_table(path: Path) -> pd.DataFrame:
    """Read a CSV or Parquet file as a table.

    Raises:
        InputError: the file is of another kind, or cannot be read.
    """
    readers: dict[str, Any] = {".csv": pc.read_csv, ".parquet": pq.read_table}
    if path.suffix not in readers:
        rule = "must be a CSV or Parquet file"
        remedy = "Name a file that ends in .csv or .parquet."
        refuse("--check", rule, repr(str(path)), remedy, "command line")
    try:
        table: pd.DataFrame = readers[path.suffix](path).to_pandas()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _make_read_error(path, error) from None
    return table


def _make_read_error(path: Path, error: Exception) -> InputError:
    """Return the error of a file that cannot be read."""
    reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    remedy = f"Name a file with the columns {', '.join(COLUMNS)}."
    return InputError(
        Problem("--check", f"cannot be read: {reason}", repr(str(path)), remedy)
    )


def _find_invalid_value(values: pd.Series[Any], name: str) -> Iterator[Problem]:
    """Yield the problem of the first value of a column that is no whole number from 0
    to below its `UPPER_BOUND`; numbers as text are valid, booleans are not.
    """
    is_numeric = pd.api.types.is_numeric_dtype(
        values
    ) and not pd.api.types.is_bool_dtype(values)
    numbers = (
        values if is_numeric else pd.to_numeric(values.astype(str), errors="coerce")
    )
    floats = numbers.to_numpy(np.float64, na_value=np.nan)
    with np.errstate(invalid="ignore"):
        is_invalid = ~(
            (floats >= 0) & (floats < UPPER_BOUND[name]) & (floats == np.rint(floats))
        )
    if is_invalid.any():
        row = int(is_invalid.argmax())
        value = "nothing" if pd.isna(values.iloc[row]) else str(values.iloc[row])
        rule = f"must be a whole number from 0 to {UPPER_BOUND[name] - 1}"
        yield Problem(
            f"row {row + 1}: {name}", rule, value[:60], f"Correct the {name}."
        )


def _find_gaps(columns: dict[str, Ints64]) -> Iterator[Problem]:
    """Yield problems in the numbers of epochs, ranks and positions; only the first one
    counts.
    """
    epoch = columns["epoch"]
    rows_of_epoch = np.bincount(epoch)
    yield from _find_missing_epoch(epoch, rows_of_epoch)
    yield from _find_missing_rank(epoch, columns["rank"], len(rows_of_epoch))
    yield from _find_wrong_position(columns)
    yield from _find_short_epoch(epoch, rows_of_epoch)


def _first_row(epoch: Ints64, wanted_epoch: int) -> str:
    """Return the path of the first row of an epoch, counted from 1."""
    return f"row {int((epoch == wanted_epoch).argmax()) + 1}"


def _find_missing_epoch(epoch: Ints64, rows_of_epoch: Ints64) -> Iterator[Problem]:
    """Yield the problem of the first epoch without rows.

    Args:
        epoch: (rows,) epoch of each row.
        rows_of_epoch: (epochs,) number of rows.
    """
    if not rows_of_epoch.all():
        gap = int((rows_of_epoch == 0).argmax())
        next_epoch = int(epoch[epoch > gap].min())
        rule = (
            f"epochs must be numbered from 0 on without a gap: there is no epoch {gap}"
        )
        path = f"{_first_row(epoch, next_epoch)}: epoch"
        yield Problem(path, rule, str(next_epoch), "Number epochs without gaps.")


def _find_missing_rank(
    epoch: Ints64, rank: Ints64, num_epochs: int
) -> Iterator[Problem]:
    """Yield the problem of the first rank without rows in an epoch.

    Another one before it if there are far more ranks than rows; the caller takes the
    first.

    Args:
        epoch: (rows,) epoch of each row.
        rank: (rows,) rank of each row.
        num_epochs: number of epochs.
    """
    num_ranks = int(rank.max()) + 1
    rule_start = "every rank must hand out samples in every epoch:"
    remedy = "Number ranks from 0 on, record all of them, or leave that epoch out."

    # most ranks have no rows then, and memory is short
    if num_epochs * num_ranks > 4 * len(epoch) + 2**20:
        rule = f"{rule_start} {num_ranks} ranks need more rows"
        yield Problem("rank", rule, f"{len(epoch)} rows", remedy)

    # (epochs x ranks,) rows at epoch * ranks + rank
    rows_of_epoch_and_rank = np.bincount(
        epoch * num_ranks + rank, minlength=num_epochs * num_ranks
    )
    if not rows_of_epoch_and_rank.all():
        bad_epoch, missing = divmod(
            int((rows_of_epoch_and_rank == 0).argmax()), num_ranks
        )
        rule = f"{rule_start} epoch {bad_epoch} has none of rank {missing}"
        yield Problem(f"{_first_row(epoch, bad_epoch)}: rank", rule, "", remedy)


def _find_wrong_position(columns: dict[str, Ints64]) -> Iterator[Problem]:
    """Yield the problem of the first position of a worker that is there twice or
    follows a gap.
    """
    # rows sorted by epoch, rank, worker, position; owners are (3, rows) epoch, rank and worker
    order = np.lexsort(
        tuple(columns[name] for name in ("position", "worker", "rank", "epoch"))
    )
    owners = np.stack([columns[name][order] for name in ("epoch", "rank", "worker")])
    position = columns["position"][order]
    rows = np.arange(len(position))
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (owners[:, 1:] != owners[:, :-1]).any(axis=0)
    expected_position = rows - np.maximum.accumulate(np.where(is_first, rows, 0))

    if (is_wrong := position != expected_position).any():
        index = int(is_wrong.argmax())
        bad_epoch, bad_rank, worker = owners[:, index]
        fault = (
            "is there twice"
            if position[index] < expected_position[index]
            else "follows a gap"
        )
        subject = (
            f"positions of worker {worker} of rank {bad_rank} in epoch {bad_epoch}"
        )
        rule = f"{subject} must be 0, 1, 2 and so on: this position {fault}"
        path = f"row {order[index] + 1}: position"
        yield Problem(path, rule, str(position[index]), "Number positions from 0.")


def _find_short_epoch(epoch: Ints64, rows_of_epoch: Ints64) -> Iterator[Problem]:
    """Yield the problem of the first epoch with another number of rows than epoch 0.

    Args:
        epoch: (rows,) epoch of each row.
        rows_of_epoch: (epochs,) number of rows.
    """
    if (is_wrong := rows_of_epoch != rows_of_epoch[0]).any():
        short_epoch = int(is_wrong.argmax())
        rule = f"every epoch must have as many rows as epoch 0, {rows_of_epoch[0]}"
        remedy = "Record every epoch to its end, or leave this epoch out."
        value = f"{rows_of_epoch[short_epoch]} rows"
        yield Problem(f"{_first_row(epoch, short_epoch)}: epoch", rule, value, remedy)
