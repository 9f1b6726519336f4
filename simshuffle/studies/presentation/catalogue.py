"""Kinds of figures for papers: the results that each takes, its chart, and the table
under it.
"""

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
from simshuffle.studies.presentation import KINDS, run_figures, storage, study_figures
from simshuffle.studies.presentation.named_results import NamedResult, declared_figure
from simshuffle.studies.presentation.run_figures import scaling_chart, scaling_rows
from simshuffle.study.registry import merge_extensions, verbs

OVER_SEEDS = "simulation_over_seeds"
RUNS = ("simulation", OVER_SEEDS, "simulation_of_jobs", "sweep")
"""Kinds of results with the times of runs, of which several are shown together."""


@dataclass(frozen=True)
class Kind:
    """A kind of figure. All functions raise InputError if the results have nothing for
    it.
    """

    takes: tuple[str, ...]  # kinds of results; () where it needs no result
    # the figure, in the style that `in_style` has set
    chart: Callable[[Sequence[NamedResult]], Chart]
    # the numbers that it shows, as plain values
    table: Callable[[Sequence[NamedResult]], pd.DataFrame]
    # sentences that belong beside the table
    notes: Callable[[Sequence[NamedResult]], list[str]] = lambda results: []


WORDS = {
    "world_size": "ranks",
    "exchange_fraction": "Q",
    "low": "95 % low",
    "high": "95 % high",
}


def format_table(title: str, values: pd.DataFrame) -> Table:
    """Return ``values`` as a table with headings; texts stand at the left, numbers at
    the right.
    """
    table = new_table(title)
    for name in values.columns:
        is_number = (
            pd.api.types.is_numeric_dtype(values[name]) and values[name].dtype != bool
        )
        justify: Any = "right" if is_number else "left"
        table.add_column(name_column(str(name)), justify=justify, no_wrap=is_number)
    for row in values.itertuples(index=False, name=None):
        cells = zip(values.columns, row, strict=True)
        table.add_row(*(_cell(str(name), value) for name, value in cells))
    return table


def name_column(column: str) -> str:
    """Return the name of a column for people: 'epoch_s' becomes 'epoch (s)'.

    The end ``_nbytes`` is left out; `WORDS` go before.
    """
    if column in WORDS:
        return WORDS[column]
    words = column.removesuffix("_nbytes").removesuffix("_s").replace("_", " ")
    return f"{words} (s)" if column.endswith("_s") else words


def _cell(column: str, value: Any) -> str:
    """Format a value: '-' for None and NaN, yes or no, floats with four digits.

    Columns that end in ``_nbytes`` are bytes with a prefix.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column.endswith("_nbytes"):
        return readable(float(value), Dimension.NBYTES, 3) if value else "0 B"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _links_notes(results: Sequence[NamedResult]) -> list[str]:
    """Return the sentence beside the table of links."""
    return ["Results keep only the mean and the peak of each link and epoch."]


_TIMES: dict[str, Any] = {"across": "world_size", "measure": "epoch_s"}
_EXCHANGE = {**_TIMES, "measure": "exchange_total_s"}
_FRACTION = {**_TIMES, "across": "exchange_fraction"}
_SEEDS = RUNS[:2]
_ORACLE = ("oracle",)
CATALOGUE = {
    "breakdown": Kind(RUNS, run_figures.breakdown, run_figures.breakdown_table),
    "scaling": Kind(
        RUNS, partial(scaling_chart, **_TIMES, ideal=True), run_figures.scaling_table
    ),
    "exchange": Kind(
        RUNS, partial(scaling_chart, **_EXCHANGE), partial(scaling_rows, **_EXCHANGE)
    ),
    "hidden": Kind((*RUNS, "hiding"), run_figures.hidden, run_figures.hidden_table),
    "fraction": Kind(
        RUNS, partial(scaling_chart, **_FRACTION), partial(scaling_rows, **_FRACTION)
    ),
    "congestion": Kind(
        ("congestion",), declared_figure("heat"), study_figures.congestion_table
    ),
    "links": Kind(
        _SEEDS, study_figures.draw_links, study_figures.tabulate_links, _links_notes
    ),
    "completion": Kind(
        (*_SEEDS, "congestion"),
        study_figures.draw_completion,
        study_figures.tabulate_completion,
        study_figures.completion_notes,
    ),
    "waterfall": Kind(
        ("ablation",), declared_figure("waterfall"), study_figures.waterfall_table
    ),
    "parallel-strategies": Kind(
        _ORACLE,
        declared_figure("times", study_figures.strategies_table),
        study_figures.strategies_table,
    ),
    "memory": Kind(_ORACLE, declared_figure("memory"), study_figures.memory_table),
    "storage": Kind((), storage.chart, storage.table, storage.notes),
}
"""The kinds of figures of this package's own studies, by name; extensions add theirs."""


def find_kind(name: str) -> Kind:
    """Find the kind of figure that is called ``name``, of this package or of an
    extension.

    Raises:
        InputError: there is none.
    """
    if name not in KINDS:
        problem = Problem(
            "KIND",
            "no such kind of figure",
            repr(name),
            suggest_nearest(name, [*KINDS]),
        )
        raise InputError(problem, "command line")
    if name in CATALOGUE:
        return CATALOGUE[name]
    kind: Kind = resolve_name(merge_extensions().figures[name].kind)
    return kind


def check_results(name: str, results: Sequence[NamedResult]) -> None:
    """Check that a kind of figure can be drawn from these results.

    Several results are taken only if all are of `RUNS`.

    Raises:
        InputError: there are none, too many, or others than it takes; or there is no
            such kind of figure.
    """
    figure_kind = find_kind(name)
    verb_of_kind = {
        figure_kind: verb.word
        for verb in verbs().values()
        for figure_kind in verb.kinds
    }
    verb_of_kind[OVER_SEEDS] = "run --seeds"
    takes = " or ".join(
        f"'simshuffle {verb_of_kind[result_kind]}'" for result_kind in figure_kind.takes
    )
    problems = []
    if not figure_kind.takes and results:
        rule = f"{name} needs no result"
        problems.append(Problem("RESULT", rule, results[0].name, "Leave it out."))
    if figure_kind.takes and not results:
        problems.append(
            Problem("RESULT", f"{name} needs a result folder of {takes}", "none")
        )
    for named_result in results:
        if (
            figure_kind.takes
            and named_result.result.study.kind not in figure_kind.takes
        ):
            description = (
                f"{named_result.name}, of kind {named_result.result.study.kind}"
            )
            problems.append(
                Problem("RESULT", f"{name} takes results of {takes}", description)
            )
    if (
        not problems
        and len(results) > 1
        and {named_result.result.study.kind for named_result in results} - {*RUNS}
    ):
        rule = f"{name} takes only one result of this kind"
        problems.append(Problem("RESULT", rule, str(len(results)), "Give one folder."))
    if problems:
        raise InputError(problems, "command line")
