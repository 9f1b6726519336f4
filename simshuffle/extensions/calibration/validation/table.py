"""The rows of the validation, from CSV files, and the table of predicted against
measured.

The files in ``validation/`` hold numbers that were measured elsewhere, each with its
source.
"""

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
from simshuffle.extensions.calibration.validation.intervals import prediction_intervals
from simshuffle.extensions.calibration.validation.scores import (
    is_in_interval,
    score_intervals,
    select_rows_with_interval,
)
from simshuffle.study.schema import Schema, amount, flag, real, text

COLUMNS = {
    "set": "the group of rows that are judged together",
    "case": "what was measured, for a reader",
    "quantity": "the quantity that was measured",
    "unit": "SI unit of the quantity; 1 for a ratio",
    "measured": "the measured value; empty where none was published",
    "low": "the smallest value measured; empty if only one was published",
    "high": "the largest value measured; empty if only one was published",
    "use": (
        "fit: a parameter was fitted to this row; predict: no parameter was; none: the row cannot"
        " be predicted, see reason"
    ),
    "kind": (
        "how the row is predicted: run, ratio, concurrent, allreduce, alltoall, read, emulated,"
        " oracle"
        " or testbed"
    ),
    "scenario": "the scenario that is simulated, by its name below scenarios/",
    "values": "what is set in the scenario: KEY=VALUE, separated by ;",
    "spread": "unknown inputs of the scenario: KEY=FROM..TO, separated by ;",
    "reason": "for fit, what the row fixed; for none, why; else a remark",
    "source": "where the measured value is published",
}
USES = ("fit", "predict", "none")
KINDS = (
    *(
        "run",
        "ratio",
        "concurrent",
        "allreduce",
        "alltoall",
        "read",
        "emulated",
        "oracle",
    ),
    "testbed",
)
NUMBERS = ("measured", "low", "high")
OPTIONAL = ("spread",)


@dataclasses.dataclass(frozen=True)
class ValidationRow:
    """A number that was measured, and what predicts it: the columns of the file, see
    `COLUMNS`.

    An empty number is None.
    """

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
    """Read the rows of every CSV file in ``folder`` and its folder ``testbed``.

    Files are read in the order of their names. With ``unmeasured`` predicted rows may
    have no measured value yet.

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
            read_file(path, rows, problems, unmeasured)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            rule = "must be a readable CSV file"
            problems.append(Problem(path.name, rule, str(error), "Correct the file."))
    if problems:
        raise InputError(problems, str(folder))
    return rows


def read_file(
    path: Path, rows: list[ValidationRow], problems: list[Problem], unmeasured: bool
) -> None:
    """Append the valid rows of a CSV file to ``rows``, and what is wrong with others to
    ``problems``. Other columns are ignored; without all columns no row is read.
    """
    with path.open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file, strict=True)
        missing = set(COLUMNS) - set(OPTIONAL) - set(table.fieldnames or [])
        if missing:
            names = ", ".join(name for name in COLUMNS if name in missing)
            rule = f"must have the columns {', '.join(COLUMNS)}"
            problems.append(Problem(path.name, rule, f"no {names}", "Add them."))
            return
        for record in table:
            faults = list(
                find_faults(record, f"{path.name}:{table.line_num}", unmeasured)
            )
            problems += faults
            if not faults:
                rows.append(row_of_record(record))


def find_faults(
    record: dict[str, str], location: str, unmeasured: bool
) -> Iterator[Problem]:
    """Yield what is wrong with a record, which stands at ``location``.

    With ``unmeasured``, a row with use predict needs no measured value.
    """
    if None in record or None in record.values():
        rule = "must have as many fields as the header"
        remedy = "Put texts with commas in quotes."
        yield Problem(location, rule, "more or fewer", remedy)
        return
    for name in NUMBERS:
        if record[name].strip() and not parse_positive(record[name]):
            rule = "must be a number greater than 0, or empty"
            remedy = "Write the number in SI units, without the unit."
            yield Problem(f"{location} {name}", rule, repr(record[name]), remedy)
    use = record["use"]
    kind = record["kind"]
    needs_kind = kind or use != "none"
    for name, valid_values in (
        ("use", USES),
        ("kind", KINDS if needs_kind else (kind,)),
    ):
        if record[name] not in valid_values:
            rule = f"must be one of {', '.join(valid_values)}"
            yield Problem(f"{location} {name}", rule, repr(record[name]), "Choose one.")
    is_measured_later = (
        unmeasured and use == "predict" and not record["measured"].strip()
    )
    if use in {"fit", "predict"} and not (
        is_measured_later or parse_positive(record["measured"])
    ):
        remedy = "Add the value, or write use none and a reason. Only --seal does without it."
        yield Problem(
            f"{location} measured",
            "is needed to compare the prediction with",
            "nothing",
            remedy,
        )
    for name in (
        "set",
        "case",
        "quantity",
        "source",
        *["reason"] * (use in {"fit", "none"}),
    ):
        if not record[name].strip():
            remedy = f"Write {COLUMNS[name]}."
            yield Problem(f"{location} {name}", "must not be empty", "nothing", remedy)


def row_of_record(record: dict[str, str]) -> ValidationRow:
    """Return the row of a record without faults; an empty number is None."""
    values: dict[str, Any] = {
        name: (record.get(name) or "").strip() for name in COLUMNS
    }
    return ValidationRow(
        **values | {name: parse_positive(values[name]) for name in NUMBERS}
    )


def parse_positive(text: str) -> float | None:
    """Return the finite number above 0 in a text; None if it holds none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


def parse_assignments(text: str) -> dict[str, str]:
    """Parse ``KEY=VALUE;KEY=VALUE`` into texts by key, without blanks around them.

    An empty text gives {}; of a key that comes twice the last value counts.

    Raises:
        InputError: a part has no key or no value.
    """
    values = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            rule = "must be written KEY=VALUE, separated by ;"
            example = "world_size=64;epochs=2"
            raise InputError(
                Problem("values", rule, repr(part), f"For example {example}.")
            )
        values[key.strip()] = value.strip()
    return values


def spread_ends(spread: str) -> list[str]:
    """Return the assignments, ``KEY=VALUE;...``, at both ends of a spread,
    ``KEY=FROM..TO;...``: the text of all FROM, and the text of all TO.

    An empty spread gives an empty list.

    Raises:
        InputError: a part is not written so.
    """
    if not spread:
        return []
    low = []
    high = []
    for key, value in parse_assignments(spread).items():
        first, dots, last = value.partition("..")
        if not dots or not first.strip() or not last.strip():
            rule = "must be written KEY=FROM..TO, separated by ;"
            remedy = "For example seed=1..2."
            raise InputError(Problem("spread", rule, f"{key}={value}", remedy))
        low.append(f"{key}={first.strip()}")
        high.append(f"{key}={last.strip()}")
    return [";".join(low), ";".join(high)]


# ------------------------------------------------------------------------------------------- table

SCHEMA = Schema(
    {
        **{
            name: text(COLUMNS[name])
            for name in ("set", "case", "quantity", "unit", "use")
        },
        **{name: real(COLUMNS[name], empty=True) for name in NUMBERS},
        "predicted": real(
            "value that simshuffle predicts; empty where it cannot", empty=True
        ),
        "predicted_low": real(
            "smallest prediction over the unknown inputs: spread and traffic",
            empty=True,
        ),
        "predicted_high": real(
            "largest prediction over the unknown inputs", empty=True
        ),
        "traffic": amount("share by which traffic of other jobs may lengthen the time"),
        "error": real("predicted / measured - 1", empty=True),
        "inside": flag("whether the measured range and the predicted one overlap"),
        "interval_low": real(
            "lower end of the prediction's 90 % interval, from the errors of other sets",
            empty=True,
        ),
        "interval_high": real("upper end of the 90 % interval", empty=True),
        **{
            name: text(COLUMNS[name])
            for name in ("kind", "scenario", "values", "spread", "reason", "source")
        },
    },
    absent={"interval_low": np.nan, "interval_high": np.nan},
)
"""A row for each measured number."""
PREDICTED = ("predicted", "predicted_low", "predicted_high", "traffic")
SUMMARY = Schema(
    {
        "set": text("group of rows"),
        "use": text(
            "fit: a parameter was fitted to these rows; predict: no parameter was; none: the rows"
            " cannot be predicted"
        ),
        "rows": amount("number of rows"),
        "mean_error": amount("mean of |predicted / measured - 1|", empty=True),
        "median_error": amount("median of |predicted / measured - 1|", empty=True),
        "worst_error": amount("largest |predicted / measured - 1|", empty=True),
        "worst_case": text("case with the largest error"),
        "inside": amount(
            "share of the rows whose measured and predicted ranges overlap", empty=True
        ),
        "coverage": amount(
            "share of the predicted rows whose measured value lies in the 90 % interval",
            empty=True,
        ),
        "interval_score": amount(
            "mean interval score of the 90 % intervals, in natural logarithms (Gneiting and"
            " Raftery 2007, Eq. 43): width plus 20 times the distance outside; small is good",
            empty=True,
        ),
        "naive_score": amount(
            "interval score of the predictions times and over 1 + their mean error",
            empty=True,
        ),
    }
)
"""A row for each set, fitted and predicted rows apart."""


def validation_table(
    rows: Sequence[ValidationRow],
    predicted: Sequence[tuple[float, float, float, float] | None],
    known_intervals: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return the table of the validation: columns of `SCHEMA`, one row for each of
    ``rows``, measured or not (NaN).

    Args:
        rows: of the validation.
        predicted: for each row value, low and high in its unit, and traffic; None where
            there is no prediction: the three are NaN then, traffic is 0.
        known_intervals: columns interval_low and interval_high, with an index from 0;
            None to compute them.
    """
    no_prediction = (np.nan, np.nan, np.nan, 0.0)
    results = pd.DataFrame(
        [dataclasses.asdict(row) for row in rows], columns=list(COLUMNS)
    )
    for name in NUMBERS:
        results[name] = results[name].astype(float)
    # (rows, 4) value, low, high and traffic
    values = np.array([prediction or no_prediction for prediction in predicted], float)
    values = values.reshape(-1, 4)
    for name, column in zip(PREDICTED, values.T, strict=True):
        results[name] = column
    results["error"] = results["predicted"] / results["measured"] - 1
    lowest = results[["low", "measured"]].min(axis=1)
    highest = results[["high", "measured"]].max(axis=1)
    overlaps_below = results["predicted_low"] <= highest
    results["inside"] = overlaps_below & (results["predicted_high"] >= lowest)
    if known_intervals is None:
        known_intervals = prediction_intervals(results)
    results[list(INTERVAL)] = known_intervals
    return results[list(SCHEMA.columns)]


def summarize_sets(results: pd.DataFrame) -> pd.DataFrame:
    """Summarize the rows of each set, apart by their use (fit, predict, none): columns
    of `SUMMARY`.

    Errors are shares, over the rows with a predicted and a measured value; NaN where no
    row has both. Coverage and scores are NaN but for use ``predict``. Sets are in the
    order of ``results``.
    """
    summaries = []
    for (set_name, use), set_rows in results.groupby(["set", "use"], sort=False):
        errors = set_rows["error"].abs()
        is_compared = bool(errors.notna().any())
        worst = set_rows.iloc[int(errors.fillna(-1.0).to_numpy().argmax())]
        worst_place = f"{worst['case']}, {worst['quantity']}" if is_compared else ""
        error_values = (errors.mean(), errors.median(), errors.max(), worst_place)
        inside = (
            set_rows.loc[errors.notna(), "inside"].mean() if is_compared else np.nan
        )
        interval_scores = (
            score_intervals(set_rows) if use == "predict" else (np.nan,) * 3
        )
        summaries.append(
            (set_name, use, len(set_rows), *error_values, inside, *interval_scores)
        )
    return SUMMARY.framed(summaries)


def count_covered_rows(results: pd.DataFrame) -> dict[str, int]:
    """Count the rows of use ``predict`` with a predicted and a measured value, and
    those among them that agree.

    Returns:
        - rows: all of them.
        - inside: predicted range, or number, overlaps the measured range.
        - intervals: the prediction is a range (spread or traffic) and not one number.
        - inside_intervals: both of these.
        - scored: it has a 90 % interval.
        - covered: the measured value lies in the 90 % interval.
        - scored_sets: sets with 90 % intervals.
        - sets_better_than_naive: sets where these score lower than naive ones, as
          rounded to two digits.
    """
    compared_rows = results[(results["use"] == "predict") & results["error"].notna()]
    has_range = compared_rows["predicted_high"] > compared_rows["predicted_low"]
    is_inside = compared_rows["inside"].astype(bool)
    scored_sets = summarize_sets(compared_rows).dropna(subset="interval_score")
    # scores that are alike as they are shown are not told apart
    displayed_scores = scored_sets[["interval_score", "naive_score"]].round(2)
    return {
        "rows": len(compared_rows),
        "inside": int(is_inside.sum()),
        "intervals": int(has_range.sum()),
        "inside_intervals": int((is_inside & has_range).sum()),
        "scored": len(select_rows_with_interval(compared_rows)),
        "covered": int(is_in_interval(compared_rows).sum()),
        "scored_sets": len(scored_sets),
        "sets_better_than_naive": int(
            (displayed_scores["interval_score"] < displayed_scores["naive_score"]).sum()
        ),
    }
