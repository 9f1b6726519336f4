"""The prediction of every row, and the cells that are simulated for them: what is simulated once
serves all rows that need it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from simshuffle.errors import InputError, Problem
from simshuffle.extensions.calibration.validation import concurrent, testbed
from simshuffle.extensions.calibration.validation.answers import (
    IterationParts,
    RunTimes,
    allreduce,
    alltoall,
    emulated,
    load,
    parts_of,
    read,
    times,
)
from simshuffle.extensions.calibration.validation.concurrent import Evening
from simshuffle.extensions.calibration.validation.table import ValidationRow, assignments, ends
from simshuffle.fabric.network import Fluid
from simshuffle.fabric.network.models import load_model
from simshuffle.fabric.topology import Abci
from simshuffle.job.scenario.reading import by_content
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.study.cell import Outcome, PlainCell, Tell

# The same configurations of more than a rack took -3 to +47 % as long when they were measured
# again on ABCI: ParaDL's report (github.com/TruongThaoNguyen/paraDL-analysis) against its logs
# (github.com/ankahira/paraDL). Others can only lengthen an epoch, so that the lower end is not
# used.
TRAFFIC = 0.47
Values = Mapping[str, str]
WHOLE: Mapping[
    str,
    tuple[
        type[RunTimes | IterationParts | Evening],
        Callable[[str, Values], RunTimes | IterationParts | Evening],
    ],
] = {
    "run": (RunTimes, times),
    "oracle": (IterationParts, parts_of),
    "concurrent": (Evening, concurrent.evening),
}
"""What answers all quantities of a scenario at once, by the kind of the task, and of which class
that is: (scenario, values)."""
SINGLE = {"allreduce": allreduce, "alltoall": alltoall, "read": read, "emulated": emulated}
"""What answers one quantity of a scenario: (scenario, values, quantity)."""
UNSIMULATED = {"testbed": testbed.predicted}
"""What answers a row that is not simulated as a scenario: (values)."""
Answer = RunTimes | IterationParts | Evening | float


@dataclass(frozen=True)
class Task:
    """Something to simulate."""

    kind: str  # how
    scenario: str  # its name below ``scenarios/``
    values: str  # what is set in it, as written in the row
    quantity: str = ""  # what is asked for; empty where one simulation answers all quantities


@dataclass(frozen=True)
class TaskCell(PlainCell):
    """A task. The scenario that it names, as it is resolved, is part of the key: another one of
    that name is another task. Other kinds bring their data along."""

    task: Task

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        if self.task.kind in UNSIMULATED:
            return [asdict(self.task), None]
        scenario = load_scenario(self.task.scenario)
        return [asdict(self.task), by_content(scenario.to_dict())]

    @property
    def label(self) -> str:
        """As for `Cell`."""
        return " ".join(filter(None, (self.task.scenario, self.task.values)))

    @staticmethod
    def make_ready() -> None:
        """As for `Cell`: loads the compiled network."""
        load_model(Fluid())

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: the times of a run, the parts of an iteration, or one number."""
        found = answer(self.task)
        return Outcome({"value": found if isinstance(found, float | int) else asdict(found)})


def answer_of(task: Task, outcome: Outcome) -> Answer:
    """What a task was answered, from its outcome."""
    value = outcome.values["value"]
    return WHOLE[task.kind][0](**value) if task.kind in WHOLE else float(value)


class RowPrediction(NamedTuple):
    """What the simulator says of a row, in its unit."""

    value: float  # without what nobody knows
    low: float  # over the row's spread and the traffic of others, as is ``high``
    high: float
    traffic: float = 0.0  # by which share the traffic of others may lengthen the time


def tasks_of(rows: Sequence[ValidationRow]) -> list[Task]:
    """What has to be simulated for ``rows``, each once."""
    wanted = [variants(row) if row.use != "none" else [] for row in rows]
    return list(dict.fromkeys(task for variant in wanted for tasks in variant for task in tasks))


def predictions(
    rows: Sequence[ValidationRow], answers: Mapping[Task, Answer]
) -> list[RowPrediction | None]:
    """The predictions of ``rows``, in their order, from the answers to all `tasks_of` them; None
    for a row that cannot be predicted.

    Raises:
        InputError: a row's quantity or job is not valid.
    """
    return [_prediction(row, variants(row), answers) if row.use != "none" else None for row in rows]


def variants(row: ValidationRow) -> list[tuple[Task, ...]]:
    """What a row needs: for its values, and for both ends of its spread; two tasks each for a
    ratio. All jobs of an evening have one."""
    return [_tasks(row, more) for more in ["", *ends(row.spread)]]


def _tasks(row: ValidationRow, more: str) -> tuple[Task, ...]:
    if row.kind == "concurrent":
        text = ";".join(f"{key}={value}" for key, value in _shared(row.values, more).items())
        return (Task("concurrent", row.scenario, text),)
    sides, kind = [row.values], row.kind
    if row.kind == "ratio":
        sides, kind = row.values.split("|"), "run"
        if len(sides) != 2:
            rule = "of a ratio are two lists with | between them"
            raise _of_row(row, Problem("values", rule, repr(row.values), "Write A|B."))
    quantity = row.quantity if kind in SINGLE else ""
    texts = [";".join(filter(None, (side, more))) for side in sides]
    return tuple(Task(kind, row.scenario, text, quantity) for text in texts)


def _shared(values: str, more: str) -> dict[str, str]:
    """The values of a row of concurrent jobs but the job itself."""
    both = assignments(values) | assignments(more)
    return {key: value for key, value in both.items() if key != "job"}


def answer(task: Task) -> Answer:
    """The outcome of a task."""
    values = assignments(task.values)
    if task.kind in SINGLE:
        return SINGLE[task.kind](task.scenario, values, task.quantity)
    if task.kind in WHOLE:
        return WHOLE[task.kind][1](task.scenario, values)
    return UNSIMULATED[task.kind](values)


def _prediction(
    row: ValidationRow, variant: list[tuple[Task, ...]], answers: Mapping[Task, Answer]
) -> RowPrediction:
    values = [_value(row, [answers[task] for task in tasks]) for tasks in variant]
    low, high, more = min(values), max(values), traffic(row)
    if row.quantity == "throughput":
        return RowPrediction(values[0], low / (1.0 + more), high, more)
    return RowPrediction(values[0], low, high * (1.0 + more), more)


def traffic(row: ValidationRow) -> float:
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
    scenario = load(row.scenario, values)
    topology = scenario.cluster.topology
    above = isinstance(topology, Abci) and scenario.hosts > topology.hosts_per_rack
    return TRAFFIC if above else 0.0


def _value(row: ValidationRow, outcomes: list[Answer]) -> float:
    try:
        if isinstance(outcomes[0], Evening):
            job = assignments(row.values).get("job", "")
            return concurrent.quantity(row.quantity, outcomes[0].of(job))
        if row.kind == "ratio":
            name = row.quantity.removesuffix(" ratio")
            first, second = (_quantity(outcome, name) for outcome in outcomes)
            return first / second
        return _quantity(outcomes[0], row.quantity)
    except InputError as error:
        raise _of_row(row, *error.problems) from None


def _quantity(outcome: Answer, name: str) -> float:
    return float(outcome if isinstance(outcome, float | int) else outcome.quantity(name))


def _of_row(row: ValidationRow, *problems: Problem) -> InputError:
    return InputError(list(problems), f"validation set {row.set}, {row.case}, {row.quantity}")
