"""The study behind ``simshuffle accuracy``.

It counts the samples that a rank's statistics rest on, predicts the loss of accuracy,
and times every remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simshuffle.errors import Problem
from simshuffle.extensions.learning.accuracy import text
from simshuffle.extensions.learning.accuracy.asked import AccuracyRequest
from simshuffle.extensions.learning.accuracy.cells import (
    EffectiveSamplesCell,
    StatisticsSumCell,
)
from simshuffle.extensions.learning.accuracy.figures import accuracy_chart
from simshuffle.extensions.learning.accuracy.remedies import (
    SLOW_MOMENTUM,
    SLOW_MOMENTUM_NAME,
    RemedyComparison,
    samples_cell_name,
    simulation_name,
    sums_cell_name,
)
from simshuffle.extensions.learning.accuracy.says import AccuracyFacts
from simshuffle.extensions.learning.accuracy.tables import STORED
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.studies.mechanisms.variants import WarmCell
from simshuffle.study.cell import Cell
from simshuffle.study.schema import problems_of_misfits
from simshuffle.study.study import Outcomes, Result, Study, Tables

MAX_SIMULATED_SECONDS = 60.0
"""Most s of one core, by the costs of runs, that all simulations take together unless
all are asked for: less than a minute on two cores. Runs that do not fit are timed by
closed forms.
"""


def _bases(request: AccuracyRequest, outcomes: Outcomes) -> dict[str, Cell]:
    """Return the cells of every unchanged run: its samples, and a warm epoch.

    Warm epochs are left out, the dearest first, where together they cost more than
    `MAX_SIMULATED_SECONDS`; with ``request.exact`` none are. Samples are of every run.
    """
    cells = _affordable_simulations(request, _base_runs(request), MAX_SIMULATED_SECONDS)
    for case in request.cases:
        name = samples_cell_name(case, "")
        cells[name] = EffectiveSamplesCell(
            case.base.to_dict(), name, request.momentum, request.epochs
        )
    return cells


def _base_runs(request: AccuracyRequest) -> dict[str, Scenario]:
    """Return the unchanged scenario of every run, by the name of its simulation."""
    return {simulation_name(case, ""): case.base for case in request.cases}


def _affordable_simulations(
    request: AccuracyRequest, runs: Mapping[str, Scenario], limit: float
) -> dict[str, Cell]:
    """Return the simulations of runs by name, the cheapest that fit into ``limit`` s.

    ``limit`` is of the sum of their costs, s of one core; below 0 none fit. With
    ``request.exact`` all are returned. Names stand in the order of ``runs``.
    """
    cells = {
        name: WarmCell(scenario.to_dict(), name) for name, scenario in runs.items()
    }
    if request.exact:
        return dict(cells)
    cumulated_cost = np.cumsum(sorted(cell.cost for cell in cells.values()))
    num_affordable = int(np.searchsorted(cumulated_cost, limit, side="right"))
    affordable = sorted(cells, key=lambda name: cells[name].cost)[:num_affordable]
    return {name: cell for name, cell in cells.items() if name in affordable}


def _remedies(request: AccuracyRequest, outcomes: Outcomes) -> dict[str, Cell]:
    """Return the cells of remedies, of runs that may lose more than is tolerated.

    With ``request.exact`` the cells are of all runs. Global shuffle and networks
    without batch norm have none. They are the samples and a warm epoch of every change
    that is possible, as far as simulations fit into `MAX_SIMULATED_SECONDS` with those
    of the runs; the samples at `SLOW_MOMENTUM` where the run's momentum is above it;
    and the seconds of summing statistics where the network's channels are known.
    """
    cells: dict[str, Cell] = {}
    runs: dict[str, Scenario] = {}
    for case in request.cases:
        if (
            not case.changes
            or not RemedyComparison(request, case, outcomes).compares_remedies
        ):
            continue
        for change, scenario in case.cells.items():
            if change:
                runs[simulation_name(case, change)] = scenario
                name = samples_cell_name(case, change)
                cells[name] = EffectiveSamplesCell(
                    scenario.to_dict(), name, request.momentum, request.epochs
                )
        document = case.base.to_dict()
        if request.momentum > SLOW_MOMENTUM:
            name = samples_cell_name(case, SLOW_MOMENTUM_NAME)
            cells[name] = EffectiveSamplesCell(
                document, name, SLOW_MOMENTUM, request.epochs
            )
        if request.channels:
            name = sums_cell_name(case)
            cells[name] = StatisticsSumCell(document, name, request.channels)
    base_simulations = _affordable_simulations(
        request, _base_runs(request), MAX_SIMULATED_SECONDS
    )
    spent_seconds = sum(cell.cost for cell in base_simulations.values())
    return cells | _affordable_simulations(
        request, runs, MAX_SIMULATED_SECONDS - spent_seconds
    )


def _collect(request: AccuracyRequest, outcomes: Outcomes) -> Tables:
    """Return tables ``settings``, a row for each run, and ``remedies``, a row for each
    remedy of a run.

    A run of which no remedies are compared has the one row 'as it is'.
    """
    comparisons = [RemedyComparison(request, case, outcomes) for case in request.cases]
    settings = [comparison.setting_row() for comparison in comparisons]
    remedies = [row for comparison in comparisons for row in comparison.remedy_rows()]
    return {
        "settings": STORED["settings"].framed(settings),
        "remedies": STORED["remedies"].framed(remedies),
    }


def _facts(
    request: AccuracyRequest, outcomes: Outcomes, tables: Tables
) -> dict[str, Any]:
    """Return the facts that texts state beside tables, at key 'accuracy'.

    'scenario' is the scenario's name, and 'timed' the name of the network that it
    trains. 'importance' is whether any run chooses samples by importance, and
    'norm_is_known' whether the network's norm is known. 'settings' and 'remedies' count
    the rows of those tables.
    """
    base = request.cases[0].base
    return {
        "accuracy": {
            "scenario": base.name,
            "timed": base.workload.model.name,
            "importance": any(
                case.base.workload.exchange.needs_importance for case in request.cases
            ),
            "norm_is_known": request.norm_is_known,
            "settings": len(tables["settings"]),
            "remedies": len(tables["remedies"]),
        }
    }


def _faults(result: Result) -> Iterator[Problem]:
    """Yield the problems of tables that do not fit ``meta.json`` or each other.

    Rows must be as many as ``meta.json`` counts, with one in ``settings`` at least.
    Both tables must have the same numbers of ranks. A run has one chosen remedy at
    most.
    """
    settings = result.tables["settings"]
    remedies = result.tables["remedies"]
    facts = result.meta["accuracy"]
    chosen = remedies.groupby(["world_size", "strategy"])["chosen"].sum()
    yield from problems_of_misfits(
        {
            "settings.csv": len(settings) == facts["settings"] > 0,
            "remedies.csv": len(remedies) == facts["remedies"]
            and set(remedies["world_size"]) == set(settings["world_size"])
            and bool((chosen <= 1).all()),
        }
    )


STUDY: Study[AccuracyRequest] = Study(
    kind="accuracy",
    verb="accuracy",
    stages=(_bases, _remedies),
    collect=_collect,
    stored=STORED,
    documents=("scenario.yaml",),
    figures=lambda result: {"accuracy": accuracy_chart(result.tables, result.meta)},
    one_figure=True,
    verdict=text.verdict,
    parts=text.parts,
    details=text.details,
    exported=text.document_parts,
    facts=_facts,
    says=AccuracyFacts,
    faults=_faults,
    again="simshuffle.extensions.learning.accuracy.asked:repeat",
)
