"""A filtered training that never took place: extractions and runs made by hand."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import SimulationError
from simshuffle.extensions.learning.filtering.tables import (
    EPS_COLUMNS,
    FILTER_COLUMNS,
    POINT_COLUMNS,
    SUBSETS,
    FilterTables,
    filter_row,
    run_table,
)
from simshuffle.study.cell import Outcome, PlainCell, Tell
from simshuffle.study.study import Outcomes, Request

SEEDS, SAMPLES = (0, 1), 24


@dataclass(frozen=True)
class Points(PlainCell):
    """The points of one seed in the plane."""

    seed: int
    label: str = "points"
    parts: frozenset[str] = frozenset({"points.parquet"})

    @property
    def key(self) -> Any:
        return self.seed

    def run(self, tell: Tell) -> Outcome:
        rng = np.random.default_rng(self.seed)
        table = pd.DataFrame(
            {
                "sample": np.arange(SAMPLES),
                "label": np.arange(SAMPLES) % 3,
                "x": rng.normal(size=SAMPLES),
                "y": rng.normal(size=SAMPLES),
                "loss": rng.random(SAMPLES),
                "right": rng.random(SAMPLES) < 0.7,
            }
        )
        facts = dict.fromkeys(FILTER_COLUMNS, 0.5) | {
            "extractor": "mlp",
            "seed": self.seed,
            "parameters": 10,
            "features": 4,
            "components": 2,
        }
        return Outcome(facts, {"points": table})


@dataclass(frozen=True)
class Retrained(PlainCell):
    """One run on one data set."""

    subset: str
    seed: int
    label: str = "run"

    @property
    def key(self) -> Any:
        return [self.subset, self.seed]

    def run(self, tell: Tell) -> Outcome:
        accuracy = 0.6 + 0.1 * SUBSETS.index(self.subset) + 0.01 * self.seed
        end = {"train_loss": 0.5, "accuracy": accuracy, "loss": 0.7}
        return Outcome({"status": "done", "message": "", "seconds": 1.0, **end})


@dataclass(frozen=True)
class Made:
    """The study, as `simshuffle.extensions.learning.filtering.request.Filtering`."""

    facts: Mapping[str, Any] = field(
        default_factory=lambda: {"study": "made", "description": "Made up.", "device": "cpu"}
    )
    extractions: Mapping[str, Points] = field(
        default_factory=lambda: {f"mlp_s{seed}": Points(seed) for seed in SEEDS}
    )

    def retrainings(self, outcomes: Outcomes) -> Mapping[str, Retrained]:
        return {f"{name}_s{seed}": Retrained(name, seed) for name in SUBSETS for seed in SEEDS}

    def tables(self, outcomes: Outcomes) -> FilterTables:
        noise = np.arange(SAMPLES) % 6 == 0
        if missing := set(self.extractions) - set(outcomes):
            raise SimulationError(f"{missing} are not there")
        extracted = [outcomes[name] for name in self.extractions]
        filters = [filter_row(of.values, of.tables["points"], noise, used=True) for of in extracted]
        eps = [("mlp", seed, 0.5, noise.mean()) for seed in SEEDS]
        points = [
            outcomes[name].tables["points"].assign(seed=cell.seed, noise=noise)
            for name, cell in self.extractions.items()
        ]
        descriptions = {
            name: {
                "subset": cell.subset,
                "batch_size": 8,
                "learning_rate": 0.1,
                "seed": cell.seed,
                "num_samples": SAMPLES if cell.subset == "full" else int((~noise).sum()),
            }
            for name, cell in self.retrainings(outcomes).items()
        }
        return FilterTables(
            pd.DataFrame(filters, columns=list(FILTER_COLUMNS)),
            pd.DataFrame(eps, columns=list(EPS_COLUMNS)),
            pd.concat(points, ignore_index=True)[list(POINT_COLUMNS)],
            run_table(descriptions, outcomes),
        )


def request() -> Request[Any]:
    """What is asked of it."""
    return Request("made", Made(), {"study.yaml": "name: made\n"})
