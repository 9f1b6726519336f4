"""The output folder of the DLIO benchmark (dlio-benchmark 2.0.0, which MLPerf Storage runs).

Keys are those of its dlio_benchmark/utils/statscounter.py. `N_output.json` holds for rank N and
each epoch, by blocks between checkpoints, lists of seconds: `load`, from when a batch is asked for
until it is there, and `proc`, from when it is asked for until it is computed on (main.py starts
both at the same moment), so that a step is their difference. Beside it lie `summary.json`,
`per_epoch_stats.json` (when each epoch began) and `.hydra/config.yaml`.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import InputError, refuse
from simshuffle.extensions.doctor.records.files import json_of, mapping, number, text, whole
from simshuffle.extensions.doctor.records.in_turn import rows_in_turn
from simshuffle.extensions.doctor.records.record import Record, joined
from simshuffle.spec.arrays import Floats
from simshuffle.spec.library import read_yaml

_OUTPUT = re.compile(r"(\d{1,7})_output\.json$")


def outputs_in(folder: Path) -> dict[int, Path]:
    """Of a folder the file of each rank."""
    found = {path: _OUTPUT.match(path.name) for path in sorted(folder.iterdir())}
    return {int(match[1]): path for path, match in found.items() if match}


def read_dlio(folder: Path) -> Record:
    """The record of a run of DLIO. Raises an InputError if it has no batches, or a file is not
    whole."""
    files = outputs_in(folder)
    summary = _optional(folder / "summary.json")
    config = mapping(_config(folder / ".hydra" / "config.yaml").get("workload"))
    begun = _begun(folder)
    reader, dataset = mapping(config.get("reader")), mapping(config.get("dataset"))
    batch_size = whole(reader.get("batch_size"))
    notes = ["Times of batches are told, and not when: waits of ranks for each other are not."]
    parts = list[pd.DataFrame]()
    for rank, path in sorted(files.items()):
        until = 0.0
        epochs = {name: of for name, of in mapping(json_of(path)).items() if name.isdecimal()}
        for epoch, name in enumerate(sorted(epochs, key=int)):
            times = _times(mapping(epochs[name]))
            rows = rows_in_turn(rank, epoch, times, count=max(batch_size, 0))
            rows["start_s"] += max(begun.get(name, 0.0), until)
            until = float((rows["start_s"] + rows["seconds"]).max()) if len(rows) else until
            parts.append(rows)
    if not sum(map(len, parts)):
        rule, remedy = "must have batches of training", "Give a run with workflow.train=True."
        refuse("RECORD", rule, f"{len(files)} outputs without", remedy, str(folder))
    use = number(mapping(summary.get("metric")).get("train_au_mean_percentage"))
    if not np.isnan(use):
        notes.append(f"By DLIO, accelerators compute {use:.1f} % of the time (AU).")
    samples = whole(summary.get("num_files_train")) * whole(summary.get("num_samples_per_file"))
    loader = {
        "batch_size": batch_size,
        "num_workers": whole(reader.get("read_threads")),
        "samples": samples if samples > 0 else -1,
    }
    nbytes = whole(dataset.get("record_length"))
    if nbytes > 0:
        notes.append(f"Samples are of {nbytes} bytes.")
    about = {
        "made_by": "dlio",
        "ranks": max(whole(summary.get("num_accelerators")), len(files)),
        "loaders": [{key: value for key, value in loader.items() if value >= 0}],
        "host": _host(summary),
        "notes": notes,
    }
    return Record(joined(parts), about, str(folder))


def _times(epoch: dict[str, Any]) -> dict[str, Floats]:
    """Of an epoch the waits and steps (s), over its blocks; evaluations are left out."""
    load, proc = mapping(epoch.get("load")), mapping(epoch.get("proc"))
    waits, steps = list[float](), list[float]()
    for block in load:
        if block.startswith("block"):
            asked, done = load[block], proc.get(block)
            pairs = zip(*(of if isinstance(of, list) else [] for of in (asked, done)), strict=False)
            for wait, both in pairs:
                if number(both) >= number(wait):
                    waits.append(number(wait))
                    steps.append(number(both) - number(wait))
    return {"wait": np.array(waits, float), "step": np.array(steps, float)}


def _optional(path: Path) -> dict[str, Any]:
    """The object of a file of JSON that may be missing."""
    return mapping(json_of(path)) if path.is_file() else {}


def _config(path: Path) -> dict[str, Any]:
    """The configuration; nothing where there is none, or it is none."""
    try:
        return mapping((read_yaml(path) or [None])[0])
    except InputError:
        return {}


def _begun(folder: Path) -> dict[str, float]:
    """When each epoch began: s from the first one on; nothing if it is not told."""
    files = sorted(folder.glob("*per_epoch_stats.json"))
    times = dict[str, datetime]()
    for name, of in (_optional(files[0]) if files else {}).items():
        try:
            times[name] = datetime.fromisoformat(str(mapping(of).get("start"))).replace(tzinfo=None)
        except ValueError:
            return {}
    first = min(times.values(), default=datetime.min)
    return {name: (at - first).total_seconds() for name, at in times.items()}


def _host(summary: dict[str, Any]) -> dict[str, Any]:
    """Name, cores and memory of the first host, as far as they are told."""
    host: dict[str, Any] = {}
    if isinstance(name := summary.get("hostname"), str):
        host["name"] = text(name)
    # lists, a number for each host; what DLIO calls GB is 1024**3 bytes
    for key, of, unit in (
        ("cores", "host_cpu_count", 1),
        ("memory_nbytes", "host_memory_GB", 2**30),
    ):
        values = summary.get(of)
        value = number(values[0] if isinstance(values, list) and values else values)
        if value > 0:
            host[key] = round(value * unit)
    return host
