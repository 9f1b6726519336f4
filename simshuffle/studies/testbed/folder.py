"""The result folder of a measurement: written whole or not at all."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.network.replay.files import whole_file
from simshuffle.results import code as results
from simshuffle.results import style as plots
from simshuffle.results.folders import write_folder
from simshuffle.results.table_io import json_text, rows
from simshuffle.studies.testbed import commands, figures, worker
from simshuffle.studies.testbed.bed import Bed
from simshuffle.studies.testbed.measure import Progress, Run, measure_all
from simshuffle.studies.testbed.settings import Settings
from simshuffle.studies.testbed.tables import (
    FLOW_COLUMNS,
    PATTERN_COLUMNS,
    RUN_COLUMNS,
    SUMMARY,
    VERDICT_COLUMNS,
    Tables,
    summary,
    tables,
)

KIND = "testbed"
COLUMNS = {
    "flows": FLOW_COLUMNS,
    "runs": RUN_COLUMNS,
    "patterns": PATTERN_COLUMNS,
    "verdicts": VERDICT_COLUMNS,
}


@dataclass(frozen=True)
class Measurement:
    """A finished measurement.

    Attributes:
        tables: measured and predicted.
        settings: what was asked for.
        meta: date, kernel, versions and all settings.
    """

    tables: Tables
    settings: Settings
    meta: dict[str, Any]

    def save(self, folder: Path, *, replace: bool = False) -> Path:
        """Write the folder; arguments and errors as in
        `simshuffle.results.folders.write_folder`."""
        return write_folder(folder, self._fill, replace=replace)

    def _fill(self, folder: Path) -> None:
        (folder / "meta.json").write_text(
            json.dumps(self.meta, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
        about = {f"{name}.csv": columns for name, columns in COLUMNS.items()}
        (folder / "columns.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        for name in COLUMNS:
            getattr(self.tables, name).to_csv(folder / f"{name}.csv", index=False)
        self.summary.to_csv(folder / "summary.csv", index=False)
        plots.save(figures.testbed_figure(self.tables.patterns), folder / "testbed")

    @property
    def summary(self) -> pd.DataFrame:
        """The rows that are kept beside the code; columns `tables.SUMMARY`."""
        return summary(self.tables, self.settings, self.meta)

    def keep(self, path: Path) -> None:
        """Write `summary` to the file ``path``, which is there whole or not at all."""
        with whole_file(path) as file:
            self.summary.to_csv(file, index=False, columns=list(SUMMARY))

    def as_json(self) -> str:
        """Patterns, verdicts and what is known about the measurement, as one JSON object; what is
        empty becomes null."""
        return json_text(
            {
                "patterns": rows(self.tables.patterns),
                "verdicts": rows(self.tables.verdicts),
                "meta": self.meta,
            }
        )


def measurement(bed: Bed, settings: Settings, progress: Progress | None) -> Measurement:
    """Measure and compare; arguments and errors as in `measure_all`."""
    date = datetime.now(UTC)
    return compared(bed, settings, measure_all(bed, settings, progress), date)


def compared(bed: Bed, settings: Settings, runs: list[Run], date: datetime) -> Measurement:
    """The comparison of ``runs`` that were measured at ``date``."""
    made = tables(bed, settings, runs)
    meta = {
        "kind": KIND,
        "date": date.isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "processors": os.cpu_count(),
        "versions": results.versions(),
        "settings": asdict(settings),
        "overhead": asdict(made.overhead),
        "bed": {
            "mtu_bytes": commands.MTU,
            "burst_bytes": commands.BURST,
            "queue_packets": commands.QUEUE,
            "receive_buffer_bytes": commands.WINDOW,
            "in_flight_bytes": worker.IN_FLIGHT,
            "unshaped_below_bytes": commands.SMALL,
            "congestion_control": commands.CONGESTION_CONTROL,
        },
    }
    return Measurement(made, settings, meta)
