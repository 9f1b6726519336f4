"""The result folders: written whole or not at all, and read back for redrawing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.results import code as results
from simshuffle.results import style as plots
from simshuffle.results.folders import meta_of, write_folder
from simshuffle.results.table_io import json_of, read_csv
from simshuffle.studies.ablation import figures
from simshuffle.studies.ablation.changes import changes
from simshuffle.studies.ablation.shapley import contributions
from simshuffle.studies.ablation.tables import COLUMNS, DERIVED

Tables = Mapping[str, pd.DataFrame]
TEXT = ("state", "start", "end", "value", "removed", "bottleneck", "tier")
"""Columns that are text, whatever they look like."""
DERIVE: dict[str, Callable[[Tables], pd.DataFrame]] = {
    "contributions": lambda tables: contributions(tables["switches"], tables["runs"]),
    "changes": changes,
}
FIGURES = {
    "ablation": ("waterfall", figures.waterfall_figure),
    "hiding": ("hiding", figures.hiding_figure),
}
VERBS = {"ablation": "ablate", "hiding": "hiding"}


@dataclass(frozen=True)
class Outcome:
    """A finished ablation, or search for Q*.

    Attributes:
        kind: 'ablation' or 'hiding'.
        tables: by name; columns as in `simshuffle.studies.ablation.tables`.
        meta: kind, fingerprint, versions, and what was asked for.
        scenario_yaml: the resolved scenarios.
    """

    kind: str
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
        (folder / "meta.json").write_text(
            json.dumps(self.meta, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
        (folder / "scenario.yaml").write_text(self.scenario_yaml, encoding="utf-8")
        about = {
            f"{name}.csv": columns
            for name, columns in (COLUMNS[self.kind] | DERIVED[self.kind]).items()
        }
        (folder / "columns.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        for name, table in self.all_tables().items():
            table.to_csv(folder / f"{name}.csv", index=False)
        draw(self, folder)

    def all_tables(self) -> dict[str, pd.DataFrame]:
        """The tables, and those that follow from them."""
        return dict(self.tables) | {name: DERIVE[name](self.tables) for name in DERIVED[self.kind]}

    def as_json(self) -> str:
        """All tables as one JSON object of lists of rows; what is empty becomes null."""
        return json_of(self.all_tables())


def outcome(kind: str, tables: Tables, asked: Mapping[str, Any], scenario_yaml: str) -> Outcome:
    """What was found, with the fingerprint of what was asked for."""
    meta = {
        "kind": kind,
        "fingerprint": fingerprint(kind, asked, scenario_yaml),
        "versions": results.versions(),
        "asked": dict(asked),
    }
    return Outcome(kind, tables, meta, scenario_yaml)


def fingerprint(kind: str, asked: Mapping[str, Any], scenario_yaml: str) -> str:
    """Twelve hexadecimal digits that stand for the scenarios, what was asked for and the code."""
    return results.fingerprint(scenario_yaml + json.dumps([kind, dict(asked)], sort_keys=True))


def draw(of: Outcome, folder: Path) -> list[Path]:
    """Draw the figure into ``folder``, which is made if need be; returns its paths."""
    folder.mkdir(parents=True, exist_ok=True)
    name, figure = FIGURES[of.kind]
    return plots.save(figure(of.tables), folder / name)


def holds(folder: Path) -> bool:
    """Whether ``folder`` says that it is the result of an ablation, or of a search for Q*."""
    return meta_of(folder).get("kind") in COLUMNS


def existing(folder: Path, wanted: str) -> Outcome | None:
    """The result in ``folder`` if it is complete and has that fingerprint; None otherwise."""
    return (
        read(folder)
        if holds(folder) and not _missing(folder) and meta_of(folder).get("fingerprint") == wanted
        else None
    )


def read(folder: Path) -> Outcome:
    """The result in ``folder``.

    Raises:
        InputError: a file is missing or cannot be read.
    """
    meta = meta_of(folder)
    if not holds(folder) or (missing := _missing(folder)):
        lacking = ", ".join(missing) if holds(folder) else "meta.json that says so"
        remedy = "Give a folder that 'simshuffle ablate' or 'simshuffle hiding' wrote."
        raise InputError(
            Problem(
                "", "must be the result of an ablation or of a search", f"no {lacking}", remedy
            ),
            str(folder),
        )
    kind = meta["kind"]
    try:
        tables = {name: _read(folder / f"{name}.csv") for name in COLUMNS[kind]}
        for name, table in tables.items():
            if list(table.columns) != list(COLUMNS[kind][name]):
                raise ValueError(
                    f"{name}.csv has other columns than {', '.join(COLUMNS[kind][name])}"
                )
        return Outcome(kind, tables, meta, (folder / "scenario.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            Problem("", "cannot be read", str(error), f"Run 'simshuffle {VERBS[kind]}' again."),
            str(folder),
        ) from None


def _missing(folder: Path) -> list[str]:
    kind = meta_of(folder)["kind"]
    wanted = [
        "scenario.yaml",
        "columns.json",
        *(f"{name}.csv" for name in COLUMNS[kind] | DERIVED[kind]),
    ]
    return [name for name in wanted if not (folder / name).is_file()]


def _read(path: Path) -> pd.DataFrame:
    """A table with its numbers to the last bit."""
    return read_csv(
        path,
        dtype=dict.fromkeys(TEXT, str),
        keep_default_na=False,
        na_values={c: [""] for c in NUMBERS},
    )


NUMBERS = ("over_s", "saved_s")
"""Columns of numbers that may be empty."""
