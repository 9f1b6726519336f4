"""What was measured: one row for each number that a tool printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from simshuffle.studies.calibrate.tables import MEASUREMENTS


@dataclass(frozen=True)
class Row:
    """One measured number; attributes as in `MEASUREMENTS`."""

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
    """The rows as a table with the columns of `MEASUREMENTS`."""
    return pd.DataFrame([asdict(row) for row in rows], columns=list(MEASUREMENTS.columns))


def groups(table: pd.DataFrame, *columns: str) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """The rows of each combination of values in ``columns``, ascending, with those values."""
    for key, rows in table.groupby(list(columns), sort=True):
        yield tuple(key) if isinstance(key, tuple) else (key,), rows
