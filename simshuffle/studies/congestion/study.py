"""The study behind ``simshuffle study congestion``: exchange patterns on the same bytes, with a
verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NotRequired

import pandas as pd
from pydantic import Field
from typing_extensions import TypedDict

from simshuffle.errors import Problem
from simshuffle.results.chart import Chart
from simshuffle.results.table_io import rows
from simshuffle.studies.congestion import text
from simshuffle.studies.congestion.compare import Job, cells, collect
from simshuffle.studies.congestion.figures import heat_chart, times_chart
from simshuffle.studies.congestion.tables import HOTTEST, SIZE, STORED, VARIANT, hottest
from simshuffle.studies.congestion.verdict import (
    ABLATION,
    COMPARISONS,
    ROUTINGS,
    VERDICTS,
    ablation,
    comparisons,
    over_routings,
    verdicts,
)
from simshuffle.study.schema import LARGEST, misfits
from simshuffle.study.study import Derived, Result, Study

SHOWN = ("sets", "times", "comparisons", "verdicts", "routings", "ablation")
"""The tables that ``--json`` prints."""


class _Says(TypedDict):
    """What ``meta.json`` holds of a comparison."""

    message_latency_s: Annotated[float, Field(ge=0, le=LARGEST)]
    jitter: NotRequired[Annotated[float, Field(ge=0, lt=1)]]
    sizes_equal: NotRequired[bool]


def _figures(result: Result) -> dict[str, Chart]:
    return {"times": times_chart(result.tables), "heat": heat_chart(result.tables)}


def _verdicts(result: Result) -> pd.DataFrame:
    return verdicts(comparisons(result.tables["times"]))


def _faults(result: Result) -> Iterator[Problem]:
    """Tables that lack rows which others speak of; ``times`` needs the first seed of each run."""
    tables = result.tables
    times = tables["times"]
    first = times[times["seed"] == times["seed"].min()]
    size, run = SIZE, [*VARIANT, "model"]
    links = tables["links"].groupby([*size, *VARIANT[:2], "tier"]).size()
    tiers = tables["tiers"]
    room = tiers.groupby([*size, *VARIANT[:2], "tier"])["links"].min()
    return misfits(
        {
            "times.csv": len(times) > 0 and _same(times, first, [*size, *run]),
            "sets.csv": _same(tables["sets"], times, size),
            "tiers.parquet": _same(tiers, times, [*size, *run, "seed"]),
            "links.parquet": _same(tables["links"], times, [*size, *VARIANT[:2]])
            and bool((links <= room.reindex(links.index)).all()),
        }
    )


def _same(table: pd.DataFrame, other: pd.DataFrame, columns: list[str]) -> bool:
    """Whether two tables have the same values in these columns."""
    found, wanted = (set(of[columns].itertuples(index=False, name=None)) for of in (table, other))
    return found == wanted


STUDY: Study[list[Job]] = Study(
    kind="congestion",
    verb="study congestion",
    stages=(cells,),
    collect=collect,
    stored=STORED,
    documents=("scenario.yaml",),
    derived={
        "comparisons": Derived(COMPARISONS, lambda result: comparisons(result.tables["times"])),
        "verdicts": Derived(VERDICTS, _verdicts),
        "routings": Derived(ROUTINGS, lambda result: over_routings(_verdicts(result))),
        "ablation": Derived(ABLATION, lambda result: ablation(result.tables["times"])),
        "hottest": Derived(HOTTEST, lambda result: hottest(result.tables)),
    },
    figures=_figures,
    verdict=lambda result: text.verdict(result.all_tables),
    parts=lambda result: text.parts(result.all_tables, result.meta),
    as_json=lambda result: {name: rows(result.all_tables[name]) for name in SHOWN},
    says=_Says,
    faults=_faults,
    again="simshuffle.studies.congestion.verb:again",
)
