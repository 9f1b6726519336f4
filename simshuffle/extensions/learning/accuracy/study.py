"""The study behind ``simshuffle accuracy``: on how many samples the statistics of a rank rest, what
that costs in accuracy, and what every remedy costs in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simshuffle.errors import Problem
from simshuffle.extensions.learning.accuracy import text
from simshuffle.extensions.learning.accuracy.asked import AccuracyRequest
from simshuffle.extensions.learning.accuracy.cells import RestsCell, SumsCell
from simshuffle.extensions.learning.accuracy.figures import accuracy_chart
from simshuffle.extensions.learning.accuracy.remedies import (
    SLOW,
    SLOWER,
    Compared,
    rests_name,
    run_name,
    sums_name,
)
from simshuffle.extensions.learning.accuracy.says import AccuracyFacts
from simshuffle.extensions.learning.accuracy.tables import STORED
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.studies.mechanisms.variants import WarmCell
from simshuffle.study.cell import Cell
from simshuffle.study.schema import problems_of_misfits
from simshuffle.study.study import Outcomes, Result, Study, Tables

LIMIT = 60.0
"""s of one core, by the costs of runs, that all simulations take together unless all are asked
for: less than a minute on two cores. What does not fit is timed by closed forms."""


def _bases(asked: AccuracyRequest, outcomes: Outcomes) -> dict[str, Cell]:
    """For every run of the scenario: what its statistics rest on, and a warm epoch."""
    cells = _timed(asked, _base_runs(asked), LIMIT)
    for sized in asked.sized:
        name = rests_name(sized, "")
        cells[name] = RestsCell(sized.base.to_dict(), name, asked.momentum, asked.epochs)
    return cells


def _base_runs(asked: AccuracyRequest) -> dict[str, Scenario]:
    return {run_name(sized, ""): sized.base for sized in asked.sized}


def _timed(asked: AccuracyRequest, runs: Mapping[str, Scenario], limit: float) -> dict[str, Cell]:
    """The simulations of runs, by name: those that cost least, as far as the limit allows."""
    cells = {name: WarmCell(scenario.to_dict(), name) for name, scenario in runs.items()}
    if asked.exact:
        return dict(cells)
    spent = np.cumsum(sorted(cell.cost for cell in cells.values()))
    fitting = int(np.searchsorted(spent, limit, side="right"))
    order = sorted(cells, key=lambda name: cells[name].cost)[:fitting]
    return {name: cell for name, cell in cells.items() if name in order}


def _remedies(asked: AccuracyRequest, outcomes: Outcomes) -> dict[str, Cell]:
    """Where more is lost than may be: what every change rests on, and a warm epoch with it; what
    summing statistics takes."""
    cells: dict[str, Cell] = {}
    runs: dict[str, Scenario] = {}
    for sized in asked.sized:
        if not sized.changes or not Compared(asked, sized, outcomes).are_compared:
            continue
        for change, scenario in sized.cells.items():
            if change:
                runs[run_name(sized, change)] = scenario
                name = rests_name(sized, change)
                cells[name] = RestsCell(scenario.to_dict(), name, asked.momentum, asked.epochs)
        document = sized.base.to_dict()
        if asked.momentum > SLOW:
            name = rests_name(sized, SLOWER)
            cells[name] = RestsCell(document, name, SLOW, asked.epochs)
        if asked.channels:
            name = sums_name(sized)
            cells[name] = SumsCell(document, name, asked.channels)
    spent = sum(cell.cost for cell in _timed(asked, _base_runs(asked), LIMIT).values())
    return cells | _timed(asked, runs, LIMIT - spent)


def _collect(asked: AccuracyRequest, outcomes: Outcomes) -> Tables:
    compared = [Compared(asked, sized, outcomes) for sized in asked.sized]
    settings = [of.setting() for of in compared]
    remedies = [row for of in compared for row in of.rows()]
    return {
        "settings": STORED["settings"].framed(settings),
        "remedies": STORED["remedies"].framed(remedies),
    }


def _facts(asked: AccuracyRequest, outcomes: Outcomes, tables: Tables) -> dict[str, Any]:
    """What texts say beside tables."""
    base = asked.sized[0].base
    return {
        "accuracy": {
            "scenario": base.name,
            "timed": base.workload.model.name,
            "importance": any(
                sized.base.workload.exchange.needs_importance for sized in asked.sized
            ),
            "norm_is_known": asked.norm_is_known,
            "settings": len(tables["settings"]),
            "remedies": len(tables["remedies"]),
        }
    }


def _faults(result: Result) -> Iterator[Problem]:
    settings, remedies = result.tables["settings"], result.tables["remedies"]
    said = result.meta["accuracy"]
    chosen = remedies.groupby(["world_size", "strategy"])["chosen"].sum()
    yield from problems_of_misfits(
        {
            "settings.csv": len(settings) == said["settings"] > 0,
            "remedies.csv": len(remedies) == said["remedies"]
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
    exported=text.exported,
    facts=_facts,
    says=AccuracyFacts,
    faults=_faults,
    again="simshuffle.extensions.learning.accuracy.asked:repeat",
)
