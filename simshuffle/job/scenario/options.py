"""Fields that the options of several studies share: scenarios, values that are set, and
what completes them on the command line.
"""

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
"""Most bytes of an option, 9 PB: a float has all whole numbers up to it."""
RecordT = TypeVar("RecordT", bound="BaseModel")


def shipped_names(folder: str) -> Completion:
    """Return what completes the names of shipped files in ``folder``, such as
    'scenarios'.
    """

    def names(incomplete: str) -> list[str]:
        """List the names that begin with ``incomplete``."""
        from simshuffle.spec.library import shipped_names as found  # noqa: PLC0415 - when asked

        return [name for name in found(folder) if name.startswith(incomplete)]

    return names


ROUTINGS = words(place="simshuffle.fabric.routing:Routing")
scenario_names = shipped_names("scenarios")
study_names = shipped_names("studies")
machine_names = shipped_names("topologies")


def any_of(*complete: Completion) -> Completion:
    """Return what completes one of several things: all words that each of ``complete``
    finds.
    """
    return lambda incomplete: [
        word for completion in complete for word in completion(incomplete)
    ]


def result_folders(incomplete: str) -> list[str]:
    """List the result folders (with a meta.json) whose path begins so; where it names
    no folder, those in the working directory and in results/.
    """
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
    """Return a reader of texts of an option, written as ``syntax``: keys and values,
    which are read as YAML; a key may be there several times. It raises an InputError
    with all texts that are not written so.
    """

    def read(texts: Sequence[str]) -> list[tuple[str, Any]]:
        """List key and value of each text, in order."""
        from simshuffle.spec.library import read_value  # noqa: PLC0415 - YAML, when it is needed

        out = []
        problems = []
        for text in texts:
            key, equals, value = text.partition("=")
            if not equals or not key.strip():
                remedy = f"For example {option} {example}."
                problems.append(
                    Problem(option, f"is written {syntax}", repr(text), remedy)
                )
                continue
            try:
                out.append((key.strip(), read_value(value, f"{option} {key}")))
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(problems, COMMAND_LINE)
        return out

    return read


def read_assignments(
    option: str, example: str
) -> Callable[[Sequence[str]], dict[str, Any]]:
    """Return a reader of ``KEY.PATH=VALUE`` texts of an option as a mapping, as `pairs`
    does; of several values of a key the last one counts.
    """
    return lambda texts: dict(pairs(option, example, "KEY.PATH=VALUE")(texts))


assignments = read_assignments("--set", "world_size=512")
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
    "KEY.PATH=VALUE",
    "Set a value of the scenario.",
    flag="--set",
    read=assignments,
    many=True,
)
Set = Annotated[Mapping[str, Any], SET]


def _axes(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values by key of KEY=V1,V2,...; of several texts of a key the last."""
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
    """Return lowest and highest value by key; of several texts of a key the last."""
    return dict(map(_range, texts))


def _range(text: str) -> tuple[str, tuple[float, float]]:
    """Key, lowest and highest value (SI units) of KEY=LOW..HIGH. Raises an InputError
    if these are not both bandwidths, frequencies or times.
    """
    from simshuffle.spec.units import Dimension, UnitError, parse_quantity  # noqa: PLC0415 - as above

    key, _, value = text.partition("=")
    low, _, high = value.partition("..")
    for dimension in (Dimension.BANDWIDTH, Dimension.FREQUENCY, Dimension.SECONDS):
        try:
            return key.strip(), (
                parse_quantity(low, dimension),
                parse_quantity(high, dimension),
            )
        except UnitError:
            continue
    remedy = "For example cluster.ssd.latency=50 us..120 us."
    refuse(
        "--range",
        "is written KEY=LOW..HIGH, with units",
        repr(text),
        remedy,
        COMMAND_LINE,
    )


INTERVAL = Option(
    "", "Add 90 % intervals, what they hang on, and how sure the order of runs is."
)
RANGES = Option(
    "KEY=LOW..HIGH",
    "With --interval: between which values a key lies in 9 of 10 cases. Default: by its source.",
    flag="--range",
    read=_ranges,
    many=True,
)
MEASURED = Option(
    "FILE",
    "CSV of runs that you measured (world_size, strategy, epoch_s, ...), a folder of doctor, or"
    " an epoch log. They narrow the intervals. Default: the scenario's own.",
)
Measured = Annotated[Path | None, MEASURED]
Interval = Annotated[bool, INTERVAL]
Ranges = Annotated[Mapping[str, tuple[float, float]], RANGES]


def scenario_of(
    reference: Scenario | str | Path, values: Mapping[str, Any]
) -> Scenario:
    """Return the scenario ``reference``, or that of its name or file, with these
    values. Raises an InputError if there is none, it is not valid, or it has jobs.
    """
    from simshuffle.job.scenario.scenario import (  # noqa: PLC0415 - when asked
        Scenario,
        load_scenario,
        refuse_jobs,
    )

    if isinstance(reference, Scenario):
        scenario = reference.with_values(values) if values else reference
    else:
        scenario = load_scenario(str(reference), values)
    refuse_jobs(scenario)
    return scenario


def scenarios_of(
    references: Scenario | str | Path | Sequence[Scenario | str | Path],
    values: Mapping[str, Any],
) -> list[Scenario]:
    """Return the scenarios ``references``, or all of their names and files, with these
    values, their sweeps not expanded. Raises an InputError with every problem of every
    file, and of every run of a sweep.
    """
    from simshuffle.job.scenario.scenario import Scenario, load_scenarios  # noqa: PLC0415 - when asked

    listed = references if isinstance(references, list | tuple) else [references]
    scenarios: list[Scenario] = []
    failures: list[InputError] = []
    for reference in listed:
        try:
            if isinstance(reference, Scenario):
                loaded = [reference.with_values(values) if values else reference]
            else:
                loaded = load_scenarios(str(reference), values)
            for single in loaded:
                single.runs()
            scenarios += loaded
        except InputError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise _Several(failures)
    return scenarios


def with_measured(scenarios: Sequence[Scenario], path: Path | None) -> list[Scenario]:
    """Return scenarios with the measured runs of a file in place of their own; as
    they are if ``path`` is None. Raises an InputError if the file is not valid.
    """
    if path is None:
        return [*scenarios]
    from simshuffle.job.scenario.measured import read_measured  # noqa: PLC0415 - when asked

    rows = read_measured(path)
    return [scenario.with_values({"measured": rows}) for scenario in scenarios]


def kinds_of(union: Any) -> dict[str, Any]:
    """The class of each kind of an annotated union, or of a single record."""
    return {
        kind: record
        for record in (get_args(get_args(union)[0]) if get_args(union) else (union,))
        for kind in get_args(record.model_fields["kind"].annotation)
    }


def record_of(
    option: str,
    text: str,
    record_of_kind: Mapping[str, type[RecordT]],
    defaults: Mapping[str, Any] = {},
) -> RecordT:
    """Return the record that an option names by its kind, with values as in
    'webdataset:buffer_size=100', and ``defaults`` where these leave something out.
    ``record_of_kind`` has the class of each kind.

    Raises:
        InputError: there is no such kind, or a value is not valid.
    """
    from simshuffle.spec.library import parse_kind, suggest_nearest  # noqa: PLC0415 - when asked
    from simshuffle.spec.validation import validate_record  # noqa: PLC0415

    try:
        values = parse_kind(text)
    except InputError as error:
        raise InputError(
            [problem.below(option) for problem in error.problems], COMMAND_LINE
        ) from None
    kind = values["kind"]
    if kind not in record_of_kind:
        refuse(
            option,
            "no such kind",
            repr(kind),
            suggest_nearest(kind, [*record_of_kind]),
            COMMAND_LINE,
        )
    if "kind" not in record_of_kind[kind].model_fields:
        del values["kind"]
    record, problems = validate_record({**defaults, **values}, record_of_kind[kind])
    if record is None or problems:
        place = f"{option} {kind}:"
        raise InputError(
            [replace(problem, path=f"{place}{problem.path}") for problem in problems],
            COMMAND_LINE,
        )
    return record


def counts_of(option: str, example: str) -> Callable[[Sequence[str]], list[int]]:
    """Return a reader of whole numbers from 1 on that are separated by commas, each
    once and ascending. Its InputError names the option if one is no such number, or
    there is none, and gives the example.
    """

    def read(texts: Sequence[str]) -> list[int]:
        """List the numbers of all texts."""
        pieces = between_commas(texts)
        wrong = [
            piece for piece in pieces if not (piece.isdecimal() and int(piece) > 0)
        ]
        if wrong or not pieces:
            rule = "must be whole numbers from 1 on, separated by commas"
            value = repr(", ".join(wrong or texts))
            refuse(option, rule, value, f"For example {example}.", COMMAND_LINE)
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
        raise InputError(
            Problem(option, str(error), repr(text), remedy), COMMAND_LINE
        ) from None
    if nbytes > MOST_NBYTES:
        refuse(option, "must be at most 9 PB", repr(text), remedy, COMMAND_LINE)
    return nbytes


class _Several(InputError):
    """The errors of several files, below one another."""

    def __init__(self, errors: list[InputError]) -> None:
        self.errors = errors
        super().__init__([problem for error in errors for problem in error.problems])

    def _text(self) -> str:
        """Return the text of each error, one below the other."""
        return "\n".join(str(error) for error in self.errors)
