"""What a kind of figure declares, and the results that it is drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.results.chart import Chart
from simshuffle.study.study import Result

RUNS = ("simulation", "simulation_over_seeds", "sweep")
"""Kinds of results with the times of runs."""
VERBS = {
    "simulation": "run",
    "simulation_over_seeds": "run --seeds",
    "sweep": "sweep",
    "congestion": "congestion",
    "ablation": "ablate",
    "hiding": "hiding",
    "time_to_accuracy": "tta",
    "oracle": "oracle",
}
"""What makes each kind of result that a figure takes."""


@dataclass(frozen=True)
class Given:
    """A result that a figure is drawn from, and the name of its folder."""

    name: str
    result: Result


@dataclass(frozen=True)
class Kind:
    """A kind of figure."""

    takes: tuple[str, ...]  # kinds of results; none where it needs none
    chart: Callable[[Sequence[Given]], Chart]  # the figure, as it is declared for the style of now
    # what it shows: plain values, a row each. Both raise InputError if the results have nothing for
    # it.
    table: Callable[[Sequence[Given]], pd.DataFrame]
    together: tuple[str, ...] = ()  # the kinds of results of which several are shown together
    # what has to be said beside the table
    notes: Callable[[Sequence[Given]], list[str]] = lambda given: []


def nothing(rule: str, given: Sequence[Given], remedy: str) -> InputError:
    """The error of results that have nothing for a figure: what it needs, and how to get it."""
    names = ", ".join(of.name for of in given)
    return InputError(Problem("RESULT", rule, names, remedy), "command line")
