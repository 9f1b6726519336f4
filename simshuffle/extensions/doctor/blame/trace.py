"""Tables of the operations that a training job measured: read and checked."""

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
"""Columns of a trace, and the names they go by: whole numbers, a word, and two times in s."""
MOST = 1e12
"""Above all numbers of a trace; times in ns since 1970 are above it, in s below."""
NO_WORD = ("", "nan", "none")
"""What a kind reads as where it is missing."""


@dataclass(frozen=True)
class JobTrace:
    """Operations of a job; every rank of a stage does the same ones in every step."""

    operations: list[tuple[int, str, int]]  # stage, kind, and which of its kind in the step
    starts: Floats  # (operation, step, pipeline) s, from the start of the step
    durations: Floats  # the same, s
    ranks: list[list[int]]  # by stage, the rank of each pipeline
    stages: list[int]  # numbers of the stages
    roles: Mapping[str, Role]  # of each kind
    notes: tuple[str, ...] = ()  # what was read as something else, or left out


def read_trace(path: Path) -> JobTrace:
    """The trace of a CSV or Parquet file. Raises an InputError if it is none."""
    try:
        table = pq.read_table(path).to_pandas() if path.suffix == ".parquet" else read_csv(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        remedy = "Name a CSV or Parquet file of operations."
        refuse("TRACE", f"must be a table: {why}", repr(str(path)), remedy, str(path))
    found = {
        column: next((name for name in names if name in table), None)
        for column, names in COLUMNS.items()
    }
    missing = [" or ".join(COLUMNS[column]) for column, name in found.items() if name is None]
    if missing or not len(table):
        rule = f"must have rows and the columns {', '.join(COLUMNS)}"
        value = f"no {', no '.join(missing) or 'rows'}"
        refuse("", rule, value, "Add them; times are in seconds.", str(path))
    columns = {column: table[name].to_numpy() for column, name in found.items()}
    return trace_of(columns, str(path))


def trace_of(columns: Mapping[str, Any], source: str) -> JobTrace:
    """The trace of arrays by the names of `COLUMNS`; ``source`` is named where they are wrong.

    Raises an InputError if a value is no number, an operation ends before it starts, or ranks of a
    stage differ in what they do."""
    numbers = {name: _numbers(columns[name], name, source) for name in COLUMNS if name != "kind"}
    words = [str(word).strip() for word in columns["kind"]]
    stages, stage = np.unique(numbers["stage"], return_inverse=True)
    steps, step = np.unique(numbers["step"], return_inverse=True)
    if nameless := [row for row, word in enumerate(words) if word.lower() in NO_WORD]:
        rule, remedy = "must be the kind of the operation", "Name it."
        refuse(f"row {nameless[0] + 1}: kind", rule, "nothing", remedy, source)
    classes = classify_all(sorted(set(words)), source)
    kinds, kind = np.unique([classes[word][0] for word in words], return_inverse=True)
    ranks, pipeline = _pipelines(numbers["rank"], stage, len(stages), source)
    began = np.full(len(steps), np.inf)
    np.minimum.at(began, step, numbers["start"])
    start = numbers["start"] - began[step]
    order = np.lexsort((start, pipeline, step, kind, stage))
    cells = len(steps) * len(ranks[0])
    operations, starts, durations = [], [], []
    for of in range(len(stages)):
        here = order[stage[order] == of]
        _check_steps(
            np.bincount(step[here] * len(ranks[0]) + pipeline[here], minlength=cells),
            "an operation",
            steps,
            ranks[of],
            source,
            some=True,
        )
        for name in np.unique(kind[here]):
            rows = here[kind[here] == name]
            counts = np.bincount(step[rows] * len(ranks[0]) + pipeline[rows], minlength=cells)
            _check_steps(counts, str(kinds[name]), steps, ranks[of], source)
            shape = (len(steps), len(ranks[0]), int(counts[0]))
            operations += [(of, str(kinds[name]), number) for number in range(counts[0])]
            starts.append(np.moveaxis(start[rows].reshape(shape), -1, 0))
            durations.append(np.moveaxis(numbers["duration"][rows].reshape(shape), -1, 0))
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
    """Return the sentence on kinds that are called otherwise here; none where none is."""
    pairs = [
        f"{name} as {kind}"
        for name, (kind, _) in classes.items()
        if kind != name.lower().replace("_", "-")
    ]
    return (f"Read {', '.join(pairs)}.",) if pairs else ()


def _numbers(values: Any, name: str, source: str) -> Floats:
    """A column as numbers, those of ranks, stages and steps whole, a duration not negative."""
    whole = name not in ("start", "duration")
    # dates are not read as the ns that they are kept in
    plain = pd.Series(values, dtype=object if np.asarray(values).dtype.kind in "mM" else None)
    numbers = pd.to_numeric(plain, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    wrong = ~(np.abs(numbers) < MOST) | (whole & (numbers != np.rint(numbers)))
    rule = "must be a whole number" if whole else "must be a number of seconds"
    if not wrong.any() and name == "duration":
        wrong, rule = numbers < 0, "must not be negative: an operation cannot end before it starts"
    if wrong.any():
        row = int(wrong.argmax())
        given = str(np.asarray(values)[row])[:60]
        refuse(f"row {row + 1}: {name}", rule, given, f"Correct the {name}.", source)
    return numbers


def _pipelines(
    rank: Floats, stage: np.ndarray[Any, Any], stages: int, source: str
) -> tuple[list[list[int]], np.ndarray[Any, Any]]:
    """The ranks of every stage by their pipeline, and the pipeline of each row: the i-th ranks of
    all stages pass samples to one another."""
    ranks = [np.unique(rank[stage == of]) for of in range(stages)]
    every, often = np.unique(np.concatenate(ranks), return_counts=True)
    if often.max() > 1:
        rule, remedy = "must be of one stage", "Give each rank the stage that it holds."
        refuse("rank", rule, f"rank {every[often.argmax()]:.0f} of several", remedy, source)
    if len({len(of) for of in ranks}) > 1:
        rule, remedy = "every stage must have as many ranks", "Record all ranks, or none of a pipe."
        refuse("rank", rule, ", ".join(str(len(of)) for of in ranks), remedy, source)
    pipeline = np.zeros(len(rank), dtype=np.int64)
    for of, known in enumerate(ranks):
        rows = stage == of
        pipeline[rows] = np.searchsorted(known, rank[rows])
    return [[int(number) for number in of] for of in ranks], pipeline


def _check_steps(
    counts: np.ndarray[Any, Any],
    kind: str,
    steps: Floats,
    ranks: Sequence[int],
    source: str,
    *,
    some: bool = False,
) -> None:
    """See that every rank of a stage has as many of a kind in every step, or ``some``."""
    wrong = counts == 0 if some else counts != np.bincount(counts).argmax()
    if wrong.any():
        step, of = divmod(int(wrong.argmax()), len(ranks))
        rule = f"every rank must have {kind} in every step, as often as the others of its stage"
        value = f"{counts[wrong.argmax()]} of rank {ranks[of]} in step {steps[step]:.0f}"
        refuse("rank", rule, value, "Leave out that step, or record it whole.", source)
