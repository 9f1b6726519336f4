"""Importance of samples on real ranks: losses that every rank measures on its own samples, and that
all ranks then share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from simshuffle.errors import refuse
from simshuffle.train.distributed.dataset import ShardDataset, default_device
from simshuffle.train.distributed.group import Ranks
from simshuffle.train.loss import Loss, check_losses

Ints = NDArray[np.integer]
Floats = NDArray[np.float64]


class TrainedLosses:
    """The loss of each sample as it was last trained on. Every rank records its own; `share` makes
    the table the same on all.

    Attributes:
        table: (N,) nats; NaN where a sample was never trained on.
    """

    def __init__(self, num_samples: int, world_size: int) -> None:
        self.table: Floats = np.full(num_samples, np.nan)
        self._samples: Ints = np.zeros((0, world_size), np.int64)
        self._mine: Floats = np.zeros(0)
        self._known = 0

    def begin(self, samples: Ints) -> None:
        """A new epoch, in which rank r trains on column r of ``samples`` (n, M)."""
        self._samples, self._mine, self._known = samples, np.zeros(len(samples)), 0

    def record(self, losses: Floats) -> None:
        """The losses of the next local batch.

        Raises:
            InputError: there are more than the epoch has samples.
        """
        end = self._known + len(losses)
        if end > len(self._mine):
            rule = f"are more than the {len(self._mine)} that this rank trains on in the epoch"
            refuse("losses", rule, str(end), "Record those of each local batch once.", "scheduler")
        self._mine[self._known : end] = losses
        self._known = end

    def share(self, ranks: Ranks) -> bool:
        """Bring the losses of the epoch into the table, on all ranks; False if a rank has not
        recorded all of them."""
        parts = ranks.gather(self._mine[: self._known])
        complete = all(len(part) == len(self._mine) for part in parts)
        for rank, part in enumerate(parts):
            # of a sample that was repeated, the later loss stays
            self.table[self._samples[: len(part), rank]] = part
        self.begin(self._samples[:0])
        return complete

    def importance(self, ranks: Ranks, epoch: int) -> Floats:
        """The importance (N,) for ``epoch`` (from 1) by the losses of the one before; in the first
        all are alike. Collective.

        Raises:
            InputError: on all ranks: one has not recorded all losses.
        """
        if not self.share(ranks):
            rule = f"of all samples of epoch {epoch - 1} must be recorded"
            remedy = "Call scheduler.record_losses(losses) for every local batch."
            refuse("losses", rule, "", remedy, "scheduler")
        return np.where(np.isnan(self.table), 1.0, self.table)


def inference_losses(
    dataset: ShardDataset,
    batches: Sequence[Ints],
    model: nn.Module,
    loss: Loss,
    collate_fn: Callable[[list[Any]], Any] | None,
    *,
    training: bool = False,
) -> Floats:
    """The loss of each sample of ``batches``, which are in local storage, in the order of their
    numbers: (n,). Of a sample that comes twice it is the first one.

    In eval mode, so with this rank's running statistics; with ``training`` in training mode, where
    they take in every batch.

    Raises:
        InputError: ``loss`` gives no loss for each sample, or the samples have no targets.
    """
    network = model.module if isinstance(model, DistributedDataParallel) else model
    device, before = default_device(network), network.training
    found = [np.zeros(0)]
    network.train(training)
    with torch.no_grad():
        named = [batch.tolist() for batch in batches]
        for batch in DataLoader(dataset, batch_sampler=named, collate_fn=collate_fn):
            inputs, targets = _pair(batch)
            losses = loss(network(inputs.to(device)), targets.to(device))
            check_losses(losses, len(targets), "scheduler")
            found.append(losses.double().cpu().numpy())
    network.train(before)
    first = np.unique(np.array([i for batch in named for i in batch]), return_index=True)[1]
    return np.concatenate(found)[first]


def _pair(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        several = isinstance(batch, tuple | list)
        shown = f"{len(batch)} values" if several else f"a {type(batch).__name__}"
        rule, remedy = "must give pairs (input, target)", "Give each sample its label."
        refuse("dataset", rule, shown, remedy, "scheduler")
    return batch[0], batch[1]


def shared_importance(measured: Floats | None, owner: Ints, ranks: Ranks, epoch: int) -> Floats:
    """The importance (N,) of all samples, of which every rank has ``measured`` that of its own.
    Collective.

    Args:
        measured: of this rank's samples, in the order of their numbers; None if it was not.
        owner: the rank of each sample, (N,).
        ranks: all ranks.
        epoch: to be planned, from 1.

    Raises:
        InputError: on all ranks: one has not measured its samples.
    """
    importance = np.zeros(len(owner))
    for rank, part in enumerate(ranks.gather(np.zeros(0) if measured is None else measured)):
        of_rank = np.flatnonzero(owner == rank)
        if len(part) != len(of_rank):
            rule, value = f"must be measured for epoch {epoch}", f"none on rank {rank}"
            remedy = (
                "Call scheduler.measure_importance(model) on every rank before scheduling(epoch)."
            )
            refuse("importance", rule, value, remedy, "scheduler")
        importance[of_rank] = part
    return importance
