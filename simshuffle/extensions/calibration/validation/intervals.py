"""90 % intervals of predicted rows, from what the laws have missed in the other sets."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.job.uncertainty.residuals import MECHANISMS, Residuals, residuals

COLUMNS = ("interval_low", "interval_high")
_OF_KIND = {
    "allreduce": "communication",
    "alltoall": "messages",
    "emulated": "bandwidth",
    "concurrent": "together",
    "testbed": "links",
}
_OF_QUANTITY = {
    "communication": "communication",
    "staging": "bandwidth",
    "read bandwidth": "bandwidth",
    "first epoch": "files",
    "file rate": "files",
}
_READING = {"abci_2020_files", "abci_2020_latency", "slides"}
"""Sets of training runs that wait for files."""
_RANKS = (
    r"(?:world_size|accelerators)=(\d+)",
    r"(\d+) (?:GPUs|V100|A100|H100|ranks|workers|hosts)",
)
USUAL_RANKS = 32.0
"""Where a row does not say how many: the middle of those that do."""


def mechanism(row: Any) -> str:
    """Which of `simshuffle.job.uncertainty.residuals.MECHANISMS` decides a row of the table."""
    if of := _OF_QUANTITY.get(row["quantity"]) or _OF_KIND.get(row["kind"]):
        return of
    if "parallelism=" in row["values"] and "parallelism=data" not in row["values"]:
        return "divided"
    return "files" if row["set"] in _READING else "step"


def ranks(row: Any) -> float:
    """Ranks of a row of the table, or hosts or accelerators where it has no other number."""
    for pattern in _RANKS:
        if found := re.search(pattern, f"{row['values']}; {row['case']}"):
            return float(found[1])
    return USUAL_RANKS


def intervals(results: pd.DataFrame) -> pd.DataFrame:
    """`COLUMNS` for rows of the table of the validation, in the unit of each; nan where nothing was
    predicted. A row's own set is left out.

    What the model misses and what nobody knows of a row (`spread`) are independent, so that the
    logarithms of their ends add up in squares.
    """
    known, ends = residuals(), []
    for _, row in results.iterrows():
        of = known.ends(mechanism(row), ranks(row), str(row["set"]))
        if isinstance(row["spread"], str) and row["spread"]:
            reach = np.log([row["predicted_low"], row["predicted_high"]]) - np.log(row["predicted"])
            sides = np.array([-1.0, 1.0])
            of = sides * np.hypot(np.maximum(sides * of, 0.0), np.maximum(sides * reach, 0.0))
        ends.append(float(row["predicted"]) * np.exp(of))
    shaped = np.array(ends, float).reshape(-1, 2)
    return pd.DataFrame(shaped, results.index, list(COLUMNS))


def learned(results: pd.DataFrame) -> Residuals:
    """What can be learned from the predicted rows of a table."""
    rows = results[(results["use"] == "predict") & results["predicted"].notna()]
    spread = pd.Series(np.log((rows["high"] / rows["low"]).to_numpy(float)) / 2, rows.index)
    out = pd.DataFrame(
        {
            "set": rows["set"],
            "mechanism": [mechanism(row) for _, row in rows.iterrows()],
            "ranks": [ranks(row) for _, row in rows.iterrows()],
            "residual": np.log((rows["measured"] / rows["predicted"]).to_numpy(float)),
            "repeats": spread.where(spread > 0),
        }
    )
    assert set(out["mechanism"]) <= set(MECHANISMS)  # noqa: S101 - both are ours
    return Residuals(out)
