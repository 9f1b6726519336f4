"""The result folder of a comparison: written whole or not at all, and read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.csv

from simshuffle.results import code as results
from simshuffle.results import style as plots
from simshuffle.results.folders import write_folder
from simshuffle.results.table_io import json_of
from simshuffle.studies.policies import figures
from simshuffle.studies.policies.model import compare
from simshuffle.studies.policies.study import Study
from simshuffle.studies.policies.tables import (
    EPOCH_COLUMNS,
    POLICY_COLUMNS,
    epochs_table,
    policies_table,
)

KIND = "policies"
COLUMNS = {"policies.csv": POLICY_COLUMNS, "epochs.csv": EPOCH_COLUMNS}
FILES = ("meta.json", "study.yaml", "columns.json", *COLUMNS, "policies.png", "policies.pdf")


@dataclass(frozen=True)
class Comparison:
    """A finished comparison.

    Attributes:
        policies: columns `POLICY_COLUMNS`.
        epochs: columns `EPOCH_COLUMNS`.
        meta: kind, fingerprint, versions.
        study_yaml: the study, with units.
    """

    policies: pd.DataFrame
    epochs: pd.DataFrame
    meta: dict[str, Any]
    study_yaml: str

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
        (folder / "study.yaml").write_text(self.study_yaml, encoding="utf-8")
        (folder / "columns.json").write_text(json.dumps(COLUMNS, indent=1) + "\n", encoding="utf-8")
        self.policies.to_csv(folder / "policies.csv", index=False)
        self.epochs.to_csv(folder / "epochs.csv", index=False)
        plots.save(figures.policies_figure(self.policies), folder / "policies")

    def as_json(self) -> str:
        """Both tables as one JSON object of lists of rows; what is empty becomes null."""
        return json_of({"policies": self.policies, "epochs": self.epochs})


def fingerprint(study: Study, policies: Sequence[str]) -> str:
    """Twelve hexadecimal digits that stand for the study, the policies and the code."""
    return results.fingerprint(study.to_yaml() + json.dumps(list(policies)))


def comparison(study: Study, policies: Sequence[str]) -> Comparison:
    """Run it; arguments and errors as in `compare`."""
    outcomes = {
        name: compare(study.system, case, study.seed, policies)
        for name, case in study.cases.items()
    }
    meta = {
        "kind": KIND,
        "fingerprint": fingerprint(study, policies),
        "versions": results.versions(),
    }
    return Comparison(policies_table(outcomes), epochs_table(outcomes), meta, study.to_yaml())


def existing(folder: Path, wanted: str) -> Comparison | None:
    """The comparison in ``folder`` if it is complete and has that fingerprint; None otherwise."""
    try:
        if not all((folder / name).is_file() for name in FILES):
            return None
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if (
            not isinstance(meta, dict)
            or meta.get("kind") != KIND
            or meta.get("fingerprint") != wanted
        ):
            return None
        tables = {name: _read(folder / name) for name in COLUMNS}
        if any(list(tables[name].columns) != list(columns) for name, columns in COLUMNS.items()):
            return None
        return Comparison(
            tables["policies.csv"],
            tables["epochs.csv"],
            meta,
            (folder / "study.yaml").read_text(encoding="utf-8"),
        )
    except (OSError, ValueError):
        return None


def _read(path: Path) -> pd.DataFrame:
    """A table with its numbers to the last bit; an empty text stays one."""
    texts = pyarrow.csv.ConvertOptions(
        column_types={"problem": "string"}, strings_can_be_null=False
    )
    table: pd.DataFrame = pyarrow.csv.read_csv(path, convert_options=texts).to_pandas()
    return table
