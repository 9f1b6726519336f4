"""Read and check tables of the operations that a training job measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.blame.kinds import Role, classify_all
from simshuffle.report.table_io import read_csv
from simshuffle.spec.arrays import Floats

COLUMNS = {
    "rank": ("rank",),
    "stage": ("stage",),
    "step": ("step",),
    "kind": ("kind", "optype"),
    "start": ("start", "start_ts"),
    "duration": ("duration",),
}
"""Columns of a trace, and the names they go by in a file, of which the first that is
there counts. Rank, stage and step are whole numbers, start and duration are in s.
"""
MAX_NUMBER = 1e12
"""Bound of all numbers of a trace; times in ns since 1970 are above it, in s below."""
MISSING_KINDS = ("", "nan", "none")
"""Texts of a kind that is missing."""


@dataclass(frozen=True)
class JobTrace:
    """Operations of a job; all ranks of a stage do equal ones in every step."""

    # index of the stage, kind, and which of its kind in the step, from 0
    operations: list[tuple[int, str, int]]
    # (operation, step, pipeline) s, from the first start of any rank in the step
    starts: Floats
    durations: Floats  # (operation, step, pipeline) s, with waiting
    ranks: list[list[int]]  # by index of the stage, the rank of each pipeline, rising
    stages: list[int]  # by index of the stage, its number in the file
    roles: Mapping[str, Role]  # by kind, maybe of kinds that were left out, too
    notes: tuple[str, ...] = ()  # sentences: what was read as another kind, or left out


def read_trace(path: Path) -> JobTrace:
    """Read the trace of a CSV or Parquet file, Parquet if its name ends with .parquet.

    Columns beside those of `COLUMNS` are ignored.

    Raises:
        InputError: the file cannot be read as a table, has no rows, lacks a column, or
            `trace_of` refuses it.
    """
    try:
        table = (
            pq.read_table(path).to_pandas()
            if path.suffix == ".parquet"
            else read_csv(path)
        )
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        remedy = "Name a CSV or Parquet file of operations."
        refuse(
            "TRACE", f"must be a table: {reason}", repr(str(path)), remedy, str(path)
        )
    names_of_columns = {
        column: next((name for name in names if name in table), None)
        for column, names in COLUMNS.items()
    }
    missing = [
        " or ".join(COLUMNS[column])
        for column, name in names_of_columns.items()
        if name is None
    ]
    if missing or not len(table):
        rule = f"must have rows and the columns {', '.join(COLUMNS)}"
        value = f"no {', no '.join(missing) or 'rows'}"
        refuse("", rule, value, "Add them; times are in seconds.", str(path))
    columns = {
        column: table[name].to_numpy() for column, name in names_of_columns.items()
    }
    return trace_of(columns, str(path))


def _refuse_nameless(kind_names: Sequence[str], source: str) -> None:
    """Raise InputError on the first row whose kind is one of `MISSING_KINDS`."""
    for row, name in enumerate(kind_names, 1):
        if name.lower() in MISSING_KINDS:
            rule = "must be the kind of the operation"
            refuse(f"row {row}: kind", rule, "nothing", "Name it.", source)


def trace_of(columns: Mapping[str, Any], source: str) -> JobTrace:
    """Return the trace of columns, whose rows may be in any order.

    Kinds get the names of `classify_all`, so several names of a file may become one
    kind. Operations of a kind in a step are told apart by the order of their starts.
    The i-th ranks of all stages, in rising order, are pipeline i.

    Args:
        columns: (rows,) arrays by the names of `COLUMNS`.
        source: name of the trace.

    Raises:
        InputError: a value is no number, or is `MAX_NUMBER` or more; a kind is missing
            or not known; a duration is negative; a rank is of several stages; stages
            differ in their number of ranks; or ranks of a stage, or its steps, differ
            in their operations.
    """
    numbers = {
        name: _numbers(columns[name], name, source)
        for name in COLUMNS
        if name != "kind"
    }
    kind_names = [str(name).strip() for name in columns["kind"]]
    stages, stage = np.unique(numbers["stage"], return_inverse=True)
    steps, step = np.unique(numbers["step"], return_inverse=True)
    _refuse_nameless(kind_names, source)
    classes = classify_all(sorted(set(kind_names)), source)
    kinds, kind = np.unique(
        [classes[name][0] for name in kind_names], return_inverse=True
    )
    ranks, pipeline = _pipelines(numbers["rank"], stage, len(stages), source)
    step_start = np.full(len(steps), np.inf)
    np.minimum.at(step_start, step, numbers["start"])
    start = numbers["start"] - step_start[step]
    # rows by stage, kind, step, pipeline and start: a kind's are
    # (steps, pipelines, repetitions)
    order = np.lexsort((start, pipeline, step, kind, stage))
    num_pipelines = len(ranks[0])
    cell = step * num_pipelines + pipeline  # of each row in a (steps, pipelines) table
    num_cells = len(steps) * num_pipelines
    operations: list[tuple[int, str, int]] = []
    starts = []
    durations = []
    for stage_index in range(len(stages)):
        stage_rows = order[stage[order] == stage_index]
        _check_steps(
            np.bincount(cell[stage_rows], minlength=num_cells),
            "an operation",
            steps,
            ranks[stage_index],
            source,
            any_number=True,
        )
        for name in np.unique(kind[stage_rows]):
            rows = stage_rows[kind[stage_rows] == name]
            counts = np.bincount(cell[rows], minlength=num_cells)
            _check_steps(counts, str(kinds[name]), steps, ranks[stage_index], source)
            shape = (len(steps), num_pipelines, int(counts[0]))
            kind_name = str(kinds[name])
            operations += [
                (stage_index, kind_name, index) for index in range(counts[0])
            ]
            starts.append(np.moveaxis(start[rows].reshape(shape), -1, 0))
            durations.append(
                np.moveaxis(numbers["duration"][rows].reshape(shape), -1, 0)
            )
    return JobTrace(
        operations,
        np.concatenate(starts),
        np.concatenate(durations),
        ranks,
        [int(number) for number in stages],
        dict(classes.values()),
        _renamings(classes),
    )


def _renamings(classes: Mapping[str, tuple[str, Role]]) -> tuple[str, ...]:
    """Return one sentence on kinds that are called otherwise here than in the file; ()
    where none is. Case and underscores make no difference.
    """
    pairs = [
        f"{name} as {kind}"
        for name, (kind, _) in classes.items()
        if kind != name.lower().replace("_", "-")
    ]
    return (f"Read {', '.join(pairs)}.",) if pairs else ()


def _numbers(values: Any, name: str, source: str) -> Floats:
    """Return a column as numbers, (rows,); text that is a number is read as one.

    Raises:
        InputError: a value is no number, is missing, is a date, or is `MAX_NUMBER` or
            more; a rank, stage or step is not whole; or a duration is negative.
    """
    is_integer = name not in ("start", "duration")
    # dates are not read as the ns that they are kept in
    series = pd.Series(
        values, dtype=object if np.asarray(values).dtype.kind in "mM" else None
    )
    numbers = pd.to_numeric(series, errors="coerce").to_numpy(
        np.float64, na_value=np.nan
    )
    wrong = ~(np.abs(numbers) < MAX_NUMBER) | (
        is_integer & (numbers != np.rint(numbers))
    )
    rule = "must be a whole number" if is_integer else "must be a number of seconds"
    if not wrong.any() and name == "duration":
        wrong = numbers < 0
        rule = "must not be negative: an operation cannot end before it starts"
    if wrong.any():
        row = int(wrong.argmax())
        value = str(np.asarray(values)[row])[:60]
        refuse(f"row {row + 1}: {name}", rule, value, f"Correct the {name}.", source)
    return numbers


def _pipelines(
    rank: Floats, stage: np.ndarray[Any, Any], stages: int, source: str
) -> tuple[list[list[int]], np.ndarray[Any, Any]]:
    """Return the ranks of every stage by their pipeline, and the index of each row's
    pipeline, (rows,).

    The i-th ranks of all stages, in rising order, pass samples to one another.

    Args:
        rank: (rows,) of each row.
        stage: (rows,) index of its stage.
        stages: number of stages.
        source: name of the trace.

    Raises:
        InputError: a rank is of several stages, or stages differ in their number of
            ranks.
    """
    ranks = [np.unique(rank[stage == index]) for index in range(stages)]
    distinct_ranks, counts = np.unique(np.concatenate(ranks), return_counts=True)
    if counts.max() > 1:
        rule = "must be in one stage"
        remedy = "Give each rank the stage that it holds."
        refuse(
            "rank",
            rule,
            f"rank {distinct_ranks[counts.argmax()]:.0f} is in several",
            remedy,
            source,
        )
    if len({len(stage_ranks) for stage_ranks in ranks}) > 1:
        rule = "all stages must have equally many ranks"
        remedy = "Record all ranks of a pipeline, or none."
        refuse(
            "rank",
            rule,
            ", ".join(str(len(stage_ranks)) for stage_ranks in ranks),
            remedy,
            source,
        )
    pipeline = np.zeros(len(rank), dtype=np.int64)
    for index, stage_ranks in enumerate(ranks):
        rows = stage == index
        pipeline[rows] = np.searchsorted(stage_ranks, rank[rows])
    return [[int(number) for number in stage_ranks] for stage_ranks in ranks], pipeline


def _check_steps(
    counts: np.ndarray[Any, Any],
    kind: str,
    steps: Floats,
    ranks: Sequence[int],
    source: str,
    *,
    any_number: bool = False,
) -> None:
    """Check that every rank of a stage has as many operations of a kind in every step.

    Raises an InputError on the first rank and step that has another number than most.

    Args:
        counts: (steps * ranks,) operations of each step and rank.
        kind: its name.
        steps: (steps,) numbers of the steps.
        ranks: of the stage.
        source: name of the trace.
        any_number: whether it is enough that each has one or more.
    """
    wrong = counts == 0 if any_number else counts != np.bincount(counts).argmax()
    if wrong.any():
        step, rank_index = divmod(int(wrong.argmax()), len(ranks))
        rule = f"every rank must have {kind} in every step, as often as its stage's other ranks"
        value = f"{counts[wrong.argmax()]} of rank {ranks[rank_index]} in step {steps[step]:.0f}"
        refuse("rank", rule, value, "Leave out this step, or record all of it.", source)
