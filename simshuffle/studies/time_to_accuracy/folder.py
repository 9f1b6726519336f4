"""The result folder: written whole or not at all, and read back for redrawing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv

from simshuffle.errors import InputError, Problem
from simshuffle.results import style as plots
from simshuffle.results.folders import meta_of, write_folder
from simshuffle.results.table_io import json_text, rows
from simshuffle.studies.time_to_accuracy.figures import figures
from simshuffle.studies.time_to_accuracy.tables import COLUMNS, KIND, TEXTS, Tables
from simshuffle.studies.time_to_accuracy.text import report

FILES = (
    "meta.json",
    "scenario.yaml",
    "columns.json",
    "report.txt",
    *(f"{name}.csv" for name in COLUMNS),
)


@dataclass(frozen=True)
class TimeToAccuracy:
    """What was found.

    Attributes:
        tables: columns as in `simshuffle.studies.time_to_accuracy.tables`.
        meta: kind, fingerprint, versions, study, scenario, rule (of the scaling), condition,
            statistics, trained scale, epochs, and more.
        scenario_yaml: the simulations, one document each.
    """

    tables: Tables
    meta: dict[str, Any]
    scenario_yaml: str

    @property
    def report(self) -> str:
        """What was found, in words."""
        return report(self.tables, self.meta)

    def save(self, folder: str | Path, *, replace: bool = False) -> Path:
        """Write the folder; nothing is left half-written, whatever happens. Returns the folder.

        Raises:
            InputError: the folder holds something, and it is no result or ``replace`` is False.
        """
        return write_folder(Path(folder), self._fill, replace=replace)

    def _fill(self, folder: Path) -> None:
        (folder / "meta.json").write_text(
            json.dumps(self.meta, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
        (folder / "scenario.yaml").write_text(self.scenario_yaml, encoding="utf-8")
        about = {f"{name}.csv": columns for name, columns in COLUMNS.items()}
        (folder / "columns.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        for name in COLUMNS:
            getattr(self.tables, name).to_csv(folder / f"{name}.csv", index=False)
        (folder / "report.txt").write_text(self.report, encoding="utf-8")
        draw(self, folder)

    def as_json(self) -> str:
        """Rule and tables as one JSON object, the tables as lists of rows; what is empty becomes
        null."""
        return json_text(
            {
                "rule": self.meta["rule"],
                **{name: rows(getattr(self.tables, name)) for name in COLUMNS},
            }
        )


def draw(of: TimeToAccuracy, folder: Path) -> list[Path]:
    """Draw the figures into ``folder``, which is made if need be; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        path
        for name, figure in figures(of.tables, of.meta).items()
        for path in plots.save(figure, folder / name)
    ]


def holds(folder: Path) -> bool:
    """Whether ``folder`` says that it is such a result."""
    return meta_of(folder).get("kind") == KIND


def existing(folder: Path, fingerprint: str) -> TimeToAccuracy | None:
    """The result in ``folder`` if it is complete and has that fingerprint; None otherwise."""
    complete = holds(folder) and all((folder / name).is_file() for name in FILES)
    return read(folder) if complete and meta_of(folder).get("fingerprint") == fingerprint else None


def read(folder: Path) -> TimeToAccuracy:
    """The result in ``folder``.

    Raises:
        InputError: a file is missing or cannot be read.
    """
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing or not holds(folder):
        lacking = f"no {', '.join(missing)}" if missing else "another kind of result"
        raise InputError(
            Problem(
                "", "must be a result of 'simshuffle tta'", lacking, "Give a folder that it wrote."
            ),
            str(folder),
        )
    try:
        tables = {name: _read(folder / f"{name}.csv") for name in COLUMNS}
        for name, table in tables.items():
            if list(table.columns) != list(COLUMNS[name]):
                raise ValueError(f"{name}.csv has other columns than {', '.join(COLUMNS[name])}")
        return TimeToAccuracy(
            Tables(**tables),
            meta_of(folder),
            (folder / "scenario.yaml").read_text(encoding="utf-8"),
        )
    except (OSError, ValueError) as error:
        raise InputError(
            Problem("", "cannot be read", str(error), "Run 'simshuffle tta' again."), str(folder)
        ) from None


def _read(path: Path) -> pd.DataFrame:
    """A table with its numbers to the last bit; an empty text stays one, and a column without any
    number is one of numbers."""
    types = {name: pa.string() for name in TEXTS}
    options = pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=False)
    table: pd.DataFrame = pyarrow.csv.read_csv(path, convert_options=options).to_pandas()
    empty = [name for name in table if name not in TEXTS and table[name].isna().all()]
    return table.astype(dict.fromkeys(empty, float))
