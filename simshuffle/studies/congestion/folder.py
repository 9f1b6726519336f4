"""The result folder of a comparison: written whole or not at all, and read back for redrawing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.csv

from simshuffle.errors import InputError, Problem
from simshuffle.results import style as plots
from simshuffle.results.folders import meta_of, write_folder
from simshuffle.results.table_io import json_of
from simshuffle.studies.congestion import figures
from simshuffle.studies.congestion.ablation import ABLATION_COLUMNS, ablation
from simshuffle.studies.congestion.tables import COLUMNS, HOTTEST_COLUMNS, Tables, hottest
from simshuffle.studies.congestion.verdict import (
    COMPARISON_COLUMNS,
    VERDICT_COLUMNS,
    comparisons,
    verdicts,
)

KIND = "congestion"
STORED = {
    "sets": "sets.csv",
    "times": "times.csv",
    "tiers": "tiers.parquet",
    "links": "links.parquet",
}
DERIVED: dict[str, Callable[[Tables], pd.DataFrame]] = {
    "comparisons.csv": lambda tables: comparisons(tables.times),
    "verdicts.csv": lambda tables: verdicts(comparisons(tables.times)),
    "ablation.csv": lambda tables: ablation(tables.times),
    "hottest.csv": hottest,
}
FILES = ("meta.json", "scenario.yaml", "columns.json", *STORED.values(), *DERIVED)


@dataclass(frozen=True)
class Comparison:
    """A finished comparison.

    Attributes:
        tables: all that was measured.
        meta: kind, fingerprint, versions, options.
        scenario_yaml: the resolved scenarios, one for each world size.
    """

    tables: Tables
    meta: dict[str, Any]
    scenario_yaml: str

    def save(self, folder: Path, *, replace: bool = False) -> Path:
        """Write the folder; nothing is left half-written, whatever happens.

        Raises:
            InputError: the folder holds something, and it is no result or ``replace`` is False.
        """
        return write_folder(folder, self._fill, replace=replace)

    def _fill(self, folder: Path) -> None:
        meta = json.dumps(self.meta, indent=1, sort_keys=True)
        (folder / "meta.json").write_text(meta + "\n", encoding="utf-8")
        (folder / "scenario.yaml").write_text(self.scenario_yaml, encoding="utf-8")
        (folder / "columns.json").write_text(
            json.dumps(dictionary(), indent=1) + "\n", encoding="utf-8"
        )
        for name, table in self.tables.items():
            _write(table, folder / STORED[name])
        for name, derive in DERIVED.items():
            _write(derive(self.tables), folder / name)
        draw(self.tables, folder)


def dictionary() -> dict[str, dict[str, str]]:
    """What every column of every table means, by file."""
    about = {STORED[name]: columns for name, columns in COLUMNS.items()}
    derived = (COMPARISON_COLUMNS, VERDICT_COLUMNS, ABLATION_COLUMNS, HOTTEST_COLUMNS)
    return about | dict(zip(DERIVED, derived, strict=True))


def draw(tables: Tables, folder: Path) -> list[Path]:
    """Draw the figures into ``folder``, which is made if need be; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"times": figures.times_figure(tables), "heat": figures.heat_figure(tables)}
    return [path for name, figure in drawn.items() for path in plots.save(figure, folder / name)]


def holds(folder: Path) -> bool:
    """Whether ``folder`` says that it is the result of a comparison."""
    return meta_of(folder).get("kind") == KIND


def existing(folder: Path, fingerprint: str) -> Comparison | None:
    """The comparison in ``folder`` if it is complete and has that fingerprint; None otherwise."""
    complete = all((folder / name).is_file() for name in FILES)
    return (
        read(folder)
        if complete and holds(folder) and meta_of(folder).get("fingerprint") == fingerprint
        else None
    )


def read(folder: Path) -> Comparison:
    """The comparison in ``folder``.

    Raises:
        InputError: a file is missing or cannot be read.
    """
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        remedy = "Give a folder that 'simshuffle congestion' wrote."
        raise InputError(
            Problem("", "must be the result of a comparison", f"no {', '.join(missing)}", remedy),
            str(folder),
        )
    try:
        tables = {name: _read(folder / file) for name, file in STORED.items()}
        for name, table in tables.items():
            if list(table.columns) != list(COLUMNS[name]):
                raise ValueError(
                    f"{STORED[name]} has other columns than {', '.join(COLUMNS[name])}"
                )
        return Comparison(
            Tables(**tables),
            meta_of(folder),
            (folder / "scenario.yaml").read_text(encoding="utf-8"),
        )
    except (OSError, ValueError) as error:
        raise InputError(
            Problem("", "cannot be read", str(error), "Compare again."), str(folder)
        ) from None


def _write(table: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path, index=False, compression="zstd")


def _read(path: Path) -> pd.DataFrame:
    """A table with its numbers to the last bit."""
    table: pd.DataFrame = (
        pyarrow.csv.read_csv(path).to_pandas() if path.suffix == ".csv" else pd.read_parquet(path)
    )
    return table


def as_json(tables: Tables) -> str:
    """Times, comparisons, verdicts and ablation as one JSON object of lists of rows; what is empty
    becomes null."""
    of = {"sets": tables.sets, "times": tables.times}
    of |= {
        name.removesuffix(".csv"): DERIVED[name](tables)
        for name in ("comparisons.csv", "verdicts.csv", "ablation.csv")
    }
    return json_of(of)
