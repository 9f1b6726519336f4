"""From one exchange to another, switch by switch: every combination of their mechanisms is
simulated, over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.exchange.sending import SendingStrategy
from simshuffle.scenario.scenario import Scenario, load_scenarios, stored
from simshuffle.spec.library import read_value
from simshuffle.studies.ablation.shapley import text
from simshuffle.studies.ablation.switches import (
    Switch,
    Values,
    assigned,
    corners,
    differences,
    flat,
    made,
    position,
    with_also,
)
from simshuffle.studies.ablation.tables import BASES, LABELS, STORED
from simshuffle.studies.simulation.warm import WarmCell, prepared
from simshuffle.study.cell import Cell
from simshuffle.study.study import Meta, Outcomes, Request, Tables

BETWEEN = {("sample", "epoch"): "iteration", ("epoch", "sample"): "iteration"}
"""Lifetimes of partners with one between them, which is simulated alone."""


@dataclass(frozen=True)
class Ablation:
    """What is taken apart.

    Attributes:
        start, end: scenarios without sweep that differ in their exchange alone.
        switches: what is switched; the end of the orders is ``end`` with what was asked for
            besides.
        states: the exchange of every combination that there can be.
        alone: for each key and value the exchanges that have it alone, by base; where one cannot
            be, it is left out.
        seeds: how many; from that of the scenario on.
    """

    start: Scenario
    end: Scenario
    switches: list[Switch]
    states: Mapping[tuple[bool, ...], Any]
    alone: Mapping[tuple[str, Any], dict[str, Any]]
    seeds: int = 3

    @property
    def simulations(self) -> int:
        """How many simulations that is."""
        return self.seeds * (len(self.states) + sum(len(bases) for bases in self.alone.values()))


def request(
    scenario: Scenario,
    start: str,
    end: str,
    also: Sequence[tuple[str, Any]],
    alone: Sequence[tuple[str, Any]],
    seeds: int = 3,
) -> Request[Ablation]:
    """What is asked for.

    Args:
        scenario: its sweep is not followed.
        start, end: exchanges as in a scenario file, such as ``importance_pair`` or
            ``importance_pair:schedule.barriers=none``. Without ``exchange_fraction`` they have that
            of the scenario.
        also: further switches: keys of an exchange, and their values at the end.
        alone: keys and values that are simulated alone, beside the switches.
        seeds: at least 1.

    Raises:
        InputError: an exchange is not valid, or sends no fraction of the shards; they send
            different fractions; a key is not known; or there is nothing to switch.
    """
    first, last = (
        _exchanging(scenario, option, reference)
        for option, reference in (("--start", start), ("--end", end))
    )
    before, after = _sending(first, "--start"), _sending(last, "--end")
    fraction = before.exchange_fraction
    if fraction != after.exchange_fraction:
        problem = Problem(
            "--end",
            f"must exchange as much as the start, {fraction:g}",
            f"{after.exchange_fraction:g}",
            "Give both the same.",
        )
        raise InputError(problem, "command line")
    values = flat(before)
    switches = with_also(differences(values, flat(after)), also, values)
    states = corners(switches, values, fraction)
    bases = {"start": values, "end": position(switches, values, (True,) * len(switches))}
    of = Ablation(first, last, switches, states, _alone(bases, switches, alone, fraction), seeds)
    asked = {
        "start": start,
        "end": end,
        "also": [f"{key}={written(value)}" for key, value in also],
        "alone": [f"{key}={written(value)}" for key, value in alone],
        "seeds": seeds,
    }
    text, files = stored([first, last])
    return Request(scenario.name, of, {"scenario.yaml": text}, {"asked": asked}, files)


def again(folder: Path, meta: Meta) -> Request[Ablation]:
    """The request of a result, from its folder."""
    start = load_scenarios(folder / "scenario.yaml")[0]
    asked = meta["asked"]
    pairs = {
        name: [(key, read(value)) for key, _, value in (of.partition("=") for of in asked[name])]
        for name in ("also", "alone")
    }
    ends = asked["start"], asked["end"]
    return request(start, *ends, pairs["also"], pairs["alone"], asked["seeds"])


def _exchanging(scenario: Scenario, option: str, reference: str) -> Scenario:
    """``scenario`` with the exchange that an option names."""
    _, _, arguments = reference.partition(":")
    fraction = scenario.workload.exchange.fraction
    if fraction and not any(item.startswith("exchange_fraction=") for item in arguments.split(",")):
        reference = f"{reference}{',' if arguments else ':'}exchange_fraction={fraction!r}"
    try:
        return prepared(scenario).with_values({"workload.exchange": reference})
    except InputError as error:
        raise InputError(
            [Problem(f"{option}: {p.path}", p.rule, p.value, p.remedy) for p in error.problems],
            "command line",
        ) from None


def _sending(scenario: Scenario, option: str) -> SendingStrategy:
    exchange = scenario.workload.exchange
    if (
        not isinstance(exchange, SendingStrategy)
        or exchange.exchange_fraction == 0
        or scenario.world_size < 2
    ):
        rule = "must exchange a fraction of the samples between two ranks or more"
        remedy = (
            "Name partial_local_shuffle, importance_exchange or importance_pair, with"
            " exchange_fraction above 0."
        )
        raise InputError(Problem(option, rule, scenario.label(), remedy), "command line")
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
        ("partner_lifetime", BETWEEN.get((s.start, s.end)))
        for s in switches
        if s.key == "partner_lifetime"
    ]
    out: dict[tuple[str, Any], dict[str, Any]] = {}
    for key, value in dict.fromkeys([*(pair for pair in between if pair[1]), *asked]):
        tried = {
            base: made({**values, key: value}, fraction)
            for base, values in bases.items()
            if values[key] != value
        }
        out[key, value] = {
            base: exchange for base, (exchange, _) in tried.items() if exchange is not None
        }
        if not out[key, value]:
            given = f"{key}={value}"
            problems = [p for _, found in tried.values() for p in found] or [
                Problem("", "start and end have it already", given)
            ]
            raise InputError(
                [Problem(f"--alone {given}", p.rule, p.value, p.remedy) for p in problems],
                "command line",
            )
    return out


def cells(of: Ablation, outcomes: Outcomes) -> dict[str, Cell]:
    """A simulation for every row of `_runs`, by its name."""
    return {
        (name := _name(what)): WarmCell(_with(of.start, exchange, what[-1]).to_dict(), name)
        for _, what, exchange in _runs(of)
    }


def collect(of: Ablation, outcomes: Outcomes) -> Tables:
    """The stored tables."""
    rows: dict[str, list[tuple[Any, ...]]] = {"runs": [], "alone": []}
    for table, what, _ in _runs(of):
        seconds = outcomes[_name(what)].values
        rows[table] += [(*what, label, seconds[label]) for label in LABELS]
    rows["ends"] = [
        _end(place, scenario, of) for place, scenario in zip(BASES, (of.start, of.end), strict=True)
    ]
    rows["switches"] = [(s.key, written(s.start), written(s.end)) for s in of.switches]
    return {name: pd.DataFrame(rows[name], columns=list(STORED[name].columns)) for name in STORED}


def _runs(of: Ablation) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """Every simulation: its table, the first columns of its rows there, the last of which is the
    seed, and its exchange."""
    for seed in range(of.start.seed, of.start.seed + of.seeds):
        for state, exchange in of.states.items():
            yield "runs", (text(state), seed), exchange
        for (key, value), bases in of.alone.items():
            for base, exchange in bases.items():
                yield "alone", (key, written(value), base, seed), exchange


def _name(what: tuple[Any, ...]) -> str:
    return f"{' '.join(what[:-1])}, seed {what[-1]}"


def _end(place: str, scenario: Scenario, of: Ablation) -> tuple[Any, ...]:
    """A row of the table `ends`."""
    reached = flat(of.end.workload.exchange)
    more = any(reached[switch.key] != switch.end for switch in of.switches)
    return place, scenario.label(), scenario.world_size, scenario.workload.exchange.fraction, more


def _with(scenario: Scenario, exchange: Any, seed: int) -> Scenario:
    """Valid if the start is: Q is the same, and what is stored depends on that alone."""
    return scenario.model_copy(
        update={
            "seed": seed,
            "workload": scenario.workload.model_copy(update={"exchange": exchange}),
        }
    )


def read(text: str) -> Any:
    """The value that `written` wrote."""
    return None if text == "default" else read_value(text, "meta.json: asked")


def written(value: Any) -> str:
    """A value as it stands in a scenario file."""
    return (
        str(value).lower()
        if isinstance(value, bool)
        else "default"
        if value is None
        else str(value)
    )
