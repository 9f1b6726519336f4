"""Measured values of a scenario: records of where each comes from and how far it holds,
and the fragments they come in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.fabric.allreduce import Ring
from simshuffle.fabric.allreduce.base import LATENCIES
from simshuffle.spec.library import is_file, read_yaml, suggest_nearest
from simshuffle.spec.overrides import keys_overlap
from simshuffle.spec.record import Fraction, NonNegative, Spec
from simshuffle.spec.units import Dimension, UnitError, parse_quantity, readable
from simshuffle.spec.validation import validate_record

QUANTITIES: dict[str, Dimension | None] = {
    "world_size": None,
    "hosts": None,
    "clients": None,
    "local_batch_size": None,
    "message_size": Dimension.NBYTES,
    "file_size": Dimension.NBYTES,
}
"""Quantities over which a value can have been measured, with their dimensions (None: a
number).
"""
_ROUNDING = 1e-4  # sizes that people write rounded are the same
OF_RINGS = {
    f"workload.allreduce.{key}": f"workload.allreduce.{Ring.meaning_of_key(key)}"
    for key in LATENCIES
}
"""Names of the latencies of a ring under ``kind: nccl``; a fragment has shorter names."""
PLATEAU = "workload.allreduce.plateau"
_RING_ONLY = (
    "was measured as the latency of a ring, and workload.allreduce has none",
    "kind: tree",
    "Give the scenario an allreduce of kind ring or nccl, or take this key out of the fragment:"
    " below values and below calibrated.",
)
_ROOTS = ("cluster.", "workload.", "network.")


class Calibrated(Spec):
    """A measured value of a scenario.

    Attributes:
        key: dotted key of the value.
        value: as a scenario has it.
        low, high: ends of its interval; left out where the points were too few for one.
        confidence: of the interval.
        over: range that was measured of each quantity, from lowest to highest.
        residual: mean relative error of the fit.
        model: the only model that the value holds for; '' for all.
        source: what was measured, and by what.
        note: what else is to be known.
    """

    key: str
    value: Any
    low: Any = None
    high: Any = None
    confidence: Fraction = 0.95
    over: dict[str, list[int | float | str]] = Field(default_factory=dict)
    residual: NonNegative | None = None
    source: str = ""
    model: str = ""
    note: str = ""

    @field_validator("value", "low", "high", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        """Make the keys of mappings text."""
        return _plain(value)

    @model_validator(mode="after")
    def _ranges(self) -> Calibrated:
        """Refuse quantities that `QUANTITIES` lacks, and ranges that do not ascend."""
        for name, ends in self.over.items():
            if name not in QUANTITIES:
                raise _bad(
                    f"over.{name} is not known. {suggest_nearest(name, sorted(QUANTITIES))}"
                )
            try:
                low, high = self.range(name)
            except UnitError as error:
                raise _bad(f"over.{name}: {ends} {error}") from None
            except (TypeError, ValueError):
                raise _bad(
                    f"over.{name} must be [lowest, highest]; got {ends}"
                ) from None
            if low > high:
                raise _bad(f"over.{name} must begin with the lower end; got {ends}")
        return self

    def range(self, name: str) -> tuple[float, float]:
        """The lowest and highest measured value of one quantity of ``over``: SI values,
        or numbers. Raises a KeyError if it is not among them.
        """
        dimension = QUANTITIES[name]
        low, high = (
            parse_quantity(end, dimension) if dimension else _number(end)
            for end in self.over[name]
        )
        return low, high

    def beyond(self, used: Mapping[str, float]) -> str:
        """A clause on the quantities of ``used`` that are outside the range; '' if none
        is. Those that were not measured are ignored, and so is rounding by 1e-4.
        """
        parts = []
        for name in filter(used.__contains__, self.over):
            low, high = self.range(name)
            if not low * (1 - _ROUNDING) <= used[name] <= high * (1 + _ROUNDING):
                upper_end = "" if low == high else f" to {format_quantity(name, high)}"
                measured = f"{format_quantity(name, low)}{upper_end}"
                used_value = format_quantity(name, used[name])
                parts.append(
                    f"{name.replace('_', ' ')} {measured}, and is used at {used_value}"
                )
        return f"{self.key} was measured for {'; for '.join(parts)}" if parts else ""


class Fragment(Spec):
    """A file that a scenario includes: values by dotted key, and records of those that
    were measured.
    """

    values: dict[str, Any]
    calibrated: list[Calibrated] = Field(default_factory=list)

    @model_validator(mode="after")
    def _keys(self) -> Fragment:
        """Refuse keys below other records than cluster, workload and network, and
        calibration records whose value differs from that in ``values``.
        """
        for key in self.values:
            if not key.startswith(_ROOTS) or "" in key.split("."):
                roots = ", ".join(root[:-1] for root in _ROOTS)
                raise _bad(f"values.{key} must be a dotted key below {roots}")
        for record in self.calibrated:
            if record.key not in self.values or record.value != _plain(
                self.values[record.key]
            ):
                rule = f"the record of {record.key} must have the value that stands in values"
                raise _bad(f"calibrated: {rule}")
        return self


def _bad(rule: str) -> InputError:
    """Return the error of a fragment that breaks ``rule``."""
    remedy = "Let 'simshuffle machine calibrate' write the file, or correct it."
    return InputError(Problem("", rule, "", remedy))


def _plain(value: Any) -> Any:
    """A value whose keys are text, such as the points of a curve over a number, so that
    JSON and YAML keep it alike.
    """
    return (
        {str(key): _plain(inner) for key, inner in value.items()}
        if isinstance(value, dict)
        else value
    )


def _number(value: Any) -> float:
    """Return a number as a float; a TypeError for all else, and for truth values."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def format_quantity(name: str, value: float) -> str:
    """A value of one of `QUANTITIES` as text for people, sizes with their unit."""
    dimension = QUANTITIES[name]
    return readable(value, dimension) if dimension else f"{value:g}"


def read_fragment(path: Path) -> Fragment:
    """The fragment in a YAML file of one document. Raises an InputError with every
    problem of it.
    """
    documents = read_yaml(path)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        count = len(documents)
        content = f"{count} documents" if count != 1 else type(documents[0]).__name__
        remedy = "Write 'values:' and below it dotted keys, as 'simshuffle machine calibrate' does."
        refuse(
            "", "must be one mapping with the key values", content, remedy, str(path)
        )
    fragment, problems = validate_record(documents[0], Fragment)
    if fragment is None or problems:
        raise InputError(problems, str(path))
    return fragment


# ------------------------------------------------------------ fragments in the values of a scenario

Put = Callable[[str, Any, list[Problem]], bool]
"""Sets a dotted key of the raw scenario, and says whether it could; what is wrong goes
into the list.
"""


def include(
    raw: dict[str, Any], folder: Path | None, put_value: Put, problems: list[Problem]
) -> dict[str, str]:
    """Set the values of the fragments that ``raw`` names under ``include``, in order.

    Takes ``include`` out of ``raw``, and appends the records of the values that were
    set to ``raw['calibrated']``. A key that the scenario sweeps is left out, and so is
    one above it; one below it is a problem. Latencies of a ring get the names of
    ``kind: nccl`` where the scenario has that, and the plateau becomes 1; with ``kind:
    tree`` they are a problem.

    Args:
        raw: the scenario's values, changed in place.
        folder: of the scenario file, from which paths begin; then the working
            directory.
        put_value: sets a value in ``raw``.
        problems: whatever is wrong is added to it.

    Returns:
        the file from which each key came.
    """
    origin: dict[str, str] = {}
    for path in _paths(raw.pop("include", None), folder, problems):
        within = f"include {path}"
        try:
            fragment = read_fragment(path)
        except InputError as error:
            problems += [
                replace(
                    problem,
                    path=f"{within}: {problem.path}" if problem.path else within,
                )
                for problem in error.problems
            ]
            continue
        swept = (
            [str(key) for key in raw["sweep"]]
            if isinstance(raw.get("sweep"), dict)
            else []
        )
        kind = _raw_allreduce_kind(raw)
        measured = {record.key for record in fragment.calibrated}
        if kind == "nccl" and measured & OF_RINGS.keys():
            # large buffers were measured too, so nothing is left to correct
            put_value(PLATEAU, 1, problems)
            origin[PLATEAU] = str(path)
        for written, value in fragment.values.items():
            path_of_value = f"{within}: values.{written}"
            if written in OF_RINGS and written in measured and kind == "tree":
                problems.append(Problem(path_of_value, *_RING_ONLY))
                continue
            key = OF_RINGS.get(written, written) if kind == "nccl" else written
            if above := [name for name in swept if key.startswith(f"{name}.")]:
                rule = f"has no effect: sweep.{above[0]} sets it for each run"
                remedy = f"Do not sweep {above[0]}."
                problems.append(Problem(path_of_value, rule, repr(value), remedy))
            elif not any(keys_overlap(key, name) for name in swept):
                value_problems: list[Problem] = []
                put_value(key, value, value_problems)
                problems += [
                    replace(problem, path=path_of_value) for problem in value_problems
                ]
                origin[key] = str(path)
                if isinstance(raw.setdefault("calibrated", []), list):
                    raw["calibrated"] += [
                        record.model_dump(mode="json", exclude_none=True) | {"key": key}
                        for record in fragment.calibrated
                        if record.key == written
                    ]
    return origin


def _raw_allreduce_kind(raw: Mapping[str, Any]) -> Any:
    """Return the kind of allreduce in a raw scenario; None if it has none."""
    workload = raw.get("workload")
    allreduce = workload.get("allreduce") if isinstance(workload, dict) else None
    return allreduce.get("kind") if isinstance(allreduce, dict) else None


def _paths(included: Any, folder: Path | None, problems: list[Problem]) -> list[Path]:
    """Return the existing files that ``include`` names; others are added to
    ``problems``.

    They are looked for from ``folder``, then from the working directory.
    """
    names = (
        [included]
        if isinstance(included, str)
        else []
        if included is None
        else included
    )
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        rule = "must be a path or a list of paths"
        example = "include: calibration.yaml"
        problems.append(
            Problem("include", rule, repr(included)[:80], f"For example: {example}")
        )
        return []
    paths = []
    for name in names:
        existing = [
            path for path in ((folder or Path()) / name, Path(name)) if is_file(path)
        ]
        if existing:
            paths.append(existing[0])
        else:
            remedy = "Name it from the folder of the scenario, or from the working directory."
            problems.append(Problem("include", "no such file", repr(name), remedy))
    return paths


def forget(raw: dict[str, Any], key: str) -> None:
    """Drop the calibration records of ``key`` from ``raw``, in place.

    With them go records of keys above and below it; it is set to something else.
    """
    records = raw.get("calibrated")
    if isinstance(records, list):
        raw["calibrated"] = [
            r
            for r in records
            if not (isinstance(r, dict) and keys_overlap(str(r.get("key")), key))
        ]


def blame(problem: Problem, origin: Mapping[str, str]) -> Problem:
    """The problem with the fragment in its path, if the value came from one; else as it
    is. ``origin`` is from `include`.
    """
    for key, path in origin.items():
        below = key.startswith(f"{problem.path}.")
        if keys_overlap(key, problem.path) and not (
            below and problem.rule == "is required"
        ):
            return replace(
                problem, path=f"include {path}: values.{key if below else problem.path}"
            )
    return problem


def mismatches(records: Iterable[Calibrated], model: str) -> list[Problem]:
    """Problems of values that were measured with another model than the scenario's."""
    return [
        Problem(
            record.key,
            f"was measured with the model {record.model}",
            repr(model),
            "Calibrate with that model, or leave these values out.",
        )
        for record in records
        if record.model and record.model != model
    ]
