"""What distinguishes two exchanges, as switches: their combinations, and what each contributes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.report.report import WHOLE
from simshuffle.spec.library import read_value, suggest_nearest
from simshuffle.spec.validation import validate_record
from simshuffle.studies.mechanisms.tables import ALL, CHANGES, CONTRIBUTIONS
from simshuffle.study.options import COMMAND_LINE
from simshuffle.workload.exchange import ImportanceExchange

Values = dict[str, Any]
"""An exchange by keys of its schedule and `OWN`; quantities as text, what is not set as None."""

OWN = ("selection", "lagging")  # keys of an exchange that are not of its schedule
ORDER = (
    "selection",
    "partner_rule",
    "partner_scope",
    "partner_lifetime",
    "partners_per_epoch",
    "samples_per_message",
    "barriers",
    "payload",
    "overlap",
    "lagging",
)
"""The order of switches in tables and figures; others follow in the order of the schedule."""
MOST = 10  # switches at most: 1024 combinations


@dataclass(frozen=True)
class Switch:
    """A key with its value before and after."""

    key: str
    start: Any
    end: Any


def flat(exchange: Any) -> Values:
    """The values of a strategy that sends a fraction
    (`simshuffle.workload.exchange.sending.SendingStrategy`)."""
    dumped = exchange.model_dump(mode="json")
    schedule = {key: value for key, value in dumped["schedule"].items() if key != "source"}
    return {
        **schedule,
        "selection": exchange.selection,
        "lagging": getattr(exchange, "lagging", False),
    }


def made(
    values: Mapping[str, Any], exchange_fraction: float
) -> tuple[ImportanceExchange | None, list[Problem]]:
    """The exchange of these values, None if it cannot be, and what is wrong with it. One class does
    for all: partial local shuffle is importance exchange with random samples, and importance pair
    the same with another schedule."""
    schedule = {key: value for key, value in values.items() if key not in OWN and value is not None}
    raw = {"kind": "importance_exchange", "exchange_fraction": exchange_fraction}
    raw |= {"schedule": schedule, **{key: values[key] for key in OWN}}
    exchange, problems = validate_record(raw, ImportanceExchange)
    return (None if problems else exchange), problems


def differences(start: Values, end: Values) -> list[Switch]:
    """The keys in which two exchanges differ, in `ORDER`."""
    keys = dict.fromkeys([*ORDER, *start])
    return [Switch(key, start[key], end[key]) for key in keys if start[key] != end[key]]


def position(switches: Sequence[Switch], start: Values, state: State) -> Values:
    """The exchange with those switches on that ``state`` has on."""
    return {
        **start,
        **{switch.key: switch.end for switch, on in zip(switches, state, strict=True) if on},
    }


def corners(
    switches: Sequence[Switch], start: Values, exchange_fraction: float
) -> dict[State, ImportanceExchange]:
    """The exchange of every combination of positions that there can be; an InputError if there are
    more than `MOST` switches, or none, or no order of them leads from the start to the end."""
    if not switches:
        rule = "must differ from the start in how samples are exchanged"
        refuse("--end", rule, "no difference", "Name another, or use --also.", COMMAND_LINE)
    if len(switches) > MOST:
        named = ", ".join(switch.key for switch in switches)
        rule = f"must differ from the start in {MOST} keys at most"
        refuse("--end", rule, named, "Set some of them alike.", COMMAND_LINE)
    tried = {
        state: made(position(switches, start, state), exchange_fraction)
        for state in product((False, True), repeat=len(switches))
    }
    out = {state: exchange for state, (exchange, _) in tried.items() if exchange is not None}
    whole = (True,) * len(switches)
    if whole not in out:
        raise InputError(within("--end", tried[whole][1]), COMMAND_LINE)
    if not on_the_way(out):
        rule = "must be reached from the start by one switch at a time"
        refuse("--end", rule, "each order meets an exchange that cannot be", "", COMMAND_LINE)
    return out


def assigned(option: str, given: Sequence[str], start: Values) -> None:
    """See that keys given on the command line are those of an exchange; an InputError if not."""
    unknown = [
        Problem(
            f"{option} {key}", "is not a key of an exchange", key, suggest_nearest(key, list(start))
        )
        for key in given
        if key not in start
    ]
    if unknown:
        raise InputError(unknown, COMMAND_LINE)


def with_also(
    switches: list[Switch], also: Sequence[tuple[str, Any]], start: Values
) -> list[Switch]:
    """``switches`` and those asked for besides, in `ORDER`; an InputError if a key is unknown, is a
    switch already, or has that value from the start."""
    assigned("--also", [key for key, _ in also], start)
    known = [*(switch.key for switch in switches), *(key for key, _ in also)]
    problems = []
    for key, value in also:
        rule = remedy = ""
        if known.count(key) > 1:
            rule, remedy = "is a switch already", "Leave it out; --alone takes further values."
        elif value == start[key]:
            rule, remedy = "must differ from what start and end have", "Give another value."
        if rule:
            problems.append(Problem(f"--also {key}", rule, str(value), remedy))
    if problems:
        raise InputError(problems, COMMAND_LINE)
    more = [Switch(key, start[key], value) for key, value in also]
    place = list(dict.fromkeys([*ORDER, *start]))
    return sorted([*switches, *more], key=lambda switch: place.index(switch.key))


def within(option: str, problems: Sequence[Problem]) -> list[Problem]:
    """Problems of the exchange that an option names."""
    return [replace(of, path=f"{option}: {of.path}") for of in problems]


def read(text: str) -> Any:
    """The value that `written` wrote."""
    return None if text == "default" else read_value(text, "meta.json: asked")


def written(value: Any) -> str:
    """A value as it stands in a scenario file."""
    if value is None:
        return "default"
    return str(value).lower() if isinstance(value, bool) else str(value)


Floats = NDArray[np.float64]
State = tuple[bool, ...]  # for each switch whether it is on


def word(state: State) -> str:
    """``state`` as a word of 0 and 1."""
    return "".join(str(int(on)) for on in state)


def state(word: str) -> State:
    """The state that ``word`` stands for."""
    return tuple(letter == "1" for letter in word)


def _on(of: State, number: int) -> State:
    return (*of[:number], True, *of[number + 1 :])


def on_the_way(feasible: Collection[State]) -> dict[tuple[State, int], float]:
    """The weights of all steps on the orders of switching that there can be, from all off to all
    on: for each (state, switch that is turned on in it) the share of the orders that take this
    step, without those of share 0; empty if no order is possible. An order is possible if each
    state on its way is in ``feasible``. The mean over such orders is the Shapley value of games
    under precedence constraints (Faigle and Kern, Int. J. Game Theory 21, 1992, 249-266); without
    constraints it is that of Shapley."""
    known = sorted(set(feasible), key=sum)
    before = dict.fromkeys(known, 0)  # orders from the start to a state
    after = dict.fromkeys(known, 0)  # orders from a state to the end
    count = len(known[0]) if known else 0
    if (False,) * count not in before or (True,) * count not in before:
        return {}
    steps = [
        (of, number)
        for of in known
        for number in range(count)
        if not of[number] and _on(of, number) in before
    ]
    before[(False,) * count] = after[(True,) * count] = 1
    for of, number in steps:
        before[_on(of, number)] += before[of]
    for of, number in reversed(steps):
        after[of] += after[_on(of, number)]
    total = before[(True,) * count]
    shares = {(of, number): before[of] * after[_on(of, number)] for of, number in steps}
    return {step: orders / total for step, orders in shares.items() if orders}


def shapley(values: Mapping[State, Floats]) -> list[Floats]:
    """The Shapley value of each switch, from those of the feasible states, of one shape."""
    count = len(next(iter(values)))
    out = [np.zeros_like(next(iter(values.values()))) for _ in range(count)]
    for (of, number), weight in on_the_way(values).items():
        out[number] = out[number] + weight * (values[_on(of, number)] - values[of])
    return out


def contributions(switches: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """What every switch adds to every label, from those tables: columns `CONTRIBUTIONS`."""
    keys = [str(key) for key in switches["switch"]]
    start, end = (False,) * len(keys), (True,) * len(keys)
    of_label = {label: _by_state(rows) for label, rows in runs.groupby("label", sort=False)}
    whole = float(np.mean(of_label[WHOLE][end] - of_label[WHOLE][start]))
    rows: list[tuple[Any, ...]] = []
    for label, values in of_label.items():
        for number, (key, of_seeds) in enumerate(zip(keys, shapley(values), strict=True)):
            first = _step(values, start, number)
            last = _step(values, (*end[:number], False, *end[number + 1 :]), number)
            rows.append((key, label, first, last, *_summary(of_seeds, whole)))
        mean, *others = _summary(values[end] - values[start], whole)
        rows.append((ALL, label, mean, mean, mean, *others))
    return CONTRIBUTIONS.framed(rows)


def changes(switches: pd.DataFrame, runs: pd.DataFrame, alone: pd.DataFrame) -> pd.DataFrame:
    """Every value that was simulated alone, against its base: columns `CHANGES`."""
    count = len(switches)
    base_of = {"start": "0" * count, "end": "1" * count}
    before = runs.set_index(["state", "label", "seed"])["seconds"]
    rows = []
    for keys, of in alone.groupby(["key", "value", "base", "label"], sort=False):
        *_, base, label = map(str, keys)
        then = np.array([before.loc[(base_of[base], label, seed)] for seed in of["seed"].tolist()])
        change = of["seconds"].to_numpy() - then
        rows.append((*keys, float(change.mean()), float(change.min()), float(change.max())))
    return CHANGES.framed(rows)


def _by_state(rows: pd.DataFrame) -> dict[State, Floats]:
    wide = rows.pivot(index="seed", columns="state", values="seconds")
    return {state(str(word)): wide[word].to_numpy() for word in wide.columns}


def _step(values: Mapping[State, Floats], of: State, number: int) -> float:
    """Mean change by a switch that is turned on in ``of``; nan if that cannot be."""
    there = of in values and _on(of, number) in values
    return float((values[_on(of, number)] - values[of]).mean()) if there else np.nan


def _summary(of_seeds: Floats, whole: float) -> tuple[float, float, float, float]:
    mean = float(of_seeds.mean())
    return mean, float(of_seeds.min()), float(of_seeds.max()), mean / whole if whole else np.nan
