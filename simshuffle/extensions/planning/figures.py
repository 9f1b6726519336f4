"""The figure of a plan, from tables alone: what each strategy costs, and of what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from simshuffle.report.chart import Axis, Chart, Look, Mark, Panel, in_rows, rule, stacked_bars
from simshuffle.report.style import COLOURS
from simshuffle.spec.units import Dimension, readable

PIECES = {
    "I/O": Look("I/O", COLOURS["I/O"]),
    "exchange": Look("exchange", COLOURS["EXCHANGE"]),
    "other": Look("computing and the rest", COLOURS["FW+BW"]),
    "staging": Look("staging", "#66CCEE"),
    "storage": Look("storage", "#BBBBBB"),
}
BUDGET = Look("budget", "#AA3377", dash=(0, (4, 1.5)))
NOT_SIMULATED = "not simulated"
ROOM = 1.32  # of the axis, for texts beside the bars


def plan_chart(table: pd.DataFrame, meta: Mapping[str, Any]) -> Chart:
    """A bar of the cost of each strategy, the cheapest on top, from the table `strategies` and
    ``meta.json``; of those that cannot be had it is said why."""
    table = table.sort_values("cost", kind="stable", na_position="last").reset_index(drop=True)
    pieces = stacked_bars(parts_of_cost(table.dropna(subset="cost")))
    pieces = pieces[pieces["size"] > 0]
    known = table["cost"].dropna()
    most = float(known.max()) if len(known) else 1.0
    budget = meta["asked"]["budget"]
    shown = budget is not None and 0 < budget <= ROOM * most
    said = pd.DataFrame(
        {
            "x": table["cost"].fillna(0.0),
            "y": [float(at) for at in range(len(table))],
            "text": [_beside(row) for row in table.to_dict("records")],
        }
    )
    marks = [Mark("bar", pieces, thick=0.6)]
    if shown:
        marks.append(rule(BUDGET, x=float(budget)))
    marks.append(
        Mark("text", said, look=Look(colour="#000000"), aside=(3, 0), small=True, backed=shown)
    )
    prices = meta["asked"]["prices"]
    priced = prices != {"host-hour": 1.0}
    title = "cost of the training" if priced else "host-hours of the training"
    names = [f"{row['strategy']}{' *' * row['chosen']}" for row in table.to_dict("records")]
    used = set(pieces["look"])
    return Chart(
        [Panel(marks, Axis(title, low=0.0, high=ROOM * most, max_ticks=5), in_rows(names))],
        0.62 + 0.24 * len(table),
        {name: look for name, look in PIECES.items() if name in used},
        "What each strategy costs, and of what; * is chosen.",
    )


def parts_of_cost(strategies: pd.DataFrame) -> pd.DataFrame:
    """Return what each strategy costs, a column for each of `PIECES`."""
    share_staged = (strategies["staging_s"] / (3600.0 * strategies["hours"])).clip(upper=1.0)
    time_cost = strategies["time_cost"]
    io, exchange = strategies["io_share"], strategies["exchange_share"]
    training = time_cost * (1.0 - share_staged)
    return pd.DataFrame(
        {
            "I/O": training * io,
            "exchange": training * exchange,
            "other": training * (1.0 - io - exchange).clip(lower=0.0),
            "staging": time_cost * share_staged,
            "storage": strategies["storage_cost"],
        }
    )


def _beside(row: Mapping[Any, Any]) -> str:
    """The cost in numbers, or why there is none."""
    if not pd.isna(row["cost"]):
        return f"{row['cost']:,.4g}"
    if not row["fits"]:
        kept, room = (
            readable(row[name], Dimension.NBYTES, 2) for name in ("kept_nbytes", "capacity_nbytes")
        )
        return f"keeps {kept} a host, which has {room}"
    if row["why"].startswith(NOT_SIMULATED):
        return NOT_SIMULATED
    return "cannot be simulated" if row["why"] else "does not reach the target"
