"""From plain values to a record, with every problem of their form in the words of the user's
file."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import nearest, shortened
from simshuffle.spec.main_key import kinds_at, write_as_record
from simshuffle.spec.record import records_in

Record = TypeVar("Record", bound=BaseModel)


def validated(raw: dict[str, Any], record: type[Record]) -> tuple[Record | None, list[Problem]]:
    """The record that ``raw`` holds, and the problems of its form. With problems, it is returned if
    leaving the bad keys out makes one."""
    try:
        return record.model_validate(raw), []
    except ValidationError as error:
        problems = [_problem(detail, record) for detail in error.errors(include_url=False)]
        repaired = copy.deepcopy(raw)
        for detail in error.errors(include_url=False):
            _drop(repaired, detail["loc"])
        try:
            return record.model_validate(repaired), problems
        except ValidationError:
            return None, problems


def unreported(found: Iterable[Problem], problems: Iterable[Problem]) -> list[Problem]:
    """Those that are ``found`` at no place, nor below one, that ``problems`` name already."""
    named = {problem.path for problem in problems}
    return [
        problem
        for problem in found
        if not any(problem.path == path or problem.path.startswith(f"{path}.") for path in named)
    ]


def _drop(raw: Any, location: Iterable[int | str]) -> None:
    steps = [
        step for step in location if not isinstance(step, str) or not step.startswith("function-")
    ]
    at = raw
    for step in steps[:-1]:
        if isinstance(at, dict) and step in at:
            at = at[step]
    if isinstance(at, dict) and steps:
        at.pop(steps[-1], None)


_RULES = {
    "missing": ("is required", "Add it."),
    "int_type": ("must be a whole number without quotes", "Write for example 512."),
    "float_type": ("must be a number without unit", "Write for example 0.1."),
    "string_type": ("must be text", "Put it in quotes."),
    "bool_type": ("must be true or false", "Write true or false."),
    "dict_type": ("must be a mapping of keys", "Write it as {key: value, ...}."),
    "list_type": ("must be a list", "Write [a, b, ...]."),
    "model_type": ("must be a mapping of keys", ""),
}
_RULES["model_attributes_type"] = _RULES["model_type"]
RECORD_TYPES = ("model_type", "model_attributes_type")
"""What pydantic calls a plain value in the place of a record."""


def _problem(detail: ErrorDetails, record: type[BaseModel]) -> Problem:
    """One error of pydantic in the words of the user's file."""
    path = ".".join(str(step) for step in _visible(detail["loc"], record))
    value = _shown(detail["input"])
    kind = detail["type"]
    if kind == "extra_forbidden":
        return Problem(path, "is not a known key", value, _other_key(path, detail["loc"], record))
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        context = detail.get("ctx", {})
        known = [f"'{each}'" for each in kinds_at(detail["loc"], record)]
        kinds = str(context.get("expected_tags", "")) or ", ".join(known)
        if kind == "union_tag_not_found":
            return Problem(f"{path}.kind", "is required", "", f"Name one of {kinds}.")
        tag = repr(context.get("tag", ""))
        return Problem(f"{path}.kind", f"must be one of {kinds}", tag, "Name one of them.")
    if kind in _RULES:
        rule, remedy = _RULES[kind]
        if kind in RECORD_TYPES:
            remedy = write_as_record(detail["input"], detail["loc"], path, record)
        return Problem(path, rule, "" if kind == "missing" else value, remedy)
    told = detail.get("ctx", {})
    if isinstance(error := told.get("error"), InputError):
        return error.problems[0].below(path)
    if "remedy" in told:  # a record that tells its problem in full
        return Problem(told["key"], told["rule"], told["value"], told["remedy"]).below(path)
    rule = detail["msg"].removeprefix("Input ").removeprefix("Value error, ")
    remedy = "" if kind == "unit" else "Give a value that obeys the rule."
    return Problem(path, rule, value, remedy)


CALLED = {
    "q": "exchange_fraction",
    "fraction": "exchange_fraction",
    "batch": "local_batch_size",
    "batch_size": "local_batch_size",
    "ranks": "world_size",
    "gpus": "world_size",
    "num_workers": "workers",
    "prefetch_factor": "prefetch",
}
"""Keys as they are called elsewhere."""


def _other_key(path: str, location: Iterable[int | str], record: type[BaseModel]) -> str:
    """A remedy for an unknown key: what it is called here, or where it belongs."""
    steps = list(location)
    last, known = steps[-1], _known_keys(steps[:-1], record)
    meant = CALLED.get(str(last).lower(), str(last))
    if meant in known:
        return f"Did you mean '{meant}'? Known: {', '.join(known)}."
    place = _place_of(meant, record)
    if place and place != path:  # else only other kinds have it, under this name
        here = f" Known here: {', '.join(known)}." if known else ""
        if place.rpartition(".")[0] == path.rpartition(".")[0]:
            return f"Did you mean '{meant}'? Only other kinds have it.{here}"
        return f"Write {place}.{here}"
    return nearest(str(last), known) if known else "Leave it out."


def _place_of(name: str, record: type[BaseModel]) -> str:
    """The dotted key of the field of that name, wherever it is in a record, the outermost first; ''
    if there is none."""
    level: list[tuple[str, type[BaseModel]]] = [("", record)]
    seen: set[type[BaseModel]] = set()
    while level:
        below = []
        for path, model in level:
            seen.add(model)
            for key, value in model.model_fields.items():
                if key == name:
                    return f"{path}{key}"
                below += [
                    (f"{path}{key}.", part)
                    for part in records_in(value.annotation)
                    if part not in seen
                ]
        level = below
    return ""


def _visible(location: Iterable[int | str], record: type[BaseModel]) -> list[int | str]:
    """A location without the steps that pydantic adds for unions: the kind of a member after the
    key that it stands at, or what it calls a validator."""
    kinds, key, out = _kinds(record), "", []
    for step in location:
        if isinstance(step, str):
            added = step.startswith("function-") or "[" in step
            if added or step in {"constrained-int", "literal['iteration']"} or (key, step) in kinds:
                continue
            key = step
        out.append(step)
    return out


@cache
def _kinds(record: type[BaseModel]) -> frozenset[tuple[str, str]]:
    """All keys of a record, and of those in it, at which a member of a union may stand, each with
    every kind that there is."""
    found: set[tuple[str, str]] = set()
    left, seen = [record], {record}
    while left:
        for key, value in left.pop().model_fields.items():
            for part in records_in(value.annotation, deep=True):
                kind = part.model_fields.get("kind")
                if kind is not None:
                    found |= {(key, str(name)) for name in get_args(kind.annotation)}
                if part not in seen:
                    seen.add(part)
                    left.append(part)
    return frozenset(found)


def _shown(value: Any) -> str:
    return "a mapping" if isinstance(value, dict) else shortened(repr(value))


def _known_keys(steps: Iterable[int | str], record: type[BaseModel]) -> list[str]:
    """The keys that are possible at a place in a record."""
    model: Any = record
    for step in steps:
        if not isinstance(step, int):  # of a list, whose records the model is already
            model = _step_into(model, step)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return sorted(model.model_fields)
    return []


def _tags(member: type[BaseModel]) -> tuple[str, ...]:
    """What a union may call a member: its kinds, or its name in brackets."""
    kind = member.model_fields.get("kind")
    return (f"[{member.__name__}]", *(get_args(kind.annotation) if kind else ()))


def _step_into(model: Any, step: int | str) -> Any:
    if isinstance(model, tuple):  # members of a union; the step is the tag
        return next((m for m in model if step in _tags(m)), None)
    if (
        not (isinstance(model, type) and issubclass(model, BaseModel))
        or step not in model.model_fields
    ):
        return None
    annotation = model.model_fields[str(step)].annotation
    members = records_in(annotation, deep=True)
    return tuple(members) if len(members) > 1 else next(iter(members), annotation)
