"""Validation: from plain values to a record, with every problem of their form in the
words of the user's file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import shorten, suggest_nearest
from simshuffle.spec.main_key import kinds_at, write_as_record
from simshuffle.spec.record import records_in

Record = TypeVar("Record", bound=BaseModel)


def validate_record(
    raw: dict[str, Any], record: type[Record]
) -> tuple[Record | None, list[Problem]]:
    """Validate plain values as a record.

    Returns:
        The record, and the problems of its form; [] if there are none. With problems,
        the record is returned if leaving the bad keys out makes one, else None. ``raw``
        is not changed.
    """
    try:
        return record.model_validate(raw), []
    except ValidationError as error:
        problems = [
            _translate_error(detail, record)
            for detail in error.errors(include_url=False)
        ]
        valid_values = copy.deepcopy(raw)
        for detail in error.errors(include_url=False):
            _drop_value(valid_values, detail["loc"])
        try:
            return record.model_validate(valid_values), problems
        except ValidationError:
            return None, problems


def drop_reported_problems(
    candidates: Iterable[Problem], problems: Iterable[Problem]
) -> list[Problem]:
    """Drop the problems among ``candidates`` at or below a path that ``problems`` name
    already.
    """
    reported_paths = {problem.path for problem in problems}
    return [
        problem
        for problem in candidates
        if not any(
            problem.path == path or problem.path.startswith(f"{path}.")
            for path in reported_paths
        )
    ]


def _drop_value(raw: Any, location: Iterable[int | str]) -> None:
    """Delete the value of a mapping at a location of pydantic, in place; nothing is
    deleted in lists, or where there is no such value.
    """
    steps = [
        step
        for step in location
        if not isinstance(step, str) or not step.startswith("function-")
    ]
    container = raw
    for step in steps[:-1]:
        if isinstance(container, dict) and step in container:
            container = container[step]
    if isinstance(container, dict) and steps:
        container.pop(steps[-1], None)


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
"""Pydantic's names of the error that a plain value stands in place of a record."""


def _translate_error(detail: ErrorDetails, record: type[BaseModel]) -> Problem:
    """Translate one error of pydantic to the words of the user's file; of an InputError
    that a validator raised, the first problem.
    """
    path = ".".join(str(step) for step in _user_location(detail["loc"], record))
    value = _describe_value(detail["input"])
    kind = detail["type"]
    if kind == "extra_forbidden":
        return Problem(
            path, "is not a known key", value, _suggest_key(path, detail["loc"], record)
        )
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        context = detail.get("ctx", {})
        known_kinds = [
            f"'{known_kind}'" for known_kind in kinds_at(detail["loc"], record)
        ]
        kinds = str(context.get("expected_tags", "")) or ", ".join(known_kinds)
        if kind == "union_tag_not_found":
            return Problem(f"{path}.kind", "is required", "", f"Name one of {kinds}.")
        tag = repr(context.get("tag", ""))
        return Problem(
            f"{path}.kind", f"must be one of {kinds}", tag, "Name one of them."
        )
    if kind in _RULES:
        rule, remedy = _RULES[kind]
        if kind in RECORD_TYPES:
            remedy = write_as_record(detail["input"], detail["loc"], path, record)
        return Problem(path, rule, "" if kind == "missing" else value, remedy)
    details = detail.get("ctx", {})
    if isinstance(error := details.get("error"), InputError):
        return error.problems[0].below(path)
    if "remedy" in details:  # a record that tells its problem in full
        return Problem(
            details["key"], details["rule"], details["value"], details["remedy"]
        ).below(path)
    rule = detail["msg"].removeprefix("Input ").removeprefix("Value error, ")
    remedy = "" if kind == "unit" else "Give a value that obeys the rule."
    return Problem(path, rule, value, remedy)


KEY_SYNONYMS = {
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


def _suggest_key(
    path: str, location: Iterable[int | str], record: type[BaseModel]
) -> str:
    """Return a remedy for an unknown key: its name in simshuffle, or where it belongs."""
    steps = list(location)
    last = steps[-1]
    known_keys = _known_keys(steps[:-1], record)
    intended_key = KEY_SYNONYMS.get(str(last).lower(), str(last))
    if intended_key in known_keys:
        return f"Did you mean '{intended_key}'? Known: {', '.join(known_keys)}."
    dotted_key = _find_field(intended_key, record)
    if (
        dotted_key and dotted_key != path
    ):  # else only other kinds have it, under this name
        known_hint = f" Known here: {', '.join(known_keys)}." if known_keys else ""
        if dotted_key.rpartition(".")[0] == path.rpartition(".")[0]:
            return (
                f"Did you mean '{intended_key}'? Only other kinds have it.{known_hint}"
            )
        return f"Write {dotted_key}.{known_hint}"
    return suggest_nearest(str(last), known_keys) if known_keys else "Leave it out."


def _find_field(name: str, record: type[BaseModel]) -> str:
    """Find the dotted key of the field of that name, wherever it is in a record, the
    outermost first; '' if there is none.
    """
    level: list[tuple[str, type[BaseModel]]] = [("", record)]
    visited: set[type[BaseModel]] = set()
    while level:
        next_level = []
        for path, model in level:
            visited.add(model)
            for key, value in model.model_fields.items():
                if key == name:
                    return f"{path}{key}"
                next_level += [
                    (f"{path}{key}.", part)
                    for part in records_in(value.annotation)
                    if part not in visited
                ]
        level = next_level
    return ""


def _user_location(
    location: Iterable[int | str], record: type[BaseModel]
) -> list[int | str]:
    """Return a location without the steps that pydantic adds for unions: the kind of a
    member after the key that it stands at, or its name for a validator.
    """
    kinds = _union_kinds(record)
    key = ""
    visible_steps = []
    for step in location:
        if isinstance(step, str):
            is_internal = step.startswith("function-") or "[" in step
            if (
                is_internal
                or step in {"constrained-int", "literal['iteration']"}
                or (key, step) in kinds
            ):
                continue
            key = step
        visible_steps.append(step)
    return visible_steps


@cache
def _union_kinds(record: type[BaseModel]) -> frozenset[tuple[str, str]]:
    """Return all keys of a record, and of the records in it, at which a member of a
    union may stand, each with every kind that there is.
    """
    kinds_at_keys: set[tuple[str, str]] = set()
    pending = [record]
    visited = {record}
    while pending:
        for key, value in pending.pop().model_fields.items():
            for part in records_in(value.annotation, deep=True):
                kind = part.model_fields.get("kind")
                if kind is not None:
                    kinds_at_keys |= {
                        (key, str(name)) for name in get_args(kind.annotation)
                    }
                if part not in visited:
                    visited.add(part)
                    pending.append(part)
    return frozenset(kinds_at_keys)


def _describe_value(value: Any) -> str:
    """Describe a value in a problem: 'a mapping', or its shortened text."""
    return "a mapping" if isinstance(value, dict) else shorten(repr(value))


def _known_keys(steps: Iterable[int | str], record: type[BaseModel]) -> list[str]:
    """List the keys that are possible at a place in a record, sorted; none if no record
    stands there, or several kinds may.
    """
    model: Any = record
    for step in steps:
        if not isinstance(step, int):  # of a list, whose records the model is already
            model = _step_into(model, step)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return sorted(model.model_fields)
    return []


def _union_tags(member: type[BaseModel]) -> tuple[str, ...]:
    """List the tags that a union may use for a member: its kinds, and its name in
    brackets.
    """
    kind = member.model_fields.get("kind")
    return (f"[{member.__name__}]", *(get_args(kind.annotation) if kind else ()))


def _step_into(model: Any, step: int | str) -> Any:
    """Return what lies one step below a record, a union (a tuple of records), or any
    other type; None if nothing does.
    """
    if isinstance(model, tuple):  # members of a union; the step is the tag
        return next((m for m in model if step in _union_tags(m)), None)
    if (
        not (isinstance(model, type) and issubclass(model, BaseModel))
        or step not in model.model_fields
    ):
        return None
    annotation = model.model_fields[str(step)].annotation
    members = records_in(annotation, deep=True)
    return tuple(members) if len(members) > 1 else next(iter(members), annotation)
