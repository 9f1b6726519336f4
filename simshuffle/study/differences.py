"""What differs between a stored table and the same one done again: where and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.report.names import cut_text
from simshuffle.study.long_table import LongTable
from simshuffle.study.schema import Schema

NOTHING = 1e-12
"""Where a tolerance applies, numbers that are no further apart are the same: differences of times
of hours, which ought to be 0, are not exactly that."""
SHOWN = 40  # letters of a text that is shown


@dataclass(frozen=True)
class Difference:
    """What is not the same."""

    file: str  # by its name in the folder
    what: str  # the column of a table or the dotted key of other values; '' for the file itself
    # rows, of: in how many rows of how many; 0 where there are no rows
    rows: int
    of: int
    # absolute, relative: the difference in the row with the largest relative one, which is a share
    # of the larger of both; None but for two numbers
    absolute: float | None
    relative: float | None
    where: str  # that row; of other values than numbers the first one
    # stored, again: the values there; of a file what is said of it
    stored: Any
    again: Any

    def __str__(self) -> str:
        """As a sentence without its end."""
        if not self.what:
            return f"{self.file}: {self.stored or 'none'} stored, {self.again or 'none'} done again"
        values = f"{_shown(self.stored)} stored, {_shown(self.again)} done again"
        rows = f" in {self.rows} of {self.of} rows" if self.of else ""
        size = "" if self.absolute is None else f"{self.absolute:.3g} (relative {self.relative:.3g}"
        size = f", largest difference {size})" if size else ", the first one" if self.of else ""
        where = f" at {self.where}" if self.where else ""
        return f"{self.file}: {self.what}{rows}{size}{where}: {values}"


def of_tables(
    file: str, schema: Schema, stored: LongTable, again: LongTable, tolerance: float
) -> list[Difference]:
    """What differs between two tables of one schema, column by column, but for what was measured
    with a clock. Rows stand in the same order; if not, they are told apart by the key. Numbers that
    differ by no more than ``tolerance``, as a share of the larger, or by `NOTHING` are the same; 0
    for equal to the last bit."""
    found = {name: _Column(name) for name, of in schema.columns.items() if not of.measured}
    if len(stored) == len(again) and _same_order(schema.key, stored, again):
        before = 0
        for left, right in zip(stored.pieces(), again.pieces(), strict=False):
            for column in found.values():
                column.add(left, right, before, schema, tolerance)
            before += len(left)
        return _told(file, found, len(stored))
    if not schema.key:
        return [_of_file(file, f"{len(stored)} rows", f"{len(again)} rows")]
    left, right = (table.whole().set_index(list(schema.key)) for table in (stored, again))
    both = left.index[left.index.isin(right.index)]
    alone = [_alone(of, both, schema.key) for of in (left, right)]
    out = [_of_file(file, *alone if any(alone) else ("rows in one order", "in another"))]
    left, right = (of.loc[both].reset_index() for of in (left, right))
    for name in schema.key:
        del found[name]
    for column in found.values():
        column.add(left, right, 0, schema, tolerance)
    return out + _told(file, found, len(both))


def of_values(
    file: str, stored: Mapping[str, Any], again: Mapping[str, Any], tolerance: float
) -> list[Difference]:
    """What differs between plain values by dotted key; tolerance as of `of_tables`."""
    out = []
    for key in sorted({*stored, *again}):
        a, b = (of.get(key, "nothing") for of in (stored, again))
        size: tuple[float | None, float | None] = (None, None)
        same = a == b and type(a) is type(b)
        if isinstance(a, int | float) and isinstance(b, int | float):
            left, right = np.array([float(a)]), np.array([float(b)])
            same = not _unequal(left, right, tolerance)[0]
            size = abs(float(a) - float(b)), float(_relative(left, right)[0])
        if not same:
            out.append(Difference(file, key, 0, 0, *size, "", a, b))
    return out


def of_files(file: str, stored: bytes | None, again: bytes | None) -> list[Difference]:
    """Whether two files are not the same to the last byte; None for one that is not there."""
    if stored == again:
        return []
    if stored is None or again is None:
        return [_of_file(file, *("none" if of is None else "one" for of in (stored, again)))]
    lines = [of.split(b"\n") for of in (stored, again)]
    pairs = zip(*lines, strict=False)
    first = next((n for n, (a, b) in enumerate(pairs, 1) if a != b), min(map(len, lines)) + 1)
    return [_of_file(file, f"line {first}", "another line")]


class _Column:
    """What was found in a column so far: in how many rows, and of the worst one a `Difference`."""

    def __init__(self, name: str) -> None:
        self.name, self.rows, self._most = name, 0, -1.0
        self.worst: tuple[float | None, float | None, str, Any, Any] = (None, None, "", None, None)

    def add(
        self, left: pd.DataFrame, right: pd.DataFrame, before: int, schema: Schema, tolerance: float
    ) -> None:
        """Look at rows that follow ``before`` others."""
        a, b = left[self.name], right[self.name]
        numbers = all(
            pd.api.types.is_numeric_dtype(of) and not pd.api.types.is_bool_dtype(of)
            for of in (a, b)
        )
        if numbers:
            x, y = (of.to_numpy(np.float64, na_value=np.nan) for of in (a, b))
            differ = np.flatnonzero(_unequal(x, y, tolerance))
            sizes = _relative(x[differ], y[differ])
        else:
            texts = [of.astype(object).where(of.notna(), None) for of in (a, b)]
            differ = np.flatnonzero([x != y for x, y in zip(*texts, strict=True)])
            sizes = np.zeros(len(differ))
        self.rows += len(differ)
        if not len(differ) or sizes.max() <= self._most:
            return
        self._most, row = float(sizes.max()), int(differ[sizes.argmax()])
        size: tuple[float | None, float | None] = (None, None)
        if numbers and math.isfinite(self._most):
            size = abs(float(x[row]) - float(y[row])), self._most
        where = _called(schema, left.iloc[row], before + row)
        self.worst = (*size, where, _plain(a.iloc[row]), _plain(b.iloc[row]))


def _called(schema: Schema, row: pd.Series[Any], number: int) -> str:
    """A row's key, or its number and what stands before the first number that is not whole."""
    kinds = [of.kind for of in schema.columns.values()]
    leading = [*schema.columns][: kinds.index("real") if "real" in kinds else len(kinds)]
    words = [] if schema.key else [f"row {number + 1}"]
    return ", ".join([*words, *(f"{name}={_shown(row[name])}" for name in schema.key or leading)])


def _told(file: str, found: Mapping[str, _Column], of: int) -> list[Difference]:
    columns = [column for column in found.values() if column.rows]
    return [Difference(file, column.name, column.rows, of, *column.worst) for column in columns]


def _alone(table: pd.DataFrame, both: pd.Index[Any], key: Sequence[str]) -> str:
    """How many rows of a table are not in both, and the first one; '' if all are."""
    rows = table.index[~table.index.isin(both)]
    if not len(rows):
        return ""
    first = rows[0] if len(key) > 1 else (rows[0],)
    called = ", ".join(f"{name}={_shown(value)}" for name, value in zip(key, first, strict=True))
    return f"{len(rows)} row{'s' * (len(rows) > 1)} that the other lacks ({called})"


def _of_file(file: str, stored: str, again: str) -> Difference:
    return Difference(file, "", 0, 0, None, None, "", stored, again)


def _same_order(key: Sequence[str], stored: LongTable, again: LongTable) -> bool:
    """Whether rows have the same keys, one beside the other; true where there are none."""
    return not key or all(
        np.array_equal(left.astype(str).to_numpy(object), right.astype(str).to_numpy(object))
        for left, right in zip(stored.pieces(key), again.pieces(key), strict=False)
    )


Numbers = NDArray[np.float64]


def _unequal(a: Numbers, b: Numbers, tolerance: float) -> NDArray[np.bool_]:
    """Where numbers differ by more than the tolerance; two that are missing are the same."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
        allowed = np.fmax(tolerance * np.fmax(np.abs(a), np.abs(b)), NOTHING if tolerance else 0.0)
        missing = np.isnan(a), np.isnan(b)
        # what is not a number compares with nothing
        differ: NDArray[np.bool_] = ~(apart <= allowed) & ~(missing[0] & missing[1])
    return differ


def _relative(a: Numbers, b: Numbers) -> Numbers:
    """Differences as shares of the larger of both; infinite where one is missing."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.abs(a - b) / np.fmax(np.abs(a), np.abs(b))
    return np.where(np.isnan(shares), np.inf, shares)


def _plain(value: Any) -> Any:
    """A value of a table as JSON has it; None where it is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)) or value is pd.NA:
        return None
    return value.item() if hasattr(value, "item") else value


def _shown(value: Any) -> str:
    """A value in a sentence: numbers with all their digits."""
    if value is None or value == "":
        return "nothing"
    return cut_text(str(value), SHOWN)
