"""Colour and marker of each strategy, the same in all figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

COLOURS = {
    "global": "#000000",
    "local": "#EE6677",
    "partial": "#4477AA",
    "IS": "#228833",
    "IS-Pair": "#CCBB44",
    "ILag": "#66CCEE",
    "ILag-Pair": "#AA3377",
}
MARKERS = {
    "global": "s",
    "local": "v",
    "partial": "o",
    "IS": "^",
    "IS-Pair": "D",
    "ILag": "<",
    "ILag-Pair": "P",
}
OTHERS = ("#EE7733", "#009988", "#882255", "#999933", "#DDAA33", "#77AADD")
OTHER_MARKERS = ("X", "p", "*", "h", ">")


def strategies(rows: pd.DataFrame) -> list[str]:
    """The strategies of a table: those of `COLOURS` first, in that order."""
    known = list(dict.fromkeys(rows["strategy"]))
    return [name for name in COLOURS if name in known] + [
        name for name in known if name not in COLOURS
    ]


def look_of(strategy: str, known: Sequence[str]) -> dict[str, Any]:
    """Colour and marker of a strategy among those that are ``known``: others than those of
    `COLOURS` have them by their place alone, and no two of 30 the same."""
    if strategy in COLOURS:
        return {"color": COLOURS[strategy], "marker": MARKERS[strategy]}
    place = [name for name in known if name not in COLOURS].index(strategy)
    turn = place + place // math.lcm(len(OTHERS), len(OTHER_MARKERS))
    return {
        "color": OTHERS[place % len(OTHERS)],
        "marker": OTHER_MARKERS[turn % len(OTHER_MARKERS)],
    }
