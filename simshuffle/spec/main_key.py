"""The remedy where a plain value stands in the place of a record: the key of the
record that the value belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from simshuffle.spec.library import shorten
from simshuffle.spec.record import records_in

FREE_TEXT_KEYS = ("name", "kind", "description", "source", "note")
"""Keys that take any text, and so none in particular."""


def write_as_record(
    value: Any, location: Iterable[int | str], path: str, record: type[BaseModel]
) -> str:
    """Return the remedy for a plain ``value`` at a place where a record must stand.

    Args:
        value: that was given.
        location: of the place in ``record``, as pydantic has it.
        path: of the place, as the user has it.
        record: the record that the place is in.
    """
    models = records_at(location, record)
    if len(models) > 1 and (kinds := kinds_at(location, record)):
        return f"Name one of {', '.join(kinds)}, or set {path}.kind."
    name = path.rpartition(".")[2]
    head = "" if name.isdigit() else f"{name}: "  # a number in a list is no key
    for model in models:
        if (key := main_key(value, model)) is None:
            continue
        other_keys = [
            required_key for required_key in required_keys(model) if required_key != key
        ]
        hint = f", and add {', '.join(other_keys)}" if other_keys else ""
        return f"Write {head}{{{key}: {_as_yaml(value)}}}, or set {path}.{key}{hint}."
    keys = list(dict.fromkeys(key for model in models for key in _specific_keys(model)))
    return (
        f"Write its keys below it: {', '.join(keys)}."
        if keys
        else "Write its keys below it."
    )


def kinds_at(location: Iterable[int | str], record: type[BaseModel]) -> list[str]:
    """Return the kinds of the records that may stand at a place in ``record``, each
    once; none if they have no kind.
    """
    fields = [model.model_fields.get("kind") for model in records_at(location, record)]
    kinds = [
        str(kind) for field in fields if field for kind in get_args(field.annotation)
    ]
    return list(dict.fromkeys(kinds))


def records_at(
    location: Iterable[int | str], record: type[BaseModel]
) -> list[type[BaseModel]]:
    """List the records that may stand at a place in ``record``; the members of a union
    are several. [] if the place holds none.
    """
    models = [record]
    for step in location:
        fields = [
            model.model_fields[step] for model in models if step in model.model_fields
        ]
        if fields:
            models = [
                part for f in fields for part in records_in(f.annotation, deep=True)
            ]
        else:  # a number in a list, a key of a mapping, or the kind of a member of a union
            models = [model for model in models if step in _kinds_of(model)] or models
    return models


def main_key(value: Any, model: type[BaseModel]) -> str | None:
    """Return the key of a record that a plain value is most probably meant for: the
    first required one that takes it, else the first that does; None if none does, and
    for None, mappings and lists.
    """
    if isinstance(value, dict | list) or value is None:
        return None
    accepting_keys = [
        key for key in _specific_keys(model) if _accepts(model.model_fields[key], value)
    ]
    required = [key for key in accepting_keys if key in required_keys(model)]
    return next(iter([*required, *accepting_keys]), None)


def required_keys(model: type[BaseModel]) -> list[str]:
    """Return the keys that a record cannot do without."""
    return [key for key, field in model.model_fields.items() if field.is_required()]


def _field_type(field: FieldInfo) -> Any:
    """Return the type of a field, with all that reads and checks its values."""
    return Annotated[field.annotation, *field.metadata, None]


def _as_yaml(value: Any) -> str:
    """Return a plain value as YAML has it."""
    return shorten(str(value).lower() if isinstance(value, bool) else str(value))


def _specific_keys(model: type[BaseModel]) -> list[str]:
    """List the keys of a record that do not take any text."""
    return [key for key in model.model_fields if key not in FREE_TEXT_KEYS]


def _kinds_of(model: type[BaseModel]) -> tuple[str, ...]:
    """List the kinds of a record; empty if it has none."""
    kind = model.model_fields.get("kind")
    return get_args(kind.annotation) if kind else ()


def _accepts(field: FieldInfo, value: Any) -> bool:
    """Return whether a field takes a value, in pydantic's strict mode."""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(_field_type(field))
        adapter.validate_python(value, strict=True)
    except (ValidationError, TypeError, ValueError):
        return False
    return True
