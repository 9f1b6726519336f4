"""The figure of a plan, from tables alone: what each strategy costs, and of what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from simshuffle.report.chart import (
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    in_rows,
    rule,
    stacked_bars,
)
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
AXIS_FACTOR = 1.32  # length of the axis over the longest bar, for texts beside the bars


def plan_chart(table: pd.DataFrame, meta: Mapping[str, Any]) -> Chart:
    """Draw a bar of the cost of each strategy, the cheapest on top, from table
    `strategies` and ``meta.json``.

    A strategy that has no cost is labelled with the reason; the chosen one has ' *'
    behind its name. The budget is drawn only if it fits on the axis, which ends 32 %
    beyond the largest cost. Costs are host-hours where these cost 1 and nothing else
    has a price.
    """
    table = table.sort_values("cost", kind="stable", na_position="last").reset_index(
        drop=True
    )
    pieces = stacked_bars(parts_of_cost(table.dropna(subset="cost")))
    pieces = pieces[pieces["size"] > 0]
    costs = table["cost"].dropna()
    max_cost = float(costs.max()) if len(costs) else 1.0
    budget = meta["asked"]["budget"]
    is_budget_shown = budget is not None and 0 < budget <= AXIS_FACTOR * max_cost
    labels = pd.DataFrame(
        {
            "x": table["cost"].fillna(0.0),
            "y": [float(row_index) for row_index in range(len(table))],
            "text": [_bar_label(row) for row in table.to_dict("records")],
        }
    )
    marks = [Mark("bar", pieces, thick=0.6)]
    if is_budget_shown:
        marks.append(rule(BUDGET, x=float(budget)))
    marks.append(
        Mark(
            "text",
            labels,
            look=Look(colour="#000000"),
            aside=(3, 0),
            small=True,
            backed=is_budget_shown,
        )
    )
    prices = meta["asked"]["prices"]
    priced = prices != {"host-hour": 1.0}
    title = "cost of the training" if priced else "host-hours of the training"
    names = [
        f"{row['strategy']}{' *' * row['chosen']}" for row in table.to_dict("records")
    ]
    used_looks = set(pieces["look"])
    cost_axis = Axis(title, low=0.0, high=AXIS_FACTOR * max_cost, max_ticks=5)
    return Chart(
        [Panel(marks, cost_axis, in_rows(names))],
        0.62 + 0.24 * len(table),
        {name: look for name, look in PIECES.items() if name in used_looks},
        "The cost of each strategy and its parts; * is the chosen strategy.",
    )


def parts_of_cost(strategies: pd.DataFrame) -> pd.DataFrame:
    """Return the cost of each strategy (rows) divided into a column for each of
    `PIECES`.

    ``strategies`` are rows of table ``strategies`` that have a cost. The warm epoch's
    shares of I/O and exchange are taken for all epochs; staging is at most all of the
    time.
    """
    share_staged = (strategies["staging_s"] / (3600.0 * strategies["hours"])).clip(
        upper=1.0
    )
    time_cost = strategies["time_cost"]
    io_share = strategies["io_share"]
    exchange_share = strategies["exchange_share"]
    epochs_cost = time_cost * (1.0 - share_staged)
    return pd.DataFrame(
        {
            "I/O": epochs_cost * io_share,
            "exchange": epochs_cost * exchange_share,
            "other": epochs_cost * (1.0 - io_share - exchange_share).clip(lower=0.0),
            "staging": time_cost * share_staged,
            "storage": strategies["storage_cost"],
        }
    )


def _bar_label(row: Mapping[Any, Any]) -> str:
    """Return the label of a bar: its cost, or the reason why there is none."""
    if not pd.isna(row["cost"]):
        return f"{row['cost']:,.4g}"
    if not row["fits"]:
        kept_text = readable(row["kept_nbytes"], Dimension.NBYTES, 2)
        capacity_text = readable(row["capacity_nbytes"], Dimension.NBYTES, 2)
        return f"keeps {kept_text} a host; a host has {capacity_text}"
    if row["why"].startswith(NOT_SIMULATED):
        return NOT_SIMULATED
    return "cannot be simulated" if row["why"] else "does not reach the target"
