"""The study behind ``simshuffle study ablate``: from one exchange to another, switch by switch.
Every combination of their mechanisms is simulated, over seeds; which costs how much?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.job.scenario.options import scenario_of
from simshuffle.job.scenario.scenario import Scenario, load_scenarios, stored
from simshuffle.job.scenario.swept import EXCHANGE, runs_followed
from simshuffle.studies.mechanisms import text
from simshuffle.studies.mechanisms.figures import waterfall_chart
from simshuffle.studies.mechanisms.switches import (
    Switch,
    Values,
    assigned,
    changes,
    contributions,
    corners,
    differences,
    flat,
    made,
    on_the_way,
    position,
    read,
    state,
    with_also,
    within,
    word,
    written,
)
from simshuffle.studies.mechanisms.tables import (
    ABLATION,
    ALL,
    BASES,
    CHANGES,
    CONTRIBUTIONS,
    LABELS,
)
from simshuffle.studies.mechanisms.variants import WarmCell, prepared
from simshuffle.studies.mechanisms.verb import AblationOptions
from simshuffle.study.cell import Cell
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.schema import problems_of_misfits
from simshuffle.study.study import Derived, Meta, Outcomes, Request, Result, Study, Tables
from simshuffle.workload.exchange.sending import SendingStrategy

VERB = "simshuffle study ablate"
BETWEEN = {("sample", "epoch"): "iteration", ("epoch", "sample"): "iteration"}
"""Lifetimes of partners with one between them, which is simulated alone."""


@dataclass(frozen=True)
class Ablation:
    """What is taken apart."""

    # start, end: scenarios without sweep that differ in their exchange alone
    start: Scenario
    end: Scenario
    # what is switched; the end of the orders is ``end`` with what was asked for besides
    switches: list[Switch]
    states: Mapping[tuple[bool, ...], Any]  # the exchange of every combination that there can be
    # for each key and value the exchanges that have it alone, by base; where one cannot be, it is
    # left out
    alone: Mapping[tuple[str, Any], dict[str, Any]]
    seeds: int  # how many; from that of the scenario on

    def runs(self) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
        """Every simulation: table, first columns of its rows, the last its seed, and exchange."""
        for seed in range(self.start.seed, self.start.seed + self.seeds):
            for of, exchange in self.states.items():
                yield "runs", (word(of), seed), exchange
            for (key, value), bases in self.alone.items():
                for base, exchange in bases.items():
                    yield "alone", (key, written(value), base, seed), exchange


def request(options: AblationOptions) -> Request[Ablation]:
    """What is asked for. An exchange without ``exchange_fraction`` has that of the scenario's runs.
    An InputError if these have several fractions, or another key is swept; an exchange is not
    valid, or sends no fraction of the shards, or not the same; if a key is not known; or there is
    nothing to switch."""
    scenario = _exchanging_run(scenario_of(options.scenario, options.set), options)
    ends = {"--start": options.start, "--end": options.end}
    first, last = (_exchanging(scenario, option, of) for option, of in ends.items())
    before, after = _sending(first, "--start"), _sending(last, "--end")
    fraction = before.exchange_fraction
    if fraction != after.exchange_fraction:
        rule = f"must exchange as much as the start, {fraction:g}"
        less, remedy = f"{after.exchange_fraction:g}", "Give both the same."
        refuse("--end", rule, less, remedy, COMMAND_LINE)
    values = flat(before)
    switches = with_also(differences(values, flat(after)), options.also, values)
    states = corners(switches, values, fraction)
    bases = {"start": values, "end": position(switches, values, (True,) * len(switches))}
    alone = _alone(bases, switches, options.alone, fraction)
    of = Ablation(first, last, switches, states, alone, options.seeds)
    asked = {name: getattr(options, name) for name in ("start", "end", "seeds")}
    for name, given in (("also", options.also), ("alone", options.alone)):
        asked[name] = [f"{key}={written(value)}" for key, value in given]
    document, files = stored([first, last])
    about, documents = f"{len(list(of.runs()))} simulations.", {"scenario.yaml": document}
    return Request(scenario.name, of, documents, {"asked": asked}, files, about)


def _exchanging_run(scenario: Scenario, options: AblationOptions) -> Scenario:
    """The run of the scenario whose exchange says how much is sent; its first one where start and
    end say that themselves, or no run exchanges."""
    runs = [*runs_followed(scenario, VERB, (EXCHANGE,)).values()]
    of_fraction = {of.workload.exchange.fraction or 0.0: of for of in runs}
    of_fraction.pop(0.0, None)
    is_said = all("exchange_fraction=" in end for end in (options.start, options.end))
    if len(of_fraction) > 1 and not is_said:
        rule = "must say how much is exchanged: the runs of the scenario differ in that"
        given = ", ".join(f"{fraction:g}" for fraction in sorted(of_fraction))
        example = f"{options.start.partition(':')[0]}:exchange_fraction={min(of_fraction):g}"
        remedy = f"Say it at both ends, such as --start {example}."
        refuse("--start", rule, given, remedy, COMMAND_LINE)
    return next(iter(of_fraction.values()), runs[0])


def _exchanging(scenario: Scenario, option: str, reference: str) -> Scenario:
    _, _, arguments = reference.partition(":")
    fraction = scenario.workload.exchange.fraction
    if fraction and not any(item.startswith("exchange_fraction=") for item in arguments.split(",")):
        reference = f"{reference}{',' if arguments else ':'}exchange_fraction={fraction!r}"
    try:
        return prepared(scenario).with_values({"workload.exchange": reference})
    except InputError as error:
        raise InputError(within(option, error.problems), COMMAND_LINE) from None


def _sending(scenario: Scenario, option: str) -> SendingStrategy:
    exchange = scenario.workload.exchange
    if (
        not isinstance(exchange, SendingStrategy)
        or exchange.exchange_fraction == 0
        or scenario.world_size < 2
    ):
        rule = "must exchange a fraction of the samples between two ranks or more"
        remedy = "Name one that has exchange_fraction, and give that above 0."
        refuse(option, rule, scenario.label(), remedy, COMMAND_LINE)
    return exchange


def _alone(
    bases: Mapping[str, Values],
    switches: Sequence[Switch],
    asked: Sequence[tuple[str, Any]],
    fraction: float,
) -> dict[tuple[str, Any], dict[str, Any]]:
    """The exchanges with one value other than at the start, and other than at the end."""
    assigned("--alone", [key for key, _ in asked], bases["start"])
    between = [
        (switch.key, BETWEEN[switch.start, switch.end])
        for switch in switches
        if switch.key == "partner_lifetime" and (switch.start, switch.end) in BETWEEN
    ]
    out: dict[tuple[str, Any], dict[str, Any]] = {}
    for key, value in dict.fromkeys([*between, *asked]):
        tried = {
            base: made({**values, key: value}, fraction)
            for base, values in bases.items()
            if values[key] != value
        }
        there = {base: exchange for base, (exchange, _) in tried.items() if exchange is not None}
        if not there:
            given = f"{key}={value}"
            found = [problem for _, problems in tried.values() for problem in problems]
            problems = found or [Problem("", "start and end have it already", given)]
            option = f"--alone {given}"
            raise InputError([replace(of, path=option) for of in problems], COMMAND_LINE)
        out[key, value] = there
    return out


def _cells(of: Ablation, outcomes: Outcomes) -> dict[str, Cell]:
    """A simulation for every row of `Ablation.runs`, by its name. It is valid if the start is: Q is
    the same, and what is stored depends on that alone."""
    cells: dict[str, Cell] = {}
    for _, what, exchange in of.runs():
        workload = of.start.workload.model_copy(update={"exchange": exchange})
        single = of.start.model_copy(update={"seed": what[-1], "workload": workload})
        cells[_name(what)] = WarmCell(single.to_dict(), _name(what))
    return cells


def _name(what: tuple[Any, ...]) -> str:
    return f"{' '.join(what[:-1])}, seed {what[-1]}"


def _collect(of: Ablation, outcomes: Outcomes) -> Tables:
    rows: dict[str, list[tuple[Any, ...]]] = {"runs": [], "alone": []}
    for table, what, _ in of.runs():
        seconds = outcomes[_name(what)].values
        rows[table] += [(*what, label, seconds[label]) for label in LABELS]
    reached = flat(of.end.workload.exchange)
    more = any(reached[switch.key] != switch.end for switch in of.switches)
    rows["ends"] = [
        (place, end.label(), end.world_size, end.workload.exchange.fraction, more)
        for place, end in zip(BASES, (of.start, of.end), strict=True)
    ]
    rows["switches"] = [(s.key, written(s.start), written(s.end)) for s in of.switches]
    return {name: schema.framed(rows[name]) for name, schema in ABLATION.items()}


def _tables(result: Result, count: int) -> list[pd.DataFrame]:
    """The first of the tables that others follow from."""
    return [result.tables[name] for name in ("switches", "runs", "alone")[:count]]


def _faults(result: Result) -> Iterator[Problem]:
    runs, alone, ends = (result.tables[name] for name in ("runs", "alone", "ends"))
    switches = set(result.tables["switches"]["switch"])
    words, seeds = set(runs["state"]), set(runs["seed"])
    states = {state(word) for word in words if len(word) == len(switches) and set(word) <= {*"01"}}
    labels = alone.groupby(["key", "value", "base", "seed"]).size()
    return problems_of_misfits(
        {
            "ends.csv": set(ends["place"]) == {*BASES},
            "switches.csv": bool(switches) and ALL not in switches,
            "runs.csv": len(states) == len(words)
            and bool(on_the_way(states))
            and len(runs) == len(words) * len(seeds) * len(LABELS),
            "alone.csv": set(alone["seed"]) <= seeds and bool((labels == len(LABELS)).all()),
        }
    )


def repeat(folder: Path, meta: Meta) -> Request[Ablation]:
    """Return the request of a result, from its folder."""
    asked = dict(meta["asked"])
    for name in ("also", "alone"):
        assignments = (assignment.partition("=") for assignment in asked[name])
        asked[name] = tuple((key, read(value)) for key, _, value in assignments)
    start = load_scenarios(folder / "scenario.yaml")[0]
    return request(AblationOptions(scenario=start, **asked))


STUDY: Study[Ablation] = Study(
    kind="ablation",
    verb="study ablate",
    stages=(_cells,),
    collect=_collect,
    stored=ABLATION,
    documents=("scenario.yaml",),
    derived={
        "contributions": Derived(CONTRIBUTIONS, lambda of: contributions(*_tables(of, 2))),
        "changes": Derived(CHANGES, lambda of: changes(*_tables(of, 3))),
    },
    figures=lambda result: {"waterfall": waterfall_chart(result.all_tables)},
    parts=lambda result: text.of_ablation(result.all_tables),
    faults=_faults,
    again=f"{__name__}:repeat",
)
