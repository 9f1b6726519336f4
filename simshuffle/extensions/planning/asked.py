"""What a plan is asked: strategies with what a host keeps of each, and how their runs are
repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simshuffle.errors import InputError, Problem, ScenarioError, refuse
from simshuffle.extensions.planning import curves
from simshuffle.extensions.planning.commands import option_words, scenario_word, setting_words
from simshuffle.extensions.planning.costs import Needs
from simshuffle.extensions.planning.curves import Setting
from simshuffle.extensions.planning.moved import keys_of_inputs
from simshuffle.extensions.planning.precision import TOLERANCE, runs_in_time
from simshuffle.extensions.planning.prices import HOST_HOUR, PRICES
from simshuffle.extensions.planning.written import written_units
from simshuffle.job.plan.effort import check_size
from simshuffle.job.plan.holding import max_held_nbytes
from simshuffle.job.scenario.options import kinds_of, record_of, scenario_of
from simshuffle.job.scenario.scenario import Scenario, load_scenario, serialise_scenarios
from simshuffle.job.scenario.swept import EXCHANGE, describe_size_chosen
from simshuffle.spec.library import suggest_nearest
from simshuffle.studies.training.usual import EPOCHS
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.study import Meta, Request
from simshuffle.workload.exchange import Exchange, Strategy

if TYPE_CHECKING:
    from simshuffle.extensions.planning.verb import PlanOptions

VERB = "simshuffle plan"
FROM_PFS, FROM_SSD = "global_shuffle:source=pfs", "global_shuffle:source=ssd"
FRACTIONS = (0.1, 0.3, 1.0)
"""Q of the partial shuffles that are considered where nothing says others."""
KINDS: Mapping[str, Mapping[str, Any]] = {
    "local": {"kind": "local_shuffle"},
    "partial": {"kind": "partial_local_shuffle"},
    "IS": {"kind": "importance_exchange"},
    "ILag": {"kind": "importance_exchange", "lagging": True},
    "IS-Pair": {"kind": "importance_pair"},
    "ILag-Pair": {"kind": "importance_pair", "lagging": True},
}
"""Strategies by the names that trainings have for them, but for global shuffle."""
TIME_TOLERANCE = 0.01  # where the scenario has none
CHECKPOINT = "workload.checkpoint"
APART = (CHECKPOINT, "failures", "recovery")
"""What an epoch is simulated without."""
WARM = 2  # epochs that are simulated at least: the first one is cold


@dataclass(frozen=True)
class Candidate:
    """A strategy."""

    name: str  # such as 'partial-0.1'
    exchange: str | dict[str, Any]  # as `--set workload.exchange` has it
    record: Strategy  # the same
    scenario: Scenario | None  # with it; None if it cannot be simulated
    why: str  # it cannot; '' if it can
    kept_nbytes: float  # that a host keeps
    epochs: int | None  # of the training; None if the target is not reached
    best: float | None  # accuracy that is reached; None where none is known

    @property
    def mixing(self) -> float:
        """How much an epoch mixes samples: Q; more than any Q where all are drawn anew."""
        return 2.0 if self.record.fraction is None else self.record.fraction


@dataclass(frozen=True)
class PlanRequest:
    """What is asked."""

    whole: Scenario  # without sweep
    base: Scenario  # the same without failures and checkpoints, as it is simulated
    command: str  # that simulates it, to which values are added
    whole_words: str  # what other verbs are given for ``whole``
    candidates: Sequence[Candidate]
    prices: Mapping[str, float]
    budget: float | None
    io_share: float
    target: float | None
    exact: bool  # whether all is simulated, however long that takes
    units: Mapping[str, str]  # in which the user wrote the inputs that are moved, by key
    plan_words: str  # what ``simshuffle plan`` is given for the same plan, before further values

    @property
    def close(self) -> float:
        """Share of a cost that is no difference: what epochs are simulated to, where no accuracy
        tells strategies apart."""
        return self.base.time_tolerance if self.target is None else 0.0

    @property
    def fitting(self) -> list[Candidate]:
        """Those that can be simulated."""
        return [of for of in self.candidates if of.scenario is not None]

    @property
    def fails(self) -> bool:
        """Whether hosts fail and the training is saved, so that there are months to be drawn."""
        return self.whole.failures is not None and self.whole.workload.checkpoint is not None

    @property
    def capacity(self) -> float:
        """Bytes of a host that samples may be kept in."""
        return self.base.cluster.capacity(self.base.workload.staging.target)

    @cached_property
    def runs(self) -> Mapping[str, Scenario]:
        """The scenarios that are simulated, by the names of strategies: see `runs_in_time`."""
        scenarios = {each.name: each.scenario for each in self.fitting if each.scenario}
        return scenarios if self.exact else runs_in_time(scenarios)

    @property
    def simulated(self) -> list[Candidate]:
        """The strategies that are simulated."""
        return [candidate for candidate in self.candidates if candidate.name in self.runs]

    def values_of_run(self, name: str) -> dict[str, Any]:
        """Return the values with which the command of a strategy repeats its run, beside its
        exchange."""
        tolerance = self.runs[name].time_tolerance if name in self.runs else None
        changed = tolerance not in {None, self.base.time_tolerance}
        return {TOLERANCE: tolerance} if changed else {}

    def needs(self, of: Candidate, spares: int) -> Needs:
        """What a strategy takes of the machine, with so many hosts beside those of the ranks."""
        base = self.base
        pfs, reads = base.cluster.parallel_file_system, of.record.tier == "pfs"
        on_ssd = base.workload.staging.target == "ssd"
        return Needs(
            base.hosts + spares,
            of.kept_nbytes if on_ssd else 0.0,
            pfs.read_bandwidth if reads else 0.0,
            pfs.open_rate if reads else 0.0,
        )


def request(options: PlanOptions) -> Request[PlanRequest]:
    """What is asked for; an InputError if a price has no such name or is negative, no curve reaches
    the target or has a strategy that is named, or no strategy fits."""
    if options.target is not None and options.target_accuracy is None:
        rule, remedy = "needs accuracy by epoch", "Add --target-accuracy FILE."
        refuse("--target", rule, f"{options.target:g}", remedy, COMMAND_LINE)
    prices = _prices(options.prices)
    scenario, own = _scenario(options)
    source = str(options.target_accuracy)
    known = {} if options.target_accuracy is None else curves.curves(options.target_accuracy)
    target = options.target
    if known and target is None:
        target = curves.default_target(known, source)
    learned = [] if target is None else curves.plain(known, target)
    exchanges = _exchanges(options.strategy, own, known, source)
    values = _fixed(scenario)
    words = [scenario_word(options.scenario), *setting_words(options.set)]
    once = {key: value for key, value in values.items() if key not in APART}
    plain = {
        "command": " ".join(["simshuffle", "run", *words, *setting_words(values)]),
        "whole": " ".join([*words, *setting_words(once)]),
        "strategies": exchanges,
        "prices": prices,
        "budget": options.budget,
        "io_share": options.io_share,
        "target": target,
        "learned": learned,
        "epochs": options.epochs or EPOCHS,
        "exact": options.exact,
        "units": written_units(options.scenario, options.set, _moved_keys(scenario)),
        "plan_words": " ".join(["simshuffle", "plan", *words, *option_words(options)]),
    }
    made = _request(scenario.with_values(once), plain, source)
    return replace(made, about=describe_size_chosen(scenario, VERB, (EXCHANGE,)))


def repeat(folder: Path, meta: Meta) -> Request[PlanRequest]:
    """The request of a result, from its folder."""
    return _request(load_scenario(folder / "scenario.yaml"), meta["asked"], str(folder))


def _request(whole: Scenario, plain: Mapping[str, Any], source: str) -> Request[PlanRequest]:
    base = whole.with_values(_apart(whole))
    learned = {(of["strategy"], of["exchange_fraction"]): of for of in plain["learned"]}
    found = [_candidate(base, text, learned, plain["epochs"]) for text in plain["strategies"]]
    asked = PlanRequest(
        whole,
        base,
        plain["command"],
        plain["whole"],
        found,
        plain["prices"],
        plain["budget"],
        plain["io_share"],
        plain["target"],
        # results of earlier versions simulated all of it
        plain.get("exact", True),
        plain.get("units", {}),
        plain.get("plan_words", f"simshuffle plan {plain['whole']}"),
    )
    if learned and all(of.epochs is None for of in found):
        best = max(found, key=lambda of: of.best or 0.0)
        rule = f"must be reached by a curve; the best is {best.best:.4g}, of {best.name}"
        refuse("--target", rule, f"{plain['target']:.4g}", "Lower it, or learn longer.", source)
    if not asked.fitting:
        remedy = f"Raise cluster.ssd.capacity, or add --strategy {FROM_PFS}."
        refuse("--strategy", "must fit the hosts", found[0].why, remedy, COMMAND_LINE)
    for of in asked.fitting:
        if of.scenario is not None:
            check_size(of.scenario)
    document, files = serialise_scenarios([whole])
    return Request(base.name, asked, {"scenario.yaml": document}, {"asked": dict(plain)}, files)


def _moved_keys(scenario: Scenario) -> list[str]:
    return [key for keys in keys_of_inputs(scenario).values() for key in keys]


# ---------------------------------------------------------------------------------- the scenario


def _scenario(options: PlanOptions) -> tuple[Scenario, Strategy | None]:
    """The scenario, and its own strategy; None if the hosts have no room for that."""
    try:
        scenario = scenario_of(options.scenario, options.set)
    except ScenarioError as error:
        if not all(
            of.path == "workload.exchange" and " keeps " in of.rule for of in error.problems
        ):
            raise
        values = {**options.set, "workload.exchange": FROM_PFS}
        return scenario_of(options.scenario, values), None
    return scenario, scenario.workload.exchange


def _fixed(scenario: Scenario) -> dict[str, Any]:
    """Values that make it one run that is quick, with a warm epoch."""
    if scenario.jobs:
        problem = Problem("jobs", "must be one job", f"{len(scenario.jobs)}", "Leave jobs out.")
        raise ScenarioError(problem, scenario.name)
    values: dict[str, Any] = {"sweep": {}} if scenario.sweep else {}
    values |= _apart(scenario)
    if scenario.epochs < WARM:
        values["epochs"] = WARM
    if scenario.time_tolerance == 0:
        values[TOLERANCE] = TIME_TOLERANCE
    return values


def _apart(scenario: Scenario) -> dict[str, Any]:
    """Values that take failures and checkpoints out of an epoch: their time is added later."""
    plain = scenario.to_dict()
    found = {key: None for key in APART if key in plain}
    if "checkpoint" in plain["workload"]:
        found[CHECKPOINT] = None
    return found


def _prices(given: Mapping[str, Any]) -> dict[str, float]:
    problems = []
    for name, value in given.items():
        path = f"--price {name}"
        if name not in PRICES:
            problems.append(
                Problem(path, "no such price", repr(name), suggest_nearest(name, [*PRICES]))
            )
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
            remedy = "Give a number from 0 on."
            problems.append(Problem(path, "must be a price", repr(value), remedy))
    if problems:
        raise InputError(problems, COMMAND_LINE)
    if given and HOST_HOUR not in given:
        rule, remedy = "must be given with other prices", f"Add --price {HOST_HOUR}=1."
        refuse(f"--price {HOST_HOUR}", rule, "none", remedy, COMMAND_LINE)
    return {name: float(value) for name, value in (given or {HOST_HOUR: 1.0}).items()}


# -------------------------------------------------------------------------------- the strategies


def _exchanges(
    named: Sequence[str], own: Strategy | None, known: Mapping[Setting, Any], source: str
) -> list[str | dict[str, Any]]:
    """The strategies that are considered: those that are named, or of the curves, or the usual
    ones and the scenario's own."""
    if named:
        records = {text: record_of("--strategy", text, kinds_of(Exchange), {}) for text in named}
        for text, record in records.items():
            if known and setting(record) not in known:
                have = ", ".join(_called(*each) for each in known)
                rule = f"must be a strategy that there is a curve of: {have}"
                refuse("--strategy", rule, text, "Name another, or add its curve.", source)
        names = [name_of(record) for record in records.values()]
        if again := [name for name in names if names.count(name) > 1]:
            rule, remedy = "must be named once", "Name each once."
            refuse("--strategy", rule, again[0], remedy, COMMAND_LINE)
        return list(records)
    if not known:
        known = dict.fromkeys(
            [("global", None), ("local", 0.0), *(("partial", q) for q in FRACTIONS)]
        )
    found: list[str | dict[str, Any]] = []
    for strategy, fraction in known:
        found += _of_setting(strategy, fraction, own, source)
    if own is not None and source == "None":
        found.append(_short(own.model_dump(mode="json", exclude_defaults=True)))
    by_name: dict[str, str | dict[str, Any]] = {}
    for exchange in found:  # the scenario's own may be among the usual ones
        by_name.setdefault(name_of(_record(exchange)), exchange)
    return list(by_name.values())


def _of_setting(
    strategy: str, fraction: float | None, own: Strategy | None, source: str
) -> list[str | dict[str, Any]]:
    """The exchanges of a setting; they travel as the scenario's own, if that is of the same
    kind."""
    if strategy == "global":
        return [FROM_PFS, FROM_SSD]
    if strategy not in KINDS:
        remedy = suggest_nearest(strategy, ["global", *KINDS])
        refuse("strategy", "no such strategy", repr(strategy), remedy, source)
    values = dict(KINDS[strategy])
    if strategy != "local":
        if fraction is None or not 0 < fraction <= 1:
            rule = f"of {strategy} must be above 0 and at most 1"
            refuse("exchange_fraction", rule, str(fraction), "Add it.", source)
        if own is not None and own.kind == values["kind"]:
            values = {**own.model_dump(mode="json", exclude_defaults=True), **values}
        values["exchange_fraction"] = fraction
    return [_short(values)]


def _short(values: dict[str, Any]) -> str | dict[str, Any]:
    """The values of an exchange as text, where they are plain."""
    others = {key: value for key, value in values.items() if key != "kind"}
    if not all(isinstance(value, str | int | float) for value in others.values()):
        return values
    written = ",".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in others.items()
    )
    return f"{values['kind']}:{written}" if written else str(values["kind"])


def setting(record: Strategy) -> Setting:
    """What a curve calls a strategy."""
    return record.short_name, record.fraction


def _called(strategy: str, fraction: float | None) -> str:
    return f"{strategy}-{fraction:g}" if fraction else strategy


def name_of(record: Strategy) -> str:
    """Such as 'partial-0.1', 'global-pfs' or 'local'."""
    if record.fraction is None or record.tier != "ssd":
        return f"{record.short_name}-{record.tier}"
    return _called(*setting(record))


def _candidate(
    base: Scenario,
    exchange: str | dict[str, Any],
    learned: Mapping[Setting, Mapping[str, Any]],
    epochs: int,
) -> Candidate:
    record = _record(exchange)
    known = learned.get(setting(record))
    ranks = base.cluster.ranks_per_host(base.world_size)
    kept = record.stored_share(base.world_size, ranks) * base.workload.dataset.nbytes
    scenario, why = None, ""
    try:
        scenario = base.with_values({"workload.exchange": exchange})
        kept = max_held_nbytes(scenario)
    except InputError as error:
        why = "; ".join(f"{of.rule}: {of.value}" for of in error.problems)
    return Candidate(
        name=name_of(record),
        exchange=exchange,
        record=record,
        scenario=scenario,
        why=why,
        kept_nbytes=kept,
        epochs=known["epochs"] if known else None if learned else epochs,
        best=known["best"] if known else None,
    )


def _record(exchange: str | dict[str, Any]) -> Strategy:
    text = exchange if isinstance(exchange, str) else str(exchange["kind"])
    more = {} if isinstance(exchange, str) else {k: v for k, v in exchange.items() if k != "kind"}
    found: Strategy = record_of("workload.exchange", text, kinds_of(Exchange), more)
    return found
