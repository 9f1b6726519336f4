"""The cells of an oracle: one for all closed forms, and one for each step that is simulated; and
the tables that come of them."""

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
"""Bytes of memory of it."""
SHARES: Floats = (np.arange(200) + 0.5) / 200
"""Quantiles of an error at which two strategies are compared."""


@dataclass(frozen=True)
class SweepCell(PlainCell):
    """All points by closed form."""

    document: Mapping[str, Any]  # the resolved scenario as plain values, without sweep
    # strategies as plain values, by name and world size
    points: Mapping[int, Mapping[str, Mapping[str, Any]]]
    label = SWEEP

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        plain = {str(size): dict(of) for size, of in self.points.items()}
        return [_of_content(self.document), plain]

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: rows of the tables `points` and `communication`."""
        scenario = from_dict(self.document, self.label)
        first, _ = OracleMachine(scenario, 1).point(Data.short_name, alone(scenario))
        found: list[Point] = []
        for number, (size, strategies) in enumerate(self.points.items()):
            machine = OracleMachine(scenario, size)
            found += [machine.point(name, strategy_of(plain)) for name, plain in strategies.items()]
            tell((number + 1) / len(self.points))
        for row, _ in found:
            if row["feasible"]:
                row["speedup"] = row["samples_per_s"] / first["samples_per_s"]
                row["efficiency"] = row["speedup"] / row["world_size"]
        communication = [
            {**{name: row[name] for name in KEY}, "label": label, "seconds": seconds}
            for row, sent in found
            for label, seconds in sent.items()
        ]
        return Outcome({"points": [row for row, _ in found], "communication": communication})


@dataclass(frozen=True)
class StepCell(PlainCell):
    """A step whose transfers all share the cables."""

    document: Mapping[str, Any]  # as of `SweepCell`
    name: str  # of the strategy
    strategy: Mapping[str, Any]  # as plain values
    world_size: int  # M

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [_of_content(self.document), dict(self.strategy), self.world_size]

    @property
    def label(self) -> str:
        """As for `Cell`."""
        return f"{self.name} @{self.world_size}"

    @property
    def cost(self) -> float:
        """As for `Cell`."""
        return 0.5 + _STEP_S * self.world_size

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return super().memory + _STEP_NBYTES * self.world_size

    @staticmethod
    def make_ready() -> None:
        """As for `Cell`: the compiled network."""
        load_model(Fluid())

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: s of the step, by closed form and simulated."""
        machine = OracleMachine(from_dict(self.document, self.label), self.world_size)
        closed, fluid = machine.simulated(strategy_of(self.strategy))
        return Outcome({"step_closed_s": closed, "step_fluid_s": fluid})


def closed_forms(of: Oracle, outcomes: Outcomes) -> dict[str, Cell]:
    """The cell of all points."""
    points = {
        size: {each.name: each.plain for each in strategies}
        for size, strategies in of.points.items()
    }
    return {SWEEP: SweepCell(of.scenario.to_dict(), points)}


def simulations(of: Oracle, outcomes: Outcomes) -> dict[str, Cell]:
    """A cell for each point that is simulated and possible."""
    possible = {
        (row["strategy"], row["world_size"])
        for row in outcomes[SWEEP].values["points"]
        if row["feasible"]
    }
    document = of.scenario.to_dict()
    cells = [
        StepCell(document, name, of.named(name, size).plain, size)
        for name, size in of.simulate
        if (name, size) in possible
    ]
    return {cell.label: cell for cell in cells}


def collect(of: Oracle, outcomes: Outcomes) -> Tables:
    """The stored tables."""
    found = outcomes[SWEEP].values
    by_key = {(row["strategy"], row["world_size"]): row for row in found["points"]}
    simulated, measured = [], []
    for name, size in of.simulate:
        row, outcome = by_key[name, size], outcomes.get(f"{name} @{size}")
        if outcome is not None:
            closed, fluid = outcome.values["step_closed_s"], outcome.values["step_fluid_s"]
            loop = row["loop_s"] + row["iterations"] * (fluid - closed)
            ratio = fluid / closed if closed else math.nan
            epoch = max(loop, row["io_s"] + fluid)
            simulated.append({**row, **outcome.values, "ratio": ratio, "epoch_fluid_s": epoch})
    for name, size, seconds in of.measured:
        row = by_key[name, size]
        if row["feasible"]:
            predicted = {"measured_s": seconds, "predicted_s": row["epoch_s"]}
            accuracy = 1.0 - abs(row["epoch_s"] - seconds) / seconds
            measured.append({**row, **predicted, "accuracy": accuracy})
    rows = {
        "points": [_fitting(row, of.budget) for row in found["points"]],
        "communication": found["communication"],
        "simulated": simulated,
        "measured": measured,
    }
    return {name: STORED[name].framed(of_table) for name, of_table in rows.items()}


def _fitting(row: Mapping[str, Any], budget: float | None) -> dict[str, Any]:
    """A row with whether it fits, and why not."""
    if not row["feasible"] or budget is None:
        return {**row, "fits": None}
    over = row["memory_nbytes"] - budget
    if over <= 0:
        return {**row, "fits": True}
    why = f"needs {gib(row['memory_nbytes'])} GiB a GPU, {gib(over)} GiB too much"
    return {**row, "fits": False, "why_not": why}


def facts_of(of: Oracle) -> dict[str, Any]:
    """What ``meta.json`` says for texts and figures."""
    scenario = of.scenario
    workload, host = scenario.workload, scenario.cluster.host
    what = (
        f"{workload.model.name} on {scenario.cluster.name} ({host.accelerator}), batches of"
        f" {workload.local_batch_size} a GPU"
    )
    says: dict[str, Any] = {"what": what, "assumptions": assumptions(scenario)}
    if of.budget is not None:
        says |= {"budget_nbytes": of.budget, "budget_from": of.budget_from}
    return says


def model_error(tables: Tables) -> dict[str, Any]:
    """How far an iteration of the best point may be off, by what laws like its own missed where
    machines were measured (90 %, s); and how sure it is that it is faster than the next one on as
    many ranks: one error for both where one mechanism is behind them, else two that are
    independent. {} where nothing fits. Inputs are taken as they are given."""
    fitting = usable(tables["points"])
    if fitting.empty:
        return {}
    size = fitting["world_size"].iloc[0]
    first, *others = fitting[fitting["world_size"] == size].to_dict("records")
    law = _mechanism(first)
    seconds = first["loop_s"] / first["iterations"]
    low, high = np.exp(residuals().ends(law, size)).tolist()
    out = {
        "strategy": first["strategy"],
        "law": MECHANISMS[law],
        "iteration_s": seconds,
        "low_s": seconds * low,
        "high_s": seconds * high,
    }
    if not others:
        return out
    a, b = (_epochs(row, size) for row in (first, others[0]))
    shared = law == _mechanism(others[0])
    a = a if shared else a[:, None]
    faster = float((a < b).mean() + (a == b).mean() / 2)
    return {**out, "second": others[0]["strategy"], "shared": shared, "faster": faster}


def _mechanism(row: Mapping[Any, Any]) -> str:
    """The one of `simshuffle.job.uncertainty.residuals` behind a point."""
    return "step" if row["kind"] == Data().kind else "divided"


def _epochs(row: Mapping[Any, Any], size: int) -> Floats:
    """(len(SHARES),) s of the epoch of a point, its loop off by each of the errors; reading is as
    it is, and a step follows it."""
    loops = row["loop_s"] * np.exp(residuals().quantiles(_mechanism(row), size, SHARES))
    return np.asarray(np.maximum(loops, row["io_s"] + loops / row["iterations"]))


def _of_content(document: Mapping[str, Any]) -> Any:
    """What of a scenario decides the outcome: no name, and of a file its contents alone."""
    left_out = {"name", "description", "world_size", "epochs"}
    return by_content({key: value for key, value in document.items() if key not in left_out})
