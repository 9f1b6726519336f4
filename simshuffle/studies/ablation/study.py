"""The study behind ``simshuffle study ablate``: which mechanism of an exchange costs how much."""

from __future__ import annotations

from collections.abc import Iterator

from simshuffle.errors import Problem
from simshuffle.results.chart import Chart
from simshuffle.studies.ablation import text
from simshuffle.studies.ablation.ablate import Ablation, cells, collect
from simshuffle.studies.ablation.figures import waterfall_chart
from simshuffle.studies.ablation.shapley import changes, contributions, on_the_way, state
from simshuffle.studies.ablation.tables import ALL, BASES, CHANGES, CONTRIBUTIONS, LABELS, STORED
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Derived, Result, Study


def _figures(result: Result) -> dict[str, Chart]:
    return {"waterfall": waterfall_chart(result.all_tables)}


def _faults(result: Result) -> Iterator[Problem]:
    """Tables that lack rows which others speak of."""
    runs, alone, ends = (result.tables[name] for name in ("runs", "alone", "ends"))
    switches = set(result.tables["switches"]["switch"])
    words, seeds = set(runs["state"]), set(runs["seed"])
    states = {state(word) for word in words if len(word) == len(switches) and set(word) <= {*"01"}}
    rules = {
        "ends.csv": (
            "must have a row for the start and one for the end",
            set(ends["place"]) == {*BASES},
        ),
        "switches.csv": (
            f"must name one switch or more, and none {ALL!r}",
            bool(switches - {ALL}) and ALL not in switches,
        ),
        "runs.csv": (
            "must lead from the start to the end, with all labels and seeds of every state",
            len(states) == len(words)
            and bool(on_the_way(states))
            and len(runs) == len(words) * len(seeds) * len(LABELS),
        ),
        "alone.csv": (
            "must have all labels of every run, and no seed that runs.csv lacks",
            set(alone["seed"]) <= seeds
            and (alone.groupby(["key", "value", "base", "seed"]).size() == len(LABELS)).all(),
        ),
    }
    for path, (rule, holds) in rules.items():
        if not holds:
            yield Problem(
                path, rule, f"{len(result.tables[path.removesuffix('.csv')])} rows", REMEDY
            )


STUDY: Study[Ablation] = Study(
    kind="ablation",
    verb="study ablate",
    stages=(cells,),
    collect=collect,
    stored=STORED,
    documents=("scenario.yaml",),
    derived={
        "contributions": Derived(
            CONTRIBUTIONS,
            lambda result: contributions(result.tables["switches"], result.tables["runs"]),
        ),
        "changes": Derived(
            CHANGES,
            lambda result: changes(
                *(result.tables[name] for name in ("switches", "runs", "alone"))
            ),
        ),
    },
    figures=_figures,
    parts=lambda result: text.parts(result.all_tables),
    faults=_faults,
    again="simshuffle.studies.ablation.ablate:again",
)
