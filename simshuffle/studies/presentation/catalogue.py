"""Every kind of figure for papers: the results it takes, its chart, and the table under it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.errors import InputError, Problem
from simshuffle.report.chart import Chart
from simshuffle.report.console import new_table
from simshuffle.spec.library import suggest_nearest
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.presentation import KINDS, of_runs, of_studies, storage
from simshuffle.studies.presentation.of_runs import Given, over, own, table_over
from simshuffle.study.registry import merge_extensions, verbs

OVER_SEEDS = "simulation_over_seeds"
RUNS = ("simulation", OVER_SEEDS, "simulation_of_jobs", "sweep")
"""Kinds of results with the times of runs, of which several are shown together."""


@dataclass(frozen=True)
class Kind:
    """A kind of figure. All functions raise InputError if the results have nothing for it."""

    takes: tuple[str, ...]  # kinds of results; none where it needs none
    chart: Callable[[Sequence[Given]], Chart]  # the figure, as it is declared for the style of now
    table: Callable[[Sequence[Given]], pd.DataFrame]  # what it shows: plain values, a row each
    # what has to be said beside the table
    notes: Callable[[Sequence[Given]], list[str]] = lambda given: []


WORDS = {"world_size": "ranks", "exchange_fraction": "Q", "low": "95 % low", "high": "95 % high"}


def table_of(title: str, values: pd.DataFrame) -> Table:
    """``values`` with headings; texts at the left, numbers at the right."""
    table = new_table(title)
    for name in values.columns:
        number = pd.api.types.is_numeric_dtype(values[name]) and values[name].dtype != bool
        justify: Any = "right" if number else "left"
        table.add_column(heading(str(name)), justify=justify, no_wrap=number)
    for row in values.itertuples(index=False, name=None):
        cells = zip(values.columns, row, strict=True)
        table.add_row(*(_cell(str(name), value) for name, value in cells))
    return table


def heading(column: str) -> str:
    """The name of a column for people: 'epoch_s' becomes 'epoch (s)'."""
    if column in WORDS:
        return WORDS[column]
    words = column.removesuffix("_nbytes").removesuffix("_s").replace("_", " ")
    return f"{words} (s)" if column.endswith("_s") else words


def _cell(column: str, value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column.endswith("_nbytes"):
        return readable(float(value), Dimension.NBYTES, 3) if value else "0 B"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _links(given: Sequence[Given]) -> list[str]:
    return ["Results keep a mean and a peak of each link and epoch, and no more."]


_TIMES: dict[str, Any] = {"across": "world_size", "measure": "epoch_s"}
_EXCHANGE = {**_TIMES, "measure": "exchange_total_s"}
_FRACTION = {**_TIMES, "across": "exchange_fraction"}
_SEEDS, _ORACLE = RUNS[:2], ("oracle",)
CATALOGUE = {
    "breakdown": Kind(RUNS, of_runs.breakdown, of_runs.breakdown_table),
    "scaling": Kind(RUNS, partial(over, **_TIMES, ideal=True), of_runs.scaling_table),
    "exchange": Kind(RUNS, partial(over, **_EXCHANGE), partial(table_over, **_EXCHANGE)),
    "hidden": Kind((*RUNS, "hiding"), of_runs.hidden, of_runs.hidden_table),
    "fraction": Kind(RUNS, partial(over, **_FRACTION), partial(table_over, **_FRACTION)),
    "congestion": Kind(("congestion",), own("heat"), of_studies.congestion_table),
    "links": Kind(_SEEDS, of_studies.links, of_studies.links_table, _links),
    "completion": Kind(
        (*_SEEDS, "congestion"),
        of_studies.completion,
        of_studies.completion_table,
        of_studies.completion_notes,
    ),
    "waterfall": Kind(("ablation",), own("waterfall"), of_studies.waterfall_table),
    "parallel-strategies": Kind(
        _ORACLE, own("times", of_studies.strategies_table), of_studies.strategies_table
    ),
    "memory": Kind(_ORACLE, own("memory"), of_studies.memory_table),
    "storage": Kind((), storage.chart, storage.table, storage.notes),
}
"""The kinds of figures of this package's own studies, by name; extensions add theirs."""


def kind_named(name: str) -> Kind:
    """The kind of figure of that name.

    Raises:
        InputError: there is none.
    """
    if name not in KINDS:
        problem = Problem(
            "KIND", "no such kind of figure", repr(name), suggest_nearest(name, [*KINDS])
        )
        raise InputError(problem, "command line")
    if name in CATALOGUE:
        return CATALOGUE[name]
    kind: Kind = resolve_name(merge_extensions().figures[name].kind)
    return kind


def check_results(name: str, given: Sequence[Given]) -> None:
    """See that a kind of figure can be drawn from these results.

    Raises:
        InputError: there are none, too many, or others than it takes.
    """
    kind = kind_named(name)
    words = {kind: verb.word for verb in verbs().values() for kind in verb.kinds}
    words[OVER_SEEDS] = "run --seeds"
    takes = " or ".join(f"'simshuffle {words[of]}'" for of in kind.takes)
    problems = []
    if not kind.takes and given:
        rule = f"{name} needs no result"
        problems.append(Problem("RESULT", rule, given[0].name, "Leave it out."))
    if kind.takes and not given:
        problems.append(Problem("RESULT", f"{name} needs a result folder of {takes}", "none"))
    for of in given:
        if kind.takes and of.result.study.kind not in kind.takes:
            what = f"{of.name}, of kind {of.result.study.kind}"
            problems.append(Problem("RESULT", f"{name} takes results of {takes}", what))
    if not problems and len(given) > 1 and {of.result.study.kind for of in given} - {*RUNS}:
        rule = f"{name} takes one result of that kind"
        problems.append(Problem("RESULT", rule, str(len(given)), "Give one folder."))
    if problems:
        raise InputError(problems, "command line")
