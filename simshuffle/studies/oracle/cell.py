"""Cells of an oracle, one for all closed forms, and one for each step that is
simulated; and the tables of their outcomes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simshuffle.fabric.network import Fluid
from simshuffle.fabric.network.models import load_model
from simshuffle.job.scenario.reading import by_content
from simshuffle.job.scenario.scenario import from_dict
from simshuffle.job.uncertainty.residuals import MECHANISMS, residuals
from simshuffle.spec.arrays import Floats
from simshuffle.studies.oracle.machine import OracleMachine, Point, assumptions
from simshuffle.studies.oracle.request import Oracle, alone, strategy_of
from simshuffle.studies.oracle.tables import KEY, STORED, gib, usable
from simshuffle.study.cell import Cell, Outcome, PlainCell, Tell
from simshuffle.study.study import Outcomes, Tables
from simshuffle.workload.parallelism import Data

SWEEP = "all closed forms"
_STEP_S = 2e-3
"""s that a rank of a simulated step takes, roughly."""
_STEP_NBYTES = 1e6
"""Bytes of memory of a step."""
SHARES: Floats = (np.arange(200) + 0.5) / 200
"""Quantiles of an error at which two strategies are compared."""


@dataclass(frozen=True)
class SweepCell(PlainCell):
    """The closed forms of all points."""

    document: Mapping[str, Any]  # the resolved scenario as plain values, without sweep
    # strategies as plain values, by world size, then by name
    points: Mapping[int, Mapping[str, Mapping[str, Any]]]
    label = SWEEP

    @property
    def key(self) -> Any:
        """Return what decides the outcome: the scenario and the strategies at each
        world size.
        """
        values_by_size = {
            str(size): dict(strategies) for size, strategies in self.points.items()
        }
        return [_of_content(self.document), values_by_size]

    def run(self, tell: Tell) -> Outcome:
        """Return the rows of the tables `points` and `communication`.

        They are lists under these names in the values of the outcome, in the order of
        ``points``. Speedup and efficiency are against one GPU with data parallelism.
        The row of an impossible point lacks the columns of its times, and it has no
        communication.
        """
        scenario = from_dict(self.document, self.label)
        single_gpu_row, _ = OracleMachine(scenario, 1).point(
            Data.short_name, alone(scenario)
        )
        sweep_points: list[Point] = []
        for size_index, (size, strategies) in enumerate(self.points.items()):
            machine = OracleMachine(scenario, size)
            sweep_points += [
                machine.point(name, strategy_of(values))
                for name, values in strategies.items()
            ]
            tell((size_index + 1) / len(self.points))
        for row, _ in sweep_points:
            if row["feasible"]:
                row["speedup"] = row["samples_per_s"] / single_gpu_row["samples_per_s"]
                row["efficiency"] = row["speedup"] / row["world_size"]
        communication = [
            {**{name: row[name] for name in KEY}, "label": label, "seconds": seconds}
            for row, sent in sweep_points
            for label, seconds in sent.items()
        ]
        return Outcome(
            {"points": [row for row, _ in sweep_points], "communication": communication}
        )


@dataclass(frozen=True)
class StepCell(PlainCell):
    """The simulation of a step whose transfers all share the cables."""

    document: Mapping[str, Any]  # as of `SweepCell`
    name: str  # of the strategy
    strategy: Mapping[str, Any]  # as plain values
    world_size: int  # M

    @property
    def key(self) -> Any:
        """Return what decides the outcome: the scenario, the strategy and the world
        size.
        """
        return [_of_content(self.document), dict(self.strategy), self.world_size]

    @property
    def label(self) -> str:
        """Return the name of the cell for people."""
        return f"{self.name} @{self.world_size}"

    @property
    def cost(self) -> float:
        """Return the s that the simulation takes on one core, roughly."""
        return 0.5 + _STEP_S * self.world_size

    @property
    def memory(self) -> float:
        """Return the bytes of memory of the process, roughly."""
        return super().memory + _STEP_NBYTES * self.world_size

    @staticmethod
    def make_ready() -> None:
        """Load the compiled network."""
        load_model(Fluid())

    def run(self, tell: Tell) -> Outcome:
        """Return the values ``step_closed_s`` and ``step_fluid_s``, the s of one step."""
        machine = OracleMachine(from_dict(self.document, self.label), self.world_size)
        closed, fluid = machine.simulated(strategy_of(self.strategy))
        return Outcome({"step_closed_s": closed, "step_fluid_s": fluid})


def closed_forms(oracle: Oracle, outcomes: Outcomes) -> dict[str, Cell]:
    """Return the one cell of all points, by its name `SWEEP`."""
    points = {
        size: {candidate.name: candidate.plain for candidate in strategies}
        for size, strategies in oracle.points.items()
    }
    return {SWEEP: SweepCell(oracle.scenario.to_dict(), points)}


def simulations(oracle: Oracle, outcomes: Outcomes) -> dict[str, Cell]:
    """Return a cell for each possible point that is simulated, by its name."""
    possible = {
        (row["strategy"], row["world_size"])
        for row in outcomes[SWEEP].values["points"]
        if row["feasible"]
    }
    document = oracle.scenario.to_dict()
    cells = [
        StepCell(document, name, oracle.named(name, size).plain, size)
        for name, size in oracle.simulate
        if (name, size) in possible
    ]
    return {cell.label: cell for cell in cells}


def collect(oracle: Oracle, outcomes: Outcomes) -> Tables:
    """Return the stored tables, from the outcomes of all cells.

    A simulated epoch is the closed form with its step replaced. Impossible points are
    left out of the simulated and the measured ones, and so are simulations without
    outcome. Accuracy is 1 less the relative error, and may be negative.
    """
    sweep_values = outcomes[SWEEP].values
    by_key = {
        (row["strategy"], row["world_size"]): row for row in sweep_values["points"]
    }
    simulated = []
    measured = []
    for name, size in oracle.simulate:
        row = by_key[name, size]
        outcome = outcomes.get(f"{name} @{size}")
        if outcome is not None:
            closed = outcome.values["step_closed_s"]
            fluid = outcome.values["step_fluid_s"]
            loop = row["loop_s"] + row["iterations"] * (fluid - closed)
            ratio = fluid / closed if closed else math.nan
            epoch = max(loop, row["io_s"] + fluid)
            simulated.append(
                {**row, **outcome.values, "ratio": ratio, "epoch_fluid_s": epoch}
            )
    for name, size, seconds in oracle.measured:
        row = by_key[name, size]
        if row["feasible"]:
            predicted = {"measured_s": seconds, "predicted_s": row["epoch_s"]}
            accuracy = 1.0 - abs(row["epoch_s"] - seconds) / seconds
            measured.append({**row, **predicted, "accuracy": accuracy})
    rows = {
        "points": [_fitting(row, oracle.budget) for row in sweep_values["points"]],
        "communication": sweep_values["communication"],
        "simulated": simulated,
        "measured": measured,
    }
    return {name: STORED[name].framed(of_table) for name, of_table in rows.items()}


def _fitting(row: Mapping[str, Any], budget: float | None) -> dict[str, Any]:
    """Return a row with ``fits``, and ``why_not`` where it exceeds ``budget`` (bytes).

    ``fits`` is None for an impossible point or without a budget.
    """
    if not row["feasible"] or budget is None:
        return {**row, "fits": None}
    excess = row["memory_nbytes"] - budget
    if excess <= 0:
        return {**row, "fits": True}
    reason = f"needs {gib(row['memory_nbytes'])} GiB a GPU, {gib(excess)} GiB too much"
    return {**row, "fits": False, "why_not": reason}


def facts_of(oracle: Oracle) -> dict[str, Any]:
    """Return the facts in ``meta.json`` that texts and figures state: `OracleFacts`."""
    scenario = oracle.scenario
    workload = scenario.workload
    host = scenario.cluster.host
    subject = (
        f"{workload.model.name} on {scenario.cluster.name} ({host.accelerator}), batches of"
        f" {workload.local_batch_size} a GPU"
    )
    facts: dict[str, Any] = {"what": subject, "assumptions": assumptions(scenario)}
    if oracle.budget is not None:
        facts |= {"budget_nbytes": oracle.budget, "budget_from": oracle.budget_from}
    return facts


def model_error(tables: Tables) -> dict[str, Any]:
    """Return how far the best point may be off, and how sure it is the fastest.

    The errors are those of laws like its own where machines were measured. Points of
    one mechanism have one error, those of two have independent ones. Inputs are taken
    as they are given.

    Returns:
        ``strategy``; ``law``, its mechanism in words; ``iteration_s``, if it never
        waits for samples, and ``low_s`` and ``high_s``, the 90 % interval. With another
        point on as many ranks also ``second``, its name; ``shared``, whether both have
        one error; and ``faster``, the probability that the best is faster, ties counted
        half. {} where nothing fits.
    """
    fitting = usable(tables["points"])
    if fitting.empty:
        return {}
    size = fitting["world_size"].iloc[0]
    first, *slower_rows = fitting[fitting["world_size"] == size].to_dict("records")
    law = _mechanism(first)
    seconds = first["loop_s"] / first["iterations"]
    low, high = np.exp(residuals().ends(law, size)).tolist()
    error = {
        "strategy": first["strategy"],
        "law": MECHANISMS[law],
        "iteration_s": seconds,
        "low_s": seconds * low,
        "high_s": seconds * high,
    }
    if not slower_rows:
        return error
    first_epochs, second_epochs = (
        _epochs(row, size) for row in (first, slower_rows[0])
    )
    shared = law == _mechanism(slower_rows[0])
    # with independent errors every quantile of the first meets every one of the second
    first_epochs = first_epochs if shared else first_epochs[:, None]
    faster = float(
        (first_epochs < second_epochs).mean()
        + (first_epochs == second_epochs).mean() / 2
    )
    return {
        **error,
        "second": slower_rows[0]["strategy"],
        "shared": shared,
        "faster": faster,
    }


def _mechanism(row: Mapping[Any, Any]) -> str:
    """Return the mechanism of `simshuffle.job.uncertainty.residuals` behind a point.

    It is 'step' for data parallelism, else 'divided'.
    """
    return "step" if row["kind"] == Data().kind else "divided"


def _epochs(row: Mapping[Any, Any], size: int) -> Floats:
    """Return the epoch (s) of a point at each of `SHARES` of its error, (len(SHARES),).

    The loop is off by the error; reading is as predicted, and a step follows it.
    """
    loops = row["loop_s"] * np.exp(residuals().quantiles(_mechanism(row), size, SHARES))
    return np.asarray(np.maximum(loops, row["io_s"] + loops / row["iterations"]))


def _of_content(document: Mapping[str, Any]) -> Any:
    """Return the part of a scenario that decides the outcome.

    Left out are its name, description, world size and number of epochs; a file counts
    by its contents alone.
    """
    left_out = {"name", "description", "world_size", "epochs"}
    return by_content(
        {key: value for key, value in document.items() if key not in left_out}
    )
