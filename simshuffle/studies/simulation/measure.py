"""What the figure of a sweep shows: a column of its table, or one over another."""

from __future__ import annotations

from simshuffle.errors import Problem
from simshuffle.spec.library import nearest
from simshuffle.studies.simulation.tables import NOT_MEASURED, SWEEP
from simshuffle.study.schema import unit_of

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
