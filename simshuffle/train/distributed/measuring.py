"""Measurements on real ranks: the importance of samples, by losses that all ranks
share; the time of each phase of an epoch, by marks of every rank's clock; and scores,
which rank 0 evaluates.
"""

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
"""Phases of an iteration in their order, by names of
`simshuffle.report.timeline.PHASES`.
"""
_COLUMNS = {"forward": (1,), "backward": (2,), "update": (3, 5), "exchange": (4, 6)}
"""Indices into `PHASES` whose times are added up for each column of the iterations
table.
"""


def clock_marks(
    begin: float, measured: float, bounds: Sequence[Sequence[float]], end: float
) -> Floats:
    """Return one array (3 + 8 iterations,) with the clock marks of one rank in an
    epoch, in s of its own clock: begin, measured and end, then the bounds.

    Args:
        begin: when the epoch began.
        measured: when importance was measured.
        bounds: for each iteration, when each of the 7 `PHASES` began, and when the last
            one ended.
        end: when the wait for the last exchange ended.
    """
    return np.concatenate([[begin, measured, end], np.ravel(bounds)])


def timeline_rows(epoch: int, marks: Floats) -> list[dict[str, NDArray[Any]]]:
    """Return rows of the timeline, of 0 bytes, given the `clock_marks` (M, n) of all
    ranks; times as in the marks. A phase that took no time has no row.

    Three tables, each as arrays by column: the measuring of importance, the `PHASES`
    of all iterations, and the wait for the last exchange.
    """
    # an axis of iterations, then of ranks, then of bounds, as `phase_rows` takes them
    num_ranks = len(marks)
    bounds = _bounds(marks).swapaxes(0, 1)  # (iterations, M, 8)
    importance_bounds = marks[None, :, :2]
    last_exchange_bounds = np.stack([bounds[-1, :, -1], marks[:, 2]], axis=-1)[None]
    parts = (
        (["importance"], importance_bounds, True),
        (list(PHASES), bounds, False),
        (["exchange"], last_exchange_bounds, True),
    )
    return [
        phase_rows(
            epoch,
            names,
            times,
            np.zeros((len(times), num_ranks, len(names))),
            final=final,
        )
        for names, times, final in parts
    ]


def _bounds(marks: Floats) -> Floats:
    """Return the bounds of all phases, (M, iterations, 8), of `clock_marks` (M, n)."""
    return marks[:, 3:].reshape(len(marks), -1, len(PHASES) + 1)


def iteration_seconds(marks: Floats) -> list[dict[str, float]]:
    """Return the times of each iteration, in s, as means over ranks; from the
    `clock_marks` (M, n) of all ranks.

    Keys: forward_s, backward_s, update_s (with the wait for gradients) and exchange_s.
    Reading counts in none.
    """
    seconds = np.diff(_bounds(marks), axis=-1).mean(axis=0)  # (iterations, 7)
    # the wait for the last exchange belongs to the last iteration
    seconds[-1, -1] += (marks[:, 2] - _bounds(marks)[:, -1, -1]).mean()
    return [
        {
            f"{name}_s": float(row[list(phases)].sum())
            for name, phases in _COLUMNS.items()
        }
        for row in seconds
    ]


def epoch_seconds(marks: Floats) -> tuple[float, float]:
    """Return the times of measuring importance and of the whole epoch, in s, as means
    over ranks; from the `clock_marks` (M, n) of all ranks.

    The epoch includes the measuring, reading, and the wait for the last exchange.
    """
    importance_s = (marks[:, 1] - marks[:, 0]).mean()
    return float(importance_s), float((marks[:, 2] - marks[:, 0]).mean())


# ------------------------------------------------------------------------------------------- scores


class Scorer:
    """Evaluates the network of ``run`` on the samples that its emulation is evaluated
    on.

    Raises:
        InputError: the network cannot be trained as ``run`` says.
    """

    def __init__(
        self, run: Run, materials: Materials, ranks: RankGroup, device: torch.device
    ) -> None:
        self.ranks = ranks
        train = materials.train
        world_size = run.world_size
        self.network = ranked_network(
            materials.model,
            train,
            world_size,
            run.training,
            device,
            loss=materials.loss,
        )
        self.evaluation = Evaluation(
            run.training, materials.test, train, world_size, run.rng
        )

    def scores(self, model: nn.Module) -> dict[Statistics, Score]:
        """Return the scores on rank 0, an empty dict on the others. Collective.

        Rank 0 copies the weights, and the running statistics of all ranks (or of one in
        each group that normalises together), into a network of its own.

        Args:
            model: of this rank, with its own running statistics.
        """
        values = [
            statistic.double().cpu().numpy().ravel()
            for layer in batch_norm_layers(model)
            for statistic in _statistics(layer)
        ]
        parts = self.ranks.gather(np.concatenate([np.zeros(0), *values]))
        if self.ranks.rank != 0:
            return {}
        with torch.no_grad():
            for own_weight, weight in zip(
                self.network.model.parameters(), model.parameters(), strict=True
            ):
                own_weight.copy_(weight)

            # row: rank; columns: the statistics of all layers, one after the other
            table = torch.from_numpy(
                np.array([np.asarray(part, np.float64) for part in parts])
            )
            for layer in batch_norm_layers(self.network.model):
                for statistic in _statistics(layer):
                    size = statistic.shape[-1]
                    by_group = table[:: self.network.ranks_per_group, :size]
                    statistic.copy_(by_group if statistic.ndim == 2 else by_group[0])
                    table = table[:, size:]
        return self.evaluation.scores(self.network)


def _statistics(layer: nn.Module) -> list[torch.Tensor]:
    """Return the running mean and variance of a batch-norm layer, if it has them."""
    return [
        statistic
        for statistic in (layer.running_mean, layer.running_var)
        if isinstance(statistic, torch.Tensor)
    ]


# --------------------------------------------------------------------------------------- importance


class TrainedLosses:
    """The loss of each sample as it was last trained on. Every rank records those of
    its own samples; `share` makes the table equal on all.

    Attributes:
        table: (N,) nats; NaN where a sample was never trained on.
    """

    def __init__(self, num_samples: int, world_size: int) -> None:
        self.table: Floats = np.full(num_samples, np.nan)
        self._samples: Ints = np.zeros((0, world_size), np.int64)
        self._losses: Floats = np.zeros(0)  # of this rank's samples in the epoch
        self._num_recorded = 0

    def begin(self, samples: Ints) -> None:
        """Begin an epoch; rank r trains on column r of ``samples`` (n, M), -1 being
        none. Recorded losses that were not shared are dropped.
        """
        self._samples = samples
        self._losses = np.zeros(len(samples))
        self._num_recorded = 0

    def record(self, losses: Floats) -> None:
        """Record the losses (n,) in nats of this rank's next local batch.

        Raises:
            InputError: there are more than the epoch has samples.
        """
        end = self._num_recorded + len(losses)
        if end > len(self._losses):
            rule = f"are more than the {len(self._losses)} samples of this rank in the epoch"
            refuse(
                "losses",
                rule,
                str(end),
                "Record the losses of each local batch only once.",
                "scheduler",
            )
        self._losses[self._num_recorded : end] = losses
        self._num_recorded = end

    def share(self, ranks: RankGroup) -> bool:
        """Bring the losses of the epoch into the table on all ranks; return False if a
        rank has not recorded all of its samples. Collective.

        Losses of an incomplete record are brought in too. Nothing is recorded any more
        until the next `begin`.
        """
        parts = ranks.gather(self._losses[: self._num_recorded])
        samples_of_ranks = (self._samples >= 0).sum(axis=0)
        complete = all(
            len(part) == count
            for part, count in zip(parts, samples_of_ranks, strict=True)
        )
        for rank, part in enumerate(parts):
            # of a sample that was repeated, the later loss stays
            self.table[self._samples[: len(part), rank]] = part
        self.begin(self._samples[:0])
        return complete

    def importance(self, ranks: RankGroup, epoch: int) -> Floats:
        """Return the importance (N,) for ``epoch`` (from 1): each sample's last loss in
        nats, and 1 of samples never trained on. Collective.

        Raises:
            InputError: on all ranks, if one has not recorded all of its samples of the
                epoch before.
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
    """Return the loss of each distinct sample of ``batches``, in the order of sample
    numbers: (n,) nats.

    Of a sample that comes twice it is the first loss. The model is left in the mode
    that it had.

    Args:
        dataset: whose local storage has the samples.
        batches: sample numbers of each batch.
        model: of this rank, with its own running statistics.
        loss: gives one for each sample.
        collate_fn: of the DataLoader; None for the default.
        training: use training mode, in which running statistics are updated by every
            batch, instead of eval mode.

    Raises:
        InputError: ``loss`` gives none for each sample, or samples have no targets.
    """
    network = model.module if isinstance(model, DistributedDataParallel) else model
    device = default_device(network)
    previous_mode = network.training
    parts = [np.zeros(0)]
    network.train(training)
    with torch.no_grad():
        sample_lists = [batch.tolist() for batch in batches]
        for batch in DataLoader(
            dataset, batch_sampler=sample_lists, collate_fn=collate_fn
        ):
            inputs, targets = _pair(batch)
            losses = loss(network(inputs.to(device)), targets.to(device))
            check_losses(losses, len(targets), "scheduler")
            parts.append(losses.double().cpu().numpy())
    network.train(previous_mode)
    # losses are in the order of batches; ``np.unique`` sorts by sample number
    samples = np.array([sample for batch in sample_lists for sample in batch])
    first_occurrence = np.unique(samples, return_index=True)[1]
    return np.concatenate(parts)[first_occurrence]


def _pair(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of a batch, or raise InputError if it is no such pair."""
    is_sequence = isinstance(batch, tuple | list)
    if not is_sequence or len(batch) != 2:
        value = f"{len(batch)} values" if is_sequence else f"a {type(batch).__name__}"
        rule = "must give pairs (input, target)"
        remedy = "Give each sample its label."
        refuse("dataset", rule, value, remedy, "scheduler")
    return batch[0], batch[1]


def shared_importance(
    measured: Floats | None, owner: Ints, ranks: RankGroup, epoch: int
) -> Floats:
    """Return the importance (N,) of all samples for ``epoch`` (from 1). Collective.

    Args:
        measured: importance of this rank's samples, in the order of their numbers; None
            if it was not measured.
        owner: (N,) the rank of each sample.
        ranks: the process group.
        epoch: for errors.

    Raises:
        InputError: on all ranks, if one has not measured it, or of more or fewer
            samples than it has.
    """
    importance = np.zeros(len(owner))
    for rank, part in enumerate(
        ranks.gather(np.zeros(0) if measured is None else measured)
    ):
        rank_samples = np.flatnonzero(owner == rank)
        if len(part) != len(rank_samples):
            rule = f"must be measured for epoch {epoch}"
            value = f"none on rank {rank}"
            remedy = (
                "Call scheduler.measure_importance(model) on every rank"
                " before scheduling(epoch)."
            )
            refuse("importance", rule, value, remedy, "scheduler")
        importance[rank_samples] = part
    return importance
