"""What was measured elsewhere: the rows of the CSV files in ``validation/``, one measured number
each, with its source."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError, Problem, refuse

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
NUMBERS = ("measured", "low", "high")
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
        rule = "must hold CSV files of measured values"
        refuse("", rule, "none", "Name another folder.", str(folder))
    rows: list[Row] = []
    problems: list[Problem] = []
    for path in files:
        try:
            _read_file(path, rows, problems)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            rule = "must be a readable CSV file"
            problems.append(Problem(path.name, rule, str(error), "Correct the file."))
    if problems:
        raise InputError(problems, str(folder))
    return rows


def _read_file(path: Path, rows: list[Row], problems: list[Problem]) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file, strict=True)
        missing = set(COLUMNS) - set(OPTIONAL) - set(table.fieldnames or [])
        if missing:
            names = ", ".join(name for name in COLUMNS if name in missing)
            rule = f"must have the columns {', '.join(COLUMNS)}"
            problems.append(Problem(path.name, rule, f"no {names}", "Add them."))
            return
        for record in table:
            found = list(_faults(record, f"{path.name}:{table.line_num}"))
            problems += found
            if not found:
                rows.append(_row(record))


def _faults(record: dict[str, str], where: str) -> Iterator[Problem]:
    """What is wrong with a record, which stands at ``where``."""
    if None in record or None in record.values():
        rule, remedy = "must have as many fields as the header", "Put texts with commas in quotes."
        yield Problem(where, rule, "more or fewer", remedy)
        return
    for name in NUMBERS:
        text = record[name]
        if text.strip() and not _positive(text):
            rule = "must be a number greater than 0, or empty"
            remedy = "Write it in SI units, without the unit."
            yield Problem(f"{where} {name}", rule, repr(text), remedy)
    use, kind = record["use"], record["kind"]
    if use not in USES:
        rule = f"must be one of {', '.join(USES)}"
        yield Problem(f"{where} use", rule, repr(use), "Choose one.")
    if kind not in KINDS and not (use == "none" and not kind):
        rule = f"must be one of {', '.join(KINDS)}"
        yield Problem(f"{where} kind", rule, repr(kind), "Choose one.")
    if use in {"fit", "predict"} and not _positive(record["measured"]):
        remedy = "Add it, or write use none and a reason."
        yield Problem(f"{where} measured", "is needed to compare with", "nothing", remedy)
    for name in ("set", "case", "quantity", "source", *["reason"] * (use in {"fit", "none"})):
        if not record[name].strip():
            remedy = f"{COLUMNS[name].capitalize()}."
            yield Problem(f"{where} {name}", "must not be empty", "nothing", remedy)


def _row(record: dict[str, str]) -> Row:
    """The row of a record without faults."""
    values: dict[str, Any] = {name: (record.get(name) or "").strip() for name in COLUMNS}
    return Row(**values | {name: _positive(values[name]) for name in NUMBERS})


def _positive(text: str) -> float | None:
    """The number above 0 that a text is; None if it is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


def assignments(text: str) -> dict[str, str]:
    """``KEY=VALUE;KEY=VALUE`` as a mapping of texts.

    Raises:
        InputError: a part has no key or no value.
    """
    out = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            rule, example = "are written KEY=VALUE, separated by ;", "world_size=64;epochs=2"
            raise InputError(Problem("values", rule, repr(part), f"For example {example}."))
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
            rule, remedy = "is written KEY=FROM..TO, separated by ;", "For example seed=1..2."
            raise InputError(Problem("spread", rule, f"{key}={value}", remedy))
        low.append(f"{key}={first.strip()}")
        high.append(f"{key}={last.strip()}")
    return [";".join(low), ";".join(high)]
