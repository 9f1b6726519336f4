"""Inputs of a scenario that nobody knows exactly, and their ranges.

A range holds 90 % of what a value may be, as factors on it. A range that the user gives
counts first, then the range of a calibration, then the default of the kind of its
source. Defaults are fitted on pairs of stated and measured values
(validation/data/inputs.csv). Measured values have no range: their errors are part of
the laws' residuals (`simshuffle.job.uncertainty.residuals`).
"""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from simshuffle.errors import InputError, Problem
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.interpolation import Curve
from simshuffle.spec.library import shipped_folder, suggest_nearest
from simshuffle.spec.record import Sourced, Spec
from simshuffle.spec.units import Dimension, UnitError, parse_quantity, readable
from simshuffle.study.options import COMMAND_LINE

MEASURED, SHEET, ESTIMATE = "measured", "data sheet", "estimate"
_ESTIMATED = re.compile(
    r"estimate|example value|default|stand-in|assum|not used", re.IGNORECASE
)
_MEASURED = re.compile(
    r"measured|fitted|\bprobe\b|calibrat|nccl-tests|\bIOR\b|IO500|\blogs?\b|throughput",
    re.IGNORECASE,
)
HEAD_CHARACTERS = 40
"""Characters of a source in which it says that it is an estimate; later on it may say
so of a part.
"""
Z90 = 1.6448536269514722
"""Standard deviations from the middle of a normal distribution to the ends of its
middle 90 %.
"""


@dataclass(frozen=True)
class Input:
    """A number of a scenario that is not known exactly, with the range of what it may
    be.
    """

    key: str  # dotted
    kind: str  # 'given', 'calibrated', 'data sheet' or 'estimate'
    low: float  # of its range, over the value; at most 1
    high: float  # the same; at least 1
    value: float  # SI unit; of a curve at its last point
    dimension: Dimension

    def factors(self, normal: Any) -> Any:
        """Return (n,) factors on the value for (n,) standard normal numbers.

        Factors are log-normal on either side of 1, with 5 % below ``low`` and 5 % above
        ``high``.
        """
        log_range = np.where(normal < 0, -math.log(self.low), math.log(self.high))
        return np.exp(normal * log_range / Z90)


def kind_of(source: str) -> str:
    """Return the kind of a number's source: 'measured', 'data sheet' or 'estimate'.

    Its words decide: '' is an estimate, and text without any of the words is a data
    sheet.
    """
    if not source or _ESTIMATED.search(
        source.split(";", maxsplit=1)[0][:HEAD_CHARACTERS]
    ):
        return ESTIMATE
    if _MEASURED.search(source):
        return MEASURED
    return ESTIMATE if "remembered" in source else SHEET


@cache
def default_ranges() -> Mapping[str, tuple[float, float]]:
    """Return the factors between which measured values lie over stated ones, for each
    kind of source: the lower at most 1, the higher at least 1.

    They are the 5 % and 95 % quantiles of a normal distribution of the logarithms,
    widened to hold 1. Kinds without data, such as 'measured', have no range.
    """
    ratios: dict[str, list[float]] = {}  # logarithms, by kind
    with (shipped_folder("validation") / "data" / "inputs.csv").open(
        encoding="utf-8", newline=""
    ) as file:
        for row in csv.DictReader(file):
            ratio = float(row["measured"]) / float(row["stated"])
            ratios.setdefault(row["kind"], []).append(math.log(ratio))
    ranges = {}
    for kind in sorted(ratios):
        mean_logarithm = statistics.fmean(ratios[kind])
        half_width = Z90 * statistics.stdev(ratios[kind])
        ranges[kind] = (
            min(1.0, math.exp(mean_logarithm - half_width)),
            max(1.0, math.exp(mean_logarithm + half_width)),
        )
    return ranges


def keys_of(scenario: Scenario) -> set[str]:
    """Return the dotted keys of all numbers of a scenario that may have a range: its
    times, rates and curves above 0, measured ones included.
    """
    return {key for key, _ in scenario_numbers(scenario)}


def inputs(
    scenario: Scenario, given_ranges: Mapping[str, tuple[float, float]]
) -> list[Input]:
    """Return the numbers of a scenario that have a range; measured ones have none.

    A given range counts before a calibration's, and that before the default of the
    kind. A calibration without a usable range leaves the number without any.

    Args:
        scenario: whose times, rates and curves are looked at.
        given_ranges: for dotted keys the lowest and highest value (SI units).

    Raises:
        InputError: there is no such number, or its range does not contain it.
    """
    numbers = dict(scenario_numbers(scenario))
    problems = []
    for key, (low, high) in given_ranges.items():
        if key not in numbers:
            remedy = suggest_nearest(key, list(numbers))
            rule = "is no time, rate or curve of this scenario"
            problems.append(Problem(f"--range {key}", rule, "", remedy))
        elif not 0 < low <= central_value(numbers[key][0]) <= high:
            rule = "a range must contain its value, and be above 0"
            texts = [
                readable(bound, numbers[key][2])
                for bound in (low, high, central_value(numbers[key][0]))
            ]
            stated_range = "{}..{} around {}".format(*texts)
            remedy = "Widen the range, or set the value."
            problems.append(Problem(f"--range {key}", rule, stated_range, remedy))
    if problems:
        raise InputError(problems, COMMAND_LINE)
    calibrated = {calibration.key: calibration for calibration in scenario.calibrated}
    uncertain_inputs = []
    for key, (value, source, dimension) in numbers.items():
        kind = kind_of(source)
        range_factors = None
        if key in given_ranges:
            low, high = given_ranges[key]
            kind = "given"
            range_factors = (low / central_value(value), high / central_value(value))
        elif key in calibrated:
            kind = "calibrated"
            calibration = calibrated[key]
            range_factors = calibrated_range(
                calibration.low, calibration.high, central_value(value), dimension
            )
        elif kind in default_ranges():
            range_factors = default_ranges()[kind]
        if range_factors is not None:
            uncertain_inputs.append(
                Input(key, kind, *range_factors, central_value(value), dimension)
            )
    return uncertain_inputs


def calibrated_range(
    low: Any, high: Any, value: float, dimension: Dimension
) -> tuple[float, float] | None:
    """Return the ends ``low`` and ``high`` of a calibration over its ``value``: factors
    at most and at least 1.

    None where an end is missing, is a curve, or cannot be read as ``dimension``, and
    where the range begins at 0 or below.
    """
    try:
        factors = [parse_quantity(end, dimension) / value for end in (low, high)]
    except (UnitError, TypeError, AttributeError):
        return None
    return (min(factors[0], 1.0), max(factors[1], 1.0)) if factors[0] > 0 else None


def central_value(value: float | Curve) -> float:
    """Return the number, or a curve's value at its last point."""
    return value.y[-1] if isinstance(value, Curve) else value


Number = tuple[float | Curve, str, Dimension]
"""A value, its source, and what it is."""


def scenario_numbers(scenario: Scenario) -> Iterator[tuple[str, Number]]:
    """Yield the dotted key of each time, rate and curve of a scenario's cluster and
    workload, and the value with its source and dimension.

    Zeros are left out, and so are accelerators that the hosts do not have.
    """
    accelerator_prefix = (
        f"workload.model.accelerators.{scenario.cluster.host.accelerator}."
    )
    written = scenario.model_dump(mode="json", include={"cluster", "workload"})
    for root, written_record in written.items():
        record = getattr(scenario, root)
        for key, number in walk_numbers(record, written_record, root, ("", "")):
            if "accelerators." not in key or key.startswith(accelerator_prefix):
                yield key, number


def walk_numbers(
    record: Any,
    written: Mapping[str, Any],
    path: str,
    sources: tuple[str, str | dict[str, str]],
) -> Iterator[tuple[str, Number]]:
    """Yield the dotted key and number of every time, rate and curve of a record, nested
    records included; sizes, shares and integers are choices.

    Numbers of 0 or below are left out. ``written`` is the record as it is written in a
    file. ``path`` is the dotted key of the record. ``sources`` is the path of the
    nearest record around it that has sources, and these sources.
    """
    if isinstance(record, Sourced):
        sources = path, record.source
    for name, value in dict(record).items():
        key = f"{path}.{name}"
        if isinstance(value, Spec | dict):
            yield from walk_numbers(value, written.get(name, {}), key, sources)
        elif isinstance(record, Spec) and (
            isinstance(value, Curve) or (isinstance(value, float) and value > 0)
        ):
            dimension = _dimension(written.get(name))
            if dimension is not None:
                yield key, (value, _source(key, *sources), dimension)


def _dimension(written: Any) -> Dimension | None:
    """Return the dimension of a number from its text in a file; None if no time or
    rate.

    Of a curve its first point decides. A rate is in bytes/s or in 1/s.
    """
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


def _source(key: str, path: str, sources: str | dict[str, str]) -> str:
    """Return the source of a key from the sources of the record at ``path``; '' if
    none.

    ``sources`` is one text, or texts by key or by the beginning of a key, of which the
    longest counts.
    """
    if isinstance(sources, str):
        return sources
    parts = key.removeprefix(f"{path}.").split(".")
    names = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((sources[name] for name in names if name in sources), "")


def scale_inputs(scenario: Scenario, factors: Mapping[str, float]) -> Scenario:
    """Return the scenario with values multiplied by ``factors``, by dotted key; it is
    not checked again. Curves are multiplied at all points.

    Raises:
        AttributeError: a part of a key is no field of its record.
        KeyError: a part of a key is no entry of its mapping.
    """
    return _scale_record(scenario, factors) if factors else scenario


def _scale_record(record: Any, factors: Mapping[str, float]) -> Any:
    """Return a copy of a record or mapping with the numbers at dotted keys multiplied;
    records on the way to several of the numbers are copied once.
    """
    factors_by_field: dict[str, dict[str, float]] = {}
    for key, factor in factors.items():
        name, _, deeper_key = key.partition(".")
        factors_by_field.setdefault(name, {})[deeper_key] = factor
    scaled = {}
    for name, deeper_factors in factors_by_field.items():
        previous = record[name] if isinstance(record, dict) else getattr(record, name)
        scaled[name] = (
            _scale_number(previous, deeper_factors[""])
            if "" in deeper_factors
            else _scale_record(previous, deeper_factors)
        )
    if isinstance(record, dict):
        return {**record, **scaled}
    return record.model_copy(update=scaled)


def _scale_number(number: float | Curve, factor: float) -> float | Curve:
    """Return the number times ``factor``; of a curve all points are multiplied."""
    if isinstance(number, Curve):
        return replace(number, y=tuple(y * factor for y in number.y))
    return number * factor
