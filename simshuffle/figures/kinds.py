"""What a kind of figure declares; finding one, and the results that it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.figures import KINDS
from simshuffle.results.chart import Chart
from simshuffle.spec.library import nearest
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
    """A kind of figure.

    Attributes:
        takes: kinds of results; none where it needs none.
        chart: the figure, as it is declared for the style of now.
        table: what it shows: plain values, a row each. Both raise InputError if the results have
            nothing for it.
        together: the kinds of results of which several are shown together.
        notes: what has to be said beside the table.
    """

    takes: tuple[str, ...]
    chart: Callable[[Sequence[Given]], Chart]
    table: Callable[[Sequence[Given]], pd.DataFrame]
    together: tuple[str, ...] = ()
    notes: Callable[[Sequence[Given]], list[str]] = lambda given: []


def kind_named(name: str) -> Kind:
    """The kind of figure of that name.

    Raises:
        InputError: there is none.
    """
    if name not in KINDS:
        problem = Problem("KIND", "no such kind of figure", repr(name), nearest(name, [*KINDS]))
        raise InputError(problem, "command line")
    from simshuffle.figures.catalogue import CATALOGUE  # noqa: PLC0415 - it needs this module

    return CATALOGUE[name]


def check_results(name: str, given: Sequence[Given]) -> None:
    """See that a kind of figure can be drawn from these results.

    Raises:
        InputError: there are none, too many, or others than it takes.
    """
    kind = kind_named(name)
    takes = " or ".join(f"'simshuffle {VERBS[of]}'" for of in kind.takes)
    problems = []
    if not kind.takes and given:
        problems.append(
            Problem("RESULT", f"{name} needs no result", given[0].name, "Leave it out.")
        )
    if kind.takes and not given:
        problems.append(Problem("RESULT", f"{name} needs a result folder of {takes}", "none"))
    for of in given:
        if kind.takes and of.result.study.kind not in kind.takes:
            what = f"{of.name}, of kind {of.result.study.kind}"
            problems.append(Problem("RESULT", f"{name} takes results of {takes}", what))
    if not problems and len(given) > 1:
        kinds = {of.result.study.kind for of in given}
        if not kinds <= set(kind.together):
            rule = f"{name} takes one result of that kind"
            problems.append(Problem("RESULT", rule, str(len(given)), "Give one folder."))
    if problems:
        raise InputError(problems, "command line")


def nothing(rule: str, given: Sequence[Given], remedy: str) -> InputError:
    """The error of results that have nothing for a figure: what it needs, and how to get it."""
    names = ", ".join(of.name for of in given)
    return InputError(Problem("RESULT", rule, names, remedy), "command line")
