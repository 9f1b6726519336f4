"""The prediction of every row: what is simulated once serves all rows that need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.studies import policies, testbed
from simshuffle.studies.validation import collectives, concurrent, emulated, oracle, reads, runs
from simshuffle.studies.validation.rows import Row, assignments, ends
from simshuffle.topology import Abci

# The same configurations of more than a rack took -3 to +47 % as long when they were measured
# again on ABCI: ParaDL's report (github.com/TruongThaoNguyen/paraDL-analysis) against its logs
# (github.com/ankahira/paraDL). Others can only lengthen an epoch, so that the lower end is not
# used.
TRAFFIC = 0.47
SINGLE = {"allreduce": collectives, "read": reads, "emulated": emulated}
"""What predicts one number, by the kind of its row."""


@dataclass(frozen=True)
class Task:
    """Something to simulate.

    Attributes:
        kind: how.
        scenario: its name below ``scenarios/``.
        values: what is set in it, as written in the row.
        quantity: what is asked for; empty where one simulation answers all quantities.
    """

    kind: str
    scenario: str
    values: str
    quantity: str = ""


@dataclass(frozen=True)
class Prediction:
    """What the simulator says of a row, in its unit.

    Attributes:
        value: without what nobody knows.
        low, high: over the row's spread and the traffic of others; the same as ``value`` without
            either.
        traffic: by which share the traffic of others may lengthen the time.
    """

    value: float
    low: float
    high: float
    traffic: float = 0.0


def tasks_of(rows: Sequence[Row]) -> list[Task]:
    """What has to be simulated for ``rows``, each once."""
    wanted = [variants(row) if row.use != "none" else [] for row in rows]
    return list(dict.fromkeys(task for variant in wanted for tasks in variant for task in tasks))


def predictions(rows: Sequence[Row], answers: Mapping[Task, Any]) -> list[Prediction | None]:
    """The predictions of ``rows``, in their order; None for a row that cannot be predicted.

    Args:
        rows: from `read_rows`.
        answers: of all `tasks_of` the rows.

    Raises:
        InputError: a row's quantity or job is not valid.
    """
    return [_prediction(row, variants(row), answers) if row.use != "none" else None for row in rows]


def variants(row: Row) -> list[tuple[Task, ...]]:
    """What a row needs: for its values, and for both ends of its spread; two tasks each for a
    ratio."""
    out = []
    for more in ["", *ends(row.spread)]:
        # each job alone: the same runs for all rows of an evening, whatever its background load
        if row.kind == "concurrent":
            runs_alone = concurrent.alone(_shared(row.values, more))
            out.append(
                tuple(
                    Task("run", row.scenario, ";".join(f"{k}={v}" for k, v in one.items()))
                    for one in runs_alone
                )
            )
            continue
        sides = row.values.split("|") if row.kind == "ratio" else [row.values]
        if row.kind == "ratio" and len(sides) != 2:
            raise _of_row(
                row,
                Problem(
                    "values",
                    "of a ratio are two lists with | between them",
                    repr(row.values),
                    "Write A|B.",
                ),
            )
        kind = "run" if row.kind == "ratio" else row.kind
        quantity = row.quantity if kind in SINGLE else ""
        out.append(
            tuple(
                Task(kind, row.scenario, ";".join(filter(None, (side, more))), quantity)
                for side in sides
            )
        )
    return out


def _shared(values: str, more: str) -> dict[str, str]:
    """The values of a row of concurrent jobs but the job itself."""
    return {
        key: value
        for key, value in {**assignments(values), **assignments(more)}.items()
        if key != "job"
    }


def answer(task: Task) -> Any:
    """The outcome of a task: `runs.Times`, `oracle.Parts`, or one number."""
    values = assignments(task.values)
    if task.kind == "run":
        return runs.times(task.scenario, values)
    if task.kind == "oracle":
        return oracle.parts_of(task.scenario, values)
    if task.kind in {"policies", "testbed"}:
        return {"policies": policies, "testbed": testbed}[task.kind].predicted(values)
    return SINGLE[task.kind].predict(task.scenario, values, task.quantity)


def _prediction(
    row: Row, variant: list[tuple[Task, ...]], answers: Mapping[Task, Any]
) -> Prediction:
    spreads = ["", *ends(row.spread)]
    values = [
        _value(row, more, [answers[task] for task in tasks])
        for more, tasks in zip(spreads, variant, strict=True)
    ]
    low, high, more = min(values), max(values), traffic(row)
    if row.quantity == "throughput":
        return Prediction(values[0], low / (1.0 + more), high, more)
    return Prediction(values[0], low, high * (1.0 + more), more)


def traffic(row: Row) -> float:
    """By which share the traffic of others may lengthen the epochs of a predicted row: `TRAFFIC`
    where a run needs more than one rack of ABCI, whose racks have few links between them; else
    0."""
    if row.use != "predict" or row.kind not in {"run", "concurrent", "oracle"}:
        return 0.0
    if row.quantity in {"staging", "compute"}:
        return 0.0
    values = assignments(row.values)
    if row.kind == "concurrent":
        values = {"world_size": values["job"].rpartition(" ")[2]}
    scenario = runs.load(row.scenario, values)
    topology = scenario.cluster.topology
    above = isinstance(topology, Abci) and scenario.hosts > topology.hosts_per_rack
    return TRAFFIC if above else 0.0


def _value(row: Row, more: str, outcomes: list[Any]) -> float:
    try:
        if row.kind == "concurrent":
            seconds = tuple(outcome.quantity("first epoch") for outcome in outcomes)
            lasted = _together(row.scenario, tuple(_shared(row.values, more).items()), seconds)
            return concurrent.quantity(row.quantity, lasted[assignments(row.values)["job"]])
        if row.kind == "ratio":
            first, second = (
                outcome.quantity(row.quantity.removesuffix(" ratio")) for outcome in outcomes
            )
            return float(first / second)
        several = row.kind in {"run", "oracle"}
        return float(outcomes[0].quantity(row.quantity) if several else outcomes[0])
    except KeyError as error:
        raise _of_row(
            row,
            Problem(
                "values",
                "must name a job of the log",
                f"job={error.args[0]}",
                "See validation/data/.",
            ),
        ) from None
    except InputError as error:
        raise _of_row(row, *error.problems) from None


@cache
def _together(
    scenario: str, values: tuple[tuple[str, str], ...], seconds: tuple[float, ...]
) -> dict[str, tuple[float, ...]]:
    return concurrent.epochs(scenario, dict(values), seconds)


def _of_row(row: Row, *problems: Problem) -> InputError:
    return InputError(list(problems), f"validation set {row.set}, {row.case}, {row.quantity}")
