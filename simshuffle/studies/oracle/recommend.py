"""Which way to divide training is best, by how much, and what to do where none fits; from the table
of points alone."""

from __future__ import annotations

from typing import Any

import pandas as pd

from simshuffle.errors import Problem
from simshuffle.studies.oracle.tables import GIB as GIB  # noqa: PLC0414 - figures have it from here
from simshuffle.studies.oracle.tables import RECOMMENDED

ALL = 0
"""The world size that stands for all."""


def usable(points: pd.DataFrame) -> pd.DataFrame:
    """The points that are possible and within the budget, fastest first; of equal ones that with
    the shorter loop, then with less memory."""
    fitting = points["feasible"] & (points["fits"].isna() | (points["fits"] == True))  # noqa: E712
    order = ["epoch_s", "loop_s", "memory_nbytes"]
    return points[fitting].sort_values(order, kind="stable")


def recommended(points: pd.DataFrame) -> pd.DataFrame:
    """The table `RECOMMENDED`: a row for all world sizes together, then one for each.

    Args:
        points: table `points`.
    """
    fitting = usable(points)
    best = fitting["world_size"].iloc[:1].tolist() or points["world_size"]
    rows = [_row(ALL, points, fitting[fitting["world_size"].isin(best)])]
    for size, of_size in points.groupby("world_size"):
        rows.append(_row(int(str(size)), of_size, fitting[fitting["world_size"] == size]))
    for row in rows:
        if not row["strategy"] and row["world_size"] != ALL and len(fitting):
            row["fits_from"] = int(fitting["world_size"].min())
    return RECOMMENDED.framed(rows)


def _row(size: int, points: pd.DataFrame, fitting: pd.DataFrame) -> dict[str, Any]:
    row: dict[str, Any] = {"world_size": size, "strategy": "", "second": "", "least_memory": ""}
    if fitting.empty:
        possible = points[points["feasible"]].sort_values("memory_nbytes", kind="stable")
        if len(possible):
            least = possible.iloc[0]
            row |= {"least_memory": least["strategy"], "least_nbytes": least["memory_nbytes"]}
        return row
    first, *others = fitting.to_dict("records")
    kept = ("strategy", "epoch_s", "epoch_low_s", "epoch_high_s", "memory_nbytes")
    row |= {**{name: first[name] for name in kept}, "at": first["world_size"]}
    if others:
        second = others[0]
        row |= {
            "second": second["strategy"],
            "margin": second["epoch_s"] / first["epoch_s"] - 1.0,
            "clear": clearly(first, second),
        }
    return row


def clearly(first: dict[Any, Any], second: dict[Any, Any]) -> bool:
    """Whether ``first`` is faster wherever the two points lie in their intervals.

    Both read the same samples, hidden or not, so at one scale the reading that the upper end puts
    before the loop is left out of it.
    """
    highest = max(first["epoch_high_s"] - first["io_s"], first["epoch_s"])
    return bool(highest < second["epoch_low_s"])


def nothing_fits(points: pd.DataFrame, budget: float | None) -> Problem | None:
    """What is wrong where no point is within the budget; None where one is."""
    if len(usable(points)):
        return None
    possible = points[points["feasible"]].sort_values("memory_nbytes", kind="stable")
    if possible.empty or budget is None:
        return None  # whatever is asked for, something is possible; and without a budget it fits
    least = possible.iloc[0]
    rule = "must be enough for one strategy at one world size"
    remedy = (
        f"{least['strategy']} at {least['world_size']} GPUs takes least,"
        f" {least['memory_nbytes'] / GIB:.3g} GiB."
    )
    return Problem("--budget-memory", rule, f"{budget / GIB:.3g} GiB", remedy)
