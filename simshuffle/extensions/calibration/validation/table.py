"""What was measured elsewhere: the rows of the CSV files in ``validation/``, one measured number
each, with its source; and the table of predicted against measured, and what it comes to."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.extensions.calibration.validation.intervals import COLUMNS as INTERVAL
from simshuffle.extensions.calibration.validation.intervals import intervals
from simshuffle.extensions.calibration.validation.scores import scored, scores, within
from simshuffle.study.schema import Schema, amount, flag, real, text

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
        "how it is predicted: run, ratio, concurrent, allreduce, alltoall, read, emulated, oracle"
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
    *("run", "ratio", "concurrent", "allreduce", "alltoall", "read", "emulated", "oracle"),
    "testbed",
)
NUMBERS = ("measured", "low", "high")
OPTIONAL = ("spread",)


@dataclasses.dataclass(frozen=True)
class ValidationRow:
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


def read_rows(folder: Path, *, unmeasured: bool = False) -> list[ValidationRow]:
    """The rows of every CSV file in ``folder`` and its folder ``testbed``, files in the order of
    their names. With ``unmeasured`` predicted rows may have no measured value yet.

    Raises:
        InputError: with every problem of every file.
    """
    files = sorted([*folder.glob("*.csv"), *folder.glob("testbed/*.csv")])
    if not files:
        rule = "must hold CSV files of measured values"
        refuse("", rule, "none", "Name another folder.", str(folder))
    rows: list[ValidationRow] = []
    problems: list[Problem] = []
    for path in files:
        try:
            _read_file(path, rows, problems, unmeasured)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            rule = "must be a readable CSV file"
            problems.append(Problem(path.name, rule, str(error), "Correct the file."))
    if problems:
        raise InputError(problems, str(folder))
    return rows


def _read_file(
    path: Path, rows: list[ValidationRow], problems: list[Problem], unmeasured: bool
) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file, strict=True)
        missing = set(COLUMNS) - set(OPTIONAL) - set(table.fieldnames or [])
        if missing:
            names = ", ".join(name for name in COLUMNS if name in missing)
            rule = f"must have the columns {', '.join(COLUMNS)}"
            problems.append(Problem(path.name, rule, f"no {names}", "Add them."))
            return
        for record in table:
            found = list(_faults(record, f"{path.name}:{table.line_num}", unmeasured))
            problems += found
            if not found:
                rows.append(_row(record))


def _faults(record: dict[str, str], where: str, unmeasured: bool) -> Iterator[Problem]:
    """What is wrong with a record, which stands at ``where``."""
    if None in record or None in record.values():
        rule, remedy = "must have as many fields as the header", "Put texts with commas in quotes."
        yield Problem(where, rule, "more or fewer", remedy)
        return
    for name in NUMBERS:
        if record[name].strip() and not positive(record[name]):
            rule = "must be a number greater than 0, or empty"
            remedy = "Write it in SI units, without the unit."
            yield Problem(f"{where} {name}", rule, repr(record[name]), remedy)
    use, kind = record["use"], record["kind"]
    needed = kind or use != "none"
    for name, known in (("use", USES), ("kind", KINDS if needed else (kind,))):
        if record[name] not in known:
            rule = f"must be one of {', '.join(known)}"
            yield Problem(f"{where} {name}", rule, repr(record[name]), "Choose one.")
    later = unmeasured and use == "predict" and not record["measured"].strip()
    if use in {"fit", "predict"} and not (later or positive(record["measured"])):
        remedy = "Add it, or write use none and a reason. Only --seal predicts without it."
        yield Problem(f"{where} measured", "is needed to compare with", "nothing", remedy)
    for name in ("set", "case", "quantity", "source", *["reason"] * (use in {"fit", "none"})):
        if not record[name].strip():
            remedy = f"{COLUMNS[name].capitalize()}."
            yield Problem(f"{where} {name}", "must not be empty", "nothing", remedy)


def _row(record: dict[str, str]) -> ValidationRow:
    """The row of a record without faults."""
    values: dict[str, Any] = {name: (record.get(name) or "").strip() for name in COLUMNS}
    return ValidationRow(**values | {name: positive(values[name]) for name in NUMBERS})


def positive(written: str) -> float | None:
    """The number above 0 that a text is; None if it is none."""
    try:
        value = float(written)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


def assignments(written: str) -> dict[str, str]:
    """``KEY=VALUE;KEY=VALUE`` as a mapping of texts.

    Raises:
        InputError: a part has no key or no value.
    """
    out = {}
    for part in filter(None, (piece.strip() for piece in written.split(";"))):
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


# ------------------------------------------------------------------------------------------- table

SCHEMA = Schema(
    {
        **{name: text(COLUMNS[name]) for name in ("set", "case", "quantity", "unit", "use")},
        **{name: real(COLUMNS[name], empty=True) for name in NUMBERS},
        "predicted": real("what the simulator says; empty where it cannot", empty=True),
        "predicted_low": real(
            "the least it says over what nobody knows: spread and traffic", empty=True
        ),
        "predicted_high": real("the most it says over them", empty=True),
        "traffic": amount("by which share the traffic of others may lengthen the time"),
        "error": real("predicted / measured - 1", empty=True),
        "inside": flag("whether the measured range and the predicted one overlap"),
        "interval_low": real(
            "where the 90 % interval of the prediction begins, from the errors of other sets",
            empty=True,
        ),
        "interval_high": real("where it ends", empty=True),
        **{
            name: text(COLUMNS[name])
            for name in ("kind", "scenario", "values", "spread", "reason", "source")
        },
    }
)
"""A row for each measured number."""
PREDICTED = ("predicted", "predicted_low", "predicted_high", "traffic")
SUMMARY = Schema(
    {
        "set": text("group of rows"),
        "use": text(
            "fit: a parameter was fitted on these rows; predict: none was; none: they cannot be"
            " predicted"
        ),
        "rows": amount("their number"),
        "mean_error": amount("mean of |predicted / measured - 1|", empty=True),
        "median_error": amount("median of the same", empty=True),
        "worst_error": amount("largest of the same", empty=True),
        "worst_case": text("where that is"),
        "inside": amount(
            "share of the rows whose measured and predicted ranges overlap", empty=True
        ),
        "coverage": amount(
            "share of the predicted rows whose measured value lies in the 90 % interval", empty=True
        ),
        "interval_score": amount(
            "mean interval score of the 90 % intervals, of natural logarithms (Gneiting and"
            " Raftery 2007, Eq. 43): width, and 20 times the distance outside; small is good",
            empty=True,
        ),
        "naive_score": amount(
            "the same of the predictions times and over 1 + their mean error", empty=True
        ),
    }
)
"""A row for each set, fitted and predicted rows apart."""


def table(
    rows: Sequence[ValidationRow],
    predicted: Sequence[tuple[float, float, float, float] | None],
    known: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """One row for each measured number: columns of `SCHEMA`. ``predicted``: for each row value, low
    and high in its unit, and traffic; None where there is no prediction. ``known``: the columns
    interval_low and interval_high, made by `intervals` if it is None."""
    nothing = (np.nan, np.nan, np.nan, 0.0)
    out = pd.DataFrame([dataclasses.asdict(row) for row in rows], columns=list(COLUMNS))
    for name in NUMBERS:
        out[name] = out[name].astype(float)
    values = np.array([one or nothing for one in predicted], float).reshape(-1, 4)
    for name, column in zip(PREDICTED, values.T, strict=True):
        out[name] = column
    out["error"] = out["predicted"] / out["measured"] - 1
    lowest = out[["low", "measured"]].min(axis=1)
    highest = out[["high", "measured"]].max(axis=1)
    out["inside"] = (out["predicted_low"] <= highest) & (out["predicted_high"] >= lowest)
    out[list(INTERVAL)] = intervals(out) if known is None else known
    return out[list(SCHEMA.columns)]


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """What each set comes to, fitted and predicted rows apart: columns of `SUMMARY`."""
    out = []
    for (name, use), part in results.groupby(["set", "use"], sort=False):
        errors = part["error"].abs()
        known = bool(errors.notna().any())
        worst = part.iloc[int(errors.fillna(-1.0).to_numpy().argmax())]
        where = f"{worst['case']}, {worst['quantity']}" if known else ""
        found = (errors.mean(), errors.median(), errors.max(), where)
        inside = part.loc[errors.notna(), "inside"].mean() if known else np.nan
        of_intervals = scores(part) if use == "predict" else (np.nan,) * 3
        out.append((name, use, len(part), *found, inside, *of_intervals))
    return SUMMARY.framed(out)


def coverage(results: pd.DataFrame) -> dict[str, int]:
    """Of all rows that were predicted and measured: how many there are, and of them how many have
    a range that overlaps the measured one (inside), a range and not one number (intervals), and
    both; how many have a 90 % interval (scored), and the measured value in it (covered). Then how
    many sets have such intervals, and in how many these score better than naive ones."""
    part = results[(results["use"] == "predict") & results["error"].notna()]
    interval = part["predicted_high"] > part["predicted_low"]
    inside = part["inside"].astype(bool)
    of_sets = summary(part).dropna(subset="interval_score")
    # scores that are alike as they are shown are not told apart
    shown = of_sets[["interval_score", "naive_score"]].round(2)
    return {
        "rows": len(part),
        "inside": int(inside.sum()),
        "intervals": int(interval.sum()),
        "inside_intervals": int((inside & interval).sum()),
        "scored": len(scored(part)),
        "covered": int(within(part).sum()),
        "scored_sets": len(of_sets),
        "sets_better_than_naive": int((shown["interval_score"] < shown["naive_score"]).sum()),
    }
