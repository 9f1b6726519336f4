"""The study behind ``simshuffle study hiding``: how much of an exchange an epoch can hide."""

from __future__ import annotations

from collections.abc import Iterator

from simshuffle.errors import Problem
from simshuffle.results.chart import Chart
from simshuffle.studies.hidden_fraction import text
from simshuffle.studies.hidden_fraction.figures import hiding_chart
from simshuffle.studies.hidden_fraction.hiding import Hiding, baselines, collect, searches
from simshuffle.studies.hidden_fraction.tables import STORED
from simshuffle.studies.hidden_fraction.ways import WIRE
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Result, Study


def _figures(result: Result) -> dict[str, Chart]:
    return {"hiding": hiding_chart(result.tables)}


def _faults(result: Result) -> Iterator[Problem]:
    """Tables that lack rows which others speak of."""
    limits, points = result.tables["limits"], result.tables["points"]
    size = limits["way"].nunique() * limits["world_size"].nunique()
    if not len(limits) == size > 0:
        rule = "must have a row for every way at every world size"
        yield Problem("limits.csv", rule, f"{len(limits)} rows", REMEDY)
    if not ((limits["bottleneck"] == WIRE) == (limits["tier"] != "")).all():
        rule = "must name a tier of cables where the wire is the bottleneck, and nowhere else"
        yield Problem("limits.csv", rule, ", ".join(map(repr, limits["tier"])), REMEDY)
    keys = ["way", "world_size", "samples"]
    whole = points[points["removed"] == ""].set_index(keys).index
    ended = limits[limits["over_s"].notna()]
    if not ended.assign(samples=ended["samples"] + 1).set_index(keys).index.isin(whole).all():
        rule = "must have a row with one sample more than each limit, and nothing removed"
        yield Problem("points.csv", rule, f"{len(points)} rows", REMEDY)


STUDY: Study[Hiding] = Study(
    kind="hiding",
    verb="study hiding",
    stages=(baselines, searches),
    collect=collect,
    stored=STORED,
    documents=("scenario.yaml",),
    figures=_figures,
    parts=lambda result: text.parts(result.tables),
    faults=_faults,
    again="simshuffle.studies.hidden_fraction.hiding:again",
)
