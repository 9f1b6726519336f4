"""Trainings that never took place: records made by hand as a study of `simshuffle train`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from simshuffle.errors import SimulationError
from simshuffle.extensions.learning.time_to_accuracy import join
from simshuffle.extensions.learning.time_to_accuracy import study as tta
from simshuffle.extensions.learning.time_to_accuracy.verb import TtaOptions
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.studies.training.study import STUDY, Trainings
from simshuffle.studies.training.tables import (
    EPOCH_COLUMNS,
    IMPORTANCE_COLUMNS,
    ITERATION_COLUMNS,
    PLANS,
    STATISTICS,
    TABLES,
    RunRecord,
    run_outcome,
)
from simshuffle.study import engine
from simshuffle.study.cell import Outcome, PlainCell, Tell
from simshuffle.study.store import TABLE
from simshuffle.study.study import Request
from simshuffle.workload.exchange import initial_owner
from simshuffle.workload.exchange.recording import RecordedPlans
from tests.examples import partial, recorded_plans


def recorded(
    world_size: int = 6, samples: int = 50, fraction: float = 0.4, epochs: int = 3, seed: int = 0
) -> RecordedPlans:
    """The plans of a training with partial local shuffle."""
    rng = np.random.default_rng(seed)
    owner = initial_owner(samples, world_size, rng)
    how = {"importance": False, "batch": 2}
    return recorded_plans(partial(fraction), owner, world_size, [rng] * epochs, **how)


def record(
    accuracy: float,
    *,
    status: Literal["done", "failed"] = "done",
    message: str = "",
    epochs: int = 3,
    plans: RecordedPlans | None = None,
    lower: float = 0.0,
) -> RunRecord:
    """A run whose accuracy rises to ``accuracy``; the other statistics than 'own' see ``lower``
    less."""
    rows = []
    for epoch in range(1, epochs + 1):
        row = dict.fromkeys(EPOCH_COLUMNS, 1.0) | {"epoch": epoch, "samples": 100, "moved": 7}
        row |= {
            f"{name}_accuracy": (accuracy - (name != "own") * lower) * epoch / epochs
            for name in STATISTICS
        }
        rows.append(row)
    table = pd.DataFrame(rows, columns=list(EPOCH_COLUMNS))
    iterations = pd.DataFrame(
        [dict.fromkeys(ITERATION_COLUMNS, 1) for _ in range(2)], columns=list(ITERATION_COLUMNS)
    )
    importance = pd.DataFrame(
        [dict.fromkeys(IMPORTANCE_COLUMNS, 1.0) | {"epoch": 1, "source": "training"}],
        columns=list(IMPORTANCE_COLUMNS),
    )
    return RunRecord(
        {"strategy": "local"}, status, message, table, iterations, importance, plans, 2.0
    )


def description(
    strategy: str,
    world_size: int,
    seed: int,
    fraction: float | None = None,
    norm: str = "per_rank",
    variant: str = "",
) -> dict[str, Any]:
    """What tables say of such a run."""
    return {
        "variant": variant,
        "batch_norm": norm,
        "world_size": world_size,
        "strategy": strategy,
        "exchange_fraction": fraction,
        "seed": seed,
        "data": "procedural",
        "model": "mlp",
        "partition": "random",
        "epochs_planned": 3,
        "learning_rate": 0.1,
    }


@dataclass(frozen=True, eq=False)
class Made(PlainCell):
    """A run whose record is there already; without one it is lost, for ``why``."""

    label: str
    record: RunRecord | None
    why: str = ""

    @property
    def key(self) -> Any:
        return [self.label, self.why]

    @property
    def parts(self) -> frozenset[str]:
        plans = [PLANS] if self.record and self.record.plans is not None else []
        return frozenset([*(f"{name}{TABLE}" for name in TABLES), *plans])

    def run(self, tell: Tell) -> Outcome:
        if self.record is None:
            raise SimulationError(self.why)
        return run_outcome(self.record)


def request(
    name: str, records: Mapping[str, RunRecord | str], descriptions: Mapping[str, dict[str, Any]]
) -> Request[Trainings]:
    """A study of these runs; a text is why one is lost, and those that are only described are
    missing."""
    cells = {
        run: Made(run, None, of) if isinstance(of, str) else Made(run, of)
        for run, of in records.items()
    }
    trainings = Trainings(name, "Made up.", "cpu", cells, descriptions)
    return Request(name, trainings, {"study.yaml": f"name: {name}\n"})


def saved(
    folder: Path,
    name: str,
    records: Mapping[str, RunRecord | str],
    descriptions: Mapping[str, dict[str, Any]],
) -> Path:
    """The folder of such a study."""
    return engine.run(STUDY, request(name, records, descriptions)).save(folder)


def time_to_accuracy(folder: Path, scenario: Scenario, **options: Any) -> tta.TimeToAccuracy:
    """A training joined with its simulated times, with options as of `TtaOptions`."""
    wanted = TtaOptions(study=folder, scenario=scenario, **options)
    result = engine.run(tta.STUDY, join.request(wanted, folder, scenario))
    assert isinstance(result, tta.TimeToAccuracy)
    return result
