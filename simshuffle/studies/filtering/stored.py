"""The folder of one extraction: points and what is known of the network, with a digest, so that
damage is seen."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem

ENTRY, POINTS = "extraction.json", "points.parquet"


def write_extraction(points: pd.DataFrame, facts: dict[str, Any], folder: Path) -> None:
    """Write an extraction into ``folder``, which exists and is empty.

    Args:
        points: one row for each training sample: sample, label, x, y, loss, right.
        facts: plain values about the network and the projection.
        folder: where.
    """
    points.to_parquet(folder / POINTS, index=False, compression="zstd")
    entry = {"facts": facts, "digest": _digest(folder / POINTS, facts)}
    (folder / ENTRY).write_text(
        json.dumps(entry, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )


def check_extraction(folder: Path) -> dict[str, Any]:
    """See that an extraction is as it was written; returns its facts.

    Raises:
        InputError: a file is missing or damaged.
    """
    try:
        entry = json.loads((folder / ENTRY).read_text(encoding="utf-8"))
        if entry["digest"] != _digest(folder / POINTS, entry["facts"]):
            raise ValueError("it is not what was written")
        facts: dict[str, Any] = entry["facts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = f"Remove {folder} to repeat that extraction; the others are kept."
        raise InputError(
            Problem(str(folder), "cannot be read as an extraction", str(error), remedy), str(folder)
        ) from None
    return facts


def read_extraction(folder: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Points and facts of the extraction in ``folder``.

    Raises:
        InputError: a file is missing or damaged.
    """
    facts = check_extraction(folder)
    return pd.read_parquet(folder / POINTS), facts


def _digest(points: Path, facts: dict[str, Any]) -> str:
    with points.open("rb") as file:
        return (
            hashlib.file_digest(file, "sha256").hexdigest()
            + hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        )
