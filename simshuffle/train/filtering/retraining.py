"""Retraining: one run on the full data or on what a filter left of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.study.cell import Outcome, Tell
from simshuffle.train.cell import BYTES_OF_TORCH, SECONDS_PER_SAMPLE, TorchCell, key_of, one_thread
from simshuffle.train.data import Samples, TrainingSet
from simshuffle.train.emulate import train_run
from simshuffle.train.run import Run

SMALL_BATCH = 64
"""Samples; with smaller batches an iteration takes about as long as with this one (estimate)."""


@dataclass(frozen=True, eq=False)
class RetrainingCell(TorchCell):
    """One run.

    Attributes:
        training_run: what is trained; its data are the full ones.
        kept: numbers of the training samples that are trained on; None for all of them.
        num_samples: how many those are.
        description: values of `simshuffle.studies.filtering.tables.DESCRIPTION_COLUMNS`.
        label: for people.
        device: that trains.
    """

    training_run: Run
    kept: NDArray[np.int64] | None
    num_samples: int
    description: Mapping[str, Any]
    label: str
    device: str = "cpu"

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        kept = None if self.kept is None else hashlib.sha256(self.kept.tobytes()).hexdigest()
        return [*key_of(self.training_run, self.device), kept]

    @property
    def cost(self) -> float:
        """As for `Cell`; small batches take longer."""
        training = self.training_run.training
        small = max(1.0, SMALL_BATCH / training.local_batch_size)
        return SECONDS_PER_SAMPLE * self.num_samples * training.epochs * small

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return BYTES_OF_TORCH

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: values status, message and seconds; and train_loss, accuracy and loss of
        the last epoch."""
        with one_thread():
            data = self.training_run.data.load()
            part = data if self.kept is None else part_of(data, self.kept)
            record = train_run(self.training_run, tell, self.device, part)
        names = {"train_loss": "train_loss", "accuracy": "own_accuracy", "loss": "own_loss"}
        done = record.status == "done"
        last = {key: float(record.epochs[of].iloc[-1]) for key, of in names.items() if done}
        finite = {key: value if math.isfinite(value) else math.nan for key, value in last.items()}
        ended = {"status": record.status, "message": record.message, "seconds": record.seconds}
        return Outcome({**ended, **finite})


def part_of(data: TrainingSet, kept: NDArray[np.int64]) -> TrainingSet:
    """The set with only those training samples; scaled as the whole set, so that a filter changes
    nothing but the samples."""
    return replace(data, train=Samples(data.train.inputs[kept], data.train.targets[kept]))
