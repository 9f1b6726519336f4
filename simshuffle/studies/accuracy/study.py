"""The study behind ``simshuffle accuracy``: on how many samples the statistics of a rank rest, what
that costs in accuracy, and what every remedy costs in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simshuffle.errors import Problem
from simshuffle.studies.accuracy import text
from simshuffle.studies.accuracy.asked import Asked
from simshuffle.studies.accuracy.cells import RestsCell, SumsCell
from simshuffle.studies.accuracy.figures import accuracy_chart
from simshuffle.studies.accuracy.remedies import (
    SLOW,
    SLOWER,
    Compared,
    rests_name,
    run_name,
    sums_name,
)
from simshuffle.studies.accuracy.says import Says
from simshuffle.studies.accuracy.tables import STORED
from simshuffle.studies.mechanisms.variants import WarmCell
from simshuffle.study.cell import Cell
from simshuffle.study.schema import misfits
from simshuffle.study.study import Outcomes, Result, Study, Tables


def _cells(asked: Asked, outcomes: Outcomes) -> dict[str, Cell]:
    """For every number of ranks: a warm epoch, and what statistics rest on, of the scenario and of
    every change; what summing statistics takes."""
    cells: dict[str, Cell] = {}
    for sized in asked.sized:
        for change, scenario in sized.cells.items():
            document = scenario.to_dict()
            name = run_name(sized, change)
            cells[name] = WarmCell(document, name)
            name = rests_name(sized, change)
            cells[name] = RestsCell(document, name, asked.momentum, asked.epochs)
        document = sized.base.to_dict()
        if asked.of.norm == "batch" and sized.changes:
            name = rests_name(sized, SLOWER)
            if asked.momentum > SLOW:
                cells[name] = RestsCell(document, name, SLOW, asked.epochs)
            if asked.channels:
                name = sums_name(sized)
                cells[name] = SumsCell(document, name, asked.channels)
    return cells


def _collect(asked: Asked, outcomes: Outcomes) -> Tables:
    compared = [Compared(asked, sized, outcomes) for sized in asked.sized]
    settings = [of.setting() for of in compared]
    remedies = [row for of in compared for row in of.rows()]
    return {
        "settings": STORED["settings"].framed(settings),
        "remedies": STORED["remedies"].framed(remedies),
    }


def _facts(asked: Asked, outcomes: Outcomes, tables: Tables) -> dict[str, Any]:
    """What texts say beside tables."""
    base = asked.sized[0].base
    return {
        "accuracy": {
            "scenario": base.name,
            "timed": base.workload.model.name,
            "importance": base.workload.exchange.needs_importance,
            "settings": len(tables["settings"]),
            "remedies": len(tables["remedies"]),
        }
    }


def _faults(result: Result) -> Iterator[Problem]:
    settings, remedies = result.tables["settings"], result.tables["remedies"]
    said = result.meta["accuracy"]
    chosen = remedies.groupby("world_size")["chosen"].sum()
    yield from misfits(
        {
            "settings.csv": len(settings) == said["settings"] > 0,
            "remedies.csv": len(remedies) == said["remedies"]
            and set(remedies["world_size"]) == set(settings["world_size"])
            and bool((chosen <= 1).all()),
        }
    )


STUDY: Study[Asked] = Study(
    kind="accuracy",
    verb="accuracy",
    stages=(_cells,),
    collect=_collect,
    stored=STORED,
    documents=("scenario.yaml",),
    figures=lambda result: {"accuracy": accuracy_chart(result.tables, result.meta)},
    one_figure=True,
    verdict=text.verdict,
    parts=text.parts,
    facts=_facts,
    says=Says,
    faults=_faults,
    again="simshuffle.studies.accuracy.asked:again",
)
