"""Read an epoch log as measured runs of a scenario's training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError, refuse
from simshuffle.extensions.calibration.calibrate.files import MeasurementFile, read_text
from simshuffle.extensions.calibration.calibrate.readers import (
    read_rows,
    recognise_kind,
)
from simshuffle.extensions.calibration.calibrate.tables import measurements_table
from simshuffle.extensions.calibration.calibrate.training import FIRST_STEADY_EPOCH


def read_training(path: Path) -> list[dict[str, Any]] | None:
    """Return a row of measured runs for each number of ranks, hosts and batch size of an epoch
    log: the sums of its steady epochs; None of a path that `machine calibrate` does not read.

    Raises:
        InputError: the file is of a benchmark, or a log with a line that is not valid, of
            several models, or without a steady epoch.
    """
    try:
        source = MeasurementFile(path, read_text(path))
    except InputError:
        return None
    kind = recognise_kind(source.text)
    if kind is None:
        return None
    if kind != "epochs":
        rule = "must tell how long a training, its epochs or its iterations take"
        remedy = f"Fit the scenario to it: simshuffle machine calibrate {source.name}."
        refuse("--measured", rule, f"output of {kind}", remedy, str(path))
    table = measurements_table(read_rows(source).rows)
    if len(models := [*table["model"].unique()]) > 1:
        remedy = "Keep the lines of the model that the scenario has."
        refuse(
            "--measured", "must be of one model", ", ".join(models), remedy, str(path)
        )
    steady = table[table["epoch"] >= FIRST_STEADY_EPOCH]
    if steady.empty:
        rule = "must have a steady epoch, the second or a later one"
        refuse("--measured", rule, "first epochs alone", "Log more epochs.", str(path))
    totals = (
        steady.assign(epoch_s=steady["seconds"] * steady["count"])
        .groupby(["ranks", "hosts", "batch"], dropna=False)[["epoch_s", "count"]]
        .sum()
    )
    return [
        {
            "world_size": int(ranks),
            "hosts": None if math.isnan(hosts) else int(hosts),
            "epoch_s": float(epoch_s),
            "iterations": int(iterations),
            "values": {"workload.local_batch_size": int(batch)},
        }
        for (ranks, hosts, batch), epoch_s, iterations in totals.itertuples()
    ]
