"""The table under a figure, for people: headings with units, numbers with four digits."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.results.console import new_table
from simshuffle.spec.units import Dimension, readable

WORDS = {
    "world_size": "ranks",
    "exchange_fraction": "Q",
    "low": "95 % low",
    "high": "95 % high",
}


def table_of(title: str, values: pd.DataFrame) -> Table:
    """``values`` with headings; texts at the left, numbers at the right."""
    table = new_table(title)
    for name in values.columns:
        number = pd.api.types.is_numeric_dtype(values[name]) and values[name].dtype != bool
        justify: Any = "right" if number else "left"
        table.add_column(heading(str(name)), justify=justify, no_wrap=number)
    for row in values.itertuples(index=False, name=None):
        cells = zip(values.columns, row, strict=True)
        table.add_row(*(_cell(str(name), value) for name, value in cells))
    return table


def heading(column: str) -> str:
    """The name of a column for people: 'epoch_s' becomes 'epoch (s)'."""
    if column in WORDS:
        return WORDS[column]
    words = column.removesuffix("_nbytes").removesuffix("_s").replace("_", " ")
    return f"{words} (s)" if column.endswith("_s") else words


def _cell(column: str, value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column.endswith("_nbytes"):
        return readable(float(value), Dimension.NBYTES, 3) if value else "0 B"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
