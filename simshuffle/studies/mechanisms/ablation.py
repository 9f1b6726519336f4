"""Ablate an exchange (``simshuffle study ablate``): from one exchange to another,
switch by switch. Every combination of their mechanisms is simulated, over seeds; which
costs how much?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.job.scenario.options import scenario_of
from simshuffle.job.scenario.scenario import (
    Scenario,
    load_scenarios,
    serialise_scenarios,
)
from simshuffle.job.scenario.swept import EXCHANGE, runs_followed
from simshuffle.studies.mechanisms import text
from simshuffle.studies.mechanisms.figures import waterfall_chart
from simshuffle.studies.mechanisms.switches import (
    Switch,
    Values,
    add_switches,
    changes,
    check_keys,
    contributions,
    corners,
    differences,
    flat,
    make_exchange,
    name_option,
    position,
    read,
    state,
    step_weights,
    word,
    write_value,
)
from simshuffle.studies.mechanisms.tables import (
    ABLATION,
    ALL,
    BASES,
    CHANGES,
    CONTRIBUTIONS,
    LABELS,
)
from simshuffle.studies.mechanisms.variants import WarmCell, prepare_scenario
from simshuffle.studies.mechanisms.verb import AblationOptions
from simshuffle.study.cell import Cell
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.schema import problems_of_misfits
from simshuffle.study.study import (
    Derived,
    Meta,
    Outcomes,
    Request,
    Result,
    Study,
    Tables,
)
from simshuffle.workload.exchange.sending import SendingStrategy

VERB = "simshuffle study ablate"
BETWEEN = {("sample", "epoch"): "iteration", ("epoch", "sample"): "iteration"}
"""Lifetimes of partners with one between them, which is simulated alone."""


@dataclass(frozen=True)
class Ablation:
    """The simulations of an ablation: every combination of switches, and single values
    alone.
    """

    # start, end: scenarios without sweep that differ in their exchange alone
    start: Scenario
    end: Scenario
    # in the order of `switches.ORDER`; all on, they give ``end`` with the values of --also
    switches: list[Switch]
    # the exchange by switches that are on; without combinations that cannot be
    states: Mapping[tuple[bool, ...], Any]
    # by (key, value), then by base 'start' or 'end': the base's exchange with that value. A base
    # that has the value, or cannot have it, is left out
    alone: Mapping[tuple[str, Any], dict[str, Any]]
    seeds: int  # how many; from that of the scenario on

    def runs(self) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
        """Yield table, first columns of rows, and exchange of every simulation.

        The columns are (state, seed) for table 'runs', and (key, value, base, seed) for
        'alone'.
        """
        for seed in range(self.start.seed, self.start.seed + self.seeds):
            for switch_state, exchange in self.states.items():
                yield "runs", (word(switch_state), seed), exchange
            for (key, value), bases in self.alone.items():
                for base, exchange in bases.items():
                    yield "alone", (key, write_value(value), base, seed), exchange


def request(options: AblationOptions) -> Request[Ablation]:
    """Return the checked request of an ablation.

    An exchange without ``exchange_fraction`` has the fraction that the scenario's runs
    exchange. ``scenario.yaml`` holds two scenarios: start, then end.

    Raises:
        InputError: the runs have several fractions and start or end names none; another
            key is swept; an exchange is not valid, or sends no fraction of the shards,
            or another fraction than the other exchange; a key is not known; there is
            nothing to switch, or more than `switches.MOST` switches; or no order of
            switching leads from start to end.
    """
    scenario = _choose_run(scenario_of(options.scenario, options.set), options)
    references = {"--start": options.start, "--end": options.end}
    start_scenario, end_scenario = (
        _apply_exchange(scenario, option, reference)
        for option, reference in references.items()
    )
    start_exchange = _require_sending(start_scenario, "--start")
    end_exchange = _require_sending(end_scenario, "--end")
    fraction = start_exchange.exchange_fraction
    if fraction != end_exchange.exchange_fraction:
        rule = f"must exchange as much as the start, {fraction:g}"
        end_fraction = f"{end_exchange.exchange_fraction:g}"
        remedy = "Give both ends the same exchange_fraction."
        refuse("--end", rule, end_fraction, remedy, COMMAND_LINE)
    values = flat(start_exchange)
    switches = add_switches(
        differences(values, flat(end_exchange)), options.also, values
    )
    states = corners(switches, values, fraction)
    bases = {
        "start": values,
        "end": position(switches, values, (True,) * len(switches)),
    }
    alone_exchanges = _exchanges_alone(bases, switches, options.alone, fraction)
    ablation = Ablation(
        start_scenario, end_scenario, switches, states, alone_exchanges, options.seeds
    )
    answers = {name: getattr(options, name) for name in ("start", "end", "seeds")}
    for name, assignments in (("also", options.also), ("alone", options.alone)):
        answers[name] = [f"{key}={write_value(value)}" for key, value in assignments]
    document, files = serialise_scenarios([start_scenario, end_scenario])
    note = f"{len(list(ablation.runs()))} simulations."
    documents = {"scenario.yaml": document}
    return Request(scenario.name, ablation, documents, {"asked": answers}, files, note)


def _choose_run(scenario: Scenario, options: AblationOptions) -> Scenario:
    """Return a run with the first exchange fraction above 0 of the sweep.

    Of several runs with that fraction it is the last; where no run exchanges, it is the
    first run.

    Raises:
        InputError: runs differ in their fraction, and start and end do not both name an
            ``exchange_fraction``; or a key other than the exchange is swept.
    """
    runs = [*runs_followed(scenario, VERB, (EXCHANGE,)).values()]
    run_of_fraction = {run.workload.exchange.fraction or 0.0: run for run in runs}
    run_of_fraction.pop(0.0, None)
    names_fraction = all(
        "exchange_fraction=" in end for end in (options.start, options.end)
    )
    if len(run_of_fraction) > 1 and not names_fraction:
        rule = "must name exchange_fraction, as the runs of the scenario have several"
        fractions = ", ".join(f"{fraction:g}" for fraction in sorted(run_of_fraction))
        example = f"{options.start.partition(':')[0]}:exchange_fraction={min(run_of_fraction):g}"
        remedy = f"Name it in --start and in --end, such as --start {example}."
        refuse("--start", rule, fractions, remedy, COMMAND_LINE)
    return next(iter(run_of_fraction.values()), runs[0])


def _apply_exchange(scenario: Scenario, option: str, reference: str) -> Scenario:
    """Return the two-epoch scenario with the exchange that ``reference`` names.

    A reference without ``exchange_fraction`` gets that of the scenario, if it has one.
    ``option`` stands in messages.

    Raises:
        InputError: the exchange is not valid.
    """
    _, _, arguments = reference.partition(":")
    fraction = scenario.workload.exchange.fraction
    if fraction and not any(
        item.startswith("exchange_fraction=") for item in arguments.split(",")
    ):
        reference = (
            f"{reference}{',' if arguments else ':'}exchange_fraction={fraction!r}"
        )
    try:
        return prepare_scenario(scenario).with_values({"workload.exchange": reference})
    except InputError as error:
        raise InputError(name_option(option, error.problems), COMMAND_LINE) from None


def _require_sending(scenario: Scenario, option: str) -> SendingStrategy:
    """Return the exchange of a scenario.

    Raises:
        InputError: the exchange sends no fraction of the samples, or there is one rank.
    """
    exchange = scenario.workload.exchange
    if (
        not isinstance(exchange, SendingStrategy)
        or exchange.exchange_fraction == 0
        or scenario.world_size < 2
    ):
        rule = "must exchange a fraction of the samples between two ranks or more"
        remedy = "Name an exchange whose exchange_fraction is above 0."
        refuse(option, rule, scenario.label(), remedy, COMMAND_LINE)
    return exchange


def _exchanges_alone(
    bases: Mapping[str, Values],
    switches: Sequence[Switch],
    requested: Sequence[tuple[str, Any]],
    fraction: float,
) -> dict[tuple[str, Any], dict[str, Any]]:
    """Return the exchanges with one value changed, by (key, value), then by base.

    The values are those of `BETWEEN` for a partner_lifetime that is switched, then the
    requested ones. A base that has the value, or cannot have it, is left out.

    Raises:
        InputError: a key is unknown, or no base can take a value.
    """
    check_keys("--alone", [key for key, _ in requested], bases["start"])
    intermediate = [
        (switch.key, BETWEEN[switch.start, switch.end])
        for switch in switches
        if switch.key == "partner_lifetime" and (switch.start, switch.end) in BETWEEN
    ]
    exchanges: dict[tuple[str, Any], dict[str, Any]] = {}
    for key, value in dict.fromkeys([*intermediate, *requested]):
        validated = {
            base: make_exchange({**values, key: value}, fraction)
            for base, values in bases.items()
            if values[key] != value
        }
        possible = {
            base: exchange
            for base, (exchange, _) in validated.items()
            if exchange is not None
        }
        if not possible:
            assignment = f"{key}={value}"
            exchange_problems = [
                problem for _, problems in validated.values() for problem in problems
            ]
            problems = exchange_problems or [
                Problem(
                    "", "must differ from the value that start and end have", assignment
                )
            ]
            option = f"--alone {assignment}"
            raise InputError(
                [replace(problem, path=option) for problem in problems], COMMAND_LINE
            )
        exchanges[key, value] = possible
    return exchanges


def _cells(ablation_request: Ablation, outcomes: Outcomes) -> dict[str, Cell]:
    """Return a simulation for every item of `Ablation.runs`, by its name.

    The scenarios are not checked again. All are valid if the start is: Q is equal, and
    what is stored depends on Q alone. ``outcomes`` is not used.
    """
    cells: dict[str, Cell] = {}
    for _, columns, exchange in ablation_request.runs():
        workload = ablation_request.start.workload.model_copy(
            update={"exchange": exchange}
        )
        scenario = ablation_request.start.model_copy(
            update={"seed": columns[-1], "workload": workload}
        )
        cells[_cell_name(columns)] = WarmCell(scenario.to_dict(), _cell_name(columns))
    return cells


def _cell_name(columns: tuple[Any, ...]) -> str:
    """Return the name of a simulation, such as '0110, seed 3'.

    ``columns`` are the first columns of its rows; the last one is the seed.
    """
    return f"{' '.join(columns[:-1])}, seed {columns[-1]}"


def _collect(ablation_request: Ablation, outcomes: Outcomes) -> Tables:
    """Return the tables of `ABLATION`, from the outcomes of all simulations.

    A row of ``runs`` or ``alone`` has the s of one label of the warm epoch. A row of
    ``switches`` has the values of one switch as text.
    """
    rows: dict[str, list[tuple[Any, ...]]] = {"runs": [], "alone": []}
    for table, columns, _ in ablation_request.runs():
        seconds = outcomes[_cell_name(columns)].values
        rows[table] += [(*columns, label, seconds[label]) for label in LABELS]
    end_values = flat(ablation_request.end.workload.exchange)
    switched_more = any(
        end_values[switch.key] != switch.end for switch in ablation_request.switches
    )
    rows["ends"] = [
        (
            place,
            end.label(),
            end.world_size,
            end.workload.exchange.fraction,
            switched_more,
        )
        for place, end in zip(
            BASES, (ablation_request.start, ablation_request.end), strict=True
        )
    ]
    rows["switches"] = [
        (switch.key, write_value(switch.start), write_value(switch.end))
        for switch in ablation_request.switches
    ]
    return {name: schema.framed(rows[name]) for name, schema in ABLATION.items()}


def _tables(result: Result, count: int) -> list[pd.DataFrame]:
    """Return the first ``count`` of the stored tables switches, runs and alone."""
    return [result.tables[name] for name in ("switches", "runs", "alone")[:count]]


def _faults(result: Result) -> Iterator[Problem]:
    """Yield a problem for each table of a stored result that is not complete.

    All combinations, seeds and labels must be there, and an order of switching must be
    possible. ``alone.csv`` may lack seeds, but no labels.
    """
    runs, alone_rows, ends = (result.tables[name] for name in ("runs", "alone", "ends"))
    switches = set(result.tables["switches"]["switch"])
    words = set(runs["state"])
    seeds = set(runs["seed"])
    states = {
        state(word)
        for word in words
        if len(word) == len(switches) and set(word) <= {*"01"}
    }
    labels = alone_rows.groupby(["key", "value", "base", "seed"]).size()
    return problems_of_misfits(
        {
            "ends.csv": set(ends["place"]) == {*BASES},
            "switches.csv": bool(switches) and ALL not in switches,
            "runs.csv": len(states) == len(words)
            and bool(step_weights(states))
            and len(runs) == len(words) * len(seeds) * len(LABELS),
            "alone.csv": set(alone_rows["seed"]) <= seeds
            and bool((labels == len(LABELS)).all()),
        }
    )


def repeat(folder: Path, meta: Meta) -> Request[Ablation]:
    """Return the request of an earlier result, from its folder.

    The options come from ``meta``; ``scenario.yaml`` gives the start's scenario.
    """
    answers = dict(meta["asked"])
    for name in ("also", "alone"):
        assignments = (assignment.partition("=") for assignment in answers[name])
        answers[name] = tuple((key, read(value)) for key, _, value in assignments)
    start = load_scenarios(folder / "scenario.yaml")[0]
    return request(AblationOptions(scenario=start, **answers))


STUDY: Study[Ablation] = Study(
    kind="ablation",
    verb="study ablate",
    stages=(_cells,),
    collect=_collect,
    stored=ABLATION,
    documents=("scenario.yaml",),
    derived={
        "contributions": Derived(
            CONTRIBUTIONS, lambda of: contributions(*_tables(of, 2))
        ),
        "changes": Derived(CHANGES, lambda of: changes(*_tables(of, 3))),
    },
    figures=lambda result: {"waterfall": waterfall_chart(result.all_tables)},
    parts=lambda result: text.ablation_parts(result.all_tables),
    faults=_faults,
    again=f"{__name__}:repeat",
)
