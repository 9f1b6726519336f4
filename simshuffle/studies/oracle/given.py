"""What a person gives beside a scenario, read and checked: budgets, points to simulate, measured
epochs."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from simshuffle.errors import InputError, Problem
from simshuffle.spec.units import Dimension, UnitError, parse_quantity

GIB = 2**30
COMMAND_LINE = "command line"
MEASURED = ("strategy", "world_size", "epoch_s")
"""Columns of a file of measured epochs."""
_PARAMETER = re.compile(r"\s*[A-Za-z_][\w.]*=")
_MEMORY = re.compile(r"-(\d+)gb\b")


def listed(text: str) -> list[str]:
    """Strategies that are separated by commas; parameters of one may be too, as in
    ``data,pipeline:stages=4,microbatches=8``.

    Raises:
        InputError: there is none.
    """
    out: list[str] = []
    for piece in text.split(","):
        if out and _PARAMETER.match(piece):
            out[-1] += f",{piece.strip()}"
        elif piece.strip():
            out.append(piece.strip())
    if not out:
        rule, remedy = "must name one strategy or more", "For example data,spatial."
        raise InputError(Problem("--strategies", rule, repr(text), remedy), COMMAND_LINE)
    return out


def sizes(text: str) -> list[int]:
    """World sizes that are separated by commas.

    Raises:
        InputError: one is no whole number from 1 on.
    """
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    wrong = [piece for piece in pieces if not (piece.isdecimal() and int(piece) > 0)]
    if wrong or not pieces:
        rule, given = "must be whole numbers from 1 on, separated by commas", ", ".join(wrong)
        raise InputError(
            Problem("--world-sizes", rule, repr(given or text), "For example 1,2,4,8."),
            COMMAND_LINE,
        )
    return sorted({int(piece) for piece in pieces})


def budget_of(text: str | None, accelerator: str) -> tuple[float | None, str]:
    """The memory of a GPU that may be used (bytes), and where that is from: ``text``, or else the
    name of the accelerator; None if neither says it.

    Raises:
        InputError: ``text`` is no quantity of bytes above 0.
    """
    if text is None:
        found = _MEMORY.search(accelerator)
        return (float(int(found[1]) * GIB), f"of {accelerator}") if found else (None, "")
    rule, remedy = "must be bytes above 0", "For example --budget-memory '16 GiB'."
    try:
        nbytes = parse_quantity(text, Dimension.NBYTES)
    except UnitError as error:
        problem = Problem("--budget-memory", str(error), repr(text), remedy)
        raise InputError(problem, COMMAND_LINE) from None
    if not nbytes > 0 or math.isinf(nbytes):
        raise InputError(Problem("--budget-memory", rule, repr(text), remedy), COMMAND_LINE)
    return nbytes, "--budget-memory"


def at(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Strategies and world sizes that are written STRATEGY@GPUS.

    Raises:
        InputError: one is not written so.
    """
    out, problems = [], []
    for text in texts:
        name, _, size = text.rpartition("@")
        if name and size.isdecimal() and int(size) > 0:
            out.append((name, int(size)))
        else:
            remedy = "For example --simulate data@64."
            problems.append(Problem("--simulate", "is written STRATEGY@GPUS", repr(text), remedy))
    if problems:
        raise InputError(problems, COMMAND_LINE)
    return out


def measured_epochs(path: Path | None) -> list[tuple[str, int, float]]:
    """Strategy, world size and s of each row of a CSV file with the columns `MEASURED`; none
    without a file.

    Raises:
        InputError: it cannot be read, or a row is not as it should be.
    """
    if path is None:
        return []
    try:
        text = path.read_text(encoding="utf-8")
        table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        columns = table.fieldnames or []
        rows = list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        remedy = f"Name a CSV file with the columns {', '.join(MEASURED)}."
        problem = Problem("--measured", f"cannot be read: {why}", str(path), remedy)
        raise InputError(problem, COMMAND_LINE) from None
    if sorted(columns) != sorted(MEASURED):
        rule, given = f"must have the columns {', '.join(MEASURED)}", ", ".join(columns) or "none"
        raise InputError(Problem("", rule, given, "Correct the first line."), str(path))
    problems = [problem for number, row in enumerate(rows, 2) for problem in _wrong(row, number)]
    if not rows:
        problems = [Problem("", "must have a row for each measured epoch", "none", "Add one.")]
    if problems:
        raise InputError(problems, str(path))
    return [
        (row["strategy"].strip(), int(row["world_size"]), float(row["epoch_s"])) for row in rows
    ]


def _wrong(row: dict[str | None, str | None], number: int) -> Iterator[Problem]:
    size, seconds = (row.get(name) or "" for name in MEASURED[1:])
    if None in row or None in row.values():
        yield Problem(f"line {number}", "must have a value for each column", "", "Correct it.")
        return
    if not (size.strip().isdecimal() and int(size) > 0):
        rule = "must be a whole number from 1 on"
        yield Problem(f"line {number}: world_size", rule, repr(size), "Correct it.")
    try:
        positive = 0 < float(seconds) < math.inf
    except ValueError:
        positive = False
    if not positive:
        rule = "must be s above 0"
        yield Problem(f"line {number}: epoch_s", rule, repr(seconds), "Correct it.")
