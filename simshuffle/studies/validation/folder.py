"""The result folder of a validation: the table, its summary, and the figure, written whole or not
at all."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.results import style as plots
from simshuffle.results.code import versions
from simshuffle.results.folders import write_folder
from simshuffle.studies.validation.figure import figure
from simshuffle.studies.validation.table import COLUMNS, SUMMARY_COLUMNS, summary

KIND = "validation"


def save(results: pd.DataFrame, folder: Path, *, replace: bool = False) -> Path:
    """Write validation.csv, summary.csv, the figure, what the columns mean, and the versions.

    Raises:
        InputError: the folder holds something, and it is no result or ``replace`` is False.
    """

    def fill(draft: Path) -> None:
        (draft / "meta.json").write_text(
            json.dumps({"kind": KIND, "versions": versions()}, indent=1) + "\n", encoding="utf-8"
        )
        columns = {"validation.csv": COLUMNS, "summary.csv": SUMMARY_COLUMNS}
        (draft / "columns.json").write_text(json.dumps(columns, indent=1) + "\n", encoding="utf-8")
        results.to_csv(draft / "validation.csv", index=False)
        summary(results).to_csv(draft / "summary.csv", index=False)
        plots.save(figure(results), draft / "validation")

    return write_folder(folder, fill, replace=replace)


def holds(folder: Path) -> bool:
    """Whether ``folder`` says that it is the result of a validation."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(meta, dict) and meta.get("kind") == KIND


def read(folder: Path) -> pd.DataFrame:
    """The table in ``folder``.

    Raises:
        InputError: it is missing or has other columns.
    """
    try:
        table = pd.read_csv(
            folder / "validation.csv", keep_default_na=False, na_values=dict.fromkeys(_NUMBERS, "")
        )
        if list(table.columns) != list(COLUMNS):
            raise ValueError(f"other columns than {', '.join(COLUMNS)}")
    except (OSError, ValueError) as error:
        raise InputError(
            Problem("validation.csv", "cannot be read", str(error), "Validate again."), str(folder)
        ) from None
    return table


_NUMBERS = ("measured", "low", "high", "predicted", "predicted_low", "predicted_high", "error")
