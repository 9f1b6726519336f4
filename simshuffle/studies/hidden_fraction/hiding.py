"""How much can be exchanged while the epoch takes no longer: for several ways of carrying it out,
and why no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from simshuffle.errors import InputError, Problem, ScenarioError
from simshuffle.exchange.sending import SendingStrategy
from simshuffle.results.report import WHOLE
from simshuffle.scenario.scenario import Scenario, load_scenarios, stored
from simshuffle.spec.library import nearest
from simshuffle.studies.hidden_fraction.search import SearchCell
from simshuffle.studies.hidden_fraction.tables import STORED
from simshuffle.studies.hidden_fraction.ways import OWN, WAYS, without
from simshuffle.studies.simulation.warm import WarmCell, prepared
from simshuffle.study.cell import Cell
from simshuffle.study.study import Meta, Outcomes, Request, Tables

SIZES = tuple(64 << power for power in range(7))
"""World sizes by default: 64 to 4096."""


@dataclass(frozen=True)
class Hiding:
    """What is searched for.

    Attributes:
        scenarios: from `scenarios`.
        ways: from `ways`.
        tolerance: share of the epoch without exchange that counts as nothing.
    """

    scenarios: Sequence[Scenario]
    ways: Sequence[str]
    tolerance: float


def request(
    scenario: Scenario, world_sizes: Sequence[int], names: Sequence[str], tolerance: float
) -> Request[Hiding]:
    """What is asked for: Q* for every world size and way.

    Args:
        scenario: its sweep is not followed.
        world_sizes: see `scenarios`.
        names: see `ways`.
        tolerance: share of the epoch without exchange that counts as nothing.

    Raises:
        InputError: a name is not known, or a world size does not fit.
    """
    chosen, sized = ways(scenario, names), scenarios(scenario, world_sizes)
    text, files = stored(sized)
    asked = {"asked": {"ways": chosen, "tolerance": tolerance}}
    of = Hiding(sized, chosen, tolerance)
    return Request(scenario.name, of, {"scenario.yaml": text}, asked, files)


def again(folder: Path, meta: Meta) -> Request[Hiding]:
    """The request of a result, from its folder."""
    sized = load_scenarios(folder / "scenario.yaml")
    sizes, asked = [scenario.world_size for scenario in sized], meta["asked"]
    return request(sized[0], sizes, asked["ways"], asked["tolerance"])


def scenarios(scenario: Scenario, world_sizes: Sequence[int]) -> list[Scenario]:
    """The scenario for each world size, smallest first.

    These are those given, or all of `SIZES` that fit the machine and the data set, or where none
    does, the scenario's own.

    Raises:
        ScenarioError: a world size does not fit, or is 1.
    """
    wanted = sorted(set(world_sizes))
    if not wanted:
        most = min(
            scenario.cluster.num_gpus,
            scenario.workload.dataset.num_samples // scenario.workload.local_batch_size,
        )
        wanted = [size for size in SIZES if size <= most] or [scenario.world_size]
    if wanted[0] < 2:
        raise ScenarioError(
            Problem("--world-size", "must be 2 ranks or more", str(wanted[0]), "Name one."),
            scenario.name,
        )
    return [prepared(scenario).with_values({"world_size": size}) for size in wanted]


def ways(scenario: Scenario, names: Sequence[str]) -> list[str]:
    """The names of ways, in the order of `WAYS`; all of these if none is given.

    Raises:
        InputError: a name is not known, or it is `OWN` and the scenario exchanges no fraction of
            the shards.
    """
    known = [*WAYS, OWN]
    problems = [
        Problem("--way", "no such way of carrying out", repr(name), nearest(name, known))
        for name in names
        if name not in known
    ]
    if OWN in names and not isinstance(scenario.workload.exchange, SendingStrategy):
        remedy = "Set workload.exchange to one that does."
        problems.append(
            Problem(
                "--way",
                "the scenario must exchange a fraction of the samples",
                scenario.workload.exchange.kind,
                remedy,
            )
        )
    if problems:
        raise InputError(problems, "command line")
    return [name for name in known if name in (names or WAYS)]


def baselines(of: Hiding, outcomes: Outcomes) -> dict[str, Cell]:
    """The epochs without exchange."""
    cells = [WarmCell(without(s).to_dict(), _baseline(s)) for s in of.scenarios]
    return {cell.label: cell for cell in cells}


def searches(of: Hiding, outcomes: Outcomes) -> dict[str, Cell]:
    """A search for every scenario and way, in the order of the tables."""
    cells = [
        SearchCell(
            scenario.to_dict(), way, of.tolerance, outcomes[_baseline(scenario)].values[WHOLE]
        )
        for scenario in of.scenarios
        for way in of.ways
    ]
    return {cell.label: cell for cell in cells}


def _baseline(scenario: Scenario) -> str:
    return f"no exchange @{scenario.world_size}"


def collect(of: Hiding, outcomes: Outcomes) -> Tables:
    """The stored tables."""
    found = [outcomes[name].values for name in searches(of, outcomes)]
    rows = {
        "limits": [of_way["limit"] for of_way in found],
        "points": [point for of_way in found for point in of_way["points"]],
    }
    return {name: pd.DataFrame(rows[name], columns=list(STORED[name].columns)) for name in STORED}
