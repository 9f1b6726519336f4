"""Sealed predictions: a file that is written before anybody looks at the measurement.

It holds predictions, their intervals, versions, date and digest, and no measured value.
It is read again later, to be compared with the measurement.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem, list_first, refuse
from simshuffle.extensions.calibration.validation.entries import ROW_KEY
from simshuffle.extensions.calibration.validation.table import (
    NUMBERS,
    SCHEMA,
    ValidationRow,
    validation_table,
)
from simshuffle.report.folders import room_for
from simshuffle.report.table_io import plain_rows as rows_of
from simshuffle.study.origin import describe_origin
from simshuffle.study.schema import Schema
from simshuffle.study.study import versions

FORMAT = "simshuffle sealed predictions 1"
PACKAGES = ("numpy", "scipy", "numba")
"""Whose versions are named beside those of simshuffle and Python."""
_TEXTS = (*ROW_KEY, "unit", "kind", "scenario", "values", "spread")
_NUMBERS = ("predicted", "predicted_low", "predicted_high", "traffic")
_INTERVAL = ("interval_low", "interval_high")
SEALED = Schema(
    {name: SCHEMA.columns[name] for name in (*_TEXTS, *_NUMBERS, *_INTERVAL)},
    key=ROW_KEY,
)
"""What is sealed of a row."""


@dataclass(frozen=True)
class SealedPredictions:
    """A file of sealed predictions, with its origin."""

    text: str  # the file as it is
    origin: Mapping[str, Any]  # its digest 'sha256', 'date', 'versions' and 'code'
    predictions: pd.DataFrame  # columns of `SEALED`


def compute_digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a content, in hexadecimal digits.

    It is of the JSON in UTF-8 with sorted keys and without blanks (as RFC 8785 has it,
    but for how floats are written: as Python does).

    Raises:
        ValueError: a number in it is nan or infinite.
    """
    canonical_json = json.dumps(
        content,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return hashlib.sha256(canonical_json.encode()).hexdigest()


def check_rows(rows: Iterable[ValidationRow]) -> None:
    """Check that ``rows`` can be sealed; only rows with use predict are looked at.

    Raises:
        InputError: none is predicted, or two predicted rows have the same set, case and
            quantity, by which rows are found again.
    """
    keys = [(row.set, row.case, row.quantity) for row in rows if row.use == "predict"]
    if not keys:
        rule = "must have rows to predict"
        remedy = "Write use predict in the rows to be sealed."
        refuse("--seal", rule, "none", remedy, "command line")
    if repeated_keys := [
        ", ".join(key) for key in dict.fromkeys(keys) if keys.count(key) > 1
    ]:
        rule = "must not repeat set, case and quantity"
        refuse(
            "--seal",
            rule,
            list_first(repeated_keys),
            "Give each case its own name.",
            "command line",
        )


def check_path(path: Path, *, replace: bool) -> None:
    """Check that predictions can be sealed in ``path``, before they are computed.

    A temporary folder is made beside ``path`` and removed again.

    Raises:
        InputError: something else or a symbolic link is there, or sealed predictions
            and ``replace`` is False, or the folder of ``path`` cannot be written to.
    """
    try:
        if os.path.lexists(path):
            if (
                path.is_symlink()
                or not path.is_file()
                or FORMAT not in path.read_text("utf-8")
            ):
                raise FileExistsError(0, "another file or folder is there")
            if not replace:
                raise FileExistsError(
                    0, "the file holds sealed predictions; --force replaces them"
                )
        with room_for(path, path.parent):
            pass
    except (OSError, ValueError) as error:
        refuse_path(path, error)


def refuse_path(path: Path, error: Exception) -> None:
    """Raise the InputError of a path that cannot be written."""
    rule = f"cannot be written: {getattr(error, 'strerror', None) or error}"
    refuse("--seal", rule, str(path), "Name another file.", "command line")


def seal_predictions(
    path: Path, results: pd.DataFrame, code: str, *, replace: bool
) -> str:
    """Write the rows of ``results`` with use predict and a prediction to ``path``, all
    or none, without what was measured; return the digest of the content.

    ``code`` stands for the code that predicts. The file is JSON with 'sha256' and
    'content'.

    Raises:
        InputError: as of `check_path`, or the file cannot be written.
    """
    predicted_rows = results[
        (results["use"] == "predict") & results["predicted"].notna()
    ]
    content = {
        "format": FORMAT,
        **{
            key: value
            for key, value in describe_origin().items()
            if key in {"date", "commit"}
        },
        "versions": versions(PACKAGES),
        "code": code,
        "predictions": rows_of(predicted_rows[list(SEALED.columns)]),
    }
    digest = compute_digest(content)
    text = json.dumps(
        {"sha256": digest, "content": content},
        indent=1,
        ensure_ascii=False,
        allow_nan=False,
    )
    check_path(path, replace=replace)
    try:
        with room_for(path, path.parent) as folder:
            draft = Path(folder) / "new"
            draft.write_text(f"{text}\n", encoding="utf-8")
            if replace:
                draft.replace(path)
            else:
                link_draft(draft, path)
    except OSError as error:
        refuse_path(path, error)
    return digest


def link_draft(draft: Path, path: Path) -> None:
    """Give ``draft`` the name ``path`` too; unlike a renaming, fail where a file exists
    by now.

    On a file system without hard links, ``draft`` is renamed, and may replace a file.

    Raises:
        FileExistsError: ``path`` exists.
    """
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        draft.rename(path)


def read_seal_file(path: Path) -> SealedPredictions:
    """Read the sealed predictions in ``path``.

    Raises:
        InputError: it cannot be read, was changed since, or is no such file.
    """
    source = str(path)
    remedy = "Give a file that --seal wrote and nobody changed."
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
    except OSError as error:
        refuse(
            "--open",
            f"cannot be read: {error.strerror or error}",
            source,
            remedy,
            source,
        )
    except (ValueError, RecursionError) as error:
        refuse("--open", "must be JSON in UTF-8", str(error)[:60], remedy, source)
    content = document.get("content") if isinstance(document, dict) else None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        value = repr(content)[:60]
        refuse("content.format", f"must be {FORMAT!r}", value, remedy, source)
    stated_digest = document.get("sha256")
    try:
        digest = compute_digest(content)
    except (ValueError, RecursionError) as error:
        refuse("content", "must be plain JSON", str(error)[:60], remedy, source)
    if digest != stated_digest:
        rule = f"must be the digest of the content, {digest}: the file was changed"
        refuse("sha256", rule, repr(stated_digest)[:80], remedy, source)
    origin = {key: content.get(key) for key in ("date", "versions", "code")}
    type_of_key = {"date": str, "versions": dict, "code": str}
    for key, expected_type in type_of_key.items():
        if not isinstance(origin[key], expected_type):
            refuse(
                f"content.{key}",
                "must be there",
                repr(origin[key])[:60],
                remedy,
                source,
            )
    return SealedPredictions(
        text, {"sha256": digest, **origin}, read_predictions(content, source)
    )


def read_predictions(content: Mapping[str, Any], source: str) -> pd.DataFrame:
    """Return the predictions of a sealed content: columns of `SEALED`.

    Args:
        content: the content; its 'predictions' is a list of rows.
        source: the file, for errors.

    Raises:
        InputError: they are no list of rows, or a value does not fit its column.
    """
    try:
        predictions = pd.DataFrame(content["predictions"])[list(SEALED.columns)]
        predictions = predictions.astype(dict.fromkeys((*_NUMBERS, *_INTERVAL), float))
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:
        remedy = "Give a file that --seal wrote."
        refuse(
            "content.predictions",
            "must be a list of rows",
            str(error)[:60],
            remedy,
            source,
        )
    SEALED.check(predictions, source)
    return predictions


def measured_rows(
    sealed: SealedPredictions, rows: Sequence[ValidationRow], source: str
) -> list[ValidationRow]:
    """Return all sealed rows, with use predict, with what was measured since, from
    ``rows``.

    They are in the order of the seal. A measured row has the same set, case and
    quantity; of several, the first counts. Without one, measured, low and high are
    None.

    Raises:
        InputError: with every measured row that has another unit than its sealed row.
    """
    row_of_key = {(row.set, row.case, row.quantity): row for row in reversed(rows)}
    measured = []
    problems = []
    for record in sealed.predictions.to_dict("records"):
        texts: dict[str, Any] = {name: str(record[name]) for name in _TEXTS}
        key = (texts["set"], texts["case"], texts["quantity"])
        measured_row = row_of_key.get(key)
        if measured_row and measured_row.unit != texts["unit"]:
            rule = f"must have the unit {texts['unit']!r}"
            remedy = "Convert the measured value to that unit."
            problems.append(
                Problem(", ".join(key), rule, repr(measured_row.unit), remedy)
            )
        measured_fields: dict[str, Any] = {
            name: getattr(measured_row, name, None) for name in NUMBERS
        }
        measured_fields |= {
            name: getattr(measured_row, name, "") for name in ("reason", "source")
        }
        measured.append(ValidationRow(use="predict", **texts, **measured_fields))
    if problems:
        raise InputError(problems, source)
    return measured


def predictions_table(
    sealed: SealedPredictions, rows: Sequence[ValidationRow]
) -> pd.DataFrame:
    """Return the table of sealed predictions beside measured values.

    ``rows`` are the `measured_rows`, or some among these; the table has their order,
    and the columns of `simshuffle.extensions.calibration.validation.table.SCHEMA`. The
    intervals are the sealed ones.
    """
    index_of_key = {
        tuple(key): index
        for index, key in enumerate(keys_of_predictions(sealed.predictions))
    }
    row_indices = [index_of_key[row.set, row.case, row.quantity] for row in rows]
    chosen_predictions = sealed.predictions.iloc[row_indices].reset_index(drop=True)
    values = chosen_predictions[list(_NUMBERS)].itertuples(index=False, name=None)
    return validation_table(rows, list(values), chosen_predictions[list(_INTERVAL)])


def keys_of_predictions(predictions: pd.DataFrame) -> list[list[str]]:
    """Return set, case and quantity of each sealed prediction."""
    keys: list[list[str]] = predictions[list(ROW_KEY)].to_numpy().tolist()
    return keys
