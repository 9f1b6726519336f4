"""The tables of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import TypedDict

from simshuffle.errors import Problem
from simshuffle.results.report import EPOCH_COLUMNS, ITERATION_COLUMNS, LABELS
from simshuffle.results.timeline import LINK_COLUMNS, PHASE_COLUMNS, SOURCE_COLUMNS
from simshuffle.spec.library import nearest
from simshuffle.study.schema import Column, Schema, amount, count, real, text, unit_of

BREAKDOWN_COLUMNS = {
    "run": text("name of the run"),
    "epoch": count("from 1; the first is cold"),
    "label": text(f"one of {', '.join(LABELS)}", *LABELS),
    "cause": text(
        "empty for a rank's own work; of waiting for other ranks, the label of what they did",
        *("", *LABELS),
    ),
    "seconds": amount("s of the epoch, mean over ranks; the rows of an epoch add up to it"),
}
STORED = {
    "timeline": Schema(PHASE_COLUMNS, ".parquet"),
    "iterations": Schema(ITERATION_COLUMNS, ".parquet"),
    "links": Schema(LINK_COLUMNS, ".parquet"),
    "sources": Schema(SOURCE_COLUMNS, key=("run", "epoch")),
    "epochs": Schema(EPOCH_COLUMNS, key=("run", "epoch")),
    "breakdown": Schema(BREAKDOWN_COLUMNS, key=("run", "epoch", "label", "cause")),
}


# ------------------------------------------------------------------------------- seeds and sweeps

_SEED = count("of all that is drawn")


def _seeded(schema: Schema) -> Schema:
    (run, of_run), *others = schema.columns.items()
    key = (run, "seed", *schema.key[1:]) if schema.key else ()
    return replace(schema, columns={run: of_run, "seed": _SEED, **dict(others)}, key=key)


STORED_OVER_SEEDS = {name: _seeded(schema) for name, schema in STORED.items()}


def label_column(label: str, waiting: bool = False) -> str:
    """The column of a label of the breakdown: 'GE+WU' becomes 'ge_wu_s', and waiting for it
    'wait_ge_wu_s'."""
    plain = f"{label.lower().replace('/', '').replace('+', '_')}_s"
    return f"wait_{plain}" if waiting else plain


class Axis(TypedDict):
    """An axis of a sweep: its column, its dotted key, and whether its values are numbers."""

    name: str
    key: str
    numbers: bool


def axis_columns(axes: Sequence[Axis]) -> dict[str, Column]:
    """The columns that stand first in the tables of a sweep: label and axes."""
    about = {
        axis["name"]: (real if axis["numbers"] else text)(f"value of {axis['key']}")
        for axis in axes
    }
    return {"label": text("name of the run, the same for all seeds"), **about}


_MEASURES = {
    **{name: column for name, column in EPOCH_COLUMNS.items() if name != "run"},
    **{
        label_column(of): amount(f"s of a rank's own {of}, mean over ranks; 0 where it has none")
        for of in LABELS
    },
    **{
        label_column(of, waiting=True): amount(f"s of waiting for ranks in {of}, mean over ranks")
        for of in LABELS
    },
}
SWEEP = Schema({"seed": _SEED, **_MEASURES}, ".parquet")
AS_PLANNED = ("world_size", "exchange_fraction", "epoch", "iterations", "iterations_simulated")
NOT_MEASURED = ("seed", "strategy", *AS_PLANNED)
SUMMARY = Schema(
    {
        "epoch": count("from 1; the first is cold", low=1),
        "measure": text("a column of sweep.parquet"),
        "seeds": count("how many there are", low=1),
        "mean": real("over the seeds, in the unit of the measure"),
        "low": real("lower end of the 95 % interval by Student's t; empty of one", empty=True),
        "high": real("upper end of it; empty of one", empty=True),
    }
)
SUMMARY_OVER_SEEDS = Schema(
    {
        "run": text("name of the run"),
        **SUMMARY.columns,
        "measure": text("a column of epochs.csv, or a label of the breakdown: wait_ for waiting"),
    }
)


WHOLE_EPOCH = "epoch_s"
PER = {"iterations": "iteration", "world_size": "GPU"}
"""Columns that a measure may be divided by, and what each counts."""


def measure_problems(measure: str, where: str = "--measure") -> list[Problem]:
    """What is wrong with a measure that stands ``where``; nothing if there is such a one."""
    name, slash, per = measure.partition("/")
    known = [column for column in SWEEP.columns if column not in {*NOT_MEASURED, *PER}]
    problems = []
    if name not in known:
        rule, remedy = "must begin with a measure of sweep.parquet", nearest(name, known)
        problems.append(Problem(where, rule, repr(name), remedy))
    if slash and per not in PER:
        rule = "may be divided only by a number of something"
        problems.append(Problem(where, rule, repr(per), f"Use {', '.join(PER)}."))
    return problems


def measure_name(measure: str) -> str:
    """What stands beside the axis: 'allreduce_exposed_s/iterations' becomes 'allreduce exposed per
    iteration (s)'."""
    name, _, per = measure.partition("/")
    if name == WHOLE_EPOCH:
        return f"time per {PER.get(per, 'epoch')} (s)"
    unit = unit_of(name)
    words = name.removesuffix("_per_s").removesuffix("_s").replace("_", " ")
    whole = f"{words} per {PER[per]}" if per else words
    return f"{whole} ({unit})" if unit else whole
