"""Epoch logs: a CSV table with a line for each epoch of a training run, or for each iteration."""

from __future__ import annotations

import csv
import io

from simshuffle.studies.calibrate.files import Source
from simshuffle.studies.calibrate.table import Row

TOOL = "epochs"
REQUIRED = ("model", "gpus", "local_batch_size", "epoch", "iterations", "epoch_s")
"""Columns that a log must have. ``hosts`` may be there, and others are ignored."""


def read(source: Source) -> list[Row]:
    """Seconds of an iteration, a row for each line of the log.

    Raises:
        InputError: with the line.
    """
    reader = csv.reader(io.StringIO(source.text, newline=""), strict=True)
    try:
        head = [name.strip() for name in next(reader, [])]
        missing = [name for name in REQUIRED if name not in head]
        if missing or len(set(head)) < len(head):
            rule = f"the first line must name the columns {', '.join(REQUIRED)}, each once"
            raise source.bad(
                1,
                rule,
                ",".join(head) or "nothing",
                f"Add {', '.join(missing)}." if missing else "Rename one of them.",
            )
        rows = [
            _row(
                source,
                reader.line_num,
                dict(zip(head, _as_long(source, reader.line_num, cells, head), strict=True)),
            )
            for cells in reader
            if cells
        ]
    except csv.Error as error:
        raise source.bad(
            max(reader.line_num, 1),
            f"must be CSV: {error}",
            remedy="Save the table as CSV with commas.",
        ) from None
    if not rows:
        raise source.bad(
            1, "must have a line for each epoch below the names of the columns", remedy="Add them."
        )
    return rows


def _as_long(source: Source, number: int, cells: list[str], head: list[str]) -> list[str]:
    if len(cells) != len(head):
        raise source.bad(
            number,
            f"must have {len(head)} cells: {','.join(head)}",
            ",".join(cells),
            "Correct that line.",
        )
    return [cell.strip() for cell in cells]


def _row(source: Source, number: int, cells: dict[str, str]) -> Row:
    gpus, batch, epoch, iterations = (
        source.whole(number, cells[name], name, least=1)
        for name in ("gpus", "local_batch_size", "epoch", "iterations")
    )
    seconds = source.number(number, cells["epoch_s"], "epoch_s (s)")
    if seconds <= 0:
        raise source.bad(
            number, "epoch_s (s) must be greater than 0", cells["epoch_s"], "Correct that line."
        )
    if not cells["model"]:
        raise source.bad(number, "model must be a name", "nothing", "Correct that line.")
    hosts = (
        float(source.whole(number, cells["hosts"], "hosts", least=1))
        if cells.get("hosts")
        else float("nan")
    )
    if hosts > gpus:
        raise source.bad(
            number, f"hosts must not exceed the {gpus} gpus", cells["hosts"], "Correct that line."
        )
    each = seconds / iterations
    return Row(
        source.name,
        number,
        TOOL,
        "iteration",
        gpus,
        hosts,
        seconds=each,
        count=iterations,
        model=cells["model"],
        epoch=epoch,
        batch=batch,
    )
