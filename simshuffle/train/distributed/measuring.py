"""What is measured on real ranks: the importance of samples, by losses that all ranks share; when
every rank did what in an epoch, by marks of its clock; and scores, which rank 0 evaluates."""

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
from simshuffle.report.timeline import phase_rows
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.train.batch_norm import batch_norm_layers
from simshuffle.train.distributed.dataset import ShardDataset, default_device
from simshuffle.train.distributed.group import RankGroup
from simshuffle.train.emulate import Materials
from simshuffle.train.evaluate import Evaluation, Score
from simshuffle.train.loss import Loss, check_losses
from simshuffle.train.network import ranked_network
from simshuffle.train.run import Run
from simshuffle.train.training import Statistics

PHASES = ("io", "forward", "backward", "allreduce", "exchange", "update", "exchange")
"""What an iteration goes through, as of `simshuffle.report.timeline.PHASES`."""
_COLUMNS = {"forward": (1,), "backward": (2,), "update": (3, 5), "exchange": (4, 6)}
"""Which of them make up each time of the iterations table."""


def marks(begin: float, measured: float, bounds: Sequence[Sequence[float]], end: float) -> Floats:
    """When one rank did what in an epoch, s of its own clock, in one array: when it began,
    importance was measured and the last exchange ended; and for each iteration when each of
    `PHASES` began and the last ended."""
    return np.concatenate([[begin, measured, end], np.ravel(bounds)])


def timeline_rows(epoch: int, every: Floats) -> list[dict[str, NDArray[Any]]]:
    """Rows of the timeline, given the marks (M, n) of all ranks; without bytes."""
    ranks, bounds = len(every), _bounds(every).swapaxes(0, 1)
    measured = every[None, :, :2]
    last = np.stack([bounds[-1, :, -1], every[:, 2]], axis=-1)[None]
    parts = (
        (["importance"], measured, True),
        (list(PHASES), bounds, False),
        (["exchange"], last, True),
    )
    return [
        phase_rows(epoch, names, at, np.zeros((len(at), ranks, len(names))), final=final)
        for names, at, final in parts
    ]


def _bounds(every: Floats) -> Floats:
    """(M, iterations, 8), from marks as `marks` has them."""
    return every[:, 3:].reshape(len(every), -1, len(PHASES) + 1)


def iteration_seconds(every: Floats) -> list[dict[str, float]]:
    """The times of each iteration in s, means over the ranks; of the marks (M, n) of all."""
    took = np.diff(_bounds(every), axis=-1).mean(axis=0)  # (iterations, 7)
    # the wait for the last exchange belongs to the last iteration
    took[-1, -1] += (every[:, 2] - _bounds(every)[:, -1, -1]).mean()
    return [
        {f"{name}_s": float(row[list(parts)].sum()) for name, parts in _COLUMNS.items()}
        for row in took
    ]


def epoch_seconds(every: Floats) -> tuple[float, float]:
    """Of the measuring of importance, and of the epoch in all, s: means over the ranks."""
    return float((every[:, 1] - every[:, 0]).mean()), float((every[:, 2] - every[:, 0]).mean())


# ------------------------------------------------------------------------------------------- scores


class Scorer:
    """Evaluates the network of ``run``, on the same samples as its emulation."""

    def __init__(
        self, run: Run, materials: Materials, ranks: RankGroup, device: torch.device
    ) -> None:
        self.ranks = ranks
        train, world_size = materials.train, run.world_size
        self.network = ranked_network(
            materials.model,
            train,
            world_size,
            run.training,
            device,
            materials.loss,
        )
        self.evaluation = Evaluation(run.training, materials.test, train, world_size, run.rng)

    def scores(self, model: nn.Module) -> dict[Statistics, Score]:
        """The scores on rank 0, nothing on the others. Collective."""
        layers = batch_norm_layers(model)
        mine = [
            statistic.double().cpu().numpy().ravel()
            for layer in layers
            for statistic in _statistics(layer)
        ]
        found = self.ranks.gather(np.concatenate([np.zeros(0), *mine]))
        if self.ranks.rank != 0:
            return {}
        with torch.no_grad():
            for kept, weight in zip(
                self.network.model.parameters(), model.parameters(), strict=True
            ):
                kept.copy_(weight)
            table = torch.from_numpy(np.array([np.asarray(part, np.float64) for part in found]))
            for layer in batch_norm_layers(self.network.model):
                for statistic in _statistics(layer):
                    size = statistic.shape[-1]
                    of_groups = table[:: self.network.group, :size]
                    statistic.copy_(of_groups if statistic.ndim == 2 else of_groups[0])
                    table = table[:, size:]
        return self.evaluation.scores(self.network)


def _statistics(layer: nn.Module) -> list[torch.Tensor]:
    return [
        each for each in (layer.running_mean, layer.running_var) if isinstance(each, torch.Tensor)
    ]


# --------------------------------------------------------------------------------------- importance


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
        """A new epoch, in which rank r trains on column r of ``samples`` (n, M), -1 being none."""
        self._samples, self._mine, self._known = samples, np.zeros(len(samples)), 0

    def record(self, losses: Floats) -> None:
        """The losses of the next local batch; InputError if there are more than the epoch has
        samples."""
        end = self._known + len(losses)
        if end > len(self._mine):
            rule = f"are more than the {len(self._mine)} that this rank trains on in the epoch"
            refuse("losses", rule, str(end), "Record those of each local batch once.", "scheduler")
        self._mine[self._known : end] = losses
        self._known = end

    def share(self, ranks: RankGroup) -> bool:
        """Bring the losses of the epoch into the table, on all ranks; False if a rank lacks
        some."""
        parts = ranks.gather(self._mine[: self._known])
        wanted = (self._samples >= 0).sum(axis=0)
        complete = all(len(part) == n for part, n in zip(parts, wanted, strict=True))
        for rank, part in enumerate(parts):
            # of a sample that was repeated, the later loss stays
            self.table[self._samples[: len(part), rank]] = part
        self.begin(self._samples[:0])
        return complete

    def importance(self, ranks: RankGroup, epoch: int) -> Floats:
        """The importance (N,) for ``epoch`` (from 1) by the losses of the one before; in the first
        all are alike. Raises InputError, on all ranks, if one lacks some. Collective."""
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
    """The loss of each sample of ``batches``, in local storage, in the order of their numbers:
    (n,); of one that comes twice the first. With this rank's running statistics in eval mode; with
    ``training`` in training mode, where they take in every batch. Raises InputError if ``loss``
    gives none for each sample, or samples have no targets."""
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


def shared_importance(measured: Floats | None, owner: Ints, ranks: RankGroup, epoch: int) -> Floats:
    """The importance (N,) of all samples for ``epoch`` (from 1), of which every rank has
    ``measured`` that of its own by ``owner``, in the order of their numbers. Collective. Raises
    InputError on all ranks if one has not."""
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
