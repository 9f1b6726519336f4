"""Write tables as rows of JSON, and read them with their numbers to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd


def plain_rows(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the rows, each as values by the names of columns; empty values (NaN)
    become None.
    """
    return table.astype(object).where(table.notna(), None).to_dict("records")


def read_csv(path: Path, **options: Any) -> pd.DataFrame:
    """Read a table from CSV with its numbers exact to the last bit.

    ``options`` and errors are those of pandas.
    """
    # the default of pandas 3, where naming it is deprecated
    exact: dict[str, Any] = (
        {}
        if int(pd.__version__.partition(".")[0]) >= 3
        else {"float_precision": "round_trip"}
    )
    table: pd.DataFrame = pd.read_csv(path, **options, **exact)
    return table


def stack_tables(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Join tables below one another, at least one; a single one is returned itself.

    Rows of several tables are numbered anew, from 0. The given tables are not changed.
    A column of categories has the categories of all tables, in the order in which they
    come. A column that is of categories in some tables only becomes a column of
    objects.
    """
    if len(tables) == 1:
        return tables[0]
    for column, kind in tables[0].dtypes.items():
        if not isinstance(kind, pd.CategoricalDtype) or not all(
            isinstance(table[column].dtype, pd.CategoricalDtype) for table in tables
        ):
            continue
        category_sets = dict.fromkeys(
            tuple(table[column].cat.categories) for table in tables
        )
        if len(category_sets) > 1:
            values = list(
                dict.fromkeys(value for kind in category_sets for value in kind)
            )
            columns = [table[column].cat.set_categories(values) for table in tables]
            tables = [
                table_part.assign(**{str(column): column_values})
                for table_part, column_values in zip(tables, columns, strict=True)
            ]
    return pd.concat(tables, ignore_index=True)
