"""90 % intervals of predicted rows, from the errors of the laws in the other sets."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.job.uncertainty.residuals import MECHANISMS, Residuals, residuals
from simshuffle.spec.arrays import Floats

COLUMNS = ("interval_low", "interval_high")
_MECHANISM_OF_KIND = {
    "allreduce": "communication",
    "alltoall": "messages",
    "emulated": "bandwidth",
    "concurrent": "together",
    "testbed": "links",
}
_MECHANISM_OF_QUANTITY = {
    "communication": "communication",
    "staging": "bandwidth",
    "read bandwidth": "bandwidth",
    "first epoch": "files",
    "file rate": "files",
}
_SETS_OF_READS = {"abci_2020_files", "abci_2020_latency", "slides"}
"""Sets of training runs that wait for files."""
_RANKS_PATTERNS = (
    r"(?:world_size|accelerators|clients)=(\d+)",
    r"(\d[\d,]*) (?:GPUs|V100|A100|H100|ranks|workers|hosts)",
)
RATES = {
    "throughput",
    "throughput ratio",
    "bus bandwidth",
    "utilisation",
    "file rate",
    "read bandwidth",
    "largest count",
}
"""Quantities that fall as a time grows."""
USUAL_RANKS = 32.0
"""Where a row does not say how many: the middle of those that do."""


def find_mechanism(row: Any) -> str:
    """Return the one of `simshuffle.job.uncertainty.residuals.MECHANISMS` that decides
    a row, by its quantity, else its kind, else its values and set.
    """
    mechanism = _MECHANISM_OF_QUANTITY.get(row["quantity"]) or _MECHANISM_OF_KIND.get(
        row["kind"]
    )
    if mechanism:
        return mechanism
    if "parallelism=" in row["values"] and "parallelism=data" not in row["values"]:
        return "divided"
    return "files" if row["set"] in _SETS_OF_READS else "step"


def num_ranks(row: Any) -> float:
    """Return the number of ranks, GPUs, hosts, accelerators or clients that a row's
    values, else its case, name first; `USUAL_RANKS` where neither names one.
    """
    for pattern in _RANKS_PATTERNS:
        if match := re.search(pattern, f"{row['values']}; {row['case']}"):
            return float(match[1].replace(",", ""))
    return USUAL_RANKS


def signs_of(rows: pd.DataFrame) -> Floats:
    """Return (n,) 1 for times and -1 for rates, whose logarithm falls as a time's grows."""
    return np.where(rows["quantity"].isin(RATES), -1.0, 1.0)


def prediction_intervals(results: pd.DataFrame) -> pd.DataFrame:
    """Return the intervals of rows of the validation, `COLUMNS`, in the unit of each
    row, with the index of ``results``.

    Both ends are nan where nothing was predicted. The errors that an interval comes
    from are those of all sets but the row's own. What the model misses and what nobody
    knows of a row (`spread`) are independent, so that the logarithms of their ends add
    up in squares.
    """
    learned_residuals = residuals()
    intervals = []
    for sign, (_, row) in zip(signs_of(results), results.iterrows(), strict=True):
        log_ends = learned_residuals.ends(
            find_mechanism(row), num_ranks(row), str(row["set"])
        )
        log_ends = np.sort(sign * log_ends)
        if isinstance(row["spread"], str) and row["spread"]:
            # (2,) the lower and the upper side; distances from the prediction add up in squares
            spread_ends = np.log([row["predicted_low"], row["predicted_high"]])
            spread_logs = spread_ends - np.log(row["predicted"])
            sides = np.array([-1.0, 1.0])
            law_distance = np.maximum(sides * log_ends, 0.0)
            spread_distance = np.maximum(sides * spread_logs, 0.0)
            log_ends = sides * np.hypot(law_distance, spread_distance)
        intervals.append(float(row["predicted"]) * np.exp(log_ends))
    interval_ends = np.array(intervals, float).reshape(-1, 2)
    return pd.DataFrame(interval_ends, results.index, list(COLUMNS))


def learn_residuals(results: pd.DataFrame) -> Residuals:
    """Learn the residuals of the laws, log(measured / predicted) of a time, from the rows
    of a table with use predict and a prediction; others do not count.

    A rate counts as the time that it stands for: log(predicted / measured). Half the
    range of repeats is nan where there is no range. A row without a measured value has
    the residual nan.
    """
    rows = results[(results["use"] == "predict") & results["predicted"].notna()]
    half_range = pd.Series(
        np.log((rows["high"] / rows["low"]).to_numpy(float)) / 2, rows.index
    )
    table = pd.DataFrame(
        {
            "set": rows["set"],
            "mechanism": [find_mechanism(row) for _, row in rows.iterrows()],
            "ranks": [num_ranks(row) for _, row in rows.iterrows()],
            "residual": signs_of(rows)
            * np.log((rows["measured"] / rows["predicted"]).to_numpy(float)),
            "repeats": half_range.where(half_range > 0),
        }
    )
    assert set(table["mechanism"]) <= set(MECHANISMS)  # noqa: S101 - both are ours
    return Residuals(table)
