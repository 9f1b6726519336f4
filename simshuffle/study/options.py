"""Options: the questions that a study asks its user, declared once as a frozen
dataclass that derives from `Options`.

The verb with its help and completion, the function of Python, its stub and the
reference are made from it. Every field is annotated with an `Option` or an `Argument`.
Its type is that of the value in Python; `Option.read` makes this value of the words of
a command line. pydantic checks types, and is imported when a record is filled, so that
the help of all verbs appears at once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from simshuffle.errors import InputError, Problem

COMMAND_LINE = "command line"
Completion = Callable[[str], list[str]]  # words that complete one that is begun
OptionsT = TypeVar("OptionsT", bound="Options")


class Words:
    """The words of a closed set, which complete an incomplete one, and which the help
    lists.

    They are ``words``, or those at ``place``, 'module:name', imported on demand: a
    mapping, a sequence, a function that returns one, or a record or a union of records,
    whose kinds they are.
    """

    def __init__(self, *words: str, place: str = "") -> None:
        """Take the words themselves, or the place where they are."""
        self._words = words
        self._place = place

    def complete(self, incomplete: str) -> list[str]:
        """Return the words that begin with ``incomplete``."""
        return [word for word in self.all() if word.startswith(incomplete)]

    def all(self) -> list[str]:
        """Return all words of the set; imports what they are read from."""
        if not self._place:
            return [*self._words]
        source = resolve_name(self._place)
        if isinstance(source, Collection):
            return [*source]
        kinds = get_args(source) or hasattr(source, "model_fields")
        return [*(_kinds_in_union(source) if kinds else source())]


def words(*choices: str, place: str = "") -> Completion:
    """Return the function that completes an incomplete word from such `Words`."""
    return Words(*choices, place=place).complete


def _kinds_in_union(union: Any) -> Iterator[str]:
    """Yield the kinds of a record, or of all records of a union."""
    fields = getattr(union, "model_fields", None)
    if fields is not None:
        yield from get_args(fields["kind"].annotation)
    else:
        for member in get_args(union):
            yield from _kinds_in_union(member)


@dataclass(frozen=True)
class Option:
    """The way a field is written on the command line, and its help."""

    metavar: str  # what stands for the value; '' for a flag
    text: str  # a sentence, with the default where the field does not say it
    flag: str = ""  # names of the option; '' for that of the field
    # the value of the words that were given, a list of them if there may be ``many``; None where
    # the words are the value
    read: Callable[[Any], Any] | None = None
    many: bool = False  # whether it may be given several times
    # low, high: the range of a number, both ends included
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()  # the words that there are; any if none are named
    complete: Completion | None = (
        None  # `words` where few are possible that others check
    )
    python: str = (
        ""  # the type of the value in the stub, where the field's own says less
    )


@dataclass(frozen=True)
class Argument(Option):
    """An option that is written without its name; with ``many`` it takes all the words
    that follow.
    """


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that every verb has that makes a result. Without ``out`` a verb writes a
    folder of its own, and a program none.
    """

    out: Annotated[
        Path | None,
        Option(
            "FOLDER", "Result folder; the default is results/VERB-NAME-FINGERPRINT."
        ),
    ] = None
    force: Annotated[
        bool, Option("", "Replace the result that is in the result folder.")
    ] = False
    force_size: Annotated[
        bool, Option("", "Compute also what by estimate is too large for this machine.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class CellOptions(Options):
    """Options of verbs that may run many cells."""

    processes: Annotated[
        int | None,
        Option("N", "Processes at once; the default is one on each core.", low=1),
    ] = None
    scheduler: Annotated[
        str | None,
        Option(
            "ADDRESS", "Compute on the workers of this Dask scheduler (extra cluster)."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RefinedOptions(CellOptions):
    """Options of a study that answers first from closed forms and then simulates as
    much as fits into a minute. ``exact`` lifts that limit.
    """

    exact: Annotated[
        bool,
        Option("", "Simulate all that the answer rests on, however long that takes."),
    ] = False


SHARED = {field.name for field in dataclasses.fields(CellOptions)}
"""Fields that are not a study's own."""


@dataclass(frozen=True)
class Field:
    """A field of a record."""

    name: str
    type: Any  # without annotations
    option: Option
    default: Any  # its value if it is not given; `dataclasses.MISSING` where it must be

    @property
    def flag(self) -> str:
        """The first name of the option, such as '--world-size'."""
        words = self.name.strip("_").replace("_", "-")
        return self.option.flag.split()[0] if self.option.flag else f"--{words}"

    @property
    def is_list(self) -> bool:
        """True if the option takes several numbers, or several words of a closed set."""
        is_number = plain_type(self.type)[0] in (tuple[int, ...], tuple[float, ...])
        return self.option.many and (is_number or bool(self.option.choices))

    def read(self, written: Any) -> Any:
        """Return the value of the words that are written on a command line.

        Words stay as they are where nothing converts them, and so do None and []. A
        list of numbers or choices is split at commas; its pieces are still texts.
        """
        convert = self.option.read or (between_commas if self.is_list else None)
        return written if convert is None or written in (None, []) else convert(written)

    @property
    def needed(self) -> bool:
        """True if the field has no default."""
        return self.default is dataclasses.MISSING


def between_commas(texts: Iterable[str]) -> list[str]:
    """Return the pieces between the commas of the words of an option, each once, in
    order.

    Spaces around them are dropped, and empty pieces too.
    """
    pieces = (piece.strip() for text in texts for piece in text.split(","))
    return list(dict.fromkeys(filter(None, pieces)))


def fields_of(record: type) -> tuple[Field, ...]:
    """Return the fields of a record in the order of the help.

    It is arguments, the record's own options, the scenario's --set, the options that
    verbs share. Every field must be annotated with an `Option`.
    """
    hints = get_type_hints(record, include_extras=True)
    record_fields = []
    for field in dataclasses.fields(record):
        kind, *extras = get_args(hints[field.name])
        option = next(extra for extra in extras if isinstance(extra, Option))
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        record_fields.append(Field(field.name, kind, option, default))

    def rank(field: Field) -> tuple[bool, bool, bool]:
        """Return the sort key of a field in the help."""
        return (
            not isinstance(field.option, Argument),
            field.name in SHARED,
            field.name == "set",
        )

    return tuple(sorted(record_fields, key=rank))


def fill_options(
    record: type[OptionsT], values: Mapping[str, Any], source: str
) -> OptionsT:
    """Return the record with those values, by the names of fields.

    Fields without a value have their default. Values are converted where pydantic can:
    '3' to 3.

    Args:
        values: by the names of fields; names that are no field are left out, without an
            error.
        source: who gives the values: `COMMAND_LINE`, or the name of a function.

    Raises:
        InputError: names all values of a wrong type or missing ones; or else all out of
            range, or outside the choices.
    """
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - see above

    fields = {field.name: field for field in fields_of(record)}
    try:
        options: OptionsT = TypeAdapter(record).validate_python(dict(values))
    except ValidationError as error:
        problems = []
        for details in error.errors():
            rule = details["msg"].removeprefix("Input ").removeprefix("Value error, ")
            problems.append(
                refuse_value(fields[str(details["loc"][0])], rule, details["input"])
            )
        raise rephrase_error(InputError(problems, COMMAND_LINE), source) from None
    if problems := [
        problem for field in fields.values() for problem in _problems(field, options)
    ]:
        raise rephrase_error(InputError(problems, COMMAND_LINE), source)
    return options


def refuse_value(field: Field, rule: str, value: Any) -> Problem:
    """Return the problem of a value that breaks ``rule``; nothing is raised.

    Where the option has choices, ``rule`` is replaced: it must be one of these.
    """
    remedy = "Give a value that obeys the rule."
    if choices := field.option.choices:
        rule = f"must be {' or '.join(choices)}"
        remedy = "Write one of them, or leave it out."
    return Problem(field.flag, rule, repr(value)[:60], remedy)


def _problems(field: Field, options: Options) -> Iterator[Problem]:
    """Yield the problems of a field's values: out of range, or outside its choices.

    Texts have no range, and None is always right.
    """
    option = field.option
    values = getattr(options, field.name)
    low = option.low
    high = option.high
    for value in values if isinstance(values, list | tuple) else [values]:
        if value is None or (isinstance(value, str) and low is not None):
            continue
        if option.choices and value not in option.choices:
            yield refuse_value(field, "", value)
        if (low is not None and not value >= low) or (
            high is not None and not value <= high
        ):
            rule = (
                f"must be at least {low:g}"
                if high is None
                else f"must be {low:g} to {high:g}"
            )
            yield Problem(
                field.flag, rule, repr(value)[:60], "Give a value in that range."
            )


def rephrase_error(error: InputError, source: str) -> InputError:
    """Return an error of the command line in the words of ``source``.

    A function has arguments in place of options. Only paths and remedies are rewritten.
    Errors of other sources than the command line are returned as they are.
    """
    if source == COMMAND_LINE or error.source != COMMAND_LINE:
        return error
    problems = [
        dataclasses.replace(
            problem,
            path=_OPTION.sub(_write_argument, problem.path),
            remedy=_EXAMPLE.sub(_write_argument, problem.remedy),
        )
        for problem in error.problems
    ]
    return type(error)(problems, source)


_OPTION = re.compile(r"^--([a-z-]+)")
_EXAMPLE = re.compile(r"--(?!set )([a-z-]+) ")
"""An option before its value; --set stands as it is, for its value is a key with
another.
"""


def _write_argument(match: re.Match[str]) -> str:
    """Return the name of an option as an argument, with '=' where its value follows."""
    name = match[1].replace("-", "_")
    return name + "_" * iskeyword(name) + "=" * match[0].endswith(" ")


def own_values(options: Options) -> dict[str, Any]:
    """Return the values of a record's own fields, by name, without those that verbs
    share (`SHARED`).
    """
    names = (
        field.name for field in dataclasses.fields(options) if field.name not in SHARED
    )
    return {name: getattr(options, name) for name in names}


def plain_type(kind: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether it may be None.

    The type is Any where several are left beside None. A union without None is returned
    as it is.
    """
    parts = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is not None and type(None) in get_args(kind):
        return (parts[0] if len(parts) == 1 else Any), True
    return kind, False
