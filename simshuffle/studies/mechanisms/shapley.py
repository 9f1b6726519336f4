"""How much each switch contributes, from the table of times alone: switched first, switched last,
and on average over all orders; and what single values do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.results.report import WHOLE
from simshuffle.studies.mechanisms.tables import ALL, CHANGES, CONTRIBUTIONS

Floats = NDArray[np.float64]
State = tuple[bool, ...]  # for each switch whether it is on


def word(state: State) -> str:
    """``state`` as a word of 0 and 1."""
    return "".join(str(int(on)) for on in state)


def state(word: str) -> State:
    """The state that ``word`` stands for."""
    return tuple(letter == "1" for letter in word)


def _on(of: State, number: int) -> State:
    return (*of[:number], True, *of[number + 1 :])


def on_the_way(feasible: Collection[State]) -> dict[tuple[State, int], float]:
    """The weights of all steps on the orders of switching that there can be, from all off to all
    on.

    An order is possible if each state on its way is in ``feasible``. The mean over such orders is
    the Shapley value of games under precedence constraints (Faigle and Kern, Int. J. Game Theory
    21, 1992, 249-266); without constraints it is that of Shapley.

    Returns:
        For each (state, switch that is turned on in it) the share of the orders that take this
        step; without those of share 0. Empty if no order is possible.
    """
    known = sorted(set(feasible), key=sum)
    before = dict.fromkeys(known, 0)  # orders from the start to a state
    after = dict.fromkeys(known, 0)  # orders from a state to the end
    count = len(known[0]) if known else 0
    if (False,) * count not in before or (True,) * count not in before:
        return {}
    steps = [
        (of, number)
        for of in known
        for number in range(count)
        if not of[number] and _on(of, number) in before
    ]
    before[(False,) * count] = after[(True,) * count] = 1
    for of, number in steps:
        before[_on(of, number)] += before[of]
    for of, number in reversed(steps):
        after[of] += after[_on(of, number)]
    total = before[(True,) * count]
    shares = {(of, number): before[of] * after[_on(of, number)] for of, number in steps}
    return {step: orders / total for step, orders in shares.items() if orders}


def shapley(values: Mapping[State, Floats]) -> list[Floats]:
    """The Shapley value of each switch; ``values`` are those of the feasible states, arrays of one
    shape."""
    count = len(next(iter(values)))
    out = [np.zeros_like(next(iter(values.values()))) for _ in range(count)]
    for (of, number), weight in on_the_way(values).items():
        out[number] = out[number] + weight * (values[_on(of, number)] - values[of])
    return out


def contributions(switches: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The contribution of every switch to every label, from the tables of those names: columns
    `CONTRIBUTIONS`."""
    keys = [str(key) for key in switches["switch"]]
    start, end = (False,) * len(keys), (True,) * len(keys)
    of_label = {label: _by_state(rows) for label, rows in runs.groupby("label", sort=False)}
    whole = float(np.mean(of_label[WHOLE][end] - of_label[WHOLE][start]))
    rows: list[tuple[Any, ...]] = []
    for label, values in of_label.items():
        for number, (key, of_seeds) in enumerate(zip(keys, shapley(values), strict=True)):
            first = _step(values, start, number)
            last = _step(values, (*end[:number], False, *end[number + 1 :]), number)
            rows.append((key, label, first, last, *_summary(of_seeds, whole)))
        mean, *others = _summary(values[end] - values[start], whole)
        rows.append((ALL, label, mean, mean, mean, *others))
    return CONTRIBUTIONS.framed(rows)


def changes(switches: pd.DataFrame, runs: pd.DataFrame, alone: pd.DataFrame) -> pd.DataFrame:
    """Every value that was simulated alone, against the base it was set in: columns `CHANGES`, from
    the tables of those names."""
    count = len(switches)
    base_of = {"start": "0" * count, "end": "1" * count}
    before = runs.set_index(["state", "label", "seed"])["seconds"]
    rows = []
    for keys, of in alone.groupby(["key", "value", "base", "label"], sort=False):
        *_, base, label = map(str, keys)
        then = np.array([before.loc[(base_of[base], label, seed)] for seed in of["seed"].tolist()])
        change = of["seconds"].to_numpy() - then
        rows.append((*keys, float(change.mean()), float(change.min()), float(change.max())))
    return CHANGES.framed(rows)


def _by_state(rows: pd.DataFrame) -> dict[State, Floats]:
    wide = rows.pivot(index="seed", columns="state", values="seconds")
    return {state(str(word)): wide[word].to_numpy() for word in wide.columns}


def _step(values: Mapping[State, Floats], of: State, number: int) -> float:
    """Mean change by a switch that is turned on in ``of``; nan if that cannot be."""
    there = of in values and _on(of, number) in values
    return float((values[_on(of, number)] - values[of]).mean()) if there else np.nan


def _summary(of_seeds: Floats, whole: float) -> tuple[float, float, float, float]:
    mean = float(of_seeds.mean())
    return mean, float(of_seeds.min()), float(of_seeds.max()), mean / whole if whole else np.nan
