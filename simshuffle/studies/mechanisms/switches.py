"""Switches: the keys in which two exchanges differ, their combinations, and what each
contributes to the epoch.
"""

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
"""An exchange by keys of its schedule and `OWN`; quantities as text, None for a key that
is not set.
"""

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
"""The order of switches in tables and figures; others follow in the order of the
schedule.
"""
MOST = 10  # switches at most: 1024 combinations


@dataclass(frozen=True)
class Switch:
    """A key of an exchange with its value at the start and at the end."""

    key: str
    start: Any
    end: Any


def flat(exchange: Any) -> Values:
    """Return the values of an exchange by keys of its schedule and `OWN`.

    The key source is left out. ``lagging`` is False where the strategy has no such key.

    Args:
        exchange: a strategy that sends a fraction
            (`simshuffle.workload.exchange.sending.SendingStrategy`).
    """
    dumped = exchange.model_dump(mode="json")
    schedule = {
        key: value for key, value in dumped["schedule"].items() if key != "source"
    }
    return {
        **schedule,
        "selection": exchange.selection,
        "lagging": getattr(exchange, "lagging", False),
    }


def make_exchange(
    values: Mapping[str, Any], exchange_fraction: float
) -> tuple[ImportanceExchange | None, list[Problem]]:
    """Make the exchange of these values; or return None and why there is none.

    A key of the schedule that is None gets its default. One class does for all: partial
    local shuffle is importance exchange with random samples, and importance pair is
    importance exchange with another schedule.
    """
    schedule = {
        key: value
        for key, value in values.items()
        if key not in OWN and value is not None
    }
    raw = {"kind": "importance_exchange", "exchange_fraction": exchange_fraction}
    raw |= {"schedule": schedule, **{key: values[key] for key in OWN}}
    exchange, problems = validate_record(raw, ImportanceExchange)
    return (None if problems else exchange), problems


def differences(start: Values, end: Values) -> list[Switch]:
    """Return a switch for each key in which two exchanges differ, in `ORDER`.

    Both have the keys of `flat`.
    """
    keys = dict.fromkeys([*ORDER, *start])
    return [Switch(key, start[key], end[key]) for key in keys if start[key] != end[key]]


def position(switches: Sequence[Switch], start: Values, switch_state: State) -> Values:
    """Return the values of the exchange whose switches are on as in ``switch_state``.

    Switches that are off, and all other keys, have the value of ``start``.
    """
    return {
        **start,
        **{
            switch.key: switch.end
            for switch, is_on in zip(switches, switch_state, strict=True)
            if is_on
        },
    }


def corners(
    switches: Sequence[Switch], start: Values, exchange_fraction: float
) -> dict[State, ImportanceExchange]:
    """Make the exchange of every combination of switches that can be; leave out others.

    Raises:
        InputError: there are more than `MOST` switches, or none; all switches on give
            no valid exchange; or no order of them leads from the start to the end.
    """
    if not switches:
        rule = "must differ from the start in how samples are exchanged"
        refuse(
            "--end",
            rule,
            "no difference",
            "Name another exchange, or add a switch with --also.",
            COMMAND_LINE,
        )
    if len(switches) > MOST:
        keys_text = ", ".join(switch.key for switch in switches)
        rule = f"must differ from the start in {MOST} keys at most"
        refuse(
            "--end",
            rule,
            keys_text,
            "Give some of these keys the same value at both ends.",
            COMMAND_LINE,
        )
    validated_states = {
        state: make_exchange(position(switches, start, state), exchange_fraction)
        for state in product((False, True), repeat=len(switches))
    }
    exchanges = {
        state: exchange
        for state, (exchange, _) in validated_states.items()
        if exchange is not None
    }
    all_on = (True,) * len(switches)
    if all_on not in exchanges:
        raise InputError(
            name_option("--end", validated_states[all_on][1]), COMMAND_LINE
        )
    if not step_weights(exchanges):
        rule = "must be reached from the start by one switch at a time"
        refuse(
            "--end",
            rule,
            "every order passes an exchange that is not possible",
            "",
            COMMAND_LINE,
        )
    return exchanges


def check_keys(option: str, keys: Sequence[str], start: Values) -> None:
    """Check that keys given on the command line are keys of an exchange.

    Raises:
        InputError: a key is not.
    """
    unknown = [
        Problem(
            f"{option} {key}",
            "is not a key of an exchange",
            key,
            suggest_nearest(key, list(start)),
        )
        for key in keys
        if key not in start
    ]
    if unknown:
        raise InputError(unknown, COMMAND_LINE)


def add_switches(
    switches: list[Switch], also: Sequence[tuple[str, Any]], start: Values
) -> list[Switch]:
    """Return ``switches`` and the switches of ``also``, in `ORDER`.

    Raises:
        InputError: a key is unknown, is a switch already, or has that value from the
            start.
    """
    check_keys("--also", [key for key, _ in also], start)
    switched_keys = [*(switch.key for switch in switches), *(key for key, _ in also)]
    problems = []
    for key, value in also:
        rule = remedy = ""
        if switched_keys.count(key) > 1:
            rule = "is a switch already"
            remedy = "Leave it out; --alone takes further values."
        elif value == start[key]:
            rule = "must differ from the value that start and end have"
            remedy = "Give another value."
        if rule:
            problems.append(Problem(f"--also {key}", rule, str(value), remedy))
    if problems:
        raise InputError(problems, COMMAND_LINE)
    added_switches = [Switch(key, start[key], value) for key, value in also]
    key_order = list(dict.fromkeys([*ORDER, *start]))
    return sorted(
        [*switches, *added_switches], key=lambda switch: key_order.index(switch.key)
    )


def name_option(option: str, problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems of an exchange with paths that begin with the option that
    names it.
    """
    return [replace(problem, path=f"{option}: {problem.path}") for problem in problems]


def read(text: str) -> Any:
    """Return the value that `write_value` wrote: None for 'default', else as YAML."""
    return None if text == "default" else read_value(text, "meta.json: asked")


def write_value(value: Any) -> str:
    """Return the text of a value as it stands in a scenario file, 'default' for None."""
    if value is None:
        return "default"
    return str(value).lower() if isinstance(value, bool) else str(value)


Floats = NDArray[np.float64]
State = tuple[bool, ...]  # for each switch whether it is on


def word(switch_state: State) -> str:
    """Return ``switch_state`` as a word of 0 and 1, a letter for each switch."""
    return "".join(str(int(is_on)) for is_on in switch_state)


def state(word: str) -> State:
    """Return the state that a word of 0 and 1 stands for, the inverse of `word`."""
    return tuple(letter == "1" for letter in word)


def _turn_on(switch_state: State, switch_index: int) -> State:
    """Return the state with one more switch turned on."""
    return (*switch_state[:switch_index], True, *switch_state[switch_index + 1 :])


def step_weights(feasible: Collection[State]) -> dict[tuple[State, int], float]:
    """Return the share of the possible orders of switching that take each step.

    A step is a state and the index of the switch that is turned on in it; an order goes
    from all off to all on, through states in ``feasible`` alone. Shares are above 0 and
    up to 1. Steps of no order are left out; {} if no order is possible. The mean over
    such orders is the Shapley value of games under precedence constraints (Faigle and
    Kern, Int. J. Game Theory 21, 1992, 249-266); without constraints it is the Shapley
    value.
    """
    states = sorted(set(feasible), key=sum)
    orders_before = dict.fromkeys(states, 0)  # orders from all off to a state
    orders_after = dict.fromkeys(states, 0)  # orders from a state to all on
    num_switches = len(states[0]) if states else 0
    if (False,) * num_switches not in orders_before or (
        True,
    ) * num_switches not in orders_before:
        return {}
    steps = [
        (switch_state, switch_index)
        for switch_state in states
        for switch_index in range(num_switches)
        if not switch_state[switch_index]
        and _turn_on(switch_state, switch_index) in orders_before
    ]
    orders_before[(False,) * num_switches] = orders_after[(True,) * num_switches] = 1
    for switch_state, switch_index in steps:
        orders_before[_turn_on(switch_state, switch_index)] += orders_before[
            switch_state
        ]
    for switch_state, switch_index in reversed(steps):
        orders_after[switch_state] += orders_after[_turn_on(switch_state, switch_index)]
    total = orders_before[(True,) * num_switches]
    orders_of_step = {
        (switch_state, switch_index): orders_before[switch_state]
        * orders_after[_turn_on(switch_state, switch_index)]
        for switch_state, switch_index in steps
    }
    return {step: orders / total for step, orders in orders_of_step.items() if orders}


def shapley(values: Mapping[State, Floats]) -> list[Floats]:
    """Return the Shapley value of each switch, from the values of the feasible states.

    All are arrays of one shape, such as (seeds,). They are 0 if no order is possible;
    ``values`` must not be empty.
    """
    num_switches = len(next(iter(values)))
    contribution_of_switch = [
        np.zeros_like(next(iter(values.values()))) for _ in range(num_switches)
    ]
    for (switch_state, switch_index), weight in step_weights(values).items():
        contribution_of_switch[switch_index] = contribution_of_switch[
            switch_index
        ] + weight * (
            values[_turn_on(switch_state, switch_index)] - values[switch_state]
        )
    return contribution_of_switch


def contributions(switches: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return what every switch adds to every label: columns `CONTRIBUTIONS`.

    A last row of each label has all switches together. Values are s, mean over seeds;
    NaN for a switch that cannot be first, or last. Shares are of the change of the
    epoch, NaN where that is 0.
    """
    keys = [str(key) for key in switches["switch"]]
    start = (False,) * len(keys)
    end = (True,) * len(keys)
    of_label = {
        label: _by_state(rows) for label, rows in runs.groupby("label", sort=False)
    }
    epoch_change = float(np.mean(of_label[WHOLE][end] - of_label[WHOLE][start]))
    rows: list[tuple[Any, ...]] = []
    for label, values in of_label.items():
        for switch_index, (key, of_seeds) in enumerate(
            zip(keys, shapley(values), strict=True)
        ):
            first = _step(values, start, switch_index)
            last = _step(
                values,
                (*end[:switch_index], False, *end[switch_index + 1 :]),
                switch_index,
            )
            rows.append((key, label, first, last, *_summary(of_seeds, epoch_change)))
        mean, *summary_columns = _summary(values[end] - values[start], epoch_change)
        rows.append((ALL, label, mean, mean, mean, *summary_columns))
    return CONTRIBUTIONS.framed(rows)


def changes(
    switches: pd.DataFrame, runs: pd.DataFrame, alone_rows: pd.DataFrame
) -> pd.DataFrame:
    """Return the change by every value that was simulated alone: columns `CHANGES`.

    It is against the run of its base and seed: all switches off ('start') or on
    ('end').
    """
    count = len(switches)
    base_of = {"start": "0" * count, "end": "1" * count}
    seconds_of_run = runs.set_index(["state", "label", "seed"])["seconds"]
    rows = []
    for keys, value_rows in alone_rows.groupby(
        ["key", "value", "base", "label"], sort=False
    ):
        *_, base, label = map(str, keys)
        base_seconds = np.array(
            [
                seconds_of_run.loc[(base_of[base], label, seed)]
                for seed in value_rows["seed"].tolist()
            ]
        )
        change = value_rows["seconds"].to_numpy() - base_seconds
        rows.append(
            (*keys, float(change.mean()), float(change.min()), float(change.max()))
        )
    return CHANGES.framed(rows)


def _by_state(rows: pd.DataFrame) -> dict[State, Floats]:
    """Return the seconds (seeds,), seeds ascending, of one label by state.

    ``rows`` are those of the label in table ``runs``.
    """
    seconds_by_word = rows.pivot(index="seed", columns="state", values="seconds")
    return {
        state(str(word)): seconds_by_word[word].to_numpy()
        for word in seconds_by_word.columns
    }


def _step(
    values: Mapping[State, Floats], switch_state: State, switch_index: int
) -> float:
    """Return the mean change by a switch that is turned on in ``switch_state``.

    NaN if that state, or the next one, cannot be.
    """
    is_feasible = (
        switch_state in values and _turn_on(switch_state, switch_index) in values
    )
    return (
        float(
            (values[_turn_on(switch_state, switch_index)] - values[switch_state]).mean()
        )
        if is_feasible
        else np.nan
    )


def _summary(
    of_seeds: Floats, epoch_change: float
) -> tuple[float, float, float, float]:
    """Return mean, lowest and highest change (s) of the seeds, and the share of the
    mean.

    The share is of ``epoch_change``, NaN where that is 0.
    """
    mean = float(of_seeds.mean())
    return (
        mean,
        float(of_seeds.min()),
        float(of_seeds.max()),
        mean / epoch_change if epoch_change else np.nan,
    )
