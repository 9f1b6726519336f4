"""The result folder: written whole or not at all, named after what was simulated, and read back for
redrawing."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from simshuffle.errors import InputError, Problem
from simshuffle.results import report
from simshuffle.results import style as plots
from simshuffle.results import timeline as timeline_tables
from simshuffle.results.folders import write_folder
from simshuffle.results.table_io import json_text, read_csv, rows
from simshuffle.results.timeline import Timeline
from simshuffle.version import __version__

ROWS_AT_ONCE = 1 << 17
FILES = (
    "scenario.yaml",
    "meta.json",
    "timeline.parquet",
    "links.parquet",
    "sources.csv",
    "epochs.csv",
    "breakdown.csv",
)


@dataclass(frozen=True)
class Result:
    """What a run leaves behind.

    Attributes:
        timeline: all tables (see `simshuffle.results.timeline`).
        epochs: columns `simshuffle.results.report.EPOCH_COLUMNS`.
        breakdown: run, epoch, label, seconds.
        meta: versions, fingerprint, and for each run its hosts, storage per host, staging time and
            samples/s.
        scenario_yaml: the resolved scenarios.
    """

    timeline: Timeline
    epochs: pd.DataFrame
    breakdown: pd.DataFrame
    meta: dict[str, Any]
    scenario_yaml: str

    def save(self, folder: str | Path, *, replace: bool = False) -> Path:
        """Write the result folder; nothing is left half-written, whatever happens. Returns the
        folder.

        Raises:
            InputError: the folder exists and is not empty, and ``replace`` is False.
        """
        return write_folder(Path(folder), self._fill, replace=replace)

    def _fill(self, folder: Path) -> None:
        (folder / "scenario.yaml").write_text(self.scenario_yaml, encoding="utf-8")
        (folder / "meta.json").write_text(
            json.dumps(self.meta, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
        _write_parquet(self.timeline.phases, folder / "timeline.parquet")
        _write_parquet(self.timeline.links, folder / "links.parquet")
        self.timeline.sources.to_csv(folder / "sources.csv", index=False)
        self.epochs.to_csv(folder / "epochs.csv", index=False)
        self.breakdown.to_csv(folder / "breakdown.csv", index=False)
        plots.save(
            plots.breakdown_figure(self.breakdown, report.waiting(self.timeline), self.epochs),
            folder / "breakdown",
        )


@cache
def code_digest() -> str:
    """SHA-256 over the sources of the package, so that results of changed code are never taken for
    those of another."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def fingerprint(scenario_yaml: str) -> str:
    """Twelve hexadecimal digits that stand for the resolved scenarios and the code that simulates
    them."""
    return hashlib.sha256(f"{scenario_yaml}\n{code_digest()}".encode()).hexdigest()[:12]


def versions() -> dict[str, str]:
    """Versions of simshuffle, Python and the packages that compute."""
    names = ("numpy", "numba", "simpy", "networkx", "pandas")
    return {
        "simshuffle": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def existing(folder: Path, wanted: str) -> Result | None:
    """The result that lies in ``folder`` if it has the fingerprint ``wanted``; None otherwise."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    complete = all((folder / name).is_file() for name in FILES)
    return (
        read(folder)
        if complete and isinstance(meta, dict) and meta.get("fingerprint") == wanted
        else None
    )


def read(folder: Path) -> Result:
    """The result in ``folder``.

    Raises:
        InputError: a file is missing or cannot be read.
    """
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        problem = Problem(
            "",
            "must be a result folder",
            f"no {', '.join(missing)}",
            "Give a folder that 'simshuffle run' wrote.",
        )
        raise InputError(problem, str(folder))
    try:
        timeline = Timeline(
            pd.read_parquet(folder / "timeline.parquet"),
            pd.read_parquet(folder / "links.parquet"),
            read_csv(folder / "sources.csv"),
        )
        result = Result(
            timeline,
            read_csv(folder / "epochs.csv"),
            read_csv(folder / "breakdown.csv"),
            json.loads((folder / "meta.json").read_text(encoding="utf-8")),
            (folder / "scenario.yaml").read_text(encoding="utf-8"),
        )
        _check_columns(result)
        return result
    except (OSError, ValueError) as error:
        raise InputError(
            Problem("", "cannot be read", str(error), "Simulate again."), str(folder)
        ) from None


def _check_columns(result: Result) -> None:
    tables = {
        "timeline.parquet": (timeline_tables.PHASE_COLUMNS, result.timeline.phases),
        "links.parquet": (timeline_tables.LINK_COLUMNS, result.timeline.links),
        "sources.csv": (timeline_tables.SOURCE_COLUMNS, result.timeline.sources),
        "epochs.csv": (report.EPOCH_COLUMNS, result.epochs),
        "breakdown.csv": (("run", "epoch", "label", "seconds"), result.breakdown),
    }
    for name, (columns, table) in tables.items():
        if list(table.columns) != list(columns):
            raise ValueError(f"{name} has other columns than {', '.join(columns)}")


def _write_parquet(table: pd.DataFrame, path: Path) -> None:
    """Write a table in pieces, so that no second copy of a long one is in memory."""
    schema = pa.Schema.from_pandas(table.head(0), preserve_index=False)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for first in range(0, max(len(table), 1), ROWS_AT_ONCE):
            piece = table.iloc[first : first + ROWS_AT_ONCE]
            writer.write_table(pa.Table.from_pandas(piece, schema, preserve_index=False))


def epochs_as_json(epochs: pd.DataFrame) -> str:
    """The rows of the epochs table as a JSON list of objects; what is empty becomes null."""
    return json_text(rows(epochs))
