"""The study behind ``simshuffle study policies``: data-loading policies compared. What is
printed fits 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.errors import InputError, Problem
from simshuffle.results.chart import Chart
from simshuffle.results.console import new_table
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.policies import cases
from simshuffle.studies.policies.cell import CaseCell, cells, collect
from simshuffle.studies.policies.figures import policies_chart
from simshuffle.studies.policies.tables import SOURCES, STORED
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Result, Study

SHORT = dict(
    zip(SOURCES, ("PFS", "own memory", "own SSD", "remote memory", "remote SSD"), strict=False)
)
"""Sources as a line has them; what is ready is from nowhere."""


def _figures(result: Result) -> dict[str, Chart]:
    return {"policies": policies_chart(result.tables["policies"])}


def _study(result: Result) -> cases.Study:
    return cases.read(result.documents["study.yaml"], "study.yaml")


def _parts(result: Result) -> Iterator[str | Table]:
    """For each case a line and a table; then what the marks mean."""
    study, policies = _study(result), result.tables["policies"]
    for name, case in study.cases.items():
        workers = case.on(study.system).workers
        size, room = (readable(of, Dimension.NBYTES) for of in (case.nbytes, study.system.storage))
        yield (
            f"{name}: {case.num_samples} samples, {size}, {workers} workers with {room} of storage"
            f" each, {case.epochs} epochs."
        )
        yield _table(policies[policies["case"] == name])
    if (policies["coverage"] < 1).any():
        yield "* Reads only that share of the data set, so that training learns from less."
    yield "Sources: share of the bytes of all epochs. First: with the staging before training."


def _table(policies: pd.DataFrame) -> Table:
    table = new_table()
    table.add_column("policy", no_wrap=True)
    for name in ("first s", "steady s", "all / perfect", "kept a worker"):
        table.add_column(name, justify="right")
    table.add_column("sources", max_width=30)
    for row in policies.to_dict("records"):
        table.add_row(*_cells(row))
    return table


def _cells(row: Mapping[Any, Any]) -> list[str]:
    name = row["policy"].replace("_", " ")
    if row["problem"]:
        return [name, "-", "-", "-", "-", f"cannot: {row['problem']}"]
    if row["coverage"] < 1:
        name = f"{name} *{100 * row['coverage']:.2g}%"
    times = f"{row['first_s']:.4g}", f"{row['steady_s']:.4g}", f"{row['total_ratio']:.3f}"
    kept = readable(row["memory_nbytes"] + row["ssd_nbytes"], Dimension.NBYTES, 3)
    shares = {short: row[f"{source}_share"] for source, short in SHORT.items()}
    sources = [f"{name} {100 * share:.0f}%" for name, share in shares.items() if share >= 0.005]
    return [name, *times, kept, ", ".join(sources)]


def _faults(result: Result) -> Iterator[Problem]:
    """A study that is none, and rows without numbers."""
    policies = result.tables["policies"]
    usable = policies[policies["problem"] == ""]
    if policies.empty or usable.isna().any(axis=None):
        rule = "must have rows, and numbers for every policy that can be used"
        yield Problem("policies.csv", rule, f"{len(policies)} rows", REMEDY)
    try:
        _study(result)
    except InputError as error:
        yield from (problem.below("study.yaml") for problem in error.problems)


STUDY: Study[list[CaseCell]] = Study(
    kind="policies",
    verb="study policies",
    stages=(cells,),
    collect=collect,
    stored=STORED,
    documents=("study.yaml",),
    figures=_figures,
    one_figure=True,
    parts=_parts,
    faults=_faults,
    again="simshuffle.studies.policies.cell:again",
)
