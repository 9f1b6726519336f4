"""The request of a plan: candidate strategies, what a host stores of each, and the
commands that repeat their runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simshuffle.errors import InputError, Problem, ScenarioError, refuse
from simshuffle.extensions.planning import curves
from simshuffle.extensions.planning.candidates import (
    FROM_PFS,
    Candidate,
    build_candidate,
    list_exchanges,
)
from simshuffle.extensions.planning.commands import (
    option_words,
    quote_scenario,
    setting_words,
)
from simshuffle.extensions.planning.costs import MachineNeeds
from simshuffle.extensions.planning.moved import keys_of_inputs
from simshuffle.extensions.planning.precision import TOLERANCE, runs_in_time
from simshuffle.extensions.planning.prices import HOST_HOUR, PRICES
from simshuffle.extensions.planning.written import written_units
from simshuffle.job.plan.effort import check_size
from simshuffle.job.scenario.options import scenario_of
from simshuffle.job.scenario.scenario import (
    Scenario,
    load_scenario,
    serialise_scenarios,
)
from simshuffle.job.scenario.swept import EXCHANGE, WORLD_SIZE, runs_followed
from simshuffle.spec.library import suggest_nearest
from simshuffle.studies.training.usual import EPOCHS
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.study import Meta, Request
from simshuffle.workload.exchange import Strategy

if TYPE_CHECKING:
    from simshuffle.extensions.planning.verb import PlanOptions

VERB = "simshuffle plan"
TIME_TOLERANCE = 0.01  # time tolerance of epochs where the scenario has none
CHECKPOINT = "workload.checkpoint"
KEYS_OF_FAILURES = (CHECKPOINT, "failures", "recovery")
"""Keys of a scenario that are removed before an epoch is simulated."""
MIN_EPOCHS = 2  # epochs that are simulated at least: the first one is cold


@dataclass(frozen=True)
class PlanRequest:
    """A checked request of ``simshuffle plan``: scenario, candidates, prices and
    limits.
    """

    scenario: Scenario  # scenario without sweep
    base: Scenario  # scenario without failures and checkpoints, as it is simulated
    command: str  # command that simulates ``base``, to which settings are added
    scenario_words: str  # arguments by which other verbs read ``scenario``
    candidates: Sequence[Candidate]  # strategies that are considered
    # price by name, some of `PRICES`; what has no price here costs nothing
    prices: Mapping[str, float]
    budget: float | None  # largest cost of the training; None without a limit
    io_share: float  # share of an epoch that I/O may take of the smallest file system
    target: float | None  # accuracy to reach (0 to 1); None if accuracy does not count
    exact: bool  # true to simulate everything, however long that takes
    # unit in which the user wrote a moved input, by its key, where it is known
    units: Mapping[str, str]
    plan_words: str  # command of this plan, to which settings are added

    @property
    def tie_share(self) -> float:
        """Return the share by which two costs may differ and count as equal.

        It is the time tolerance of the simulated epochs; 0 where an accuracy tells
        strategies apart.
        """
        return self.base.time_tolerance if self.target is None else 0.0

    @property
    def feasible_candidates(self) -> list[Candidate]:
        """Return the candidates that can be simulated: the scenario is valid with them.

        Most others lack room on the hosts. Candidates that do not reach the target are
        among the feasible ones.
        """
        return [
            candidate for candidate in self.candidates if candidate.scenario is not None
        ]

    @property
    def has_failures(self) -> bool:
        """Return true if hosts fail and the training saves checkpoints: months are
        drawn.
        """
        return (
            self.scenario.failures is not None
            and self.scenario.workload.checkpoint is not None
        )

    @property
    def host_capacity(self) -> float:
        """Return the bytes of a host in which samples may be stored: the capacity of
        its staging tier, SSD or memory.
        """
        return self.base.cluster.capacity(self.base.workload.staging.target)

    @cached_property
    def run_scenarios(self) -> Mapping[str, Scenario]:
        """Return the scenarios to simulate, by the name of the strategy.

        Without ``exact`` they are those that fit into a minute, the shortest in any
        case, and long runs have a coarser ``time_tolerance`` than their candidates.
        """
        scenarios = {
            candidate.name: candidate.scenario
            for candidate in self.feasible_candidates
            if candidate.scenario
        }
        return scenarios if self.exact else runs_in_time(scenarios)

    @property
    def simulated_candidates(self) -> list[Candidate]:
        """Return the candidates that are simulated, in the order of ``candidates``."""
        return [
            candidate
            for candidate in self.candidates
            if candidate.name in self.run_scenarios
        ]

    def settings_of_run(self, name: str) -> dict[str, Any]:
        """Return the settings, beside the exchange, that repeat the run of strategy
        ``name``.

        They are the coarse time tolerance where the run has one, else {}; also {} for a
        strategy that is not simulated.
        """
        tolerance = (
            self.run_scenarios[name].time_tolerance
            if name in self.run_scenarios
            else None
        )
        is_coarse = tolerance not in {None, self.base.time_tolerance}
        return {TOLERANCE: tolerance} if is_coarse else {}

    def machine_needs(self, candidate: Candidate, spares: int) -> MachineNeeds:
        """Return the hosts, SSD bytes and file system that a candidate needs.

        SSD bytes are 0 where samples are stored in memory. The rates are those of the
        scenario's own file system, 0 where the strategy does not read it.

        Args:
            candidate: the strategy.
            spares: hosts beside those of the ranks.
        """
        base = self.base
        file_system = base.cluster.parallel_file_system
        reads_pfs = candidate.strategy.tier == "pfs"
        on_ssd = base.workload.staging.target == "ssd"
        return MachineNeeds(
            base.hosts + spares,
            candidate.kept_nbytes if on_ssd else 0.0,
            file_system.read_bandwidth if reads_pfs else 0.0,
            file_system.open_rate if reads_pfs else 0.0,
        )


def request(options: PlanOptions) -> Request[PlanRequest]:
    """Return the request that the options of ``simshuffle plan`` describe.

    Raises:
        InputError: a price has no such name or is negative, a target has no curves, no
            curve reaches the target, a strategy has no curve, no strategy fits the
            hosts, or the scenario has several jobs.
    """
    if options.target is not None and options.target_accuracy is None:
        rule = "needs accuracy by epoch"
        remedy = "Add --target-accuracy FILE."
        refuse("--target", rule, f"{options.target:g}", remedy, COMMAND_LINE)
    prices = _check_prices(options.prices)
    scenario, own_strategy = _read_scenario(options)
    source = str(options.target_accuracy)
    learned_curves = (
        {}
        if options.target_accuracy is None
        else curves.read_curves(options.target_accuracy)
    )
    target = options.target
    if learned_curves and target is None:
        target = curves.default_target(learned_curves, source)
    learned_settings = (
        [] if target is None else curves.summarise_curves(learned_curves, target)
    )
    exchanges = list_exchanges(options.strategy, own_strategy, learned_curves, source)
    settings = _single_run_settings(scenario)
    scenario_words = [quote_scenario(options.scenario), *setting_words(options.set)]
    settings_of_epoch = {
        key: value for key, value in settings.items() if key not in KEYS_OF_FAILURES
    }
    plain_request = {
        "command": " ".join(
            ["simshuffle", "run", *scenario_words, *setting_words(settings)]
        ),
        "whole": " ".join([*scenario_words, *setting_words(settings_of_epoch)]),
        "strategies": exchanges,
        "prices": prices,
        "budget": options.budget,
        "io_share": options.io_share,
        "target": target,
        "learned": learned_settings,
        "epochs": options.epochs or EPOCHS,
        "exact": options.exact,
        "units": written_units(options.scenario, options.set, _moved_keys(scenario)),
        "plan_words": " ".join(
            ["simshuffle", "plan", *scenario_words, *option_words(options)]
        ),
    }
    built_request = _build_request(
        scenario.with_values(settings_of_epoch), plain_request, source
    )
    return replace(built_request, about=_describe_size_chosen(scenario))


def _describe_size_chosen(scenario: Scenario) -> str:
    """Return which of the swept numbers of ranks a plan answers for: the scenario's own
    alone; and how to ask for another. '' where no other is swept.

    Raises:
        ScenarioError: several values of another key than the exchange are swept, or a
            run is not valid.
    """
    runs_followed(scenario, VERB, (WORLD_SIZE, EXCHANGE))
    sizes = scenario.sweep.get(WORLD_SIZE, [])
    if len(sizes) < 2:
        return ""
    listed = ", ".join(map(str, sizes))
    return (
        f"This is for {scenario.world_size} ranks, the scenario's own number; of the swept ones"
        f" ({listed}) choose another with --set {WORLD_SIZE}={sizes[0]}."
    )


def repeat(folder: Path, meta: Meta) -> Request[PlanRequest]:
    """Return the request of a stored result, from its folder and ``meta.json``.

    Files of accuracy curves are not read again: ``meta.json`` has their facts.
    """
    return _build_request(
        load_scenario(folder / "scenario.yaml"), meta["asked"], str(folder)
    )


def _build_request(
    scenario: Scenario, plain_request: Mapping[str, Any], source: str
) -> Request[PlanRequest]:
    """Build the request of a plan from its plain values, which ``meta.json`` has, and
    check it.

    Args:
        scenario: the scenario with failures and checkpoints, without sweep.
        plain_request: the values of `simshuffle.extensions.planning.says.PlanQuestion`.
        source: the file that errors name where no curve reaches the target.

    Raises:
        InputError: no curve reaches the target, no candidate fits the hosts, or a run
            is too large.
    """
    base = scenario.with_values(_settings_without_failures(scenario))
    learned_by_setting = {
        (learned["strategy"], learned["exchange_fraction"]): learned
        for learned in plain_request["learned"]
    }
    candidates = [
        build_candidate(base, text, learned_by_setting, plain_request["epochs"])
        for text in plain_request["strategies"]
    ]
    plan_request = PlanRequest(
        scenario,
        base,
        plain_request["command"],
        plain_request["whole"],
        candidates,
        plain_request["prices"],
        plain_request["budget"],
        plain_request["io_share"],
        plain_request["target"],
        # results of earlier versions simulated all of it
        plain_request.get("exact", True),
        plain_request.get("units", {}),
        plain_request.get("plan_words", f"simshuffle plan {plain_request['whole']}"),
    )
    if learned_by_setting and all(candidate.epochs is None for candidate in candidates):
        best_candidate = max(
            candidates, key=lambda candidate: candidate.best_accuracy or 0.0
        )
        best_accuracy = f"{best_candidate.best_accuracy:.4g}"
        rule = f"must be reached by a curve; {best_candidate.name} is best with {best_accuracy}"
        refuse(
            "--target",
            rule,
            f"{plain_request['target']:.4g}",
            "Lower the target, or train longer.",
            source,
        )
    if not plan_request.feasible_candidates:
        remedy = f"Raise cluster.ssd.capacity, or add --strategy {FROM_PFS}."
        refuse(
            "--strategy",
            "must fit the hosts",
            candidates[0].obstacle,
            remedy,
            COMMAND_LINE,
        )
    for candidate in plan_request.feasible_candidates:
        if candidate.scenario is not None:
            check_size(candidate.scenario)
    document, files = serialise_scenarios([scenario])
    return Request(
        base.name,
        plan_request,
        {"scenario.yaml": document},
        {"asked": dict(plain_request)},
        files,
    )


def _moved_keys(scenario: Scenario) -> list[str]:
    """Return the dotted keys of all inputs that a plan moves."""
    return [key for keys in keys_of_inputs(scenario).values() for key in keys]


# ---------------------------------------------------------------------------------- the scenario


def _read_scenario(options: PlanOptions) -> tuple[Scenario, Strategy | None]:
    """Return the scenario of the options and its own strategy.

    If hosts have no room for the strategy, the scenario shuffles globally from the file
    system, and None stands for the strategy.

    Raises:
        ScenarioError: the scenario is not valid for any other reason.
    """
    try:
        scenario = scenario_of(options.scenario, options.set)
    except ScenarioError as error:
        if not all(
            problem.path == "workload.exchange" and " keeps " in problem.rule
            for problem in error.problems
        ):
            raise
        values = {**options.set, "workload.exchange": FROM_PFS}
        return scenario_of(options.scenario, values), None
    return scenario, scenario.workload.exchange


def _single_run_settings(scenario: Scenario) -> dict[str, Any]:
    """Return the settings that make the scenario a single quick run with a warm epoch.

    They take out sweep and failures, and set `MIN_EPOCHS` and `TIME_TOLERANCE` where a
    scenario has fewer epochs or no tolerance.

    Raises:
        ScenarioError: the scenario has several jobs.
    """
    if scenario.jobs:
        problem = Problem(
            "jobs", "must be one job", f"{len(scenario.jobs)}", "Leave jobs out."
        )
        raise ScenarioError(problem, scenario.name)
    values: dict[str, Any] = {"sweep": {}} if scenario.sweep else {}
    values |= _settings_without_failures(scenario)
    if scenario.epochs < MIN_EPOCHS:
        values["epochs"] = MIN_EPOCHS
    if scenario.time_tolerance == 0:
        values[TOLERANCE] = TIME_TOLERANCE
    return values


def _settings_without_failures(scenario: Scenario) -> dict[str, Any]:
    """Return the settings that take failures and checkpoints out of an epoch; their
    time is added later.

    They are None at each such key that the scenario has; {} if there are none.
    """
    document = scenario.to_dict()
    settings = {key: None for key in KEYS_OF_FAILURES if key in document}
    if "checkpoint" in document["workload"]:
        settings[CHECKPOINT] = None
    return settings


def _check_prices(prices: Mapping[str, Any]) -> dict[str, float]:
    """Return the prices as numbers; a host-hour costs 1 where there are none.

    Raises:
        InputError: a price has an unknown name, is negative, 1e15 or more or no number,
            or prices are given without that of a host-hour.
    """
    problems = []
    for name, value in prices.items():
        path = f"--price {name}"
        if name not in PRICES:
            problems.append(
                Problem(
                    path, "no such price", repr(name), suggest_nearest(name, [*PRICES])
                )
            )
        elif (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 <= value < 1e15
        ):
            remedy = "Give a number of at least 0."
            problems.append(Problem(path, "must be a price", repr(value), remedy))
    if problems:
        raise InputError(problems, COMMAND_LINE)
    if prices and HOST_HOUR not in prices:
        rule = "must be given with other prices"
        remedy = f"Add --price {HOST_HOUR}=1."
        refuse(f"--price {HOST_HOUR}", rule, "none", remedy, COMMAND_LINE)
    return {name: float(value) for name, value in (prices or {HOST_HOUR: 1.0}).items()}
