"""Predict every row of the validation, and find the tasks to simulate for it.

A task that is simulated once serves all rows that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from simshuffle.errors import InputError, Problem
from simshuffle.extensions.calibration.validation import concurrent, testbed
from simshuffle.extensions.calibration.validation.answers import (
    IterationParts,
    RunTimes,
    iteration_parts,
    load_with_values,
    measure_allreduce,
    measure_alltoall,
    measure_reads,
    simulate_run,
)
from simshuffle.extensions.calibration.validation.concurrent import ConcurrentEpochs
from simshuffle.extensions.calibration.validation.emulation import emulate_accelerators
from simshuffle.extensions.calibration.validation.table import (
    ValidationRow,
    parse_assignments,
    spread_ends,
)
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
MAX_TRAFFIC = 0.47
Values = Mapping[str, str]
SCENARIO_ANSWERS: Mapping[
    str,
    tuple[
        type[RunTimes | IterationParts | ConcurrentEpochs],
        Callable[[str, Values], RunTimes | IterationParts | ConcurrentEpochs],
    ],
] = {
    "run": (RunTimes, simulate_run),
    "oracle": (IterationParts, iteration_parts),
    "concurrent": (ConcurrentEpochs, concurrent.simulate_log),
}
"""By kind of the task: the class of an answer with all quantities of a scenario, and
the function of (scenario, values) that computes it.
"""
QUANTITY_ANSWERS = {
    "allreduce": measure_allreduce,
    "alltoall": measure_alltoall,
    "read": measure_reads,
    "emulated": emulate_accelerators,
}
"""By kind of the task: the function of (scenario, values, quantity) that computes one
quantity.
"""
ROW_ANSWERS = {"testbed": testbed.predict_makespan}
"""By kind of the task: the function of (values) that computes a row without a scenario."""
Answer = RunTimes | IterationParts | ConcurrentEpochs | float


@dataclass(frozen=True)
class Task:
    """A simulation, or another computation, that rows of the validation need."""

    kind: str  # key of `SCENARIO_ANSWERS`, `QUANTITY_ANSWERS` or `ROW_ANSWERS`
    scenario: str  # its name below ``scenarios/``; '' if the kind has none
    values: str  # what is set in the scenario: KEY=VALUE, separated by ;
    quantity: str = (
        ""  # what is asked for; empty where one simulation answers all quantities
    )


@dataclass(frozen=True)
class TaskCell(PlainCell):
    """The cell that runs a task.

    The scenario that the task names, as it is resolved, is part of the key: another one
    of that name is another task. Other kinds bring their data along.
    """

    task: Task

    @property
    def key(self) -> Any:
        """The value that the answer depends on: the task, and its resolved scenario."""
        if self.task.kind in ROW_ANSWERS:
            return [asdict(self.task), None]
        scenario = load_scenario(self.task.scenario)
        return [asdict(self.task), by_content(scenario.to_dict())]

    @property
    def label(self) -> str:
        """The scenario and the values of the task."""
        return " ".join(filter(None, (self.task.scenario, self.task.values)))

    @staticmethod
    def make_ready() -> None:
        """Load the compiled network before the cells run."""
        load_model(Fluid())

    def run(self, tell: Tell) -> Outcome:
        """Run the task; the outcome's 'value' is one number, or a mapping of the
        attributes of the answer (such as `RunTimes`) by name.

        Raises:
            InputError: as of `run_task`.
        """
        answer = run_task(self.task)
        return Outcome(
            {"value": answer if isinstance(answer, float | int) else asdict(answer)}
        )


def answer_of(task: Task, outcome: Outcome) -> Answer:
    """Return the answer to a task from its outcome: of the class in
    `SCENARIO_ANSWERS`, or a number for other kinds.
    """
    value = outcome.values["value"]
    if task.kind not in SCENARIO_ANSWERS:
        return float(value)
    answer_class, _ = SCENARIO_ANSWERS[task.kind]
    return answer_class(**value)


class RowPrediction(NamedTuple):
    """The prediction of a row and its range, in the unit of the row."""

    value: float  # without what nobody knows
    low: float  # over the row's spread and the traffic of others, as is ``high``
    high: float
    traffic: float = 0.0  # by which share the traffic of others may lengthen the time


def list_tasks(rows: Sequence[ValidationRow]) -> list[Task]:
    """Return the tasks that ``rows`` need, each once; none for rows of use none.

    Raises:
        InputError: a row's values or spread are not written as they must be.
    """
    variants_of_rows = [
        tasks_of_variants(row) if row.use != "none" else [] for row in rows
    ]
    return list(
        dict.fromkeys(
            task for variant in variants_of_rows for tasks in variant for task in tasks
        )
    )


def predict_rows(
    rows: Sequence[ValidationRow], answers: Mapping[Task, Answer]
) -> list[RowPrediction | None]:
    """Predict ``rows``, in their order; None for a row of use none.

    Args:
        rows: of the validation.
        answers: to all `list_tasks` of the rows.

    Raises:
        InputError: a row's quantity or job is not valid.
    """
    return [
        predict_row(row, tasks_of_variants(row), answers) if row.use != "none" else None
        for row in rows
    ]


def tasks_of_variants(row: ValidationRow) -> list[tuple[Task, ...]]:
    """Return the tasks that a row needs for its values, and then for the lower and the
    upper end of its spread, if it has one: a tuple for each.

    A tuple holds two tasks for a ratio, else one. All jobs of a log share a task.

    Raises:
        InputError: the values or the spread are not written as they must be.
    """
    return [
        tasks_of_variant(row, spread_values)
        for spread_values in ["", *spread_ends(row.spread)]
    ]


def tasks_of_variant(row: ValidationRow, spread_values: str) -> tuple[Task, ...]:
    """Return the tasks that a row needs with some values of its spread, written
    KEY=VALUE;... ('' for none): numerator and denominator of a ratio, else one.

    Raises:
        InputError: a ratio does not have two lists of values.
    """
    if row.kind == "concurrent":
        values = values_without_job(row.values, spread_values)
        text = ";".join(f"{key}={value}" for key, value in values.items())
        return (Task("concurrent", row.scenario, text),)
    sides = [row.values]
    kind = row.kind
    if row.kind == "ratio":
        sides = row.values.split("|")
        kind = "run"
        if len(sides) != 2:
            rule = "must be two lists with | between them, for a ratio"
            raise row_error(
                row, Problem("values", rule, repr(row.values), "Write A|B.")
            )
    quantity = row.quantity if kind in QUANTITY_ANSWERS else ""
    texts = [";".join(filter(None, (side, spread_values))) for side in sides]
    return tuple(Task(kind, row.scenario, text, quantity) for text in texts)


def values_without_job(values: str, spread_values: str) -> dict[str, str]:
    """Return the values of a row of concurrent jobs, by key, without 'job'; a value of
    the spread replaces the row's value.
    """
    all_values = parse_assignments(values) | parse_assignments(spread_values)
    return {key: value for key, value in all_values.items() if key != "job"}


def run_task(task: Task) -> Answer:
    """Run a task and return its answer.

    Raises:
        InputError: the scenario, a value or the quantity is not valid.
    """
    values = parse_assignments(task.values)
    if task.kind in QUANTITY_ANSWERS:
        return QUANTITY_ANSWERS[task.kind](task.scenario, values, task.quantity)
    if task.kind in SCENARIO_ANSWERS:
        _, compute = SCENARIO_ANSWERS[task.kind]
        return compute(task.scenario, values)
    return ROW_ANSWERS[task.kind](values)


def predict_row(
    row: ValidationRow,
    tasks_by_variant: list[tuple[Task, ...]],
    answers: Mapping[Task, Answer],
) -> RowPrediction:
    """Return the prediction of a row from the answers to its tasks.

    Its value is that without the spread; low and high are the extremes of all variants,
    in the unit of the row. The traffic of others multiplies the high end of a time by 1
    + its share, or divides the low end of a throughput by it.

    Args:
        row: of the validation.
        tasks_by_variant: the `tasks_of_variants` of the row.
        answers: to these tasks.

    Raises:
        InputError: the row's quantity or job is not valid.
    """
    values = [
        value_of_row(row, [answers[task] for task in tasks])
        for tasks in tasks_by_variant
    ]
    low = min(values)
    high = max(values)
    traffic = traffic_share(row)
    if row.quantity == "throughput":
        return RowPrediction(values[0], low / (1.0 + traffic), high, traffic)
    return RowPrediction(values[0], low, high * (1.0 + traffic), traffic)


def traffic_share(row: ValidationRow) -> float:
    """Return the share by which the traffic of others may lengthen the epochs of a
    predicted row.

    It is `MAX_TRAFFIC` where a run needs more than one rack of ABCI, whose racks have
    few links between them; else 0. It is 0 also for fitted rows, kinds other than run,
    concurrent and oracle, and the quantities staging and compute.
    """
    if row.use != "predict" or row.kind not in {"run", "concurrent", "oracle"}:
        return 0.0
    if row.quantity in {"staging", "compute"}:
        return 0.0
    values = parse_assignments(row.values)
    if row.kind == "concurrent":
        values = {"world_size": values["job"].rpartition(" ")[2]}
    scenario = load_with_values(row.scenario, values)
    topology = scenario.cluster.topology
    exceeds_rack = (
        isinstance(topology, Abci) and scenario.hosts > topology.hosts_per_rack
    )
    return MAX_TRAFFIC if exceeds_rack else 0.0


def value_of_row(row: ValidationRow, outcomes: list[Answer]) -> float:
    """Return the quantity of a row, in its unit, from the answers to the tasks of one
    variant; of a ratio the first answer's over the second's.

    Raises:
        InputError: the quantity or the job is not valid; the error names the row.
    """
    try:
        if isinstance(outcomes[0], ConcurrentEpochs):
            job = parse_assignments(row.values).get("job", "")
            return concurrent.epoch_quantity(
                row.quantity, outcomes[0].epochs_of_job(job)
            )
        if row.kind == "ratio":
            name = row.quantity.removesuffix(" ratio")
            first, second = (quantity_of_answer(outcome, name) for outcome in outcomes)
            return first / second
        return quantity_of_answer(outcomes[0], row.quantity)
    except InputError as error:
        raise row_error(row, *error.problems) from None


def quantity_of_answer(outcome: Answer, name: str) -> float:
    """Return a quantity of an answer; an answer that is a number is the quantity."""
    return float(
        outcome if isinstance(outcome, float | int) else outcome.quantity(name)
    )


def row_error(row: ValidationRow, *problems: Problem) -> InputError:
    """Return the error of a row with its problems."""
    return InputError(
        list(problems), f"validation set {row.set}, {row.case}, {row.quantity}"
    )
