"""Evaluation on test samples, with the batch-norm statistics of every rank, of rank 0,
pooled over ranks, or of the whole training set. Embeddings learnt without labels are
judged by class means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from simshuffle.spec.arrays import Flags, Ints
from simshuffle.train.batch_norm import (
    batch_norm_layers,
    ordinary_copy,
    pool_statistics,
    require_statistic,
)
from simshuffle.train.loss import Loss, cross_entropy
from simshuffle.train.network import RankedNetwork
from simshuffle.train.sources import Source
from simshuffle.train.training import Statistics, Training

SAMPLES_OF_A_CLASS = 64
"""Training samples that a class mean is taken of, at most. Each rank embeds them with
its own statistics, so few must do; the mean strays by an eighth of what single samples
do.
"""


class ClassMeans:
    """The mean embedding of each class, by rank.

    It is of normalised embeddings of training samples, without augmentation, in eval
    mode; of every class the first `SAMPLES_OF_A_CLASS` in ``order`` (N,).

    Args:
        network: its mode is afterwards as it was.
        train: the training samples.
        order: (N,) sample indices.
        temperature: that cosines are divided by.
    """

    def __init__(
        self, network: RankedNetwork, train: Source, order: Ints, temperature: float
    ) -> None:
        self._temperature = temperature
        samples = first_samples_of_classes(train.targets, order)
        was_training = network.model.training
        network.model.eval()
        with torch.no_grad():
            parts = [
                _class_means(network, train, samples, first, count)
                for first, count in _rank_parts(network)
            ]
        network.model.train(was_training)
        self.means = torch.cat(parts)
        """(M, classes, numbers), of length 1; 0 of a class that has no training
        samples.
        """

    def logits(
        self, outputs: torch.Tensor, first: int = 0, ranks: int = 1
    ) -> torch.Tensor:
        """Return the cosines of ``outputs`` to the class means of their own rank, over
        the temperature.

        Args:
            outputs: (n ranks, numbers), the rank being the fastest index.
            first: rank of the first row.
            ranks: how many there are.

        Returns:
            (n ranks, classes)
        """
        by_rank = F.normalize(outputs, dim=-1).view(-1, ranks, outputs.shape[-1])
        cosines = torch.einsum(
            "nrd,rcd->nrc", by_rank, self.means[first : first + ranks]
        )
        return cosines.reshape(len(outputs), -1) / self._temperature


def first_samples_of_classes(targets: Ints, order: Ints) -> Ints:
    """Return the first `SAMPLES_OF_A_CLASS` samples in ``order`` of each class.

    They are sample indices (n,), class by class. ``targets`` is (N,), the label of
    each sample.
    """
    labels = targets[order]
    by_label = np.argsort(labels, kind="stable")
    # index of each sample among those of its class, in ``order``
    index_in_class = np.arange(len(labels)) - np.searchsorted(
        labels[by_label], labels[by_label]
    )
    return order[by_label[index_in_class < SAMPLES_OF_A_CLASS]]


def _rank_parts(network: RankedNetwork) -> list[tuple[int, int]]:
    """Return the first rank and the number of ranks, at most ``rows_at_once``, of each
    part of the network.
    """
    max_ranks = network.rows_at_once
    return [
        (first, min(max_ranks, network.world_size - first))
        for first in range(0, network.world_size, max_ranks)
    ]


def _class_means(
    network: RankedNetwork, train: Source, samples: Ints, first: int, ranks: int
) -> torch.Tensor:
    """Return the class means of ``ranks`` ranks from ``first`` on: (ranks, classes,
    numbers), of length 1, or 0 of a class without samples.

    Args:
        network: in eval mode.
        train: the training samples.
        samples: (n,) indices of the samples that means are taken of.
        first: rank.
        ranks: how many there are.

    Raises:
        ValueError: ``samples`` is empty.
    """
    classes = int(train.targets.max()) + 1
    # (classes, ranks * numbers); sums do for means, as only the direction counts
    sums = None
    samples_at_once = max(1, network.rows_at_once // ranks)
    for begin in range(0, len(samples), samples_at_once):
        batch = samples[begin : begin + samples_at_once]
        outputs, _ = network.outputs(
            train, first, np.repeat(batch[:, None], ranks, axis=1)
        )
        # (n, ranks * numbers)
        embeddings = F.normalize(outputs, dim=-1).view(len(batch), -1)
        if sums is None:
            size = (classes, embeddings.shape[1])
            sums = torch.zeros(size, dtype=embeddings.dtype, device=embeddings.device)
        labels = torch.from_numpy(train.targets[batch]).to(embeddings.device)
        sums.index_add_(0, labels, embeddings)
    if sums is None:
        raise ValueError("no training samples")
    return F.normalize(sums.view(classes, ranks, -1).transpose(0, 1), dim=-1)


# ----------------------------------------------------------------------------------- the evaluation


RECALIBRATION_BATCH = 1024
"""About how many samples the equal batches have from which statistics are recalibrated."""


@dataclass(frozen=True)
class Score:
    """The accuracy and loss of an evaluation."""

    # share of test samples whose label gets the largest logit. After a contrastive training a logit
    # is the cosine to the mean of a class, over the temperature.
    accuracy: float
    loss: float  # mean over the samples; cross-entropy in nats unless the network has another


class Evaluation:
    """Evaluates the networks of a run, in every epoch on equal samples by equal ranks.

    Args:
        training: which statistics are evaluated.
        test: the samples.
        train: for recalibrated statistics.
        world_size: M.
        rng: gives random streams by name: 'evaluate' draws which rank evaluates which
            sample for 'own', see `own_pairs`; 'recalibrate' draws the batches for
            recalibrated statistics, and the samples for the means of classes.
    """

    def __init__(
        self,
        training: Training,
        test: Source,
        train: Source,
        world_size: int,
        rng: Callable[[str], np.random.Generator],
    ) -> None:
        self.test = test
        self.train = train
        self.statistics = training.statistics
        _, ranks_per_group = training.norm_groups(world_size)
        groups = world_size // ranks_per_group
        self.samples, self.counted = own_pairs(
            len(test), groups, training.own_ranks, rng("evaluate")
        )
        self.order = rng("recalibrate").permutation(len(train))
        self.recalibration_samples = training.recalibration_samples
        self.temperature = training.temperature

    def scores(self, network: RankedNetwork) -> dict[Statistics, Score]:
        """Return the score with each of the statistics, evaluated once where several
        are equal.

        The network stays as it is, in training mode.
        """
        scores: dict[Statistics, Score] = {}
        for name in self.statistics:
            equal_name = next(
                (
                    earlier
                    for earlier in scores
                    if self._are_equal(network, name, earlier)
                ),
                None,
            )
            if equal_name is not None:
                scores[name] = scores[equal_name]
            else:
                scores[name] = self._score(network, name)
        return scores

    def _are_equal(
        self, network: RankedNetwork, name: Statistics, other_name: Statistics
    ) -> bool:
        """Return True if two kinds of statistics are equal for this network: all where
        no layer keeps any, all but 'recalibrated' where ranks share theirs.
        """
        if not batch_norm_layers(network.model):
            return True
        return not network.statistics_by_rank and "recalibrated" not in (
            name,
            other_name,
        )

    def _score(self, network: RankedNetwork, name: Statistics) -> Score:
        """Return the score with one kind of statistics; ``network`` does not change.

        Where all ranks share their statistics, 'own' is scored as 'pooled' is.
        """
        if name == "own" and network.statistics_by_rank:
            network = network.with_groups_as_ranks()
            means = self._means(network)
            return own_score(network, self.test, self.samples, self.counted, means)
        model = ordinary_copy(network.model, 0 if name == "rank0" else None)
        if name == "recalibrated":
            samples = self.order[: self.recalibration_samples]
            recalibrate(model, self.train, samples, network.rows_at_once)
        means = self._means(RankedNetwork.of_one_rank(model, network.rows_at_once))
        return score(model, self.test, network.rows_at_once, network.loss, means)

    def _means(self, network: RankedNetwork) -> ClassMeans | None:
        """Return the class means of a contrastive training; None for other trainings."""
        if self.temperature is None:
            return None
        return ClassMeans(network, self.train, self.order, self.temperature)


def own_pairs(
    num_samples: int, world_size: int, own_ranks: int, rng: np.random.Generator
) -> tuple[Ints, Flags]:
    """Draw which rank evaluates which test samples.

    Each sample is evaluated by K = min(``own_ranks``, M) ranks, and each rank evaluates
    K num_samples / M samples, rounded up or down. So the mean over all pairs estimates
    the mean over ranks of the accuracy without bias, and exactly where K = M.

    Returns:
        (n, M) sample indices, a column for each rank; and (n, M) False for those that
        only fill up, which are sample 0.
    """
    ranks_per_sample = min(own_ranks, world_size)
    num_pairs = num_samples * ranks_per_sample
    num_rows = -(-num_pairs // world_size)
    order = rng.permutation(num_samples)
    ranks = rng.permutation(world_size)
    samples = np.zeros((num_rows, world_size), np.int64)
    counted = np.zeros((num_rows, world_size), np.bool_)
    # pairs are dealt out to the ranks in turn, so those of one sample go to K ranks
    pair = np.arange(num_pairs)
    row = pair // world_size
    column = ranks[pair % world_size]
    samples[row, column] = order[pair // ranks_per_sample]
    counted[row, column] = True
    return samples, counted


def own_score(
    network: RankedNetwork,
    test: Source,
    samples: Ints,
    counted: Flags,
    means: ClassMeans | None = None,
) -> Score:
    """Return the score if every rank evaluates its own samples with its own statistics:
    means over all counted pairs of sample and rank.

    Args:
        network: in training mode, as which it is left.
        test: the samples.
        samples: (n, M) indices, a column for each rank; see `own_pairs`.
        counted: (n, M) False for samples that only fill up.
        means: of the classes, after a contrastive training.
    """
    num_right = 0
    total_loss = 0.0
    network.model.eval()
    with torch.no_grad():
        for first in range(0, network.world_size, network.rows_at_once):
            ranks = slice(first, min(first + network.rows_at_once, network.world_size))
            rows_at_once = max(1, network.rows_at_once // (ranks.stop - first))
            for begin in range(0, len(samples), rows_at_once):
                part = samples[begin : begin + rows_at_once, ranks]
                valid = counted[begin : begin + rows_at_once, ranks].ravel()
                logits, targets = network.outputs(test, first, part)
                if means is not None:
                    logits = means.logits(logits, first, part.shape[1])
                losses = network.loss(logits, targets)
                is_right = logits.argmax(1).cpu().numpy() == test.targets[part.ravel()]
                num_right += int(is_right[valid].sum())
                total_loss += float(losses.double().cpu().numpy()[valid].sum())
    network.model.train()
    return Score(num_right / int(counted.sum()), total_loss / int(counted.sum()))


def score(
    model: nn.Module,
    test: Source,
    rows_at_once: int,
    loss: Loss = cross_entropy,
    means: ClassMeans | None = None,
) -> Score:
    """Return the score of an ordinary ``model`` on all test samples, ``rows_at_once``
    together.

    ``means`` are of the classes, after a contrastive training. The model is left in
    eval mode.
    """
    num_right = 0
    total_loss = 0.0
    model.eval()
    with torch.no_grad():
        for begin in range(0, len(test), rows_at_once):
            inputs, targets = test.batch(
                np.arange(begin, min(begin + rows_at_once, len(test)))
            )
            logits = model(inputs) if means is None else means.logits(model(inputs))
            num_right += int((logits.argmax(1) == targets).sum())
            total_loss += float(loss(logits, targets).double().sum())
    return Score(num_right / len(test), total_loss / len(test))


def recalibrate(
    model: nn.Module, train: Source, order: Ints, rows_at_once: int
) -> None:
    """Give the batch-norm layers of ``model`` the statistics of the training samples,
    in place.

    They are pooled over equal batches of about `RECALIBRATION_BATCH` samples in
    ``order`` (n,), or of ``rows_at_once`` (but at least 64) if that is less. Layers
    without running statistics are left out. The model is left in eval mode.
    """
    layers = batch_norm_layers(model)
    num_batches = max(1, len(order) // min(RECALIBRATION_BATCH, max(rows_at_once, 64)))
    # mean and variance of each batch, by layer
    statistics: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in layers]
    model.eval()
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.train()
        layer.momentum = 1.0  # running statistics are then those of the last batch
    with torch.no_grad():
        for batch in np.array_split(order, num_batches):
            model(train.batch(batch)[0])
            for layer, layer_statistics in zip(layers, statistics, strict=True):
                mean = require_statistic(layer.running_mean).clone()
                variance = require_statistic(layer.running_var).clone()
                layer_statistics.append((mean, variance))
    for layer, layer_statistics, momentum in zip(
        layers, statistics, momenta, strict=True
    ):
        layer.running_mean, layer.running_var = pool_statistics(
            torch.stack([mean for mean, _ in layer_statistics]),
            torch.stack([variance for _, variance in layer_statistics]),
        )
        layer.momentum = momentum
    model.eval()
