"""A training run as a cell: of a study's file, or of the caller's own model and data."""

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
from simshuffle.studies.training.tables import PLANS, TABLES, run_outcome
from simshuffle.study.cell import Cell, Outcome, PlainCell, Tell, digest_of
from simshuffle.study.store import TABLE
from simshuffle.train.emulate import (
    Materials,
    find_device,
    materials_of,
    train_materials,
    with_first_weights,
)
from simshuffle.train.loss import Loss
from simshuffle.train.network import torch_dtype
from simshuffle.train.run import Run
from simshuffle.train.sources import DatasetSource
from simshuffle.train.training import OptimizerFactory, load_optimizers

SECONDS_PER_SAMPLE = 5e-5
"""s of one core for a sample of an epoch and its share of the evaluations, with a small
network (estimate from the report of `simshuffle train default`).
"""
BYTES_OF_TORCH = 0.5e9
"""Bytes of a process that has loaded torch and trains a small network (measured)."""


class TorchCell(PlainCell):
    """A cell that trains a network."""

    @property
    def memory(self) -> float:
        """Bytes of a process that has loaded torch and trains a small network."""
        return BYTES_OF_TORCH

    @staticmethod
    def make_ready() -> None:
        """Load the modules that optimisers need, before processes are forked."""
        load_optimizers()


@dataclass(frozen=True)
class TrainingCell(TorchCell):
    """A cell that trains a run of a study's file."""

    training_run: Run  # the run that is trained
    samples: int  # samples that an epoch trains on; for the cost alone
    label: str  # of the run, for people
    device: str  # that trains

    @property
    def key(self) -> Any:
        """The values of `run_key`, which decide the run beside the code."""
        return run_key(self.training_run, self.device)

    @property
    def cost(self) -> float:
        """Expected s of one core, roughly, by the samples that pass the network.

        There are two views of each sample for a contrastive loss. An inference pass for
        importance costs about a third of an epoch. Sixteen ranks or fewer take three
        times as long as very many.
        """
        training = self.training_run.training
        views = 1.0 if training.temperature is None else 2.0
        importance_pass = 1 / 3 if self.training_run.exchange.inference_pass else 0.0
        passes = views + importance_pass
        # few ranks make small batches, which take longer
        small_batch_factor = 1.0 + 2.0 * (16 / max(self.training_run.world_size, 16))
        seconds_per_pass = SECONDS_PER_SAMPLE * self.samples * training.epochs
        return seconds_per_pass * passes * small_batch_factor

    @property
    def parts(self) -> frozenset[str]:
        """Names of the tables and files of the outcome; with the exchange plans only
        where the strategy exchanges samples.
        """
        has_plans = self.training_run.exchange.exchange_schedule is not None
        plans = [PLANS] if has_plans else []
        return frozenset([*(f"{name}{TABLE}" for name in TABLES), *plans])

    def run(self, tell: Tell) -> Outcome:
        """Train the run with one thread; return its values, tables and plans.

        A run that diverges has an outcome too, of status 'failed'.

        Raises:
            InputError: the device cannot be used, or the run cannot be trained so.
        """
        with one_thread():
            device = find_device(self.device)
            materials = self.materials(device)
            return run_outcome(
                train_materials(self.training_run, materials, device, tell)
            )

    def materials(self, device: torch.device) -> Materials:
        """Return the network, on the CPU, and the samples, on ``device``.

        Raises:
            InputError: the samples cannot be loaded, or the network cannot take them.
        """
        return materials_of(self.training_run, device)


@dataclass(frozen=True, eq=False)
class OwnTraining:
    """The model, data, loss and optimiser that a caller gives."""

    # makes the network; called once for each run, with torch's generator at its seed
    model: Callable[[], nn.Module]
    train: Dataset[Any]  # map-style, of pairs (input, target), to train on
    test: Dataset[Any]  # map-style, of pairs (input, target), to test with
    loss: Loss  # of each sample
    optimizer: OptimizerFactory | None  # of the network's parameters; SGD if None

    def sources(
        self, dtype: torch.dtype, device: torch.device
    ) -> tuple[DatasetSource, DatasetSource]:
        """Return the samples for training and for testing; batches come to ``device``.

        Raises:
            InputError: a data set is not map-style, is empty, or its items are no pairs
                of an input and a label from 0.
        """
        train = DatasetSource(self.train, dtype=dtype, device=device, name="train")
        return train, DatasetSource(self.test, dtype=dtype, device=device, name="test")


@dataclass(frozen=True)
class OwnCell(TrainingCell):
    """A cell that trains a model and data of the caller's, which is known again by its
    ``mark``.
    """

    custom: OwnTraining  # model, data, loss and optimiser
    mark: str  # stands for them, as far as can be seen from outside: see `mark_of`

    @property
    def key(self) -> Any:
        """The values that decide the run, and the mark.

        The caller's code is not in the key; the version that the caller gives to the
        model stands for the code.
        """
        return [*super().key, self.mark]

    @property
    def memory(self) -> float:
        """Bytes of a process with torch, plus twice the bytes of the caller's data."""
        data_nbytes = resident_nbytes(self.custom.train) + resident_nbytes(
            self.custom.test
        )
        return super().memory + 2 * data_nbytes

    def materials(self, device: torch.device) -> Materials:
        """Return the caller's network, on the CPU, and samples, on ``device``; errors
        as of `OwnTraining.sources`.
        """
        run = self.training_run
        train, test = self.custom.sources(torch_dtype(run.training), device)
        return Materials(
            model=with_first_weights(run, self.custom.model),
            train=train,
            test=test,
            data_name=run.data.label,
            model_name=run.model.label,
            loss=self.custom.loss,
            optimizer=self.custom.optimizer,
        )


def resident_nbytes(data: Dataset[Any]) -> float:
    """Return the bytes of a data set's tensors and arrays; 0 where its samples lie
    elsewhere.

    Only attributes, and items of tuples that are attributes, count: nothing in lists or
    in data sets that ``data`` wraps.
    """
    attributes = getattr(data, "__dict__", {}).values()
    arrays = [
        array
        for value in attributes
        for array in (value if isinstance(value, tuple) else (value,))
        if isinstance(array, torch.Tensor | np.ndarray)
    ]
    return float(sum(array.nbytes for array in arrays))


Kind = TypeVar("Kind", bound=Cell)


def cells_by_name(cells: Iterable[Kind]) -> dict[str, Kind]:
    """Return cells by the name LABEL_DIGEST, with the first 12 digits of the digest.

    Of cells with equal label, key and code only the last one is kept.
    """
    return {f"{cell.label}_{digest_of(cell)[:12]}": cell for cell in cells}


def run_key(run: Run, device: str) -> list[Any]:
    """Return the values that decide a run beside the code.

    They are its values as JSON, the version of torch, the kind of device ('cuda' of
    'cuda:1'), and, with a cluster, the lists of host, leaf switch and rack of each
    rank. These lists are left out where the cluster cannot be read or is too small.
    """
    key = [run.model_dump(mode="json"), version("torch"), device.partition(":")[0]]
    if run.cluster is not None:
        with suppress(InputError):
            places = places_on(run.cluster, run.world_size)
            key += [
                indices.tolist() for indices in (places.host, places.leaf, places.rack)
            ]
    return key


@contextmanager
def one_thread() -> Iterator[None]:
    """Within the block, let torch and BLAS of this process compute with one thread, so
    that sums are added up in one order.
    """
    previous_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(previous_threads)
