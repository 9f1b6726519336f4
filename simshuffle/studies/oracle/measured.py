"""Measured epochs that an oracle is compared with, from a file."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from simshuffle.errors import InputError, refuse
from simshuffle.spec.validation import validate_record
from simshuffle.study.options import COMMAND_LINE

Measured = tuple[str, int, float]
"""Strategy, world size, and s of an epoch."""
MEASURED = ("strategy", "world_size", "epoch_s")
"""Columns of a file of measured epochs."""


class _Epoch(BaseModel):
    """A row of a file of measured epochs."""

    model_config = ConfigDict(
        extra="forbid", str_strip_whitespace=True, allow_inf_nan=False
    )
    strategy: str
    world_size: Annotated[int, Field(ge=1)]
    epoch_s: Annotated[float, Field(gt=0)]


def measured_epochs(path: Path | None) -> list[Measured]:
    """Return strategy, world size and s of each row of a CSV file, in its order.

    Its columns are `MEASURED`, in any order. [] without a file.

    Raises:
        InputError: the file cannot be read, has other columns or no rows, or a row is
            not valid.
    """
    if path is None:
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            table = csv.DictReader(file, restkey="more", strict=True)
            columns = table.fieldnames or []
            rows = list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        remedy = f"Name a CSV file with the columns {', '.join(MEASURED)}."
        refuse(
            "--measured", f"cannot be read: {reason}", str(path), remedy, COMMAND_LINE
        )
    if sorted(columns) != sorted(MEASURED):
        rule = f"must have the columns {', '.join(MEASURED)}"
        columns_text = ", ".join(columns) or "none"
        refuse("", rule, columns_text, "Correct the first line.", str(path))
    if not rows:
        refuse(
            "",
            "must have a row for each measured epoch",
            "none",
            "Add a row.",
            str(path),
        )
    epochs = []
    problems = []
    for line, row in enumerate(rows, 2):
        epoch, row_problems = validate_record(row, _Epoch)
        problems += [
            replace(problem, path=f"line {line}: {problem.path}")
            for problem in row_problems
        ]
        if epoch is not None:
            epochs.append((epoch.strategy, epoch.world_size, epoch.epoch_s))
    if problems:
        raise InputError(problems, str(path))
    return epochs
