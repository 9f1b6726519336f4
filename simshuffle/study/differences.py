"""Compare a stored result with its recomputation, and measure the differences."""

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
"""Where a tolerance applies, numbers that are no further apart are the same:
differences of times of hours, which ought to be 0, are not exactly that.
"""
SHOWN = 40  # letters of a text that is shown


@dataclass(frozen=True)
class Difference:
    """A difference between a stored result and the recomputed one."""

    file: str  # name of the file in the folder
    what: str  # the column of a table or the dotted key of other values; '' for the file itself
    rows: int  # number of rows that differ; 0 where there are no rows
    of: int  # number of rows that both tables have; 0 where there are no rows
    # absolute, relative: the difference in the row with the largest relative one, which is a share
    # of the larger of both; None but for two numbers, so also where one of them is missing
    absolute: float | None
    relative: float | None
    # that row, as key=value or 'row NUMBER'; of other values than numbers the first row that
    # differs; '' where there are no rows
    where: str
    stored: Any  # the stored value in that row; of a file a description
    again: Any  # the recomputed value in that row; of a file a description

    def __str__(self) -> str:
        """Return the difference as a sentence without its full stop."""
        if not self.what:
            return f"{self.file}: {self.stored or 'none'} stored, {self.again or 'none'} recomputed"
        values = f"{_text_of_value(self.stored)} stored, {_text_of_value(self.again)} recomputed"
        rows = f" in {self.rows} of {self.of} rows" if self.of else ""
        size = (
            ""
            if self.absolute is None
            else f"{self.absolute:.3g} (relative {self.relative:.3g}"
        )
        size = (
            f", largest difference {size})"
            if size
            else ", the first one"
            if self.of
            else ""
        )
        row_text = f" at {self.where}" if self.where else ""
        return f"{self.file}: {self.what}{rows}{size}{row_text}: {values}"


def compare_tables(
    file: str,
    schema: Schema,
    stored: LongTable,
    recomputed: LongTable,
    tolerance: float,
) -> list[Difference]:
    """Return the differences of two tables of one schema, one for each differing
    column.

    Columns that a clock measured are left out. Rows are compared in their order, or by
    the key where their orders differ, which is a difference too; without a key, tables
    of different lengths have that one difference alone. Rows whose key only one table
    has are counted in one difference, and the common rows are compared; both tables are
    loaded then. Numbers are equal if they differ by no more than ``tolerance``, as a
    share of the larger one, or by no more than `NOTHING`; with tolerance 0 they must be
    equal to the last bit. Two missing values are equal.
    """
    columns = {
        name: _ColumnDifferences(name)
        for name, description in schema.columns.items()
        if not description.measured
    }
    if len(stored) == len(recomputed) and _same_order(schema.key, stored, recomputed):
        num_previous_rows = 0
        for stored_rows, recomputed_rows in zip(
            stored.pieces(), recomputed.pieces(), strict=False
        ):
            for column in columns.values():
                column.add(
                    stored_rows, recomputed_rows, num_previous_rows, schema, tolerance
                )
            num_previous_rows += len(stored_rows)
        return _differences_of_columns(file, columns, len(stored))
    if not schema.key:
        return [
            _difference_of_file(file, f"{len(stored)} rows", f"{len(recomputed)} rows")
        ]
    stored_rows, recomputed_rows = (
        table.load().set_index(list(schema.key)) for table in (stored, recomputed)
    )
    common_keys = stored_rows.index[stored_rows.index.isin(recomputed_rows.index)]
    extra_rows = [
        _describe_extra_rows(table, common_keys, schema.key)
        for table in (stored_rows, recomputed_rows)
    ]
    differences = [
        _difference_of_file(
            file,
            *extra_rows
            if any(extra_rows)
            else ("rows in one order", "in another order"),
        )
    ]
    stored_rows, recomputed_rows = (
        table.loc[common_keys].reset_index() for table in (stored_rows, recomputed_rows)
    )
    for name in schema.key:
        del columns[name]
    for column in columns.values():
        column.add(stored_rows, recomputed_rows, 0, schema, tolerance)
    return differences + _differences_of_columns(file, columns, len(common_keys))


def compare_values(
    file: str,
    stored: Mapping[str, Any],
    recomputed: Mapping[str, Any],
    tolerance: float,
) -> list[Difference]:
    """Return the differences of two mappings of plain values by dotted key.

    ``file`` is named in each difference. ``tolerance`` is a share of the larger number,
    as in `compare_tables`; for other values types have to agree too, and numbers within
    lists must be equal to the last bit. A missing key counts as 'nothing'. Differences
    are sorted by key.
    """
    differences = []
    for key in sorted({*stored, *recomputed}):
        stored_value, recomputed_value = (
            values.get(key, "nothing") for values in (stored, recomputed)
        )
        size: tuple[float | None, float | None] = (None, None)
        is_same = stored_value == recomputed_value and type(stored_value) is type(
            recomputed_value
        )
        if isinstance(stored_value, int | float) and isinstance(
            recomputed_value, int | float
        ):
            stored_number = np.array([float(stored_value)])
            recomputed_number = np.array([float(recomputed_value)])
            is_same = not _unequal(stored_number, recomputed_number, tolerance)[0]
            size = (
                abs(float(stored_value) - float(recomputed_value)),
                float(_relative(stored_number, recomputed_number)[0]),
            )
        if not is_same:
            differences.append(
                Difference(file, key, 0, 0, *size, "", stored_value, recomputed_value)
            )
    return differences


def compare_files(
    file: str, stored: bytes | None, again: bytes | None
) -> list[Difference]:
    """Return the difference of two files if any byte differs; None stands for a missing
    file.

    The list has at most one element, which names the first line that differs, from 1.
    """
    if stored == again:
        return []
    if stored is None or again is None:
        return [
            _difference_of_file(
                file,
                *("none" if content is None else "one" for content in (stored, again)),
            )
        ]
    lines = [content.split(b"\n") for content in (stored, again)]
    pairs = zip(*lines, strict=False)
    first_line = next(
        (line_number for line_number, (a, b) in enumerate(pairs, 1) if a != b),
        min(map(len, lines)) + 1,
    )
    return [_difference_of_file(file, f"line {first_line}", "another line")]


class _ColumnDifferences:
    """Differences of one column: how many rows differ, and the row that differs most.

    ``rows`` is how many rows differ. ``worst`` is absolute and relative difference, the
    row's label, the stored and the recomputed value; the first row that differs where
    values are not numbers. Where one number is missing, the differences are None.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = 0
        self._most = -1.0
        self.worst: tuple[float | None, float | None, str, Any, Any] = (
            None,
            None,
            "",
            None,
            None,
        )

    def add(
        self,
        stored_rows: pd.DataFrame,
        recomputed_rows: pd.DataFrame,
        num_previous_rows: int,
        schema: Schema,
        tolerance: float,
    ) -> None:
        """Compare rows of both tables that follow ``num_previous_rows`` others, and
        update ``rows`` and ``worst``.

        Both frames have as many rows.
        """
        stored_values = stored_rows[self.name]
        recomputed_values = recomputed_rows[self.name]
        is_numeric = all(
            pd.api.types.is_numeric_dtype(values)
            and not pd.api.types.is_bool_dtype(values)
            for values in (stored_values, recomputed_values)
        )
        if is_numeric:
            x, y = (
                values.to_numpy(np.float64, na_value=np.nan)
                for values in (stored_values, recomputed_values)
            )
            differ = np.flatnonzero(_unequal(x, y, tolerance))
            sizes = _relative(x[differ], y[differ])
        else:
            texts = [
                values.astype(object).where(values.notna(), None)
                for values in (stored_values, recomputed_values)
            ]
            differ = np.flatnonzero(
                [
                    stored_text != recomputed_text
                    for stored_text, recomputed_text in zip(*texts, strict=True)
                ]
            )
            sizes = np.zeros(len(differ))
        self.rows += len(differ)
        if not len(differ) or sizes.max() <= self._most:
            return
        self._most, row = float(sizes.max()), int(differ[sizes.argmax()])
        size: tuple[float | None, float | None] = (None, None)
        if is_numeric and math.isfinite(self._most):
            size = abs(float(x[row]) - float(y[row])), self._most
        where = _label_of_row(schema, stored_rows.iloc[row], num_previous_rows + row)
        self.worst = (
            *size,
            where,
            _plain(stored_values.iloc[row]),
            _plain(recomputed_values.iloc[row]),
        )


def _label_of_row(schema: Schema, row: pd.Series[Any], row_index: int) -> str:
    """Return the key of a row; without a key its number (from 1) and the values of the
    columns before the first one of kind 'real'.

    ``row_index`` counts from 0.
    """
    kinds = [column.kind for column in schema.columns.values()]
    leading = [*schema.columns][
        : kinds.index("real") if "real" in kinds else len(kinds)
    ]
    labels = [] if schema.key else [f"row {row_index + 1}"]
    return ", ".join(
        [
            *labels,
            *(f"{name}={_text_of_value(row[name])}" for name in schema.key or leading),
        ]
    )


def _differences_of_columns(
    file: str, columns: Mapping[str, _ColumnDifferences], num_rows: int
) -> list[Difference]:
    """Return the `Difference` of each column that differs, of ``num_rows`` rows."""
    differing_columns = [column for column in columns.values() if column.rows]
    return [
        Difference(file, column.name, column.rows, num_rows, *column.worst)
        for column in differing_columns
    ]


def _describe_extra_rows(
    table: pd.DataFrame, common_keys: pd.Index[Any], key: Sequence[str]
) -> str:
    """Say how many rows are not in ``common_keys``, and the first one; '' if none.

    ``key`` names the levels of the index of ``table``.
    """
    rows = table.index[~table.index.isin(common_keys)]
    if not len(rows):
        return ""
    first = rows[0] if len(key) > 1 else (rows[0],)
    first_key = ", ".join(
        f"{name}={_text_of_value(value)}"
        for name, value in zip(key, first, strict=True)
    )
    return f"{len(rows)} row{'s' * (len(rows) > 1)} that the other lacks ({first_key})"


def _difference_of_file(file: str, stored: str, recomputed: str) -> Difference:
    """Return a difference of a file as a whole, with a description of both."""
    return Difference(file, "", 0, 0, None, None, "", stored, recomputed)


def _same_order(key: Sequence[str], stored: LongTable, recomputed: LongTable) -> bool:
    """Return whether the rows of both tables have equal keys in equal order; True
    without a key.

    Both tables have as many rows; else only the common pieces would be looked at. Keys
    are compared as texts.
    """
    return not key or all(
        np.array_equal(
            stored_keys.astype(str).to_numpy(object),
            recomputed_keys.astype(str).to_numpy(object),
        )
        for stored_keys, recomputed_keys in zip(
            stored.pieces(key), recomputed.pieces(key), strict=False
        )
    )


Numbers = NDArray[np.float64]


def _unequal(a: Numbers, b: Numbers, tolerance: float) -> NDArray[np.bool_]:
    """Mark the numbers that differ by more than the tolerance; two missing numbers
    (NaN) are equal.

    Two equal infinities count as different; tables and meta.json hold none.
    """
    with np.errstate(invalid="ignore"):
        distance = np.abs(a - b)
        allowed = np.fmax(
            tolerance * np.fmax(np.abs(a), np.abs(b)), NOTHING if tolerance else 0.0
        )
        is_missing = np.isnan(a), np.isnan(b)
        # what is not a number compares with nothing
        is_different: NDArray[np.bool_] = ~(distance <= allowed) & ~(
            is_missing[0] & is_missing[1]
        )
    return is_different


def _relative(a: Numbers, b: Numbers) -> Numbers:
    """Return differences as shares of the larger magnitude; infinite where a number is
    missing, or both are 0.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.abs(a - b) / np.fmax(np.abs(a), np.abs(b))
    return np.where(np.isnan(shares), np.inf, shares)


def _plain(value: Any) -> Any:
    """Return a value of a table as JSON has it; None where it is missing."""
    if (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or value is pd.NA
    ):
        return None
    return value.item() if hasattr(value, "item") else value


def _text_of_value(value: Any) -> str:
    """Return a value as a sentence shows it, cut to `SHOWN` letters.

    Numbers have all their digits; a missing value and '' are 'nothing'.
    """
    if value is None or value == "":
        return "nothing"
    return cut_text(str(value), SHOWN)
