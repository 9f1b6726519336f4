"""What distinguishes two exchanges, as switches; and which combinations of their positions there
can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.exchange import ImportanceExchange
from simshuffle.spec.library import nearest, read_value
from simshuffle.spec.validation import validated
from simshuffle.studies.mechanisms.shapley import State, on_the_way
from simshuffle.study.options import COMMAND_LINE

Values = dict[str, Any]
"""An exchange by flat keys: those of its schedule, ``selection`` and ``lagging``; quantities as
text, what is not set as None."""

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
    (`simshuffle.exchange.sending.SendingStrategy`)."""
    dumped = exchange.model_dump(mode="json")
    schedule = {key: value for key, value in dumped["schedule"].items() if key != "source"}
    return {
        **schedule,
        "selection": exchange.selected_by,
        "lagging": getattr(exchange, "lagging", False),
    }


def made(
    values: Mapping[str, Any], exchange_fraction: float
) -> tuple[ImportanceExchange | None, list[Problem]]:
    """The exchange of these values, and what is wrong with them; None if anything is.

    It is of one class for all: partial local shuffle is importance exchange with random samples,
    and importance pair the same with another schedule.
    """
    schedule = {key: value for key, value in values.items() if key not in OWN and value is not None}
    raw = {"kind": "importance_exchange", "exchange_fraction": exchange_fraction}
    raw |= {"schedule": schedule, **{key: values[key] for key in OWN}}
    exchange, problems = validated(raw, ImportanceExchange)
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
    """The exchange of every combination of positions that there can be.

    Raises:
        InputError: there are more than `MOST` switches, or none; or no order of them leads from the
            start to the end.
    """
    if not switches:
        rule = "must differ from the start in how samples are exchanged"
        raise refused("--end", rule, "no difference", "Name another, or use --also.")
    if len(switches) > MOST:
        named = ", ".join(switch.key for switch in switches)
        rule = f"must differ from the start in {MOST} keys at most"
        raise refused("--end", rule, named, "Set some of them alike.")
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
        raise refused("--end", rule, "each order meets an exchange that cannot be")
    return out


def assigned(option: str, given: Sequence[str], start: Values) -> None:
    """See that keys given on the command line are those of an exchange.

    Raises:
        InputError: some are not.
    """
    unknown = [
        Problem(f"{option} {key}", "is not a key of an exchange", key, nearest(key, list(start)))
        for key in given
        if key not in start
    ]
    if unknown:
        raise InputError(unknown, COMMAND_LINE)


def with_also(
    switches: list[Switch], also: Sequence[tuple[str, Any]], start: Values
) -> list[Switch]:
    """``switches`` and those asked for besides, in `ORDER`.

    Raises:
        InputError: a key is unknown, is a switch already, or has that value from the start.
    """
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


def refused(option: str, rule: str, given: str, remedy: str = "") -> InputError:
    """What is wrong with an option."""
    return InputError(Problem(option, rule, given, remedy), COMMAND_LINE)


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
