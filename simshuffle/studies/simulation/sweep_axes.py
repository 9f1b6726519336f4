"""The axes of a sweep: their columns, and checks of names and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.job.scenario.measured import MeasuredScenario
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.overrides import (
    combination_name,
)
from simshuffle.study.options import COMMAND_LINE


@dataclass(frozen=True)
class SweepRequest:
    """The request of a sweep: a scenario, the combinations of its swept values, and
    their axes.
    """

    base: Scenario  # scenario without sweep of its own
    # values by dotted key, the seed always among them
    combinations: Sequence[Mapping[str, Any]]
    axes: Mapping[str, str]  # names of the axes' columns by key; without the seed
    # columns of ``axes`` that hold numbers; the others hold texts
    numbers: frozenset[str]
    label: str  # label of a combination, with columns in braces; '' for the name that runs have
    # lowest and highest value of inputs (SI units), by dotted key; None without intervals
    ranges: Mapping[str, tuple[float, float]] | None = None
    # runs that were measured, which are predicted, too
    measured: Sequence[MeasuredScenario] = ()


def is_number(value: object) -> bool:
    """Return true for an int or a float, NaN and inf among them, but not for a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def axis_names(keys: Sequence[str]) -> dict[str, str]:
    """Return the column of each key: its last part, or the whole key where two share
    that part.
    """
    last_parts = [key.rsplit(".", 1)[-1] for key in keys]
    return {
        key: name if last_parts.count(name) == 1 else key
        for key, name in zip(keys, last_parts, strict=True)
    }


def check_names(axes: Mapping[str, Sequence[Any]]) -> None:
    """Check that different values of a key have different names, so that rows can be
    told apart; equal values may stand twice.

    Raises:
        InputError: values share a name; with all such values.
    """
    problems = []
    for key, values in axes.items():
        value_by_name: dict[str, Any] = {}
        for position, value in enumerate(values, 1):
            name = combination_name({key: value})
            if value_by_name.setdefault(name, value) != value:
                rule = f"value {position} has the same name as another value, '{name}'"
                remedy = "Write records as text, such as importance_pair:exchange_fraction=0.1."
                problems.append(Problem(key, rule, str(value), remedy))
    if problems:
        raise InputError(problems, "sweep")


def check_label(label: str, columns: set[str]) -> None:
    """Check that a label names only columns of the sweep in its braces.

    It need not name all, so that several combinations may have one label.

    Raises:
        InputError: it names another, or its braces are wrong.
    """
    try:
        label.format(**dict.fromkeys(columns, 0))
    except (KeyError, ValueError, IndexError, AttributeError):
        rule = f"may name only {', '.join(sorted(columns))} in braces"
        refuse(
            "--label", rule, repr(label), "For example 'M={world_size}'.", COMMAND_LINE
        )


def without_seed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a combination other than the seed."""
    return {key: value for key, value in values.items() if key != "seed"}
