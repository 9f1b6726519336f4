"""Measured runs of a training: rows of a scenario or of a file, and the scenario that predicts
each of them.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from pydantic import Field

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.spec.library import suggest_nearest
from simshuffle.spec.record import Count, Positive, Spec
from simshuffle.study.registry import merge_extensions

if TYPE_CHECKING:
    from simshuffle.job.scenario.scenario import Scenario

MAX_ROWS = 64
"""Rows of measured runs, each of which is predicted first."""
MAX_REPEAT_FACTOR = 2.0
"""Factor between two measurements of one run from which on they contradict each other
(the same jobs on ABCI took up to 1.47 times as long at another time).
"""
MAX_COUNT_ERROR = 0.2
"""Share by which two quantities of a row may disagree on the samples or iterations of an
epoch.
"""
QUANTITIES = ("epoch_s", "iteration_s", "samples_per_s")
PARTS = {
    "io_s": "I/O",
    "fw_bw_s": "FW+BW",
    "ge_wu_s": "GE+WU",
    "exchange_s": "EXCHANGE",
}
"""Label of a part of an epoch, waiting for it included, by its column."""
_COUNTS = ("world_size", "hosts", "iterations")
_NUMBERS = (*_COUNTS, *QUANTITIES, *PARTS)
_YES = {
    "yes": True,
    "true": True,
    "1": True,
    "no": False,
    "false": False,
    "0": False,
    "": False,
}
EXAMPLE = (
    "For example the columns world_size,strategy,epoch_s and the row 64,local,12.3."
)


class MeasuredEpoch(Spec):
    """A measured run of the training, of a steady epoch after the first one.

    Attributes:
        world_size: ranks that it had.
        strategy: its label without the ranks, such as 'partial-0.1', or the kind of its
            exchange; '' if the scenario has only one.
        hosts: hosts that the ranks filled; None if not known.
        iterations: iterations that ``epoch_s`` and ``parts`` are of; None for an epoch.
        epoch_s: seconds of an epoch.
        iteration_s: seconds of an iteration, in the mean over an epoch.
        samples_per_s: samples a second of all ranks together.
        parts: seconds of an epoch by label of the breakdown, such as 'I/O'.
        values: what else differed from the scenario, by dotted key.
        fitted: whether a value of the scenario was fitted to this run. It then says where
            predictions lie, but not how large their errors are.
        source: where it stands, for messages.
    """

    world_size: Count
    strategy: str = ""
    hosts: Count | None = None
    iterations: Count | None = None
    epoch_s: Positive | None = None
    iteration_s: Positive | None = None
    samples_per_s: Positive | None = None
    parts: dict[str, Positive] = Field(default_factory=dict)
    values: dict[str, Any] = Field(default_factory=dict)
    fitted: bool = False
    source: str = ""


@dataclass(frozen=True)
class MeasuredScenario:
    """A measured run, and the scenario that predicts it."""

    row: MeasuredEpoch
    name: str  # of the run, such as 'local @64'
    scenario: Scenario

    def epoch_seconds(self) -> float:
        """Return the measured epoch (s), from the first quantity of `QUANTITIES` given."""
        row = self.row
        if row.epoch_s is not None:
            return row.epoch_s
        ranks = self.scenario.world_size
        if row.iteration_s is not None:
            return row.iteration_s * self.scenario.workload.iterations(ranks)
        return self.scenario.workload.dataset.num_samples / float(
            row.samples_per_s or 1
        )


def read_measured(path: Path) -> list[dict[str, Any]]:
    """Read measured runs as plain values of `MeasuredEpoch`, from a CSV file or from a recorded
    training that an extension reads.

    Raises:
        InputError: with every problem of the file.
    """
    columns: list[str] = []
    failure = ""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file, strict=True, skipinitialspace=True)
            columns = [name.strip() for name in table.fieldnames or []]
            table.fieldnames = columns
            records = [(table.line_num, record) for record in table]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        failure = str(error)[:80]
    if not {"world_size", "record"} & {*columns} and (training := _read_training(path)):
        return training
    if failure:
        kinds = " or ".join(["a readable CSV file", *merge_extensions().measured])
        refuse("--measured", f"must be {kinds}", failure, EXAMPLE, str(path))
    problems = _column_problems(columns)
    if not problems and not 1 <= len(records) <= MAX_ROWS:
        rule = f"must have 1 to {MAX_ROWS} rows"
        problems.append(Problem("", rule, str(len(records)), EXAMPLE))
    rows = []
    for line, record in [] if problems else records:
        try:
            row = {**_read_record(record, line), "source": f"{path.name}:{line}"}
            rows += _fill_from_record(row, path.parent) if "record" in row else [row]
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems, str(path))
    return rows


def _read_training(path: Path) -> list[dict[str, Any]] | None:
    """Return the rows of a recorded training, from the first extension that reads its
    format; None if none does.
    """
    readers = merge_extensions().measured.values() if os.access(path, os.R_OK) else ()
    for place in readers:
        rows: list[dict[str, Any]] | None = resolve_name(place)(path)
        if rows is not None:
            return [{**row, "source": path.name} for row in rows]
    return None


def _fill_from_record(row: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the recorded training that a row of a CSV file names in its column
    ``record``, with the cells of the row in place of what was recorded.

    Raises:
        InputError: no extension reads the path, which begins from ``folder``.
    """
    name = row.pop("record")
    recorded = _read_training(folder / name)
    if recorded is None:
        kinds = (
            " or ".join(merge_extensions().measured) or "left out without extensions"
        )
        refuse(f"{row['source']} record", f"must be {kinds}", repr(name), EXAMPLE, "")
    return [
        single
        | row
        | {key: single.get(key, {}) | row[key] for key in ("parts", "values")}
        for single in recorded
    ]


def _column_problems(columns: Sequence[str]) -> list[Problem]:
    """Return what is wrong with the header of a CSV file."""
    known = ["record", "strategy", "fitted", *_NUMBERS]
    problems = [
        Problem(
            name or "(no name)",
            "is no column of measured runs",
            "",
            suggest_nearest(name, known) + " Or a dotted key of the scenario.",
        )
        for name in columns
        if name not in known and "." not in name
    ]
    is_complete = "world_size" in columns and set(QUANTITIES) & {*columns}
    if not is_complete and "record" not in columns:
        rule = f"must have a column world_size, and one of {', '.join(QUANTITIES)}"
        problems.append(
            Problem("", rule, ", ".join(columns)[:80] or "nothing", EXAMPLE)
        )
    return problems


def _read_record(record: Mapping[Any, Any], line: int) -> dict[str, Any]:
    """Return the plain values of a row that stands at ``line``.

    Raises:
        InputError: a cell is no number, or there are more or fewer cells than columns.
    """
    from simshuffle.spec.library import read_value  # noqa: PLC0415 - YAML, when it is needed

    if None in record or None in record.values():
        rule = "must have as many cells as the header"
        remedy = "Put texts with commas in quotes."
        refuse(f"line {line}", rule, "more or fewer", remedy, "")
    row: dict[str, Any] = {"parts": {}, "values": {}}
    problems = []
    for name, cell in record.items():
        text = cell.strip()
        place = f"line {line} {name}"
        if name == "fitted":
            if text.lower() not in _YES:
                problems.append(
                    Problem(place, "must be yes or no", repr(text), "Write one.")
                )
            row[name] = _YES.get(text.lower(), False)
        elif not text:
            continue
        elif name in ("record", "strategy"):
            row[name] = text
        elif name in _NUMBERS:
            number = _positive(text)
            if number is None or (name in _COUNTS and number % 1):
                unit = {
                    **dict.fromkeys(_COUNTS, "a whole number"),
                    "samples_per_s": "a number a second",
                }
                rule = f"must be {unit.get(name, 'a number of seconds')} above 0, without a unit"
                problems.append(Problem(place, rule, repr(text), "Write it as 12.5."))
            elif name in PARTS:
                row["parts"][PARTS[name]] = number
            else:
                row[name] = int(number) if name in _COUNTS else number
        else:
            row["values"][name] = read_value(text, place)
    if not {"world_size", "record"} & {*row} and not problems:
        problems.append(Problem(f"line {line} world_size", "is required", "", EXAMPLE))
    if problems:
        raise InputError(problems)
    return row


def _positive(text: str) -> float | None:
    """Return the finite number above 0 in a text; None if it holds none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


# ---------------------------------------------------------- the scenario that predicts a row


def match_measured(
    rows: Sequence[MeasuredEpoch], runs: Mapping[str, Scenario]
) -> list[MeasuredScenario]:
    """Return the scenario that predicts each measured run: the run of its strategy, on as
    many ranks and with the values of the row.

    Args:
        rows: what was measured.
        runs: the runs to predict, by name.

    Raises:
        InputError: with every row of which no run or several have the strategy, whose
            ranks do not fit on the machine, whose quantities are of another data set or
            disagree, or which contradicts another row.
    """
    problems: list[Problem] = []
    matched = []
    for number, row in enumerate(rows, 1):
        place = f"measured[{number}]" + f" ({row.source})" * bool(row.source)
        try:
            single = _match_row(row, runs)
            problems += [problem.below(place) for problem in _count_problems(single)]
            matched.append(single)
        except InputError as error:
            problems += [
                replace(problem, path=f"{place} {problem.path}".rstrip())
                for problem in error.problems
            ]
    if not problems:
        problems = _contradictions(matched)
    if problems:
        raise InputError(problems, "measured runs")
    return matched


def _match_row(row: MeasuredEpoch, runs: Mapping[str, Scenario]) -> MeasuredScenario:
    """Return the scenario that predicts a row, see `match_measured`."""
    if all(getattr(row, name) is None for name in QUANTITIES):
        rule = f"needs one of {', '.join(QUANTITIES)}"
        refuse("", rule, "none", "Write how long an epoch took, in seconds.", "")
    if unknown := {*row.parts} - {*PARTS.values()}:
        name = min(unknown)
        remedy = suggest_nearest(name, [*PARTS.values()])
        refuse("parts", "is no label", repr(name), remedy, "")
    strategy = row.strategy.split(" @")[0]
    series_of_run = {name: name_without_ranks(name, run) for name, run in runs.items()}
    names = [
        name
        for name, run in runs.items()
        if not strategy or strategy in (series_of_run[name], *_names_of_strategy(run))
    ]
    if not names:
        known = [*dict.fromkeys(series_of_run.values())]
        remedy = suggest_nearest(strategy, known)
        refuse("strategy", "is none of the runs", repr(row.strategy), remedy, "")
    by_document: dict[str, MeasuredScenario] = {}
    for name in names:
        base = runs[name].model_copy(update={"measured": [], "sweep": {}})
        values = {**row.values, "world_size": row.world_size}
        scenario = base.with_values(values)
        series = series_of_run[name]
        single = MeasuredScenario(
            _scale_to_epoch(row, scenario), f"{series} @{row.world_size}", scenario
        )
        by_document.setdefault(scenario.to_yaml(), single)
    if len(by_document) > 1:
        texts = ", ".join(
            dict.fromkeys(map(repr, (single.name for single in by_document.values())))
        )
        remedy = (
            "Name the strategy by its label, and add a column for each key that is swept. A CSV"
            " file with the columns record,strategy does so for a recorded training."
        )
        refuse("strategy", "fits several runs", texts[:80], remedy, "")
    return next(iter(by_document.values()))


def _scale_to_epoch(row: MeasuredEpoch, scenario: Scenario) -> MeasuredEpoch:
    """Return a row with ``epoch_s`` and ``parts`` of an epoch of the scenario."""
    if row.iterations is None:
        return row
    factor = scenario.workload.iterations(row.world_size) / row.iterations
    epoch_s = None if row.epoch_s is None else row.epoch_s * factor
    parts = {label: seconds * factor for label, seconds in row.parts.items()}
    return row.model_copy(
        update={"epoch_s": epoch_s, "parts": parts, "iterations": None}
    )


def name_without_ranks(name: str, run: Scenario) -> str:
    """Return the name of a run without its number of ranks."""
    return " ".join(word for word in name.split(" ") if word != f"@{run.world_size}")


def _names_of_strategy(run: Scenario) -> tuple[str, ...]:
    """Return other names of a run's strategy: its label, that without the schedule, the
    short name and the kind of its exchange.
    """
    label = run.label().split(" @")[0]
    exchange = run.workload.exchange
    return label, label.split(" ")[0], exchange.short_name, exchange.kind


def _count_problems(single: MeasuredScenario) -> list[Problem]:
    """Return a problem if a row has other hosts than the scenario, or if two of its quantities
    say that an epoch has other samples or iterations, as a row of another data set would.
    """
    row = single.row
    workload = single.scenario.workload
    counts = []
    if row.hosts is not None:
        counts.append(("hosts", float(row.hosts), float(single.scenario.hosts)))
    if row.epoch_s is not None and row.samples_per_s is not None:
        samples = row.epoch_s * row.samples_per_s
        counts.append(("samples", samples, float(workload.dataset.num_samples)))
    if row.epoch_s is not None and row.iteration_s is not None:
        iterations = row.epoch_s / row.iteration_s
        counts.append(
            ("iterations", iterations, float(workload.iterations(row.world_size)))
        )
    remedy = (
        "Correct the unit, add what differed as a column (workload.dataset.num_samples), or"
        " leave the row out."
    )
    return [
        Problem(
            "",
            f"its quantities must be of an epoch of {expected:,.0f} {what}, as the scenario has",
            f"{count:,.0f}",
            remedy,
        )
        for what, count, expected in counts
        if abs(count / expected - 1) > MAX_COUNT_ERROR
    ]


def _contradictions(matched: Sequence[MeasuredScenario]) -> list[Problem]:
    """Return a problem for each run that was measured twice, `MAX_REPEAT_FACTOR` apart."""
    seconds_of_run: dict[str, list[float]] = {}
    for single in matched:
        key = f"{single.name} {sorted(single.row.values.items())}"
        seconds_of_run.setdefault(key, []).append(single.epoch_seconds())
    return [
        Problem(
            key.split(" [")[0],
            f"two measurements of one run must not be more than {MAX_REPEAT_FACTOR:g} times apart",
            f"{min(seconds):.4g} s and {max(seconds):.4g} s an epoch",
            "Keep the row of the machine as it will be, or add a column for what differed.",
        )
        for key, seconds in seconds_of_run.items()
        if max(seconds) > MAX_REPEAT_FACTOR * min(seconds)
    ]
