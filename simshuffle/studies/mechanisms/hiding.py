"""The study behind ``simshuffle study hiding``: how much can be exchanged while the epoch takes no
longer, by the scenario's own schedule and by others, and why no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired

from typing_extensions import TypedDict

from simshuffle.errors import Problem, ScenarioError
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.effort import effort
from simshuffle.job.plan.hidden import largest_hidden_fraction, without_exchange
from simshuffle.job.scenario.options import scenario_of
from simshuffle.job.scenario.scenario import Scenario, load_scenarios, stored
from simshuffle.job.scenario.swept import EXCHANGE, WORLD_SIZE, runs_followed
from simshuffle.report.report import WHOLE
from simshuffle.studies.mechanisms import text
from simshuffle.studies.mechanisms.figures import hiding_chart
from simshuffle.studies.mechanisms.search import SearchCell
from simshuffle.studies.mechanisms.tables import HIDING, OWN_WAYS
from simshuffle.studies.mechanisms.variants import (
    HALF_WIDTH,
    OWN,
    VARIANTS,
    WIRE,
    WarmCell,
    exchanging,
    prepared,
)
from simshuffle.study.cell import Cell, Outcome
from simshuffle.study.schema import problems_of_misfits
from simshuffle.study.study import Meta, Outcomes, Request, Result, Study, Tables
from simshuffle.workload.exchange.sending import ShardHolding

if TYPE_CHECKING:
    from simshuffle.studies.mechanisms.verb import HidingOptions

VERB = "simshuffle study hiding"
LIMIT = 60.0
"""s of one core, by the costs of runs, that all simulations take together unless the search is
exact: less than a minute on two cores."""
OWN_SHARES = 2.0
"""How many times as much of that the search of an own schedule gets as one of the others."""
TOLERANCE = 0.01
"""The time_tolerance of a scenario that has none and would take longer than the limit."""
BASELINES = 0.2
"""Share of the limit that the epochs without exchange may take."""
NONE_EXCHANGES = "partial streamlined, the default, as no run of the scenario exchanges samples"


@dataclass(frozen=True)
class Hiding:
    """What is searched for."""

    scenarios: Sequence[Scenario]  # for each world size, smallest first
    ways: Sequence[str]  # names of `tables.NAMES`, the scenario's own first
    own: Mapping[str, Any]  # the exchanges of the scenario's runs, as plain values, by their way
    titles: Mapping[str, str]  # what the own ways are called
    tolerance: float  # share of the epoch without exchange that counts as nothing
    exact: bool  # whether each number is searched to the last sample, however long that takes

    @property
    def limits(self) -> dict[str, float]:
        """s of one core that a search of each way may take."""
        if self.exact:
            return dict.fromkeys(self.ways, float("inf"))
        baselines = sum(effort(without_exchange(single)).seconds for single in self.scenarios)
        shares = {way: OWN_SHARES if way in self.own else 1.0 for way in self.ways}
        each = (LIMIT - baselines) / (sum(shares.values()) * len(self.scenarios))
        return {way: share * each for way, share in shares.items()}

    def scenario(self, sized: Scenario, way: str) -> tuple[Scenario, str]:
        """The scenario of a world size in which samples are exchanged in that way, and the name of
        the variant."""
        if way not in self.own:
            return sized, way
        return sized.with_values({EXCHANGE: self.own[way]}), OWN


def request(options: HidingOptions) -> Request[Hiding]:
    """What is asked for: Q* for every world size, of every schedule that a run of the scenario has,
    and of the variants. A ScenarioError if a world size does not fit, or the scenario sweeps over
    other keys."""
    scenario = scenario_of(options.scenario, options.set)
    if options.world_size:
        scenario = scenario.with_values({WORLD_SIZE: min(options.world_size)})
    runs = [*runs_followed(scenario, VERB, (WORLD_SIZE, EXCHANGE)).values()]
    sizes = sorted(set(options.world_size) or {single.world_size for single in runs})
    if sizes[0] < 2:
        problem = Problem("--world-size", "must be 2 ranks or more", str(sizes[0]), "Name one.")
        raise ScenarioError(problem, scenario.name)
    own = _own_exchanges(runs)
    base = prepared(runs[0])
    sized = [base.with_values({WORLD_SIZE: size, EXCHANGE: own[OWN]}) for size in sizes]
    ways = [*own, *_others(sized[0], own, options.variant)]
    if own_name := _unexchanged(runs):
        titles = {OWN: own_name}
    else:
        titles = {way: _title(base.with_values({EXCHANGE: own[way]})) for way in own}
    return make_request(sized, ways, own, titles, options.tolerance, options.exact)


def make_request(
    sized: Sequence[Scenario],
    ways: Sequence[str],
    own: Mapping[str, Any],
    titles: Mapping[str, str],
    tolerance: float,
    exact: bool,
) -> Request[Hiding]:
    """The request of scenarios for each world size and names of ways, the own ones with their
    exchange and title."""
    document, files = stored(sized)
    asked = {
        "ways": list(ways),
        "tolerance": tolerance,
        "own": dict(own),
        "titles": dict(titles),
        "exact": exact,
    }
    hiding = Hiding(_windowed(sized, exact), ways, own, titles, tolerance, exact)
    return Request(sized[0].name, hiding, {"scenario.yaml": document}, {"asked": asked}, files)


def _windowed(sized: Sequence[Scenario], exact: bool) -> list[Scenario]:
    """The scenarios, with windows where whole epochs without exchange take too long."""
    whole = [single for single in sized if single.time_tolerance == 0.0]
    seconds = sum(effort(without_exchange(single)).seconds for single in whole)
    if exact or seconds <= BASELINES * LIMIT:
        return list(sized)
    windows = {"time_tolerance": TOLERANCE}
    return [single.model_copy(update=windows) if single in whole else single for single in sized]


def _own_exchanges(runs: Sequence[Scenario]) -> dict[str, Any]:
    """The exchanges of the runs as plain values, by their ways: runs that exchange another fraction
    by the same schedule count once; partial local shuffle if no run exchanges any."""
    found: dict[str, Any] = {}
    for single in runs:
        if isinstance(exchange := single.workload.exchange, ShardHolding):
            found.setdefault(_without_fraction(single), exchange.model_dump(mode="json"))
    if len(found) > len(OWN_WAYS):
        rule = f"must have at most {len(OWN_WAYS)} schedules"
        given = f"{len(found)} in the sweep"
        remedy = f"Choose one: --set '{EXCHANGE}=partial_local_shuffle:exchange_fraction=0.1'."
        raise ScenarioError(Problem(EXCHANGE, rule, given, remedy), runs[0].name)
    if not found:
        return {OWN: {"kind": "partial_local_shuffle", "exchange_fraction": 0.1}}
    return dict(zip(OWN_WAYS, found.values(), strict=False))


def _unexchanged(runs: Sequence[Scenario]) -> str:
    """What the own way is called where no run exchanges samples; '' if one does."""
    some = any(isinstance(single.workload.exchange, ShardHolding) for single in runs)
    return "" if some else NONE_EXCHANGES


def _without_fraction(scenario: Scenario) -> str:
    """The exchange as it is simulated, in words that are the same where only Q differs."""
    values = exchanging(scenario, OWN, 1, {}).workload.exchange.model_dump(mode="json")
    schedule = {key: value for key, value in values["schedule"].items() if key != "source"}
    return repr({**values, "schedule": schedule, "exchange_fraction": None})


def _title(scenario: Scenario) -> str:
    """What a strategy and its schedule are called: 'partial streamlined'."""
    exchange = scenario.workload.exchange
    schedule = exchange.exchange_schedule
    return f"{exchange.short_name} {schedule.name}" if schedule is not None else exchange.short_name


def _others(scenario: Scenario, own: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The variants that are asked for, in the order of `VARIANTS`; without names all of them that
    are not among the scenario's own."""
    if names:
        return [name for name in VARIANTS if name in names]
    known = {_without_fraction(scenario.with_values({EXCHANGE: value})) for value in own.values()}
    return [
        name
        for name, (*_, more) in VARIANTS.items()
        if more or _without_fraction(exchanging(scenario, name, 1, {})) not in known
    ]


def _baselines(hiding: Hiding, outcomes: Outcomes) -> dict[str, Cell]:
    return {
        _baseline(single): WarmCell(without_exchange(single).to_dict(), _baseline(single))
        for single in hiding.scenarios
    }


def _baseline(scenario: Scenario) -> str:
    return f"no exchange @{scenario.world_size}"


def _searches(hiding: Hiding, outcomes: Outcomes) -> dict[str, Cell]:
    """A search for every scenario and way, in the order of the tables."""
    cells: dict[str, Cell] = {}
    limits = hiding.limits
    for single in hiding.scenarios:
        baseline = outcomes[_baseline(single)].values
        for way in hiding.ways:
            scenario, variant = hiding.scenario(single, way)
            cells[f"{way} @{single.world_size}"] = SearchCell(
                scenario.to_dict(),
                variant,
                hiding.tolerance,
                baseline[WHOLE],
                baseline[HALF_WIDTH],
                limits[way],
            )
    return cells


def _later_cost(hiding: Hiding, stage: int) -> float:
    """Return s of one core that the searches take, by epochs without exchange from closed forms."""
    if stage > 0:
        return 0.0
    guesses = {
        _baseline(single): Outcome({WHOLE: bounds(without_exchange(single)).epoch, HALF_WIDTH: 0.0})
        for single in hiding.scenarios
    }
    return sum(cell.cost for cell in _searches(hiding, guesses).values())


def _collect(hiding: Hiding, outcomes: Outcomes) -> Tables:
    limits: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    for name in _searches(hiding, outcomes):
        way = {"way": name.rpartition(" @")[0]}
        found = outcomes[name].values
        limits.append(found["limit"] | way)
        points += [point | way for point in found["points"]]
    return {"limits": HIDING["limits"].framed(limits), "points": HIDING["points"].framed(points)}


def first_answer(hiding: Hiding) -> Iterator[str]:
    """The largest hidden Q of each world size from closed forms, in lines."""
    for single in hiding.scenarios:
        shares = []
        for way in hiding.ways:
            scenario, variant = hiding.scenario(single, way)
            fraction = largest_hidden_fraction(
                exchanging(scenario, variant, 1, {}), hiding.tolerance
            )
            shares.append(f"{way} {text.share(fraction)}")
        yield f"{single.world_size:,} ranks hide, about: {', '.join(shares)}"


def _faults(result: Result) -> Iterator[Problem]:
    limits, points = result.tables["limits"], result.tables["points"]
    size = limits["way"].nunique() * limits["world_size"].nunique()
    # a tier of cables is named where the wire is the bottleneck, and nowhere else
    named = ((limits["bottleneck"] == WIRE) == (limits["tier"] != "")).all()
    keys = ["way", "world_size"]
    whole = points[points["removed"] == ""].set_index(keys).index
    ordered = (limits["samples_low"] <= limits["samples"]) & (
        limits["samples"] <= limits["samples_high"]
    )
    yield from problems_of_misfits(
        {
            "limits.csv": len(limits) == size > 0 and bool(named) and bool(ordered.all()),
            "points.csv": bool(limits.set_index(keys).index.isin(whole).all()),
        }
    )


class HidingOptionsKept(TypedDict):
    """The options that ``meta.json`` holds, as far as texts and figures read them."""

    titles: NotRequired[dict[str, str]]


class HidingMeta(TypedDict):
    """What ``meta.json`` holds for texts and figures."""

    asked: HidingOptionsKept


def _titles(result: Result) -> Mapping[str, str]:
    """What the own ways are called; nothing in results of earlier versions."""
    titles: Mapping[str, str] = result.meta["asked"].get("titles", {})
    return titles


def repeat(folder: Path, meta: Meta) -> Request[Hiding]:
    """Return the request of a result, from its folder."""
    sized, asked = load_scenarios(folder / "scenario.yaml"), meta["asked"]
    # results of earlier versions have the exchange of the scenario as their own
    own = sized[0].workload.exchange.model_dump(mode="json")
    return make_request(
        sized,
        tuple(asked["ways"]),
        asked.get("own", {"own": own}),
        asked.get("titles", {}),
        asked["tolerance"],
        asked.get("exact", True),
    )


STUDY: Study[Hiding] = Study(
    kind="hiding",
    verb="study hiding",
    stages=(_baselines, _searches),
    later_cost=_later_cost,
    collect=_collect,
    stored=HIDING,
    documents=("scenario.yaml",),
    figures=lambda result: {"hiding": hiding_chart(result.tables, _titles(result))},
    verdict=lambda result: text.hidden(result.tables, _titles(result)),
    parts=lambda result: text.of_hiding(result.tables, _titles(result)),
    faults=_faults,
    says=HidingMeta,
    again=f"{__name__}:repeat",
)
