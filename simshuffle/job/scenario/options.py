"""Fields that the options of several studies share: scenarios, values that are set, and what
completes them on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.study.options import (
    COMMAND_LINE,
    Argument,
    Completion,
    Option,
    between_commas,
    words,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

    from simshuffle.job.scenario.scenario import Scenario

MOST_NBYTES = 2**53
RecordT = TypeVar("RecordT", bound="BaseModel")


def shipped_names(folder: str) -> Completion:
    """What completes the names of what comes with simshuffle in ``folder``, such as 'scenarios'."""

    def names(incomplete: str) -> list[str]:
        from simshuffle.spec.library import shipped_names as found  # noqa: PLC0415 - when asked

        return [name for name in found(folder) if name.startswith(incomplete)]

    return names


ROUTINGS = words(place="simshuffle.fabric.routing:Routing")
scenario_names, study_names = shipped_names("scenarios"), shipped_names("studies")
machine_names = shipped_names("topologies")


def any_of(*complete: Completion) -> Completion:
    """What completes one of several things: all that each of ``complete`` finds."""
    return lambda incomplete: [word for each in complete for word in each(incomplete)]


def result_folders(incomplete: str) -> list[str]:
    """Result folders whose path begins so, here and in results/ where it names no folder."""
    head, slash, _ = incomplete.rpartition("/")
    places = [f"{head}{slash}"] if slash else ["", "results/"]
    return [
        f"{place}{path.parent.name}"
        for place in places
        for path in sorted(Path(place or ".").glob("*/meta.json"))
        if f"{place}{path.parent.name}".startswith(incomplete)
    ]


def pairs(
    option: str, example: str, syntax: str = "KEY=VALUE"
) -> Callable[[Sequence[str]], list[tuple[str, Any]]]:
    """What reads texts of an option, written as ``syntax``, as keys and values, which are read as
    YAML; a key may be there several times. It raises an InputError with all texts that are not
    written so."""

    def read(texts: Sequence[str]) -> list[tuple[str, Any]]:
        from simshuffle.spec.library import read_value  # noqa: PLC0415 - YAML, when it is needed

        out, problems = [], []
        for text in texts:
            key, equals, value = text.partition("=")
            if not equals or not key.strip():
                remedy = f"For example {option} {example}."
                problems.append(Problem(option, f"is written {syntax}", repr(text), remedy))
                continue
            try:
                out.append((key.strip(), read_value(value, f"{option} {key}")))
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(problems, COMMAND_LINE)
        return out

    return read


def assigned(option: str, example: str) -> Callable[[Sequence[str]], dict[str, Any]]:
    """What reads ``KEY.PATH=VALUE`` texts of an option as a mapping, as `pairs` does."""
    return lambda texts: dict(pairs(option, example, "KEY.PATH=VALUE")(texts))


assignments = assigned("--set", "world_size=512")
ScenarioName = Annotated[
    Any,
    Argument(
        "SCENARIO",
        "A scenario file, or a name below scenarios/.",
        complete=scenario_names,
        python="Scenario | str | Path",
    ),
]
ScenarioNames = Annotated[
    Any,
    Argument(
        "SCENARIO",
        "Scenario files, or names below scenarios/.",
        many=True,
        complete=scenario_names,
        python="Scenario | str | Path | Sequence[Scenario | str | Path]",
    ),
]
SET = Option(
    "KEY.PATH=VALUE", "Set a value of the scenario.", flag="--set", read=assignments, many=True
)
Set = Annotated[Mapping[str, Any], SET]


def _axes(texts: Sequence[str]) -> dict[str, list[Any]]:
    from simshuffle.spec.overrides import read_axis  # noqa: PLC0415 - YAML

    return dict(map(read_axis, texts))


Over = Annotated[
    Mapping[str, Sequence[Any]],
    Option(
        "KEY=V1,V2,...",
        "Values of a key; of several keys, every value with every one.",
        read=_axes,
        many=True,
    ),
]


def _ranges(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    return dict(map(_range, texts))


def _range(text: str) -> tuple[str, tuple[float, float]]:
    """Key, lowest and highest value (SI units) of KEY=LOW..HIGH."""
    from simshuffle.spec.units import Dimension, UnitError, parse_quantity  # noqa: PLC0415 - as above

    key, _, value = text.partition("=")
    low, _, high = value.partition("..")
    for dimension in (Dimension.BANDWIDTH, Dimension.FREQUENCY, Dimension.SECONDS):
        try:
            return key.strip(), (parse_quantity(low, dimension), parse_quantity(high, dimension))
        except UnitError:
            continue
    remedy = "For example cluster.ssd.latency=50 us..120 us."
    refuse("--range", "is written KEY=LOW..HIGH, with units", repr(text), remedy, COMMAND_LINE)


INTERVAL = Option("", "Add 90 % intervals, what they hang on, and how sure the order of runs is.")
RANGES = Option(
    "KEY=LOW..HIGH",
    "With --interval: between which values a key lies in 9 of 10 cases. Default: by its source.",
    flag="--range",
    read=_ranges,
    many=True,
)
Interval = Annotated[bool, INTERVAL]
Ranges = Annotated[Mapping[str, tuple[float, float]], RANGES]


def scenario_of(given: Scenario | str | Path, values: Mapping[str, Any]) -> Scenario:
    """The scenario of a name or a file, or the one that is given, with these values. Raises an
    InputError if there is none, it is not valid, or it has jobs."""
    from simshuffle.job.scenario.scenario import (  # noqa: PLC0415 - when asked
        Scenario,
        load_scenario,
        refuse_jobs,
    )

    if isinstance(given, Scenario):
        found = given.with_values(values) if values else given
    else:
        found = load_scenario(str(given), values)
    refuse_jobs(found)
    return found


def scenarios_of(
    given: Scenario | str | Path | Sequence[Scenario | str | Path], values: Mapping[str, Any]
) -> list[Scenario]:
    """All scenarios of names and files, or those that are given, with these values. Raises an
    InputError with every problem of every file."""
    from simshuffle.job.scenario.scenario import Scenario, load_scenarios  # noqa: PLC0415 - when asked

    each = given if isinstance(given, list | tuple) else [given]
    found: list[Scenario] = []
    failures: list[InputError] = []
    for one in each:
        try:
            if isinstance(one, Scenario):
                loaded = [one.with_values(values) if values else one]
            else:
                loaded = load_scenarios(str(one), values)
            for single in loaded:
                single.runs()
            found += loaded
        except InputError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise _Several(failures)
    return found


def kinds_of(union: Any) -> dict[str, Any]:
    """The class of each kind of an annotated union, or of a single record."""
    return {
        kind: record
        for record in (get_args(get_args(union)[0]) if get_args(union) else (union,))
        for kind in get_args(record.model_fields["kind"].annotation)
    }


def record_of(
    option: str, text: str, known: Mapping[str, type[RecordT]], more: Mapping[str, Any] = {}
) -> RecordT:
    """The record that an option names by its kind, with values as in 'webdataset:buffer_size=100',
    and ``more`` where these leave something out.

    Raises:
        InputError: there is no such kind, or a value is not valid.
    """
    from simshuffle.spec.library import parse_kind, suggest_nearest  # noqa: PLC0415 - when asked
    from simshuffle.spec.validation import validate_record  # noqa: PLC0415

    try:
        values = parse_kind(text)
    except InputError as error:
        raise InputError([each.below(option) for each in error.problems], COMMAND_LINE) from None
    kind = values["kind"]
    if kind not in known:
        refuse(option, "no such kind", repr(kind), suggest_nearest(kind, [*known]), COMMAND_LINE)
    if "kind" not in known[kind].model_fields:
        del values["kind"]
    record, problems = validate_record({**more, **values}, known[kind])
    if record is None or problems:
        place = f"{option} {kind}:"
        raise InputError([replace(of, path=f"{place}{of.path}") for of in problems], COMMAND_LINE)
    return record


def counts_of(option: str, example: str) -> Callable[[Sequence[str]], list[int]]:
    """What reads whole numbers from 1 on that are separated by commas, each once and in order; an
    InputError names the option if one is none, and gives the example."""

    def read(texts: Sequence[str]) -> list[int]:
        pieces = between_commas(texts)
        wrong = [piece for piece in pieces if not (piece.isdecimal() and int(piece) > 0)]
        if wrong or not pieces:
            rule = "must be whole numbers from 1 on, separated by commas"
            given = repr(", ".join(wrong or texts))
            refuse(option, rule, given, f"For example {example}.", COMMAND_LINE)
        return sorted({int(piece) for piece in pieces})

    return read


def nbytes_of(option: str, text: str) -> float:
    """The bytes of an option such as '64 MB', at most `MOST_NBYTES`.

    Raises:
        InputError: they are no quantity, or more.
    """
    from simshuffle.spec.units import Dimension, UnitError, parse_quantity  # noqa: PLC0415

    remedy = f"For example {option} '16 GiB'."
    try:
        nbytes = parse_quantity(text, Dimension.NBYTES)
    except UnitError as error:
        raise InputError(Problem(option, str(error), repr(text), remedy), COMMAND_LINE) from None
    if nbytes > MOST_NBYTES:
        refuse(option, "must be at most 9 PB", repr(text), remedy, COMMAND_LINE)
    return nbytes


class _Several(InputError):
    """The errors of several files, below one another."""

    def __init__(self, errors: list[InputError]) -> None:
        self.errors = errors
        super().__init__([problem for error in errors for problem in error.problems])

    def _text(self) -> str:
        return "\n".join(str(error) for error in self.errors)
