"""Sealed predictions: a file with predictions, their intervals, versions, date and digest, and
without any measured value, written before anybody looks at the measurement; and read again later,
to be compared with it."""

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
from simshuffle.extensions.calibration.validation.entries import KEY
from simshuffle.extensions.calibration.validation.table import NUMBERS, SCHEMA, ValidationRow, table
from simshuffle.report.folders import room_for
from simshuffle.report.table_io import plain_rows as rows_of
from simshuffle.study.origin import describe_origin
from simshuffle.study.schema import Schema
from simshuffle.study.study import versions

FORMAT = "simshuffle sealed predictions 1"
PACKAGES = ("numpy", "scipy", "numba")
"""Whose versions are named beside those of simshuffle and Python."""
_TEXTS = (*KEY, "unit", "kind", "scenario", "values", "spread")
_NUMBERS = ("predicted", "predicted_low", "predicted_high", "traffic")
_INTERVAL = ("interval_low", "interval_high")
SEALED = Schema({name: SCHEMA.columns[name] for name in (*_TEXTS, *_NUMBERS, *_INTERVAL)}, key=KEY)
"""What is sealed of a row."""


@dataclass(frozen=True)
class Sealed:
    """A file of sealed predictions."""

    text: str  # the file as it is
    about: Mapping[str, Any]  # its digest 'sha256', 'date', 'versions' and 'code'
    predictions: pd.DataFrame  # columns of `SEALED`


def digest_of(content: Mapping[str, Any]) -> str:
    """The SHA-256 of a content, in hexadecimal digits: of its JSON in UTF-8 with sorted keys and
    without blanks (as RFC 8785 has it, but for how floats are written: as Python does)."""
    plain = json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(plain.encode()).hexdigest()


def check_rows(rows: Iterable[ValidationRow]) -> None:
    """See that ``rows`` can be sealed; an InputError if none is predicted, or one is there twice:
    it is found again by set, case and quantity."""
    keys = [(row.set, row.case, row.quantity) for row in rows if row.use == "predict"]
    if not keys:
        rule, remedy = "must have rows to predict", "Write use predict in the rows."
        refuse("--seal", rule, "none", remedy, "command line")
    if twice := [", ".join(key) for key in dict.fromkeys(keys) if keys.count(key) > 1]:
        rule = "must not repeat set, case and quantity"
        refuse("--seal", rule, list_first(twice), "Name the cases apart.", "command line")


def check_place(path: Path, *, replace: bool) -> None:
    """See that predictions can be sealed in ``path``, before they are computed; an InputError if
    not: something else is there, or sealed predictions and ``replace`` is False."""
    try:
        if os.path.lexists(path):
            if path.is_symlink() or not path.is_file() or FORMAT not in path.read_text("utf-8"):
                raise FileExistsError(0, "something else is there")
            if not replace:
                raise FileExistsError(0, "sealed predictions are there; --force replaces them")
        with room_for(path, path.parent):
            pass
    except (OSError, ValueError) as error:
        _unwritable(path, error)


def _unwritable(path: Path, error: Exception) -> None:
    rule = f"cannot be written: {getattr(error, 'strerror', None) or error}"
    refuse("--seal", rule, str(path), "Name another file.", "command line")


def seal(path: Path, results: pd.DataFrame, code: str, *, replace: bool) -> str:
    """Write the predicted rows of ``results`` to ``path``, whole or not at all; returns the digest.
    ``code`` stands for the code that predicts. Errors as of `check_place`."""
    part = results[(results["use"] == "predict") & results["predicted"].notna()]
    content = {
        "format": FORMAT,
        **{key: value for key, value in describe_origin().items() if key in {"date", "commit"}},
        "versions": versions(PACKAGES),
        "code": code,
        "predictions": rows_of(part[list(SEALED.columns)]),
    }
    digest = digest_of(content)
    text = json.dumps(
        {"sha256": digest, "content": content}, indent=1, ensure_ascii=False, allow_nan=False
    )
    check_place(path, replace=replace)
    try:
        with room_for(path, path.parent) as room:
            draft = Path(room) / "new"
            draft.write_text(f"{text}\n", encoding="utf-8")
            if replace:
                draft.replace(path)
            else:
                _link(draft, path)
    except OSError as error:
        _unwritable(path, error)
    return digest


def _link(draft: Path, path: Path) -> None:
    """Name ``draft`` ``path``; unlike a renaming, it fails where a file is there by now."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        draft.rename(path)


def read_sealed(path: Path) -> Sealed:
    """The sealed predictions in ``path``.

    Raises:
        InputError: it cannot be read, was changed since, or is no such file.
    """
    source, remedy = str(path), "Give a file that --seal wrote and nobody changed."
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text)
    except OSError as error:
        refuse("--open", f"cannot be read: {error.strerror or error}", source, remedy, source)
    except (ValueError, RecursionError) as error:
        refuse("--open", "must be JSON in UTF-8", str(error)[:60], remedy, source)
    content = found.get("content") if isinstance(found, dict) else None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        value = repr(content)[:60]
        refuse("content.format", f"must be {FORMAT!r}", value, remedy, source)
    given = found.get("sha256")
    try:
        digest = digest_of(content)
    except (ValueError, RecursionError) as error:
        refuse("content", "must be plain JSON", str(error)[:60], remedy, source)
    if digest != given:
        rule = f"must be the digest of the content, {digest}: the file was changed"
        refuse("sha256", rule, repr(given)[:80], remedy, source)
    about = {key: content.get(key) for key in ("date", "versions", "code")}
    kinds = {"date": str, "versions": dict, "code": str}
    for key, kind in kinds.items():
        if not isinstance(about[key], kind):
            refuse(f"content.{key}", "must be there", repr(about[key])[:60], remedy, source)
    return Sealed(text, {"sha256": digest, **about}, _predictions(content, source))


def _predictions(content: Mapping[str, Any], source: str) -> pd.DataFrame:
    try:
        out = pd.DataFrame(content["predictions"])[list(SEALED.columns)]
        out = out.astype(dict.fromkeys((*_NUMBERS, *_INTERVAL), float))
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:
        remedy = "Give a file that --seal wrote."
        refuse("content.predictions", "must be a list of rows", str(error)[:60], remedy, source)
    SEALED.check(out, source)
    return out


def measured_rows(
    sealed: Sealed, rows: Sequence[ValidationRow], source: str
) -> list[ValidationRow]:
    """The sealed rows with what was measured since, from those of ``rows`` with the same set, case
    and quantity; nothing measured where there is none.

    Raises:
        InputError: one has another unit.
    """
    known = {(row.set, row.case, row.quantity): row for row in reversed(rows)}
    out, problems = [], []
    for record in sealed.predictions.to_dict("records"):
        texts: dict[str, Any] = {name: str(record[name]) for name in _TEXTS}
        key = (texts["set"], texts["case"], texts["quantity"])
        there = known.get(key)
        if there and there.unit != texts["unit"]:
            rule, remedy = f"must have the unit {texts['unit']!r}", "Convert what was measured."
            problems.append(Problem(", ".join(key), rule, repr(there.unit), remedy))
        found: dict[str, Any] = {name: getattr(there, name, None) for name in NUMBERS}
        found |= {name: getattr(there, name, "") for name in ("reason", "source")}
        out.append(ValidationRow(use="predict", **texts, **found))
    if problems:
        raise InputError(problems, source)
    return out


def opened(sealed: Sealed, rows: Sequence[ValidationRow]) -> pd.DataFrame:
    """The table of sealed predictions beside ``rows``, which are those of `measured_rows`, or some
    of them: columns of `simshuffle.extensions.calibration.validation.table.SCHEMA`."""
    places = {tuple(of): number for number, of in enumerate(_keys(sealed.predictions))}
    chosen = [places[row.set, row.case, row.quantity] for row in rows]
    part = sealed.predictions.iloc[chosen].reset_index(drop=True)
    values = part[list(_NUMBERS)].itertuples(index=False, name=None)
    return table(rows, list(values), part[list(_INTERVAL)])


def _keys(predictions: pd.DataFrame) -> list[list[str]]:
    keys: list[list[str]] = predictions[list(KEY)].to_numpy().tolist()
    return keys
