"""What a scenario knows of measured values: records of where each comes from and how far it holds,
and the fragments they come in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import is_file, nearest, read_yaml
from simshuffle.spec.overrides import related
from simshuffle.spec.record import Fraction, NonNegative, Spec
from simshuffle.spec.units import Dimension, UnitError, parse_quantity, readable

QUANTITIES: dict[str, Dimension | None] = {
    "world_size": None,
    "hosts": None,
    "clients": None,
    "local_batch_size": None,
    "message_size": Dimension.NBYTES,
    "file_size": Dimension.NBYTES,
}
"""What a value can have been measured over, with its dimension (None: a number)."""
_ROUNDING = 1e-4  # sizes that people write rounded are the same
_OF_RINGS = {
    f"workload.allreduce.{side}_latency": f"workload.allreduce.ring_{side}_latency"
    for side in ("intra_host", "inter_host")
}
"""What ``kind: nccl`` calls the latencies of a ring, which a fragment has under shorter names."""
_PLATEAU = "workload.allreduce.plateau"
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
        return _plain(value)

    @model_validator(mode="after")
    def _ranges(self) -> Calibrated:
        for name in self.over:
            self.range(name)
        return self

    def range(self, name: str) -> tuple[float, float]:
        """The range that was measured of one quantity: SI values, or numbers."""
        if name not in QUANTITIES:
            raise PydanticCustomError(
                "over",
                "{text}",
                {"text": f"over.{name} is not known. {nearest(name, sorted(QUANTITIES))}"},
            )
        dimension, ends = QUANTITIES[name], self.over[name]
        try:
            low, high = (
                parse_quantity(end, dimension) if dimension else _number(end) for end in ends
            )
        except UnitError as error:
            raise PydanticCustomError(
                "over", "{text}", {"text": f"over.{name}: {ends} {error}"}
            ) from None
        except (TypeError, ValueError):
            raise PydanticCustomError(
                "over", "{text}", {"text": f"over.{name} must be [lowest, highest]; got {ends}"}
            ) from None
        if low > high:
            raise PydanticCustomError(
                "over", "{text}", {"text": f"over.{name} must begin with the lower end; got {ends}"}
            )
        return low, high

    def beyond(self, used: Mapping[str, float]) -> str:
        """A sentence on the quantities of ``used`` that are outside the range; '' if none is."""
        parts = []
        for name in self.over:
            if name not in used:
                continue
            low, high = self.range(name)
            if not low * (1 - _ROUNDING) <= used[name] <= high * (1 + _ROUNDING):
                measured = (
                    shown(name, low)
                    if low == high
                    else f"{shown(name, low)} to {shown(name, high)}"
                )
                parts.append(
                    f"{name.replace('_', ' ')} {measured}, and is used at {shown(name, used[name])}"
                )
        return f"{self.key} was measured for {'; for '.join(parts)}" if parts else ""


class Fragment(Spec):
    """A file that a scenario includes: values by dotted key, and records of those that were
    measured."""

    values: dict[str, Any]
    calibrated: list[Calibrated] = Field(default_factory=list)

    @model_validator(mode="after")
    def _keys(self) -> Fragment:
        for key in self.values:
            if not key.startswith(_ROOTS) or "" in key.split("."):
                text = (
                    f"values.{key} must be a dotted key below"
                    f" {', '.join(root[:-1] for root in _ROOTS)}"
                )
                raise PydanticCustomError("key", "{text}", {"text": text})
        for record in self.calibrated:
            if record.key not in self.values or record.value != _plain(self.values[record.key]):
                text = (
                    f"calibrated: the record of {record.key} must have the value that stands in"
                    " values"
                )
                raise PydanticCustomError("key", "{text}", {"text": text})
        return self


def _plain(value: Any) -> Any:
    """A value whose keys are text, such as the points of a curve over a number, so that JSON and
    YAML keep it alike."""
    return (
        {str(key): _plain(inner) for key, inner in value.items()}
        if isinstance(value, dict)
        else value
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def shown(name: str, value: float) -> str:
    """A place in the range of a quantity, for people."""
    dimension = QUANTITIES[name]
    return readable(value, dimension) if dimension else f"{value:g}"


def read_fragment(path: Path) -> Fragment:
    """The fragment in a file.

    Raises:
        InputError: with every problem of it.
    """
    documents = read_yaml(path)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        found = (
            f"{len(documents)} documents" if len(documents) != 1 else type(documents[0]).__name__
        )
        remedy = "Write 'values:' and below it dotted keys, as 'simshuffle machine calibrate' does."
        raise InputError(
            Problem("", "must be one mapping with the key values", found, remedy), str(path)
        )
    try:
        return Fragment.model_validate(documents[0])
    except ValidationError as error:
        problems = [_problem(dict(detail)) for detail in error.errors(include_url=False)]
        raise InputError(problems, str(path)) from None


def _problem(detail: dict[str, Any]) -> Problem:
    where = ".".join(str(step) for step in detail["loc"])
    if detail["type"] == "missing":
        return Problem(where, "is required", remedy="Add it.")
    given = "" if detail["type"] in {"key", "over"} else repr(detail["input"])[:80]
    if detail["type"] == "extra_forbidden":
        known = Calibrated if "calibrated" in detail["loc"] else Fragment
        rule = "is not a known key"
        remedy = nearest(str(detail["loc"][-1]), sorted(known.model_fields))
        return Problem(where, rule, given, remedy)
    rule = detail["msg"].removeprefix("Input ")
    remedy = "Let 'simshuffle machine calibrate' write the file, or correct it."
    return Problem(where, rule, given, remedy)


# ------------------------------------------------------------ fragments in the values of a scenario

Put = Callable[[str, Any, list[Problem]], bool]
"""Sets a dotted key of the raw scenario, and says whether it could; what is wrong goes into the
list."""


def include(
    raw: dict[str, Any], folder: Path | None, put: Put, problems: list[Problem]
) -> dict[str, str]:
    """Set what the fragments hold that ``raw`` names under ``include``, in their order, and keep
    their records under ``calibrated``.

    What the scenario sweeps stays swept.

    Args:
        raw: a scenario as plain values; its key ``include`` is taken away.
        folder: that of the scenario file; None for the working directory.
        put: sets a key.
        problems: whatever is wrong is added.

    Returns:
        The file from which each key came.
    """
    origin: dict[str, str] = {}
    for path in _paths(raw.pop("include", None), folder, problems):
        try:
            fragment = read_fragment(path)
        except InputError as error:
            problems += [
                Problem(_within(str(path), p.path), p.rule, p.value, p.remedy)
                for p in error.problems
            ]
            continue
        swept = [str(key) for key in raw["sweep"]] if isinstance(raw.get("sweep"), dict) else []
        kind, measured = _allreduce_kind(raw), {record.key for record in fragment.calibrated}
        if kind == "nccl" and measured & _OF_RINGS.keys():
            # large buffers were measured too, so nothing is left to correct
            put(_PLATEAU, 1, problems)
            origin[_PLATEAU] = str(path)
        for written, value in fragment.values.items():
            if written in _OF_RINGS and written in measured and kind == "tree":
                where = _within(str(path), f"values.{written}")
                problems.append(Problem(where, *_RING_ONLY))
                continue
            key = _OF_RINGS.get(written, written) if kind == "nccl" else written
            above = [name for name in swept if key.startswith(f"{name}.")]
            if above:
                rule = f"has no effect: sweep.{above[0]} sets it for each run"
                remedy = f"Do not sweep {above[0]}."
                problems.append(
                    Problem(_within(str(path), f"values.{written}"), rule, repr(value), remedy)
                )
            elif not any(related(key, name) for name in swept):
                found: list[Problem] = []
                put(key, value, found)
                problems += [
                    Problem(_within(str(path), f"values.{written}"), p.rule, p.value, p.remedy)
                    for p in found
                ]
                origin[key] = str(path)
                records = [
                    r.model_dump(mode="json", exclude_none=True) | {"key": key}
                    for r in fragment.calibrated
                    if r.key == written
                ]
                if isinstance(raw.setdefault("calibrated", []), list):
                    raw["calibrated"] += records
    return origin


def _allreduce_kind(raw: Mapping[str, Any]) -> Any:
    """What a raw scenario writes there; None if nothing."""
    workload = raw.get("workload")
    allreduce = workload.get("allreduce") if isinstance(workload, dict) else None
    return allreduce.get("kind") if isinstance(allreduce, dict) else None


def _paths(given: Any, folder: Path | None, problems: list[Problem]) -> list[Path]:
    names = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        rule = "must be a path or a list of paths"
        problems.append(
            Problem("include", rule, repr(given)[:80], "For example: include: calibration.yaml")
        )
        return []
    out = []
    for name in names:
        found = [path for path in ((folder or Path()) / name, Path(name)) if is_file(path)]
        if found:
            out.append(found[0])
        else:
            remedy = "Name it from the folder of the scenario, or from the working directory."
            problems.append(Problem("include", "no such file", repr(name), remedy))
    return out


def _within(path: str, key: str) -> str:
    return f"include {path}{f': {key}' if key else ''}"


def forget(raw: dict[str, Any], key: str) -> None:
    """Drop the records of ``key``, which is set to something else, and of what is above and below
    it."""
    records = raw.get("calibrated")
    if isinstance(records, list):
        raw["calibrated"] = [
            r for r in records if not (isinstance(r, dict) and related(str(r.get("key")), key))
        ]


def blame(problem: Problem, origin: Mapping[str, str]) -> Problem:
    """The problem with the fragment in its path, if the value came from one."""
    for key, path in origin.items():
        if related(key, problem.path) and not (
            key.startswith(f"{problem.path}.") and problem.rule == "is required"
        ):
            shown_path = key if key.startswith(f"{problem.path}.") else problem.path
            return Problem(
                _within(path, f"values.{shown_path}"), problem.rule, problem.value, problem.remedy
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
