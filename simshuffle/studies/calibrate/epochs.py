"""Epoch logs: a CSV table with a line for each epoch of a training run, or for each iteration."""

from __future__ import annotations

import csv
import io
import math

from simshuffle.studies.calibrate.files import Source
from simshuffle.studies.calibrate.rows import Row

TOOL = "epochs"
CORRECT = "Correct that line."
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
            remedy = f"Add {', '.join(missing)}." if missing else "Rename one of them."
            raise source.bad(1, rule, ",".join(head) or "nothing", remedy)
        rows = [_row(source, reader.line_num, head, cells) for cells in reader if cells]
    except csv.Error as error:
        line, remedy = max(reader.line_num, 1), "Save the table as CSV with commas."
        raise source.bad(line, f"must be CSV: {error}", remedy=remedy) from None
    if not rows:
        rule = "must have a line for each epoch below the names of the columns"
        raise source.bad(1, rule, remedy="Add them.")
    return rows


def _row(source: Source, number: int, head: list[str], texts: list[str]) -> Row:
    if len(texts) != len(head):
        rule = f"must have {len(head)} cells: {','.join(head)}"
        raise source.bad(number, rule, ",".join(texts), CORRECT)
    cells = {name: text.strip() for name, text in zip(head, texts, strict=True)}
    gpus, batch, epoch, iterations = (
        source.whole(number, cells[name], name, least=1)
        for name in ("gpus", "local_batch_size", "epoch", "iterations")
    )
    seconds = source.positive(number, cells["epoch_s"], "epoch_s (s)") / iterations
    model, told = cells["model"], cells.get("hosts")
    if not model:
        raise source.bad(number, "model must be a name", "nothing", CORRECT)
    hosts = float(source.whole(number, told, "hosts", least=1)) if told else math.nan
    if told and hosts > gpus:
        raise source.bad(number, f"hosts must not exceed the {gpus} gpus", told, CORRECT)
    where = (source.name, number, TOOL, "iteration", gpus, hosts)
    return Row(*where, seconds=seconds, count=iterations, model=model, epoch=epoch, batch=batch)
