"""One training run as a cell: of a study's file, or of what the caller gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import nn
from torch.utils.data import Dataset

from simshuffle.errors import InputError
from simshuffle.job.plan.machine_places import places_on
from simshuffle.studies.training.tables import PLANS, TABLES, outcome_of
from simshuffle.study.cell import Cell, Outcome, PlainCell, Tell, digest_of
from simshuffle.study.store import TABLE
from simshuffle.train.emulate import (
    Materials,
    device_named,
    materials_of,
    trained,
    with_first_weights,
)
from simshuffle.train.loss import Loss
from simshuffle.train.network import torch_dtype
from simshuffle.train.run import Run
from simshuffle.train.samples import DatasetSource
from simshuffle.train.training import OptimizerFactory, load_optimizers

SECONDS_PER_SAMPLE = 5e-5
"""s of one core for a sample of an epoch and its share of the evaluations, with a small network
(estimate from the report of `simshuffle train default`)."""
BYTES_OF_TORCH = 0.5e9
"""Bytes of a process that has loaded torch and trains a small network (measured)."""


class TorchCell(PlainCell):
    """Trains a network."""

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return BYTES_OF_TORCH

    @staticmethod
    def make_ready() -> None:
        """As for `Cell`: loads what optimisers need."""
        load_optimizers()


@dataclass(frozen=True)
class TrainingCell(TorchCell):
    """A run."""

    training_run: Run  # what is trained
    samples: int  # that an epoch trains on; for the cost alone
    label: str  # of the run, for people
    device: str  # that trains

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return key_of(self.training_run, self.device)

    @property
    def cost(self) -> float:
        """As for `Cell`: by the samples that pass the network, two views of each for a contrastive
        loss. An inference pass for importance costs about a third of an epoch."""
        training, exchange = self.training_run.training, self.training_run.exchange
        views = 1.0 if training.temperature is None else 2.0
        passes = views + (1 / 3 if exchange.inference_pass else 0.0)
        # few ranks make small batches, which take longer
        small = 1.0 + 2.0 * (16 / max(self.training_run.world_size, 16))
        return SECONDS_PER_SAMPLE * self.samples * training.epochs * passes * small

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`."""
        exchanged = self.training_run.exchange.exchange_schedule is not None
        plans = [PLANS] if exchanged else []
        return frozenset([*(f"{name}{TABLE}" for name in TABLES), *plans])

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: see `simshuffle.studies.training.tables.outcome_of`."""
        with one_thread():
            where = device_named(self.device)
            return outcome_of(trained(self.training_run, self.materials(where), where, tell))

    def materials(self, device: torch.device) -> Materials:
        """What it is trained with, on ``device``; errors as of `materials_of`."""
        return materials_of(self.training_run, device)


@dataclass(frozen=True, eq=False)
class OwnTraining:
    """What the caller gives."""

    # makes the network; called once for each run, with torch's generator at its seed
    model: Callable[[], nn.Module]
    # train, test: map-style data sets of pairs (input, target)
    train: Dataset[Any]
    test: Dataset[Any]
    loss: Loss  # of each sample
    optimizer: OptimizerFactory | None  # of the network's parameters; SGD if None

    def sources(
        self, dtype: torch.dtype, device: torch.device
    ) -> tuple[DatasetSource, DatasetSource]:
        """The samples for training and for testing, on ``device``; errors as of `DatasetSource`."""
        train = DatasetSource(self.train, dtype=dtype, device=device, name="train")
        return train, DatasetSource(self.test, dtype=dtype, device=device, name="test")


@dataclass(frozen=True)
class OwnCell(TrainingCell):
    """A run of what the caller gives. It is known again by its ``mark``."""

    own: OwnTraining  # model, data, loss and optimiser
    mark: str  # stands for them, as far as can be seen from outside: see `mark_of`

    @property
    def key(self) -> Any:
        """As for `Cell`. Code is not in it; the version of the study's model stands for that."""
        return [*super().key, self.mark]

    @property
    def memory(self) -> float:
        """As for `Cell`: every process has data of its own."""
        return super().memory + 2 * (held(self.own.train) + held(self.own.test))

    def materials(self, device: torch.device) -> Materials:
        """As for `TrainingCell`: what the caller gives."""
        run, own = self.training_run, self.own
        return Materials(
            with_first_weights(run, own.model),
            *own.sources(torch_dtype(run.training), device),
            run.data.label,
            run.model.label,
            own.loss,
            own.optimizer,
        )


def held(data: Dataset[Any]) -> float:
    """Bytes of the tensors and arrays that a data set holds; 0 where its samples lie elsewhere."""
    found = getattr(data, "__dict__", {}).values()
    parts = [part for value in found for part in (value if isinstance(value, tuple) else (value,))]
    return float(sum(part.nbytes for part in parts if isinstance(part, torch.Tensor | np.ndarray)))


Kind = TypeVar("Kind", bound=Cell)


def named(cells: Iterable[Kind]) -> dict[str, Kind]:
    """Cells by label and what stands for all that decides them."""
    return {f"{cell.label}_{digest_of(cell)[:12]}": cell for cell in cells}


def key_of(run: Run, device: str) -> list[Any]:
    """Return what decides a run beside the code: its values, torch, the kind of device, and where
    its ranks are on the cluster of a file, which may change. Of a file that is gone nothing is."""
    key = [run.model_dump(mode="json"), version("torch"), device.partition(":")[0]]
    if run.cluster is not None:
        with suppress(InputError):
            places = places_on(run.cluster, run.world_size)
            key += [of.tolist() for of in (places.host, places.leaf, places.rack)]
    return key


@contextmanager
def one_thread() -> Iterator[None]:
    """What computes meanwhile does so with one thread, so that sums are added up in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
