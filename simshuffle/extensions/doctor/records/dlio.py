"""Read the output folder of the DLIO benchmark (dlio-benchmark 2.0.0, which MLPerf
Storage runs).

Keys are those of its dlio_benchmark/utils/statscounter.py. `N_output.json` holds for
rank N and each epoch, by blocks between checkpoints, lists of seconds: `load`, from
when a batch is asked for until it is there, and `proc`, from when it is asked for until
it is computed on (main.py starts both at the same moment), so that a step is their
difference. Beside it lie `summary.json`, `per_epoch_stats.json` (when each epoch began)
and `.hydra/config.yaml`.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import InputError, refuse
from simshuffle.extensions.doctor.records.files import (
    printable,
    read_json,
    to_count,
    to_mapping,
    to_number,
)
from simshuffle.extensions.doctor.records.in_turn import rows_in_turn
from simshuffle.extensions.doctor.records.record import Record, join_rows
from simshuffle.spec.arrays import Floats
from simshuffle.spec.library import read_yaml

_OUTPUT = re.compile(r"(\d{1,7})_output\.json$")


def list_outputs(folder: Path) -> dict[int, Path]:
    """Return, by rank, its output file `N_output.json` in a folder; {} if none.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    matches = {path: _OUTPUT.match(path.name) for path in sorted(folder.iterdir())}
    return {int(match[1]): path for path, match in matches.items() if match}


def read_dlio(folder: Path) -> Record:
    """Read the record of a run of DLIO.

    The rows are waits and steps alone, each rank's one after the other. A missing
    summary or configuration leaves facts out.

    Raises:
        InputError: the run has no batches, or a file is not complete.
    """
    files = list_outputs(folder)
    summary = _read_optional(folder / "summary.json")
    config = to_mapping(_read_config(folder / ".hydra" / "config.yaml").get("workload"))
    reader = to_mapping(config.get("reader"))
    dataset = to_mapping(config.get("dataset"))
    batch_size = to_count(reader.get("batch_size"))
    notes = [
        "DLIO writes how long batches take, not when: waits of ranks for each other are"
        " not known."
    ]
    epoch_starts = _read_epoch_starts(folder)
    parts = list[pd.DataFrame]()
    for rank, path in sorted(files.items()):
        parts += _rows_of_rank(rank, path, epoch_starts, count=max(batch_size, 0))
    if not sum(map(len, parts)):
        rule = "must have batches of training"
        remedy = "Give a run with workflow.train=True."
        refuse(
            "RECORD", rule, f"{len(files)} outputs without batches", remedy, str(folder)
        )
    utilisation = to_number(
        to_mapping(summary.get("metric")).get("train_au_mean_percentage")
    )
    if not np.isnan(utilisation):
        notes.append(
            f"By DLIO, accelerators compute {utilisation:.1f} % of the time (AU)."
        )
    num_files = to_count(summary.get("num_files_train"))
    samples_per_file = to_count(summary.get("num_samples_per_file"))
    has_samples = (
        min(num_files, samples_per_file) > 0
    )  # -1 where the summary lacks them
    loader = {
        "batch_size": batch_size,
        "num_workers": to_count(reader.get("read_threads")),
        "samples": num_files * samples_per_file if has_samples else -1,
    }
    nbytes = to_count(dataset.get("record_length"))
    if nbytes > 0:
        notes.append(f"A sample has {nbytes} bytes.")
    about = {
        "made_by": "dlio",
        "ranks": max(to_count(summary.get("num_accelerators")), len(files)),
        "loaders": [{key: value for key, value in loader.items() if value >= 0}],
        "host": _read_host(summary),
        "notes": notes,
    }
    return Record(join_rows(parts), about, str(folder))


def _rows_of_rank(
    rank: int, path: Path, epoch_starts: dict[str, float], count: int
) -> list[pd.DataFrame]:
    """Return the rows of each epoch of a rank, numbered from 0 in the order of their
    names; an epoch begins when it did, but not before the end of the previous one.

    Keys of the file that are no number of an epoch are left out.

    Args:
        rank: of the rows.
        path: its output file.
        epoch_starts: by the name of an epoch, s at which it began, as far as known.
        count: samples of a batch; 0 if not known.
    """
    epochs = {
        name: lists
        for name, lists in to_mapping(read_json(path)).items()
        if name.isdecimal()
    }
    previous_end = 0.0
    parts = []
    for epoch, name in enumerate(sorted(epochs, key=int)):
        times = _times_of_epoch(to_mapping(epochs[name]))
        rows = rows_in_turn(rank, epoch, times, count=count)
        rows["start_s"] += max(epoch_starts.get(name, 0.0), previous_end)
        if len(rows):
            previous_end = float((rows["start_s"] + rows["seconds"]).max())
        parts.append(rows)
    return parts


def _times_of_epoch(epoch: dict[str, Any]) -> dict[str, Floats]:
    """Return the waits and steps of an epoch, (B,) s each as ``wait`` and ``step``,
    over its blocks in the order of the file.

    Left out are evaluations, and batches whose times are missing or contradict each
    other (more to wait than in all).
    """
    loads_of_blocks = to_mapping(epoch.get("load"))
    totals_of_blocks = to_mapping(epoch.get("proc"))
    waits = list[float]()
    steps = list[float]()
    for block, loads in loads_of_blocks.items():
        totals = totals_of_blocks.get(block)
        if not block.startswith("block"):
            continue
        if not isinstance(loads, list) or not isinstance(totals, list):
            continue
        for load, total in zip(loads, totals, strict=False):
            if to_number(total) >= to_number(load):
                waits.append(to_number(load))
                steps.append(to_number(total) - to_number(load))
    return {"wait": np.array(waits, float), "step": np.array(steps, float)}


def _read_optional(path: Path) -> dict[str, Any]:
    """Read the object of a file of JSON; {} if the file is missing, or holds another
    value.

    Raises:
        InputError: the file is no complete JSON.
    """
    return to_mapping(read_json(path)) if path.is_file() else {}


def _read_config(path: Path) -> dict[str, Any]:
    """Read the configuration; {} where there is no readable one."""
    try:
        return to_mapping((read_yaml(path) or [None])[0])
    except InputError:
        return {}


def _read_epoch_starts(folder: Path) -> dict[str, float]:
    """Return, by the name of an epoch, the s at which it began after the earliest one;
    {} if the start of any epoch is not known.
    """
    files = sorted(folder.glob("*per_epoch_stats.json"))
    starts = dict[str, datetime]()
    for name, statistics in (_read_optional(files[0]) if files else {}).items():
        try:
            start = datetime.fromisoformat(str(to_mapping(statistics).get("start")))
        except ValueError:
            return {}
        starts[name] = start.replace(tzinfo=None)
    first = min(starts.values(), default=datetime.min)
    return {name: (start - first).total_seconds() for name, start in starts.items()}


def _read_host(summary: dict[str, Any]) -> dict[str, Any]:
    """Return ``name``, ``cores`` and ``memory_nbytes`` of the first host, as far as the
    summary has them.
    """
    host: dict[str, Any] = {}
    if isinstance(name := summary.get("hostname"), str):
        host["name"] = printable(name)
    # lists, a number for each host; what DLIO calls GB is 1024**3 bytes
    for key, field, unit in (
        ("cores", "host_cpu_count", 1),
        ("memory_nbytes", "host_memory_GB", 2**30),
    ):
        values = summary.get(field)
        value = to_number(values[0] if isinstance(values, list) and values else values)
        if value > 0:
            host[key] = round(value * unit)
    return host
