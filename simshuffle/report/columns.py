"""Column: the kind, range and meaning of a column of a table, and how its values are
printed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from simshuffle.spec.units import Dimension, readable

Kind = Literal["text", "real", "count", "flag"]
Look = str | Callable[[Any], str]
"""How a value is printed: a format such as '.3g', 'bytes' or 'percent', or a function."""
LARGEST = 1e100
"""No number is larger, so that what is summed, squared or drawn of them stays finite."""
MAX_COUNT = 2**53  # no whole number is larger, for floats hold all up to it


@dataclass(frozen=True)
class Column:
    """A column of a table: the values that it may hold, and how they are printed."""

    meaning: str  # a sentence, with the unit where the name does not say it
    # 'text', 'real' (a finite number), 'count' (a whole number) or 'flag' (true or false)
    kind: Kind
    empty: bool = False  # whether a place may be empty
    # low, high: the range of numbers, both ends included
    low: float = -LARGEST
    high: float = LARGEST
    choices: tuple[str, ...] = ()  # the texts that there can be; all if none are given
    # whether a clock measured it while the result was made: it is another one each time
    measured: bool = False
    head: str = ""  # what stands above it where it is printed; its name if that is ''
    # how a value is printed: a format such as '.3g', 'bytes' or 'percent'; with ' or -' at its end,
    # a dash stands for 0; or a function
    look: Look = ""

    def cell(self, value: Any) -> str:
        """Return a value as a terminal shows it; '' where it is missing.

        A ``look`` that is a function says it of all others. Without one, texts stay as
        they are, flags are 'True' or 'False', counts are whole, and other numbers have
        three significant digits, unless ``look`` has a format.
        """
        if pd.isna(value):
            return ""
        if callable(self.look):
            return self.look(value)
        if isinstance(value, str) or self.kind in {"text", "flag"}:
            return str(value)
        look, dash, _ = self.look.partition(" or -")
        if dash and value == 0:
            return "-"
        if look == "bytes":
            return readable(value, Dimension.NBYTES, 3)
        if look.endswith("percent"):
            return f"{100 * value:{look.removesuffix('percent') or '.3g'}} %"
        return f"{value:{look or ('.0f' if self.kind == 'count' else '.3g')}}"

    def fault(self, values: pd.Series[Any], num_previous_rows: int = 0) -> str:
        """Return the rule that the values of a column break, the first one; '' if none.

        It is the end of a sentence, such as 'must be finite'. Numbers in columns of
        objects or texts count as numbers. Of a categorical column all categories are
        checked, used or not.

        Args:
            values: some rows of the column.
            num_previous_rows: rows before the first of ``values``: where a value is
                missing, the rule has the number of its row, from 1.
        """
        missing = values.isna()
        if missing.any() and not self.empty:
            return f"is empty in row {num_previous_rows + int(missing.argmax()) + 1}"
        if missing.any():  # otherwise a long column would be copied
            values = values[~missing]
        if self.kind == "text":
            return self._fault_of_texts(values)
        if self.kind == "flag":
            is_flag = (
                pd.api.types.is_bool_dtype(values) or values.isin([True, False]).all()
            )
            return "" if is_flag else "must be true or false"
        if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(
            values
        ):
            # a column of Python objects may still hold numbers only
            values = pd.to_numeric(values, errors="coerce")
            if values.isna().any():
                return "must be numbers"
        is_integer = pd.api.types.is_integer_dtype(values)
        numbers = values.to_numpy() if is_integer else values.to_numpy(np.float64)
        if not np.isfinite(numbers).all():
            return "must be finite"
        if (
            self.kind == "count"
            and not is_integer
            and (numbers != np.rint(numbers)).any()
        ):
            return "must be whole numbers"
        if len(numbers) and not (
            self.low <= numbers.min() and numbers.max() <= self.high
        ):
            return f"must be from {self.low:g} to {self.high:g}"
        return ""

    def _fault_of_texts(self, values: pd.Series[Any]) -> str:
        """Return the rule that the values of a column of texts break, as `fault` does;
        none of ``values`` is missing.
        """
        is_categorical = isinstance(values.dtype, pd.CategoricalDtype)
        distinct = values.cat.categories if is_categorical else values
        # such a column of pandas holds nothing but texts
        is_text = isinstance(distinct.dtype, pd.StringDtype)
        if is_text and not self.choices:
            return ""
        texts = set(distinct.unique())
        if not (is_text or all(isinstance(text, str) for text in texts)):
            return "must be texts"
        is_foreign = self.choices and not texts <= set(self.choices)
        return f"must be one of {', '.join(self.choices)}" if is_foreign else ""


def text(
    meaning: str, *choices: str, empty: bool = False, head: str = "", look: Look = ""
) -> Column:
    """Return a column of texts; of ``choices`` alone, if there are any."""
    return Column(meaning, "text", empty, choices=choices, head=head, look=look)


def real(
    meaning: str,
    low: float = -LARGEST,
    *,
    empty: bool = False,
    head: str = "",
    look: Look = "",
) -> Column:
    """Return a column of finite numbers, from ``low`` on, up to `LARGEST`."""
    return Column(meaning, "real", empty, low, head=head, look=look)


def amount(
    meaning: str, *, empty: bool = False, head: str = "", look: Look = ""
) -> Column:
    """Return a column of finite numbers from 0 on: seconds, bytes, rates."""
    return Column(meaning, "real", empty, 0.0, head=head, look=look)


def spent(meaning: str) -> Column:
    """Return a column of seconds, at least 0, that it took to make a result.

    The column may be empty, and is ``measured``: values differ when it is made again.
    """
    return Column(meaning, "real", True, 0.0, measured=True)


def share(
    meaning: str, *, empty: bool = False, head: str = "", look: Look = ""
) -> Column:
    """Return a column of numbers from 0 to 1; up to 1 + 1e-9, for rounding."""
    return Column(meaning, "real", empty, 0.0, 1.0 + 1e-9, head=head, look=look)


def count(
    meaning: str,
    low: float = 0,
    *,
    empty: bool = False,
    head: str = "",
    look: Look = "",
) -> Column:
    """Return a column of whole numbers from ``low`` on, up to `MAX_COUNT`."""
    return Column(meaning, "count", empty, low, MAX_COUNT, head=head, look=look)


def flag(meaning: str, *, empty: bool = False) -> Column:
    """Return a column of true and false; 1 and 0 are taken for them."""
    return Column(meaning, "flag", empty)
