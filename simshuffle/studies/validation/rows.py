"""What was measured elsewhere: the rows of the CSV files in ``validation/``, one measured number
each, with its source."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.spec.units import Dimension, UnitError, parse_quantity

COLUMNS = {
    "set": "the group of rows that are judged together",
    "case": "what was measured, for a reader",
    "quantity": "which quantity",
    "unit": "its SI unit; 1 for a ratio",
    "measured": "the measured value; empty where none was published",
    "low": "the smallest value measured; empty if one was published only",
    "high": "the largest value measured; empty if one was published only",
    "use": (
        "fit: a parameter was fitted on it; predict: none was; none: it cannot be predicted, see"
        " reason"
    ),
    "kind": (
        "how it is predicted: run, ratio, concurrent, allreduce, read, emulated, oracle, policies"
        " or testbed"
    ),
    "scenario": "the scenario that is simulated, by its name below scenarios/",
    "values": "what is set in it: KEY=VALUE, separated by ;",
    "spread": "inputs that nobody knows: KEY=FROM..TO, separated by ;",
    "reason": "of fit: what it fixed; of none: why; else a remark",
    "source": "where the measured value is published",
}
USES = ("fit", "predict", "none")
KINDS = (
    "run",
    "ratio",
    "concurrent",
    "allreduce",
    "read",
    "emulated",
    "oracle",
    "policies",
    "testbed",
)
OPTIONAL = ("spread",)


@dataclass(frozen=True)
class Row:
    """One measured number; the attributes are the columns of the file (see `COLUMNS`), with None
    for an empty number."""

    set: str
    case: str
    quantity: str
    unit: str
    measured: float | None
    low: float | None
    high: float | None
    use: str
    kind: str
    scenario: str
    values: str
    spread: str
    reason: str
    source: str


def read_rows(folder: Path) -> list[Row]:
    """The rows of every CSV file in ``folder`` and its folder ``testbed``, files in the order of
    their names.

    Raises:
        InputError: with every problem of every file.
    """
    files = sorted([*folder.glob("*.csv"), *folder.glob("testbed/*.csv")])
    if not files:
        raise InputError(
            Problem("", "must hold CSV files of measured values", "none", "Name another folder."),
            str(folder),
        )
    rows: list[Row] = []
    problems: list[Problem] = []
    for path in files:
        _read_file(path, rows, problems)
    if problems:
        raise InputError(problems, str(folder))
    return rows


def _read_file(path: Path, rows: list[Row], problems: list[Problem]) -> None:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            table = csv.DictReader(file, strict=True)
            missing = [
                name
                for name in COLUMNS
                if name not in (table.fieldnames or []) and name not in OPTIONAL
            ]
            if missing:
                problems.append(
                    Problem(
                        path.name,
                        f"must have the columns {', '.join(COLUMNS)}",
                        f"no {', '.join(missing)}",
                        "Add them.",
                    )
                )
                return
            for record in table:
                row = _row(record, f"{path.name}:{table.line_num}", problems)
                if row is not None:
                    rows.append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problems.append(
            Problem(path.name, "must be a readable CSV file", str(error), "Correct the file.")
        )


def _row(record: dict[str, str], where: str, problems: list[Problem]) -> Row | None:
    """The row of a record, or None if it has a problem, which is noted."""
    before = len(problems)
    if None in record or None in record.values():
        problems.append(
            Problem(
                where,
                "must have as many fields as the header",
                "more or fewer",
                "Put texts with commas in quotes.",
            )
        )
        return None
    numbers = {
        name: _number(record[name], f"{where} {name}", problems)
        for name in ("measured", "low", "high")
    }
    use, kind = record["use"], record["kind"]
    if use not in USES:
        problems.append(
            Problem(f"{where} use", f"must be one of {', '.join(USES)}", repr(use), "Choose one.")
        )
    if kind not in KINDS and not (use == "none" and not kind):
        problems.append(
            Problem(
                f"{where} kind", f"must be one of {', '.join(KINDS)}", repr(kind), "Choose one."
            )
        )
    if use in {"fit", "predict"} and numbers["measured"] is None:
        problems.append(
            Problem(
                f"{where} measured",
                "is needed to compare with",
                "nothing",
                "Add it, or write use none and a reason.",
            )
        )
    for name in ["set", "case", "quantity", "source"] + (
        ["reason"] if use in {"fit", "none"} else []
    ):
        if not record[name].strip():
            problems.append(
                Problem(
                    f"{where} {name}",
                    "must not be empty",
                    "nothing",
                    COLUMNS[name].capitalize() + ".",
                )
            )
    if len(problems) > before:
        return None
    values: dict[str, Any] = {name: (record.get(name) or "").strip() for name in COLUMNS}
    return Row(**values | numbers)


def _number(text: str, where: str, problems: list[Problem]) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        problems.append(
            Problem(
                where,
                "must be a number greater than 0, or empty",
                repr(text),
                "Write it in SI units, without the unit.",
            )
        )
        return None
    return value


def assignments(text: str) -> dict[str, str]:
    """``KEY=VALUE;KEY=VALUE`` as a mapping of texts.

    Raises:
        InputError: a part has no key or no value.
    """
    out = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise InputError(
                Problem(
                    "values",
                    "are written KEY=VALUE, separated by ;",
                    repr(part),
                    "For example world_size=64;epochs=2.",
                )
            )
        out[key.strip()] = value.strip()
    return out


def ends(spread: str) -> list[str]:
    """The two lists of assignments at the ends of a spread, ``KEY=FROM..TO;...``; nothing if it is
    empty.

    Raises:
        InputError: a part is not written so.
    """
    if not spread:
        return []
    low, high = [], []
    for key, value in assignments(spread).items():
        first, dots, last = value.partition("..")
        if not dots or not first.strip() or not last.strip():
            raise InputError(
                Problem(
                    "spread",
                    "is written KEY=FROM..TO, separated by ;",
                    f"{key}={value}",
                    "For example seed=1..2.",
                )
            )
        low.append(f"{key}={first.strip()}")
        high.append(f"{key}={last.strip()}")
    return [";".join(low), ";".join(high)]


def size(text: str, rule: str, example: str) -> float:
    """The bytes (greater than 0) that a value of a row names.

    Args:
        text: a quantity such as '16 MiB'; '' where the row has none.
        rule: what must be said, for the message.
        example: an assignment that would do.

    Raises:
        InputError: it names none.
    """
    try:
        nbytes = parse_quantity(text, Dimension.NBYTES)
    except UnitError:
        nbytes = 0.0
    if nbytes <= 0:
        raise InputError(Problem("values", rule, repr(text), f"Add for example {example}."))
    return nbytes
