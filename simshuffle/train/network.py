"""The network of all ranks: one set of weights, and batch-norm statistics for each rank."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from simshuffle.errors import InputError, Problem
from simshuffle.train.batch_norm import (
    RankRows,
    apply_mode,
    batch_norm_layers,
    set_statistics_momentum,
)
from simshuffle.train.contrastive import Contrast
from simshuffle.train.loss import Loss, cross_entropy
from simshuffle.train.probe import Probe, try_out
from simshuffle.train.source import Ints, Source
from simshuffle.train.training import Training

ACTIVATIONS_AT_ONCE = {"cpu": 1 << 23, "cuda": 1 << 28}
"""Numbers that the layers of a network put out together: larger batches are worked off in parts of
whole ranks, so that memory does not grow with M. On a CPU such a part stays near its caches
(benchmarks/training.py)."""


@dataclass
class RankedNetwork:
    """The network of M ranks.

    Attributes:
        model: takes a batch of samples of several ranks after ``rows`` was told whose they are.
        rows: see `RankRows`; without effect where batch norm is not by rank.
        world_size: M.
        by_rank: whether there are batch-norm statistics for each rank.
        whole: whether a batch must stay whole, because what is made of a sample depends on those of
            other ranks.
        rows_at_once: samples that are worked off together.
        loss: of each sample.
        contrast: of a contrastive training.
    """

    model: nn.Module
    rows: RankRows
    world_size: int
    by_rank: bool
    whole: bool
    rows_at_once: int
    loss: Loss = cross_entropy
    contrast: Contrast | None = None

    @classmethod
    def alone(cls, model: nn.Module, rows_at_once: int) -> RankedNetwork:
        """An ordinary ``model`` as the network of one rank."""
        return cls(model, RankRows(), 1, False, False, rows_at_once)

    def parts(self, samples: Ints) -> Iterator[tuple[int, Ints]]:
        """``samples`` (n, M) in parts (n, ranks) of neighbouring ranks, each with its first
        rank."""
        count = (
            self.world_size
            if self.whole and self.model.training
            else max(1, self.rows_at_once // len(samples))
        )
        for first in range(0, self.world_size, count):
            yield first, samples[:, first : first + count]

    def losses(self, source: Source, first: int, part: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses (n ranks,), by default cross-entropy in nats, and logits (n ranks, classes) of
        ``part`` (n, ranks), samples of the ranks from ``first`` on."""
        logits, targets = self.outputs(source, first, part)
        return self.loss(logits, targets), logits

    def outputs(self, source: Source, first: int, part: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """What the network puts out (n ranks, classes), and targets (n ranks,), of ``part`` as of
        `losses`."""
        inputs, targets = source.batch(part.ravel())
        self.rows.expect(first, part.shape[1], part.size)
        return self.model(inputs), targets

    def trained_losses(self, source: Source, first: int, part: Ints, epoch: int) -> torch.Tensor:
        """The losses (n ranks,) that the network is trained on in ``epoch`` (from 1), of ``part``
        as of `losses`: of the two views of each sample, if the training is contrastive."""
        if self.contrast is None:
            return self.losses(source, first, part)[0]
        pair = self.contrast.views.pair(source.batch(part.ravel())[0], part.ravel(), epoch)
        self.rows.expect(first, part.shape[1], len(pair))
        return self.contrast.losses(self.model(pair), part.shape[1])


def ranked_network(
    model: nn.Module,
    source: Source,
    world_size: int,
    training: Training,
    device: torch.device,
    sizes: list[int],
    loss: Loss = cross_entropy,
    contrast: Contrast | None = None,
) -> RankedNetwork:
    """A copy of ``model`` for M ranks, with the batch norm that ``training`` wants; ``model`` stays
    as it is.

    ``sizes`` are the local batch sizes that it will be trained with, and ``loss`` is that of each
    sample, or ``contrast`` says how it is contrasted with others.

    Raises:
        InputError: the model cannot be trained so; see `apply_mode` and `try_out`. Or it mixes
            samples of ranks by something else than batch norm, or batch norm would have to
            normalise single values.
    """
    dtype = torch_dtype(training)
    probe = try_out(model, training.batch_norm, source, dtype, device, loss)
    if probe.mixes and world_size > 1 and training.batch_norm != "sync":
        rule = (
            f"with batch_norm: {training.batch_norm}, what it makes of a rank's samples must not"
            " depend on those of other ranks"
        )
        remedy = "Take out what goes over the whole batch, or use batch_norm: sync."
        raise InputError(Problem("model", rule, type(model).__name__, remedy), "training")
    _check_sizes(probe, sizes, world_size, training)
    twin = copy.deepcopy(model)
    set_statistics_momentum(twin, training.statistics_momentum)
    rows = apply_mode(twin, training.batch_norm, world_size)
    twin.to(device, dtype).train()
    by_rank = training.batch_norm == "per_rank" and bool(batch_norm_layers(twin))
    at_once = rows_at_once(probe, device)
    whole = probe.mixes or (contrast is not None and contrast.gathered)
    return RankedNetwork(twin, rows, world_size, by_rank, whole, at_once, loss, contrast)


def _check_sizes(probe: Probe, sizes: list[int], world_size: int, training: Training) -> None:
    """See that batch norm never has to normalise a single value.

    Raises:
        InputError: it would; names the first such layer.
    """
    values = min(sizes) * (world_size if training.batch_norm == "sync" else 1)
    if values > 1 or training.batch_norm == "none" or not probe.flat:
        return
    which = "local_batch_size" if training.local_batch_size == 1 else "the last local batch"
    rule = f"batch norm '{probe.flat[0]}' cannot normalise a single sample, which {which} holds"
    remedy = "Use another local_batch_size, or drop_last: true, or batch_norm: sync or none."
    raise InputError(
        Problem(
            "training.local_batch_size", rule, f"local batches of {sizes[0]} to {sizes[-1]}", remedy
        ),
        "training",
    )


def rows_at_once(probe: Probe, device: torch.device) -> int:
    """Samples that are worked off together."""
    return max(1, ACTIVATIONS_AT_ONCE.get(device.type, 1 << 23) // probe.activations)


def torch_dtype(training: Training) -> torch.dtype:
    """The type of weights and arithmetic."""
    return torch.float64 if training.dtype == "float64" else torch.float32
