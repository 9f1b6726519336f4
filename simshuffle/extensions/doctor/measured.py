"""Read a recorded training as a measured run of a scenario's training."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_training(path: Path) -> list[dict[str, Any]] | None:
    """Return the row of measured runs of a record or of a folder that `simshuffle doctor`
    wrote or reads; None of another file.

    The first epoch is left out where others were recorded, else the first batch is.

    Raises:
        InputError: a folder holds no record, or the record has no loop.
    """
    if not path.is_dir() and path.read_bytes()[:4] != b"PAR1":
        return None
    from simshuffle.extensions.doctor.fit import drop_cold_epoch, num_ranks  # noqa: PLC0415 - for a record alone
    from simshuffle.extensions.doctor.loop import extract_loop  # noqa: PLC0415
    from simshuffle.extensions.doctor.records.reading import read  # noqa: PLC0415

    record = read(path)
    warm = drop_cold_epoch(record)
    loop = extract_loop(warm)
    first_batch = loop.first_counted_batch if warm is record else 0
    # s of all batches that count, in the mean over the ranks
    seconds_of = {
        operation: float(loop.sum_of(operation)[first_batch:].mean(axis=1).sum())
        for operation in ("wait", "step", "optimizer", "allreduce")
    }
    parts = {"I/O": seconds_of["wait"]}
    ranks = num_ranks(record)
    # a process does not wait for what it sums on a GPU
    sums_are_timed = loop.device == "cpu" and "allreduce" in loop.recorded_operations
    if ranks == 1 or sums_are_timed:
        updates_s = seconds_of["optimizer"] + seconds_of["allreduce"]
        parts |= {"FW+BW": seconds_of["step"] - updates_s, "GE+WU": updates_s}
    keys = {
        "batch_size": "workload.local_batch_size",
        "samples": "workload.dataset.num_samples",
        "num_workers": "workload.loader.workers",
    }
    return [
        {
            "world_size": ranks,
            "epoch_s": seconds_of["wait"] + seconds_of["step"],
            "iterations": len(loop.measured_batch_s) - first_batch,
            "parts": {
                label: seconds for label, seconds in parts.items() if seconds > 0
            },
            "values": {
                key: loop.settings[name]
                for name, key in keys.items()
                if loop.settings.get(name)
            },
        }
    ]
