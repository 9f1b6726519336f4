"""Tables on their way out and back: rows as JSON, and numbers to the last bit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd


def rows(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """The rows by name of the column; what is empty becomes None."""
    return table.astype(object).where(table.notna(), None).to_dict("records")


def json_text(values: Any) -> str:
    """Plain values, and those of numpy, as JSON."""
    return json.dumps(values, indent=1, allow_nan=False, default=lambda value: value.item())


def read_csv(path: Path, **options: Any) -> pd.DataFrame:
    """A table with its numbers to the last bit; ``options`` and errors as of pandas."""
    # the default of pandas 3, where naming it is deprecated
    exact: dict[str, Any] = (
        {} if int(pd.__version__.partition(".")[0]) >= 3 else {"float_precision": "round_trip"}
    )
    table: pd.DataFrame = pd.read_csv(path, **options, **exact)
    return table


def stacked(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Tables below one another, at least one; a column of categories has those of all of them, in
    the order in which they come. One that is of categories in some of them only is of objects."""
    if len(tables) == 1:
        return tables[0]
    for column in tables[0].select_dtypes("category"):
        if not all(isinstance(table[column].dtype, pd.CategoricalDtype) for table in tables):
            continue
        kinds = dict.fromkeys(tuple(table[column].cat.categories) for table in tables)
        if len(kinds) > 1:
            values = list(dict.fromkeys(value for kind in kinds for value in kind))
            of_all = [table[column].cat.set_categories(values) for table in tables]
            tables = [t.assign(**{str(column): of}) for t, of in zip(tables, of_all, strict=True)]
    return pd.concat(tables, ignore_index=True)
