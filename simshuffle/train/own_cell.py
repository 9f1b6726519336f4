"""A training run of a model, data, loss and optimiser of the caller's as a cell."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from simshuffle.errors import InputError, Problem
from simshuffle.train.cell import RunCell, named
from simshuffle.train.emulate import (
    Materials,
    check_materials,
    warn_of_large_batch,
    with_first_weights,
)
from simshuffle.train.loss import Loss, loss_name
from simshuffle.train.network import torch_dtype
from simshuffle.train.optimizer import OptimizerFactory, own_optimizer
from simshuffle.train.shuffling import run_label
from simshuffle.train.source import DatasetSource
from simshuffle.train.study import Study


@dataclass(frozen=True, eq=False)
class Own:
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
        """The samples for training and for testing, on ``device``.

        Raises:
            InputError: as of `DatasetSource`.
        """
        train = DatasetSource(self.train, dtype=dtype, device=device, name="train")
        return train, DatasetSource(self.test, dtype=dtype, device=device, name="test")


@dataclass(frozen=True)
class OwnCell(RunCell):
    """A run of what the caller gives. It is known again by its ``mark``."""

    own: Own  # model, data, loss and optimiser
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
        """As for `RunCell`: what the caller gives."""
        run, own = self.training_run, self.own
        return Materials(
            with_first_weights(run, own.model),
            *own.sources(torch_dtype(run.training), device),
            run.data.label,
            run.model.label,
            own.loss,
            own.optimizer,
        )


def own_cells(study: Study, own: Own, device: str) -> dict[str, OwnCell]:
    """The runs of a study of what the caller gives, by name.

    Raises:
        InputError: one cannot be trained.
    """
    cpu, problems, seen = torch.device("cpu"), dict[Problem, None](), set[str]()
    runs, marks = study.all_runs(), dict[int, str]()
    train, test = own.sources(torch.float32, cpu)
    for run in runs:
        network = with_first_weights(run, own.model)
        if run.seed not in marks:
            marks[run.seed] = mark_of(network, own, train, test)
        order = run.exchange if run.exchange.fetches else run.exchange.needs_places
        parts = repr((run.training, run.world_size, run.cluster, order))
        if parts in seen:
            continue
        seen.add(parts)
        try:
            dtype = torch_dtype(run.training)
            source = train if dtype == torch.float32 else own.sources(dtype, cpu)[0]
            check_materials(run, network, source, own.loss)
            warn_of_large_batch(len(train), run.world_size, run.training)
        except InputError as error:
            problems |= dict.fromkeys(
                replace(problem, path=argument_of(problem.path)) for problem in error.problems
            )
    if problems:
        raise InputError(list(problems), "train_study")
    return named(
        OwnCell(run, len(train), run_label(run), device, own, marks[run.seed]) for run in runs
    )


def argument_of(key: str) -> str:
    """Which argument of `train_study` a key of a run comes from."""
    first, dot, rest = key.partition(".")
    return f"strategies{dot}{rest}" if first == "exchange" else key


def mark_of(network: nn.Module, own: Own, train: DatasetSource, test: DatasetSource) -> str:
    """What stands for ``own`` in a run that begins with ``network``: its layers and first weights,
    the labels of all samples, and the loss' and the optimiser's names and numbers. Neither inputs,
    which may be drawn at random, nor code."""
    digest = hashlib.sha256(repr(network).encode())
    for key, value in network.state_dict().items():
        digest.update(key.encode() + value.detach().cpu().numpy().tobytes())
    for source in (train, test):
        digest.update(np.ascontiguousarray(source.targets).tobytes())
    settings = "" if own.optimizer is None else repr(own_optimizer(network, own.optimizer))
    loss = repr(own.loss) if isinstance(own.loss, nn.Module) else loss_name(own.loss)
    digest.update(f"{len(train)} {len(test)} {loss} {settings}".encode())
    return digest.hexdigest()


def held(data: Dataset[Any]) -> float:
    """Bytes of the tensors and arrays that a data set holds; 0 where its samples lie elsewhere."""
    found = getattr(data, "__dict__", {}).values()
    parts = [part for value in found for part in (value if isinstance(value, tuple) else (value,))]
    return float(sum(part.nbytes for part in parts if isinstance(part, torch.Tensor | np.ndarray)))
