"""Retraining: one run on the full data or on what a filter left of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.studies.training.stored import check_run, write_run
from simshuffle.train.data import Samples, TrainingSet
from simshuffle.train.emulate import train_run
from simshuffle.train.pool import Tell
from simshuffle.train.run import Run

SMALL_BATCH = 64
"""Samples; with smaller batches an iteration takes about as long as with this one (estimate)."""


@dataclass(frozen=True, eq=False)
class RetrainingJob:
    """One run as a job of the pool.

    Attributes:
        training_run: what is trained; its data are the full ones.
        kept: numbers of the training samples that are trained on; None for all of them.
        num_samples: how many those are.
        description: values of `simshuffle.studies.filtering.tables.DESCRIPTION_COLUMNS`.
        device: that trains.
    """

    training_run: Run
    kept: NDArray[np.int64] | None
    num_samples: int
    description: dict[str, Any]
    device: str = "cpu"

    @property
    def cost(self) -> float:
        """Samples that pass the network, roughly; small batches take longer."""
        training = self.training_run.training
        return (
            self.num_samples * training.epochs * max(1.0, SMALL_BATCH / training.local_batch_size)
        )

    def run(self, folder: Path, tell: Tell) -> None:
        """Train, and write the record."""
        data = self.training_run.data.load()
        record = train_run(
            self.training_run,
            tell,
            self.device,
            data if self.kept is None else part_of(data, self.kept),
        )
        write_run(replace(record, description=record.description | self.description), folder)

    def check(self, folder: Path) -> None:
        """As `check_run`."""
        check_run(folder)


def part_of(data: TrainingSet, kept: NDArray[np.int64]) -> TrainingSet:
    """The set with only those training samples; scaled as the whole set, so that a filter changes
    nothing but the samples."""
    return replace(data, train=Samples(data.train.inputs[kept], data.train.targets[kept]))
