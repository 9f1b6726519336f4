"""What decides: barriers, messages or partners. Each is switched on its own, at equal bytes. From
the table of times alone."""

from __future__ import annotations

from itertools import product
from math import factorial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.studies.congestion.patterns import Batching, Variant
from simshuffle.studies.congestion.tables import (
    BYTES_SET,
    MODEL,
    ROUTING,
    SIZE,
    VARIANT,
    WORLD_SIZE,
    groups,
)
from simshuffle.study.schema import Schema, amount, text

Floats = NDArray[np.float64]

SWITCHES = ("no barriers", "one message an iteration", "one partner an epoch")
"""What distinguishes the pairing from the permutations, each a switch."""
STATES = tuple(product((False, True), repeat=len(SWITCHES)))


def _corner(state: tuple[bool, ...]) -> Variant:
    free, together, fixed = state
    batching: Batching = "iteration" if together else "sample"
    return Variant("pairing_random" if fixed else "random_permutations", batching, barrier=not free)


CORNERS = tuple(_corner(state) for state in STATES)
"""All states of the switches, from none to all; the first is the practice: a permutation and a
barrier for every sample."""
PARTNERS_ALONE = tuple(
    Variant(pattern, "sample", barrier=True)
    for pattern in ("linear_shift", "xor", "pairing_topology", "pairing_importance")
)
"""Other partners in place of the permutations, and nothing else."""

ABLATION = Schema(
    {
        "world_size": WORLD_SIZE,
        "routing": ROUTING,
        "bytes_set": BYTES_SET,
        "model": MODEL,
        "switch": text("what is changed", head="switched"),
        "alone": amount(
            "time after / time before, switched first and alone: median over seeds", look=".2f"
        ),
        "alone_min": amount("lowest of the seeds"),
        "alone_max": amount("highest of the seeds"),
        "last": amount(
            "the same, switched when the others are on already; empty for other partners",
            empty=True,
            look=".2f",
        ),
        "mean": amount(
            "geometric mean over seeds and over all orders of switching; the three multiply to that"
            " of 'all three'",
            empty=True,
            head="any order",
            look=".2f",
        ),
    }
)


def ablation(times: pd.DataFrame) -> pd.DataFrame:
    """Factors on the time, for every world size, routing, set of bytes and model that has all of
    `CORNERS`: columns `ABLATION`."""
    rows: list[dict[str, object]] = []
    for values, case in groups(times, *SIZE, "model"):
        wide = case.pivot(index="seed", columns=VARIANT, values="time_s")
        logs = {
            Variant(*column): np.log(seconds)
            for column, seconds in zip(wide.columns, wide.to_numpy().T, strict=True)
        }
        if all(corner in logs for corner in CORNERS):
            key = dict(zip((*SIZE, "model"), values, strict=True))
            rows += [{**key, **row} for row in _factors(logs)]
    return pd.DataFrame(rows, columns=list(ABLATION.columns))


def _factors(logs: dict[Variant, Floats]) -> list[dict[str, object]]:
    """Rows of one case; ``logs`` are the logarithms of the times (seeds,) of each variant."""
    at = {state: logs[corner] for state, corner in zip(STATES, CORNERS, strict=True)}
    rows = []
    for number, switch in enumerate(SWITCHES):
        changes = {
            state: at[_switched(state, number)] - at[state] for state in STATES if not state[number]
        }
        mean = np.sum([_weight(sum(state)) * change for state, change in changes.items()], axis=0)
        rows.append(_row(switch, changes[STATES[0]], changes[max(changes, key=sum)], mean))
    whole = at[STATES[-1]] - at[STATES[0]]
    rows.append(_row("all three", whole, whole, whole))
    rows += [
        _row(f"{other.pattern} alone", logs[other] - at[STATES[0]])
        for other in PARTNERS_ALONE
        if other in logs
    ]
    return rows


def _switched(state: tuple[bool, ...], number: int) -> tuple[bool, ...]:
    return (*state[:number], True, *state[number + 1 :])


def _weight(others: int) -> float:
    """Share of the orders of switching in which ``others`` others come before a switch."""
    count = len(SWITCHES)
    return factorial(others) * factorial(count - 1 - others) / factorial(count)


def _row(
    switch: str, alone: Floats, last: Floats | None = None, mean: Floats | None = None
) -> dict[str, object]:
    factors = np.exp(alone)
    return {
        "switch": switch,
        "alone": float(np.median(factors)),
        "alone_min": float(factors.min()),
        "alone_max": float(factors.max()),
        "last": np.nan if last is None else float(np.median(np.exp(last))),
        "mean": np.nan if mean is None else float(np.exp(mean.mean())),
    }
