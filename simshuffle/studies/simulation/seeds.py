"""The study behind ``simshuffle run --seeds``: every run simulated with several seeds. Its tables
say which; what is shown are means and intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import Problem
from simshuffle.results.ranks import Kept
from simshuffle.results.report import Booking
from simshuffle.results.table_io import rows
from simshuffle.scenario.scenario import Scenario, load_scenarios
from simshuffle.spec.overrides import combination_name
from simshuffle.studies.simulation import study
from simshuffle.studies.simulation.cell import RunCell
from simshuffle.studies.simulation.intervals import means, measures, summary
from simshuffle.studies.simulation.seed_count import check_seeds, seeds_from
from simshuffle.studies.simulation.tables import STORED_OVER_SEEDS, SUMMARY_OVER_SEEDS
from simshuffle.study.cell import Cell
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Derived, Outcomes, Request, Result, Study, Tables


@dataclass(frozen=True)
class OverSeeds:
    """What is simulated.

    Attributes:
        runs: by name, each with its first seed.
        seeds: how many each has.
    """

    runs: study.Runs
    seeds: int

    def cells(self) -> Iterator[tuple[str, str, int]]:
        """The name of each cell, of its run, and its seed; the seeds of a run one after another."""
        for run, single in self.runs.scenarios.items():
            for seed in seeds_from(single, self.seeds):
                yield f"{run} {combination_name({'seed': seed})}", run, seed


def asked_of(
    scenarios: Sequence[Scenario],
    labels: Booking = "cause",
    seeds: int = 1,
    timeline: Kept | None = None,
) -> tuple[Study[Any], Request[Any]]:
    """The study that simulates all runs of the scenarios, and what is asked of it.

    Args:
        scenarios: with their sweeps.
        labels: how the table and the figure book waiting: 'cause' or 'paper'.
        seeds: of each run, from that of its scenario on; of one, nothing speaks of seeds.
        timeline: the ranks of which it is kept; as of `study.request`.

    Raises:
        ScenarioError: two runs have the same name, a value of a sweep is not valid, or a run has
            too many packets.
        InputError: ``seeds`` is no number of seeds, a scenario sweeps the seed itself, or there is
            no such ``timeline``.
    """
    swept = any("seed" in scenario.sweep for scenario in scenarios)
    check_seeds(seeds, 1, swept)
    one: Request[Any] = study.request(scenarios, labels, timeline, seeds)
    check_seeds(seeds, len(one.values.scenarios), swept)
    if seeds == 1:
        return study.STUDY, one
    asked = {**one.asked, "seeds": seeds}
    return STUDY, replace(one, values=OverSeeds(one.values, seeds), asked=asked)


def _cells(of: OverSeeds, outcomes: Outcomes) -> dict[str, Cell]:
    plain = {run: single.to_dict() for run, single in of.runs.scenarios.items()}
    return {
        name: RunCell({**plain[run], "seed": seed}, name, timeline=of.runs.timeline)
        for name, run, seed in of.cells()
    }


def _collect(of: OverSeeds, outcomes: Outcomes) -> Tables:
    cells = [(run, seed, outcomes[name]) for name, run, seed in of.cells()]
    return study.reported(cells, of.runs.timeline)


def _facts(of: OverSeeds, outcomes: Outcomes, tables: Tables) -> dict[str, Any]:
    """As of one seed, the times being means; the seed is the first."""
    epochs = means(tables["epochs"], tables["breakdown"]).epochs
    of_runs: dict[str, Any] = {}
    for name, run, _ in of.cells():
        if run not in of_runs:
            times = epochs[epochs["run"] == run][["staging_s", "samples_per_s"]].to_dict("list")
            times["staging_s"] = times["staging_s"][0]
            of_runs[run] = {**outcomes[name].values["facts"], **times}
    return {"runs": of_runs}


def _summary(result: Result) -> pd.DataFrame:
    return summary(measures(result.tables["epochs"], result.tables["breakdown"]), ["run"])


def _as_json(result: Result) -> dict[str, Any]:
    """What one seed has, for each seed; and the summary."""
    return {"epochs": study.epochs_as_json(result), "summary": rows(result.derived["summary"])}


def _faults(result: Result) -> Iterator[Problem]:
    """Those of one seed, and epochs that do not have all seeds."""
    yield from study.faults(result)
    seeds, there = result.meta["seeds"], result.tables["epochs"].groupby(["run", "epoch"])["seed"]
    if seeds < 2 or (there.nunique() != seeds).any():
        rule = "must be the number of seeds of every epoch in epochs.csv, at least 2"
        yield Problem("meta.json: seeds", rule, str(seeds), REMEDY)


class _Says(study.Says):
    """What ``meta.json`` holds of a simulation with several seeds."""

    seeds: int


def again(folder: Path, meta: Mapping[str, Any]) -> Request[Any]:
    """The request of a result, from its folder."""
    scenarios = load_scenarios(folder / "scenario.yaml")
    kept = study.timeline_of(meta)
    return asked_of(scenarios, study.labels_of(meta), meta["seeds"], kept)[1]


_OF_ONE: Study[Any] = study.STUDY
STUDY = replace(
    _OF_ONE,
    kind="simulation_over_seeds",
    stages=(_cells,),
    collect=_collect,
    stored=STORED_OVER_SEEDS,
    derived={"summary": Derived(SUMMARY_OVER_SEEDS, _summary)},
    as_json=_as_json,
    facts=_facts,
    says=_Says,
    faults=_faults,
    again=f"{__name__}:again",
)
