"""The study behind ``simshuffle study hiding``: how much can be exchanged while the epoch takes no
longer, for several variants of the exchange, and why no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simshuffle.errors import Problem, ScenarioError, refuse
from simshuffle.exchange.sending import SendingStrategy
from simshuffle.results.report import WHOLE
from simshuffle.scenario.options import scenario_of
from simshuffle.scenario.scenario import Scenario, stored
from simshuffle.studies.mechanisms import text
from simshuffle.studies.mechanisms.figures import hiding_chart
from simshuffle.studies.mechanisms.search import SearchCell
from simshuffle.studies.mechanisms.tables import HIDING
from simshuffle.studies.mechanisms.variants import OWN, VARIANTS, WIRE, WarmCell, prepared, without
from simshuffle.study.cell import Cell
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.schema import misfits
from simshuffle.study.study import Outcomes, Request, Result, Study, Tables

if TYPE_CHECKING:
    from simshuffle.studies.mechanisms.verb import HidingOptions

SIZES = tuple(64 << power for power in range(7))  # world sizes by default: 64 to 4096


@dataclass(frozen=True)
class Hiding:
    """What is searched for."""

    scenarios: Sequence[Scenario]  # for each world size, smallest first
    variants: Sequence[str]  # their names, in the order of `VARIANTS`
    tolerance: float  # share of the epoch without exchange that counts as nothing


def request(options: HidingOptions) -> Request[Hiding]:
    """What is asked for: Q* for every world size and variant, without the scenario's sweep; an
    InputError if a world size does not fit, or `OWN` has nothing to exchange."""
    scenario = scenario_of(options.scenario, options.set)
    variants, sized = _variants(scenario, options.variant), _sized(scenario, options.world_size)
    document, files = stored(sized)
    asked = {"asked": {"ways": variants, "tolerance": options.tolerance}}
    of = Hiding(sized, variants, options.tolerance)
    return Request(scenario.name, of, {"scenario.yaml": document}, asked, files)


def _sized(scenario: Scenario, world_sizes: Sequence[int]) -> list[Scenario]:
    """The scenario for each world size, smallest first: those given, or all of `SIZES` that fit the
    machine and the data set, or where none does, its own. A ScenarioError if one does not fit, or
    is 1."""
    wanted = sorted(set(world_sizes))
    if not wanted:
        most = min(
            scenario.cluster.num_gpus,
            scenario.workload.dataset.num_samples // scenario.workload.local_batch_size,
        )
        wanted = [size for size in SIZES if size <= most] or [scenario.world_size]
    if wanted[0] < 2:
        problem = Problem("--world-size", "must be 2 ranks or more", str(wanted[0]), "Name one.")
        raise ScenarioError(problem, scenario.name)
    return [prepared(scenario).with_values({"world_size": size}) for size in wanted]


def _variants(scenario: Scenario, names: Sequence[str]) -> list[str]:
    """The names of variants, in the order of `VARIANTS`; all of these if none is given. An
    InputError if it is `OWN` and the scenario exchanges no fraction of the shards."""
    exchange = scenario.workload.exchange
    if OWN in names and not isinstance(exchange, SendingStrategy):
        rule = "the scenario must exchange a fraction of the samples"
        remedy = "Set workload.exchange to one that does."
        refuse("--variant", rule, exchange.kind, remedy, COMMAND_LINE)
    return [name for name in (*VARIANTS, OWN) if name in (names or VARIANTS)]


def _baselines(of: Hiding, outcomes: Outcomes) -> dict[str, Cell]:
    return {
        _baseline(single): WarmCell(without(single).to_dict(), _baseline(single))
        for single in of.scenarios
    }


def _baseline(scenario: Scenario) -> str:
    return f"no exchange @{scenario.world_size}"


def _searches(of: Hiding, outcomes: Outcomes) -> dict[str, Cell]:
    """A search for every scenario and variant, in the order of the tables."""
    cells = [
        SearchCell(
            single.to_dict(), variant, of.tolerance, outcomes[_baseline(single)].values[WHOLE]
        )
        for single in of.scenarios
        for variant in of.variants
    ]
    return {cell.label: cell for cell in cells}


def _collect(of: Hiding, outcomes: Outcomes) -> Tables:
    found = [outcomes[name].values for name in _searches(of, outcomes)]
    points = [point for values in found for point in values["points"]]
    limits = HIDING["limits"].framed([values["limit"] for values in found])
    return {"limits": limits, "points": HIDING["points"].framed(points)}


def _faults(result: Result) -> Iterator[Problem]:
    limits, points = result.tables["limits"], result.tables["points"]
    size = limits["way"].nunique() * limits["world_size"].nunique()
    # a tier of cables is named where the wire is the bottleneck, and nowhere else
    named = ((limits["bottleneck"] == WIRE) == (limits["tier"] != "")).all()
    keys = ["way", "world_size", "samples"]
    whole = points[points["removed"] == ""].set_index(keys).index
    ended = limits[limits["over_s"].notna()]
    one_more = ended.assign(samples=ended["samples"] + 1).set_index(keys).index
    return misfits(
        {
            "limits.csv": len(limits) == size > 0 and bool(named),
            "points.csv": bool(one_more.isin(whole).all()),
        }
    )


STUDY: Study[Hiding] = Study(
    kind="hiding",
    verb="study hiding",
    stages=(_baselines, _searches),
    collect=_collect,
    stored=HIDING,
    documents=("scenario.yaml",),
    figures=lambda result: {"hiding": hiding_chart(result.tables)},
    verdict=lambda result: text.hidden(result.tables),
    parts=lambda result: text.of_hiding(result.tables),
    faults=_faults,
    again="simshuffle.studies.mechanisms.verb:hiding_again",
)
