"""The tidy table of what was measured: one row for each number that a tool printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

COLUMNS = {
    "source": "name of the file, without its folder",
    "line": "line of the file; of a JSON file the number of the result, from 1",
    "tool": "nccl-tests, osu, ior, mdtest or epochs",
    "operation": (
        "all_reduce, all_to_all, latency, bandwidth, read, write, file_read, file_stat, iteration"
    ),
    "ranks": "processes or GPUs that took part; clients of a file system",
    "hosts": "hosts that they filled; empty if not known",
    "nbytes": "bytes of a message, of a file or of a transfer; empty if there is none",
    "seconds": "time of one operation (s); empty if a rate was measured",
    "rate": (
        "bytes/s, or operations/s for files, of all ranks together; empty if a time was measured"
    ),
    "count": "repetitions that the number is the mean of",
    "spread": (
        "standard deviation over those repetitions, in the unit of the number; empty if not known"
    ),
    "model": "neural network; empty but for epochs",
    "epoch": "number of the epoch; 0 but for epochs",
    "batch": "samples of a rank in an iteration; 0 but for epochs",
}
"""Columns of the table of measurements, with their meaning."""


@dataclass(frozen=True)
class Row:
    """One measured number; attributes as in `COLUMNS`."""

    source: str
    line: int
    tool: str
    operation: str
    ranks: int
    hosts: float = math.nan
    nbytes: float = math.nan
    seconds: float = math.nan
    rate: float = math.nan
    count: int = 1
    spread: float = math.nan
    model: str = ""
    epoch: int = 0
    batch: int = 0


def as_table(rows: Iterable[Row]) -> pd.DataFrame:
    """The rows as a table with the columns `COLUMNS`."""
    return pd.DataFrame([asdict(row) for row in rows], columns=list(COLUMNS))


def groups(table: pd.DataFrame, *columns: str) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """The rows of each combination of values in ``columns``, ascending, with those values."""
    for key, rows in table.groupby(list(columns), sort=True):
        yield tuple(key) if isinstance(key, tuple) else (key,), rows
