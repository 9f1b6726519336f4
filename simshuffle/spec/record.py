"""The base of every record of a scenario: frozen pydantic models without unknown keys,
and quantities with units.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    TypeVar,
    get_args,
    get_origin,
)

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from simshuffle.spec.units import (
    Dimension,
    UnitError,
    format_quantity,
    parse_quantity,
    pattern,
)

T = TypeVar("T")


class Spec(BaseModel):
    """A record: immutable, no unknown keys, no silent conversions."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True
    )

    @classmethod
    def meaning_of_key(cls, key: str) -> str:
        """Return the meaning of a key: a name that records of several kinds have in
        common where their keys, whatever they are called, hold one quantity. Unless a
        record overrides it, it is the key itself.
        """
        return key


def records_in(annotation: Any, *, deep: bool = False) -> list[type[BaseModel]]:
    """Return the record types in an annotation, members of a union too; those in
    mappings and lists only if it is to be ``deep``. A type may come twice; [] for none.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in {dict, list} and not deep:
        return []
    return [
        record
        for part in get_args(annotation)
        for record in records_in(part, deep=deep)
    ]


@dataclass(frozen=True)
class CacheArgument(Generic[T]):
    """An argument of a cached function, compared by its key alone: equal keys give
    equal results.
    """

    key: Any  # hashable
    argument: T = field(compare=False)


class Sourced(Spec):
    """A record of numbers that says where each comes from.

    ``default_sources`` is where the defaults are from, by key. Those that a record uses
    are added to its ``source``.
    """

    default_sources: ClassVar[dict[str, str]] = {}

    source: str | dict[str, str] = Field(
        default="",
        description="where the numbers come from: one text, or one for each key.",
    )

    @model_validator(mode="before")
    @classmethod
    def _add_default_sources(cls, values: Any) -> Any:
        """Return plain values with the sources of the defaults that they use."""
        if not isinstance(values, dict):
            return values
        written_source = values.get("source") or {}
        used_defaults = {
            key: text for key, text in cls.default_sources.items() if key not in values
        }
        if isinstance(written_source, dict) and used_defaults:
            return {**values, "source": {**written_source, **used_defaults}}
        if isinstance(written_source, str) and used_defaults:
            texts = (f"{key}: {text}" for key, text in used_defaults.items())
            return {**values, "source": "; ".join((written_source, *texts))}
        return values


class BuiltOnce:
    """Annotations of a float whose schema pydantic builds once, and not once for each
    field that has them.
    """

    def __init__(self, *annotations: Any) -> None:
        self._type = Annotated[float, *annotations]
        self._schema: Any = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return a copy of the schema, to which pydantic adds what is the field's own."""
        if self._schema is None:
            self._schema = handler.generate_schema(self._type)
        return {**self._schema, "metadata": {**self._schema.get("metadata", {})}}


def quantity_schema(dimension: Dimension, positive: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of a quantity that is not negative, as it is written in a
    file; with ``positive`` not 0 either.
    """
    return {
        "type": "string",
        "pattern": pattern(dimension, positive),
        "examples": re.findall("'([^']*)'", dimension.examples),
        "unit": dimension.unit,
    }


def text_type(dimension: Dimension, positive: bool = False) -> Any:
    """Return the type of the text that a file has for a quantity; arguments as of
    `quantity_schema`.
    """
    return Annotated[str, WithJsonSchema(quantity_schema(dimension, positive))]


def _quantity_annotations(dimension: Dimension, *, positive: bool) -> BuiltOnce:
    """Make the annotations of a field that holds a quantity in SI units and is written
    with a unit.
    """

    def read(value: object) -> object:
        """Return the SI value of a text; raises pydantic's error of the type 'unit'."""
        try:
            return parse_quantity(value, dimension)
        except UnitError as error:
            raise PydanticCustomError("unit", "{text}", {"text": str(error)}) from None

    return BuiltOnce(
        BeforeValidator(read, json_schema_input_type=text_type(dimension, positive)),
        PlainSerializer(
            lambda value: format_quantity(value, dimension), return_type=str
        ),
        Field(gt=0) if positive else Field(ge=0),
    )


def whole_as_float(value: object) -> object:
    """Turn a whole number into a float, as strict models take no int for a float; other
    values, also True and False, are returned as they are.

    Raises:
        ValueError: the number is too large for a float.
    """
    if type(value) is not int:
        return value
    try:
        return float(value)
    except OverflowError:
        raise ValueError("is too large a number") from None


def share_as_float(value: object) -> object:
    """Turn a share into a float, which may be written in percent: '1 %' is 0.01; values
    that are neither a text ending in '%' nor a whole number are returned as they are.

    No range is checked, and percent may give NaN or inf.

    Raises:
        ValueError: there is no number before '%', or a whole number is too large for a
            float.
    """
    if isinstance(value, str) and value.rstrip().endswith("%"):
        try:
            return float(Decimal(value.rstrip().removesuffix("%").strip()) / 100)
        except (ArithmeticError, ValueError):
            raise ValueError("must be a number, or one of percent") from None
    return whole_as_float(value)


NBytes = Annotated[float, _quantity_annotations(Dimension.NBYTES, positive=False)]
"""Bytes, not negative; written with a unit ('110 kB')."""
PositiveNBytes = Annotated[
    float, _quantity_annotations(Dimension.NBYTES, positive=True)
]
"""Bytes, greater than 0."""
Seconds = Annotated[float, _quantity_annotations(Dimension.SECONDS, positive=False)]
"""Seconds, not negative; written with a unit ('90 ns')."""
PositiveSeconds = Annotated[
    float, _quantity_annotations(Dimension.SECONDS, positive=True)
]
"""Seconds, greater than 0."""
Bandwidth = Annotated[float, _quantity_annotations(Dimension.BANDWIDTH, positive=True)]
"""Bytes per second, greater than 0; written with a unit ('12.5 GB/s', '100 Gbit/s')."""
Frequency = Annotated[float, _quantity_annotations(Dimension.FREQUENCY, positive=True)]
"""Operations per second, greater than 0; written with a unit ('45 k/s')."""
_Percent = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\s*\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*%\s*$",
            "examples": ["10 %"],
        }
    ),
]
_share = BeforeValidator(share_as_float, json_schema_input_type=float | _Percent)
Fraction = Annotated[float, BuiltOnce(_share, Field(ge=0, le=1))]
"""A number from 0 to 1, or in percent ('10 %')."""
Share = Annotated[float, BuiltOnce(_share, Field(ge=0, lt=1))]
"""A share of something of which some is left: at least 0, less than 1."""
NonNegative = Annotated[float, BuiltOnce(BeforeValidator(whole_as_float), Field(ge=0))]
"""A number without unit, not negative."""
Positive = Annotated[float, BuiltOnce(BeforeValidator(whole_as_float), Field(gt=0))]
"""A number without unit, greater than 0."""
Count = Annotated[int, Field(ge=1, le=2**53)]
"""A whole number, at least 1."""
if TYPE_CHECKING:
    OneEach = int
else:
    OneEach = Annotated[Count | None, Field(default=None)]
    """How many of what has an HCA each, or None for one for each HCA of a host, which is put in its
    place before it is used."""
MOST_HOSTS = 200_000
"""Hosts of a topology; larger ones would fill the memory before anything is simulated."""
Few = Annotated[int, Field(ge=1, le=4096)]
"""A whole number of parts of one thing: links between two switches, switches of a rack,
...
"""
