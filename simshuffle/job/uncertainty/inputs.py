"""Values of a scenario that nobody knows exactly, and their ranges.

A range holds 90 % of what a value may be, as factors on it. One that is given counts first, then
that of a calibration, then the default of the kind of its source, which is fitted on pairs of what
was stated and what was measured (validation/data/inputs.csv). Values that were measured have none:
their errors are in what the laws have missed (`simshuffle.job.uncertainty.residuals`).
"""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from simshuffle.errors import InputError, Problem
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.interpolation import Curve
from simshuffle.spec.library import nearest, shipped
from simshuffle.spec.record import Sourced, Spec
from simshuffle.spec.units import Dimension, UnitError, parse_quantity, readable
from simshuffle.study.options import COMMAND_LINE

MEASURED, SHEET, ESTIMATE = "measured", "data sheet", "estimate"
_ESTIMATED = re.compile(r"estimate|example value|default|stand-in|assum|not used", re.IGNORECASE)
_MEASURED = re.compile(
    r"measured|fitted|\bprobe\b|calibrat|nccl-tests|\bIOR\b|IO500|\blogs?\b|throughput",
    re.IGNORECASE,
)
HEAD = 40
"""Characters of a source in which it says that it is an estimate; later on it may say so of a
part."""
Z90 = 1.6448536269514722
"""Standard deviations from the middle of a normal distribution to the ends of its middle 90 %."""


@dataclass(frozen=True)
class Input:
    """A value that is not known exactly."""

    key: str  # dotted
    kind: str  # 'given', 'calibrated', 'data sheet' or 'estimate'
    low: float  # of its range, over the value; at most 1
    high: float  # the same; at least 1
    value: float  # SI unit; of a curve at its last point
    dimension: Dimension

    def factors(self, normal: Any) -> Any:
        """(n,) factors on the value, for (n,) standard normal numbers: log-normal on either side of
        1, with 5 % below ``low`` and 5 % above ``high``."""
        ends = np.where(normal < 0, -math.log(self.low), math.log(self.high))
        return np.exp(normal * ends / Z90)


def kind_of(source: str) -> str:
    """What stands behind a number, from the words of its source."""
    if not source or _ESTIMATED.search(source.split(";", maxsplit=1)[0][:HEAD]):
        return ESTIMATE
    if _MEASURED.search(source):
        return MEASURED
    return ESTIMATE if "remembered" in source else SHEET


@cache
def default_ranges() -> Mapping[str, tuple[float, float]]:
    """Of each kind of source, the factors between which measured values lie over stated ones: the
    5 % and 95 % quantiles of a normal distribution of their logarithms, by kind."""
    ratios: dict[str, list[float]] = {}  # logarithms, by kind
    with (shipped("validation") / "data" / "inputs.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            ratio = float(row["measured"]) / float(row["stated"])
            ratios.setdefault(row["kind"], []).append(math.log(ratio))
    ranges = {}
    for kind in sorted(ratios):
        middle = statistics.fmean(ratios[kind])
        reach = Z90 * statistics.stdev(ratios[kind])
        ranges[kind] = (min(1.0, math.exp(middle - reach)), max(1.0, math.exp(middle + reach)))
    return ranges


def keys_of(scenario: Scenario) -> set[str]:
    """Dotted keys of all numbers of a scenario that may have a range."""
    return {key for key, _ in _numbers(scenario)}


def inputs(scenario: Scenario, given: Mapping[str, tuple[float, float]]) -> list[Input]:
    """All values with a range. ``given``: for dotted keys the lowest and highest value (SI units).

    Raises:
        InputError: there is no such number, or its range does not contain it.
    """
    known = dict(_numbers(scenario))
    problems = []
    for key, (low, high) in given.items():
        if key not in known:
            remedy = nearest(key, list(known))
            rule = "is no time, rate or curve of this scenario"
            problems.append(Problem(f"--range {key}", rule, "", remedy))
        elif not 0 < low <= _middle(known[key][0]) <= high:
            rule = "a range must contain its value, and be above 0"
            written = [readable(of, known[key][2]) for of in (low, high, _middle(known[key][0]))]
            at = "{}..{} around {}".format(*written)
            remedy = "Widen the range, or set the value."
            problems.append(Problem(f"--range {key}", rule, at, remedy))
    if problems:
        raise InputError(problems, COMMAND_LINE)
    calibrated = {of.key: of for of in scenario.calibrated}
    out = []
    for key, (value, source, dimension) in known.items():
        kind, ends = kind_of(source), None
        if key in given:
            low, high = given[key]
            kind, ends = "given", (low / _middle(value), high / _middle(value))
        elif key in calibrated:
            kind, of = "calibrated", calibrated[key]
            ends = _ends(of.low, of.high, _middle(value), dimension)
        elif kind in default_ranges():
            ends = default_ranges()[kind]
        if ends is not None:
            out.append(Input(key, kind, *ends, _middle(value), dimension))
    return out


def _ends(low: Any, high: Any, value: float, dimension: Dimension) -> tuple[float, float] | None:
    """Ends of a calibration over its value; None where it has none, or has a curve."""
    try:
        ends = [parse_quantity(end, dimension) / value for end in (low, high)]
    except (UnitError, TypeError, AttributeError):
        return None
    return (min(ends[0], 1.0), max(ends[1], 1.0)) if ends[0] > 0 else None


def _middle(value: float | Curve) -> float:
    """The number itself; of a curve its value at the last point."""
    return value.y[-1] if isinstance(value, Curve) else value


Number = tuple[float | Curve, str, Dimension]
"""A value, its source, and what it is."""


def _numbers(scenario: Scenario) -> Iterator[tuple[str, Number]]:
    """Dotted keys of times, rates and curves."""
    used = f"workload.model.accelerators.{scenario.cluster.host.accelerator}."
    for root in ("cluster", "workload"):
        for key, number in _within(getattr(scenario, root), root, ("", "")):
            if "accelerators." not in key or key.startswith(used):
                yield key, number


def _within(
    record: Any, path: str, said: tuple[str, str | dict[str, str]]
) -> Iterator[tuple[str, Number]]:
    """Numbers with a unit of time or rate; sizes and shares are choices, or known. ``said``: the
    path of the record that has sources, and these."""
    if isinstance(record, Sourced):
        said = path, record.source
    plain = record.model_dump(mode="json") if isinstance(record, Spec) else {}
    for name, value in dict(record).items():
        at = f"{path}.{name}"
        if isinstance(value, Spec | dict):
            yield from _within(value, at, said)
        elif isinstance(value, Curve) or (isinstance(value, float) and value > 0):
            dimension = _dimension(plain.get(name))
            if dimension is not None:
                yield at, (value, _source(at, *said), dimension)


def _dimension(written: Any) -> Dimension | None:
    """What a number is, from how a file has it; None unless it is a time or a rate."""
    while isinstance(written, dict) and written:
        written = written.get("points") or next(iter(written.values()))
    for ending, dimension in (
        ("B/s", Dimension.BANDWIDTH),
        ("/s", Dimension.FREQUENCY),
        ("s", Dimension.SECONDS),
    ):
        if isinstance(written, str) and written.endswith(ending):
            return dimension
    return None


def _source(key: str, path: str, said: str | dict[str, str]) -> str:
    """The source of a key, from those of the record at ``path``, by key or a part of it."""
    if isinstance(said, str):
        return said
    parts = key.removeprefix(f"{path}.").split(".")
    names = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((said[name] for name in names if name in said), "")


def scaled(scenario: Scenario, factors: Mapping[str, float]) -> Scenario:
    """The scenario with values multiplied, by dotted key; not checked again."""
    for key, factor in factors.items():
        scenario = _scaled(scenario, key.split("."), factor)
    return scenario


def _scaled(record: Any, path: list[str], factor: float) -> Any:
    name, *rest = path
    old = record[name] if isinstance(record, dict) else getattr(record, name)
    if rest:
        new = _scaled(old, rest, factor)
    elif isinstance(old, Curve):
        new = Curve(old.x, tuple(y * factor for y in old.y), old.interpolation, old.constant)
    else:
        new = old * factor
    if isinstance(record, dict):
        return {**record, name: new}
    return record.model_copy(update={name: new})
