"""Find how much can be exchanged while the epoch takes no longer (``simshuffle study
hiding``), by the scenario's own schedule and by others, and why no more.
"""

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
from simshuffle.job.scenario.scenario import (
    Scenario,
    load_scenarios,
    serialise_scenarios,
)
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
    prepare_scenario,
    with_variant,
)
from simshuffle.study.cell import Cell, Outcome
from simshuffle.study.schema import problems_of_misfits
from simshuffle.study.study import Meta, Outcomes, Request, Result, Study, Tables
from simshuffle.workload.exchange.sending import ShardHolding

if TYPE_CHECKING:
    from simshuffle.studies.mechanisms.verb import HidingOptions

VERB = "simshuffle study hiding"
LIMIT = 60.0
"""s of one core, by the costs of runs, that all simulations take together unless the
search is exact: less than a minute on two cores.
"""
OWN_SHARES = 2.0
"""Share of the simulations for the scenario's own schedule, relative to that of another
mode.
"""
TOLERANCE = 0.01
"""The time_tolerance of a scenario that has none and would take longer than the limit."""
BASELINES = 0.2
"""Share of the limit that the epochs without exchange may take."""
NONE_EXCHANGES = (
    "partial streamlined, the default, as no run of the scenario exchanges samples"
)


@dataclass(frozen=True)
class Hiding:
    """The searches of a request: ways to exchange on every world size."""

    scenarios: Sequence[Scenario]  # for each world size, smallest first
    ways: Sequence[str]  # names of `tables.NAMES`, the scenario's own first
    # the exchanges of the scenario's runs, as plain values, by their way: 'own', 'own 2', ...
    own: Mapping[str, Any]
    titles: Mapping[str, str]  # by own way; {} in results of earlier versions
    tolerance: float  # share of the epoch without exchange that counts as nothing
    exact: bool  # whether each number is searched to the last sample, however long that takes

    @property
    def seconds_of_way(self) -> dict[str, float]:
        """Return the s of one core that a search of one world size may take, by way.

        They are infinite with ``exact``. Else `LIMIT` less the epochs without exchange
        is shared out over ways and world sizes; an own way has `OWN_SHARES` times as
        much as another. They are negative if the epochs without exchange take more than
        `LIMIT`.
        """
        if self.exact:
            return dict.fromkeys(self.ways, float("inf"))
        baselines = sum(
            effort(without_exchange(single)).seconds for single in self.scenarios
        )
        shares = {way: OWN_SHARES if way in self.own else 1.0 for way in self.ways}
        seconds_per_share = (LIMIT - baselines) / (
            sum(shares.values()) * len(self.scenarios)
        )
        return {way: share * seconds_per_share for way, share in shares.items()}

    def scenario_of_way(
        self, sized_scenario: Scenario, way: str
    ) -> tuple[Scenario, str]:
        """Return the scenario that exchanges in ``way``, and its variant.

        An own way replaces the exchange, and its variant is `OWN`. For another way the
        scenario is returned as it is, and the variant is ``way``.
        """
        if way not in self.own:
            return sized_scenario, way
        return sized_scenario.with_values({EXCHANGE: self.own[way]}), OWN


def request(options: HidingOptions) -> Request[Hiding]:
    """Return the checked request: Q* for every world size and way.

    The ways are every schedule that a run of the scenario has, and the variants.
    ``options.world_size`` replaces the world sizes of the scenario, swept or not.

    Raises:
        ScenarioError: a world size does not fit or is below 2, the scenario sweeps over
            other keys, or its runs have more than four schedules.
    """
    scenario = scenario_of(options.scenario, options.set)
    if options.world_size:
        scenario = scenario.with_values({WORLD_SIZE: min(options.world_size)})
    runs = [*runs_followed(scenario, VERB, (WORLD_SIZE, EXCHANGE)).values()]
    sizes = sorted(set(options.world_size) or {single.world_size for single in runs})
    if sizes[0] < 2:
        problem = Problem(
            "--world-size", "must be 2 ranks or more", str(sizes[0]), "Name one."
        )
        raise ScenarioError(problem, scenario.name)
    own_exchanges = _own_exchanges(runs)
    base = prepare_scenario(runs[0])
    sized_scenarios = [
        base.with_values({WORLD_SIZE: size, EXCHANGE: own_exchanges[OWN]})
        for size in sizes
    ]
    way_names = [
        *own_exchanges,
        *_other_ways(sized_scenarios[0], own_exchanges, options.variant),
    ]
    if own_name := _default_title(runs):
        titles = {OWN: own_name}
    else:
        titles = {
            way: _strategy_title(base.with_values({EXCHANGE: own_exchanges[way]}))
            for way in own_exchanges
        }
    return build_request(
        sized_scenarios,
        way_names,
        own_exchanges,
        titles,
        tolerance=options.tolerance,
        exact=options.exact,
    )


def build_request(
    sized_scenarios: Sequence[Scenario],
    way_names: Sequence[str],
    own_exchanges: Mapping[str, Any],
    titles: Mapping[str, str],
    *,
    tolerance: float,
    exact: bool,
) -> Request[Hiding]:
    """Return the request of a search.

    Args:
        sized_scenarios: a scenario of two epochs for each world size, smallest first.
        way_names: names of `tables.NAMES`, the own ways first.
        own_exchanges: the exchange of each own way, as plain values.
        titles: what the own ways are called, by way.
        tolerance: share of the epoch without exchange that counts as nothing.
        exact: search to the last sample, without a limit of time.
    """
    document, files = serialise_scenarios(sized_scenarios)
    answers = {
        "ways": list(way_names),
        "tolerance": tolerance,
        "own": dict(own_exchanges),
        "titles": dict(titles),
        "exact": exact,
    }
    hiding = Hiding(
        _limit_epochs(sized_scenarios, exact),
        way_names,
        own_exchanges,
        titles,
        tolerance,
        exact,
    )
    return Request(
        sized_scenarios[0].name,
        hiding,
        {"scenario.yaml": document},
        {"asked": answers},
        files,
    )


def _limit_epochs(sized_scenarios: Sequence[Scenario], exact: bool) -> list[Scenario]:
    """Return the scenarios, windowed where epochs without exchange would take too long.

    If those without time tolerance take more than `BASELINES` of `LIMIT` together, each
    of them gets `TOLERANCE`; never with ``exact``.
    """
    exact_scenarios = [
        single for single in sized_scenarios if single.time_tolerance == 0.0
    ]
    seconds = sum(
        effort(without_exchange(single)).seconds for single in exact_scenarios
    )
    if exact or seconds <= BASELINES * LIMIT:
        return list(sized_scenarios)
    windows = {"time_tolerance": TOLERANCE}
    return [
        single.model_copy(update=windows) if single in exact_scenarios else single
        for single in sized_scenarios
    ]


def _own_exchanges(runs: Sequence[Scenario]) -> dict[str, Any]:
    """Return the exchanges of the runs as plain values, by way ('own', 'own 2', ...).

    Runs whose schedules are equal count once, with the fraction of the first one. If no
    run exchanges samples, there is one way: partial local shuffle with Q = 0.1.

    Raises:
        ScenarioError: there are more schedules than `OWN_WAYS`.
    """
    exchange_of_signature: dict[str, Any] = {}
    for single in runs:
        if isinstance(exchange := single.workload.exchange, ShardHolding):
            exchange_of_signature.setdefault(
                _exchange_signature(single), exchange.model_dump(mode="json")
            )
    if len(exchange_of_signature) > len(OWN_WAYS):
        rule = f"must have at most {len(OWN_WAYS)} schedules"
        schedules_text = f"{len(exchange_of_signature)} in the sweep"
        remedy = f"Choose one: --set '{EXCHANGE}=partial_local_shuffle:exchange_fraction=0.1'."
        raise ScenarioError(
            Problem(EXCHANGE, rule, schedules_text, remedy), runs[0].name
        )
    if not exchange_of_signature:
        return {OWN: {"kind": "partial_local_shuffle", "exchange_fraction": 0.1}}
    return dict(zip(OWN_WAYS, exchange_of_signature.values(), strict=False))


def _default_title(runs: Sequence[Scenario]) -> str:
    """Return the title of the own way where no run exchanges samples; '' if one does."""
    exchanges_any = any(
        isinstance(single.workload.exchange, ShardHolding) for single in runs
    )
    return "" if exchanges_any else NONE_EXCHANGES


def _exchange_signature(scenario: Scenario) -> str:
    """Return the exchange as it is simulated, in a text that is equal where only Q
    differs.
    """
    values = with_variant(scenario, OWN, 1, {}).workload.exchange.model_dump(
        mode="json"
    )
    schedule = {
        key: value for key, value in values["schedule"].items() if key != "source"
    }
    return repr({**values, "schedule": schedule, "exchange_fraction": None})


def _strategy_title(scenario: Scenario) -> str:
    """Return the label of a strategy and its schedule, such as 'partial streamlined'."""
    exchange = scenario.workload.exchange
    schedule = exchange.exchange_schedule
    return (
        f"{exchange.short_name} {schedule.name}"
        if schedule is not None
        else exchange.short_name
    )


def _other_ways(
    scenario: Scenario, own_exchanges: Mapping[str, Any], names: Sequence[str]
) -> list[str]:
    """Return the requested variants, in the order of `VARIANTS`.

    Other names, such as 'own', are left out. Without names: the wire, and all variants
    that differ from the scenario's own exchanges in more than Q.
    """
    if names:
        return [name for name in VARIANTS if name in names]
    own_signatures = {
        _exchange_signature(scenario.with_values({EXCHANGE: value}))
        for value in own_exchanges.values()
    }
    return [
        name
        for name, (*_, scenario_values) in VARIANTS.items()
        if scenario_values
        or _exchange_signature(with_variant(scenario, name, 1, {}))
        not in own_signatures
    ]


def _baseline_cells(hiding: Hiding, outcomes: Outcomes) -> dict[str, Cell]:
    """Return the cell of an epoch without exchange for each world size, by name."""
    return {
        _baseline_name(single): WarmCell(
            without_exchange(single).to_dict(), _baseline_name(single)
        )
        for single in hiding.scenarios
    }


def _baseline_name(scenario: Scenario) -> str:
    """Return the name of the cell without exchange of a scenario."""
    return f"no exchange @{scenario.world_size}"


def _search_cells(hiding: Hiding, outcomes: Outcomes) -> dict[str, Cell]:
    """Return a search for every scenario and way, by name, in the order of the tables.

    ``outcomes`` has those of `_baseline_cells`.
    """
    cells: dict[str, Cell] = {}
    seconds_of_way = hiding.seconds_of_way
    for single in hiding.scenarios:
        baseline = outcomes[_baseline_name(single)].values
        for way in hiding.ways:
            scenario, variant = hiding.scenario_of_way(single, way)
            cells[f"{way} @{single.world_size}"] = SearchCell(
                scenario.to_dict(),
                variant,
                hiding.tolerance,
                baseline[WHOLE],
                baseline[HALF_WIDTH],
                seconds_of_way[way],
            )
    return cells


def _later_cost(hiding: Hiding, stage: int) -> float:
    """Estimate the s of one core that the searches take; 0 after the first stage.

    Epochs without exchange are then those of closed forms.
    """
    if stage > 0:
        return 0.0
    guesses = {
        _baseline_name(single): Outcome(
            {WHOLE: bounds(without_exchange(single)).epoch, HALF_WIDTH: 0.0}
        )
        for single in hiding.scenarios
    }
    return sum(cell.cost for cell in _search_cells(hiding, guesses).values())


def _collect(hiding: Hiding, outcomes: Outcomes) -> Tables:
    """Return the tables `limits`, a row for each way and world size, and `points`."""
    limits: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    for name in _search_cells(hiding, outcomes):
        way_column = {"way": name.rpartition(" @")[0]}
        search_values = outcomes[name].values
        limits.append(search_values["limit"] | way_column)
        points += [point | way_column for point in search_values["points"]]
    return {
        "limits": HIDING["limits"].framed(limits),
        "points": HIDING["points"].framed(points),
    }


def first_answer(hiding: Hiding) -> Iterator[str]:
    """Yield a line for each world size: every way's largest hidden Q, by closed forms."""
    for single in hiding.scenarios:
        way_texts = []
        for way in hiding.ways:
            scenario, variant = hiding.scenario_of_way(single, way)
            fraction = largest_hidden_fraction(
                with_variant(scenario, variant, 1, {}), hiding.tolerance
            )
            way_texts.append(f"{way} {text.share(fraction)}")
        yield (
            f"By closed forms, {single.world_size:,} ranks hide about:"
            f" {', '.join(way_texts)}"
        )


def _faults(result: Result) -> Iterator[Problem]:
    """Yield a problem for each table of a stored result that is not complete.

    Every way has a limit at each world size, within its interval, and simulated points.
    A limit names a tier of cables only where the wire ends the hiding, and always
    there.
    """
    limits = result.tables["limits"]
    points = result.tables["points"]
    size = limits["way"].nunique() * limits["world_size"].nunique()
    # a tier of cables is named where the wire is the bottleneck, and nowhere else
    names_tier = ((limits["bottleneck"] == WIRE) == (limits["tier"] != "")).all()
    keys = ["way", "world_size"]
    simulated_index = points[points["removed"] == ""].set_index(keys).index
    is_ordered = (limits["samples_low"] <= limits["samples"]) & (
        limits["samples"] <= limits["samples_high"]
    )
    yield from problems_of_misfits(
        {
            "limits.csv": len(limits) == size > 0
            and bool(names_tier)
            and bool(is_ordered.all()),
            "points.csv": bool(
                limits.set_index(keys).index.isin(simulated_index).all()
            ),
        }
    )


class HidingOptionsKept(TypedDict):
    """The options that ``meta.json`` holds, as far as texts and figures read them."""

    titles: NotRequired[dict[str, str]]


class HidingMeta(TypedDict):
    """The content of ``meta.json`` that texts and figures read."""

    asked: HidingOptionsKept


def _titles(result: Result) -> Mapping[str, str]:
    """Return the titles of the own ways; {} in results of earlier versions."""
    titles: Mapping[str, str] = result.meta["asked"].get("titles", {})
    return titles


def repeat(folder: Path, meta: Meta) -> Request[Hiding]:
    """Return the request of an earlier result, from its folder.

    A result without ``exact`` counts as exact; without ``own``, the exchange of its
    first scenario is the own way.
    """
    sized_scenarios = load_scenarios(folder / "scenario.yaml")
    answers = meta["asked"]
    # results of earlier versions have the exchange of the scenario as their own
    own_exchange = sized_scenarios[0].workload.exchange.model_dump(mode="json")
    return build_request(
        sized_scenarios,
        tuple(answers["ways"]),
        answers.get("own", {"own": own_exchange}),
        answers.get("titles", {}),
        tolerance=answers["tolerance"],
        exact=answers.get("exact", True),
    )


STUDY: Study[Hiding] = Study(
    kind="hiding",
    verb="study hiding",
    stages=(_baseline_cells, _search_cells),
    later_cost=_later_cost,
    collect=_collect,
    stored=HIDING,
    documents=("scenario.yaml",),
    figures=lambda result: {"hiding": hiding_chart(result.tables, _titles(result))},
    verdict=lambda result: text.hidden(result.tables, _titles(result)),
    parts=lambda result: text.hiding_parts(result.tables, _titles(result)),
    faults=_faults,
    says=HidingMeta,
    again=f"{__name__}:repeat",
)
