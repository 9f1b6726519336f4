"""Evaluation on test samples, with the batch-norm statistics of every rank, of rank 0, pooled over
ranks, or of the whole training set. Embeddings learnt without labels are judged by class means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from simshuffle.spec.arrays import Flags, Ints
from simshuffle.train.batch_norm import batch_norm_layers, known, ordinary, pooled
from simshuffle.train.loss import Loss, cross_entropy
from simshuffle.train.network import RankedNetwork
from simshuffle.train.samples import Source
from simshuffle.train.training import Statistics, Training

SAMPLES_OF_A_CLASS = 64
"""Training samples that a class mean is taken of, at most. Each rank embeds them with its own
statistics, so few must do; the mean strays by an eighth of what single samples do."""


class ClassMeans:
    """The mean embedding of each class, by rank: of normalised embeddings of training samples,
    without augmentation, in eval mode; of every class the first `SAMPLES_OF_A_CLASS` in ``order``
    (N,)."""

    def __init__(
        self, network: RankedNetwork, train: Source, order: Ints, temperature: float
    ) -> None:
        self._temperature = temperature
        chosen = chosen_samples(train.targets, order)
        training = network.model.training
        network.model.eval()
        with torch.no_grad():
            parts = [
                _of_ranks(network, train, chosen, first, count)
                for first, count in _ranks_together(network)
            ]
        network.model.train(training)
        self.means = torch.cat(parts)
        """(M, classes, numbers), of length 1; 0 of a class that has no training samples."""

    def logits(self, outputs: torch.Tensor, first: int = 0, ranks: int = 1) -> torch.Tensor:
        """Cosines of ``outputs`` (n ranks, numbers), the rank, from ``first`` on, being the fastest
        index, to the class means of their own rank, over the temperature: (n ranks, classes)."""
        by_rank = F.normalize(outputs, dim=-1).view(-1, ranks, outputs.shape[-1])
        cosines = torch.einsum("nrd,rcd->nrc", by_rank, self.means[first : first + ranks])
        return cosines.reshape(len(outputs), -1) / self._temperature


def chosen_samples(targets: Ints, order: Ints) -> Ints:
    """Of each label in ``targets`` (N,) the first `SAMPLES_OF_A_CLASS` samples in ``order``."""
    labels = targets[order]
    by_label = np.argsort(labels, kind="stable")
    place = np.arange(len(labels)) - np.searchsorted(labels[by_label], labels[by_label])
    return order[by_label[place < SAMPLES_OF_A_CLASS]]


def _ranks_together(network: RankedNetwork) -> list[tuple[int, int]]:
    """First rank and number of ranks of each part of the network."""
    most = network.rows_at_once
    return [(r, min(most, network.world_size - r)) for r in range(0, network.world_size, most)]


def _of_ranks(
    network: RankedNetwork, train: Source, chosen: Ints, first: int, ranks: int
) -> torch.Tensor:
    """The class means of the ranks from ``first`` on: (ranks, classes, numbers)."""
    classes, sums = int(train.targets.max()) + 1, None
    together = max(1, network.rows_at_once // ranks)
    for begin in range(0, len(chosen), together):
        some = chosen[begin : begin + together]
        outputs, _ = network.outputs(train, first, np.repeat(some[:, None], ranks, axis=1))
        found = F.normalize(outputs, dim=-1).view(len(some), -1)
        if sums is None:
            sums = torch.zeros((classes, found.shape[1]), dtype=found.dtype, device=found.device)
        sums.index_add_(0, torch.from_numpy(train.targets[some]).to(found.device), found)
    if sums is None:
        raise ValueError("no training samples")
    return F.normalize(sums.view(classes, ranks, -1).transpose(0, 1), dim=-1)


# ----------------------------------------------------------------------------------- the evaluation


RECALIBRATION_BATCH = 1024
"""Samples, about, of the equal batches from which statistics are taken anew."""


@dataclass(frozen=True)
class Score:
    """What an evaluation found."""

    # share of test samples whose label gets the largest logit. After a contrastive training a logit
    # is the cosine to the mean of a class, over the temperature.
    accuracy: float
    loss: float  # mean over the samples; cross-entropy in nats unless the network has another


class Evaluation:
    """Evaluates the networks of one run, always on the same samples of ``test`` by the same ranks;
    ``train`` is for recalibrated statistics. ``rng`` gives random streams by name: 'evaluate' draws
    who evaluates what for 'own', see `own_pairs`; 'recalibrate' the batches for recalibrated
    statistics, and which samples make the means of classes."""

    def __init__(
        self,
        training: Training,
        test: Source,
        train: Source,
        world_size: int,
        rng: Callable[[str], np.random.Generator],
    ) -> None:
        self.test, self.train, self.statistics = test, train, training.statistics
        groups, own_ranks = world_size // training.by_group(world_size)[1], training.own_ranks
        self.samples, self.counted = own_pairs(len(test), groups, own_ranks, rng("evaluate"))
        self.order = rng("recalibrate").permutation(len(train))
        self.recalibration_samples = training.recalibration_samples
        self.temperature = training.temperature

    def scores(self, network: RankedNetwork) -> dict[Statistics, Score]:
        """The score with each of the statistics, each evaluated once where several are the same.
        The network stays as it is, in training mode."""
        found: dict[Statistics, Score] = {}
        for name in self.statistics:
            same = next((other for other in found if self._alike(network, name, other)), None)
            found[name] = found[same] if same is not None else self._score(network, name)
        return found

    def _alike(self, network: RankedNetwork, one: Statistics, other: Statistics) -> bool:
        if not batch_norm_layers(network.model):
            return True
        return not network.by_rank and "recalibrated" not in (one, other)

    def _score(self, network: RankedNetwork, name: Statistics) -> Score:
        if name == "own" and network.by_rank:
            network = network.of_groups()
            means = self._means(network)
            return own_score(network, self.test, self.samples, self.counted, means)
        model = ordinary(network.model, 0 if name == "rank0" else None)
        if name == "recalibrated":
            some = self.order[: self.recalibration_samples]
            recalibrate(model, self.train, some, network.rows_at_once)
        means = self._means(RankedNetwork.alone(model, network.rows_at_once))
        return score(model, self.test, network.rows_at_once, network.loss, means)

    def _means(self, network: RankedNetwork) -> ClassMeans | None:
        if self.temperature is None:
            return None
        return ClassMeans(network, self.train, self.order, self.temperature)


def own_pairs(
    num_samples: int, world_size: int, own_ranks: int, rng: np.random.Generator
) -> tuple[Ints, Flags]:
    """Which rank evaluates which test samples: sample numbers (n, M), a column for each rank, and
    (n, M) False for those that only fill up. Each sample is evaluated by K = min(``own_ranks``, M)
    ranks, and each rank evaluates K num_samples / M samples, rounded up or down. So the mean over
    all pairs estimates the mean over ranks of the accuracy without bias, and exactly where K =
    M."""
    each = min(own_ranks, world_size)
    pairs = num_samples * each
    layers = -(-pairs // world_size)
    order, ranks = rng.permutation(num_samples), rng.permutation(world_size)
    samples = np.zeros((layers, world_size), np.int64)
    counted = np.zeros((layers, world_size), np.bool_)
    # pairs are dealt out to the ranks in turn, so those of one sample go to K ranks
    number = np.arange(pairs)
    place = number // world_size, ranks[number % world_size]
    samples[place] = order[number // each]
    counted[place] = True
    return samples, counted


def own_score(
    network: RankedNetwork,
    test: Source,
    samples: Ints,
    counted: Flags,
    means: ClassMeans | None = None,
) -> Score:
    """Every rank evaluates its column of ``samples`` (n, M) with its own statistics; see
    `own_pairs`. By its own ``means`` of classes, if there are some."""
    right, loss = 0, 0.0
    network.model.eval()
    with torch.no_grad():
        for first in range(0, network.world_size, network.rows_at_once):
            ranks = slice(first, min(first + network.rows_at_once, network.world_size))
            count = max(1, network.rows_at_once // (ranks.stop - first))
            for begin in range(0, len(samples), count):
                part = samples[begin : begin + count, ranks]
                valid = counted[begin : begin + count, ranks].ravel()
                logits, targets = network.outputs(test, first, part)
                logits = logits if means is None else means.logits(logits, first, part.shape[1])
                losses = network.loss(logits, targets)
                hit = logits.argmax(1).cpu().numpy() == test.targets[part.ravel()]
                right += int(hit[valid].sum())
                loss += float(losses.double().cpu().numpy()[valid].sum())
    network.model.train()
    return Score(right / int(counted.sum()), loss / int(counted.sum()))


def score(
    model: nn.Module,
    test: Source,
    rows_at_once: int,
    loss: Loss = cross_entropy,
    means: ClassMeans | None = None,
) -> Score:
    """The score of an ordinary ``model`` on all test samples, ``rows_at_once`` together; by the
    ``means`` of classes, if there are some."""
    right, total = 0, 0.0
    model.eval()
    with torch.no_grad():
        for begin in range(0, len(test), rows_at_once):
            inputs, targets = test.batch(np.arange(begin, min(begin + rows_at_once, len(test))))
            logits = model(inputs) if means is None else means.logits(model(inputs))
            right += int((logits.argmax(1) == targets).sum())
            total += float(loss(logits, targets).double().sum())
    return Score(right / len(test), total / len(test))


def recalibrate(model: nn.Module, train: Source, order: Ints, rows_at_once: int) -> None:
    """Give the batch-norm layers of ``model`` the statistics of the training samples under its
    weights, in place: `pooled` ones of equal batches of about `RECALIBRATION_BATCH` in ``order``
    (N,), or of ``rows_at_once`` if that is less."""
    layers = batch_norm_layers(model)
    batches = max(1, len(order) // min(RECALIBRATION_BATCH, max(rows_at_once, 64)))
    seen: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in layers]
    model.eval()
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.train()
        layer.momentum = 1.0  # running statistics are then those of the last batch
    with torch.no_grad():
        for batch in np.array_split(order, batches):
            model(train.batch(batch)[0])
            for layer, found in zip(layers, seen, strict=True):
                found.append((known(layer.running_mean).clone(), known(layer.running_var).clone()))
    for layer, found, momentum in zip(layers, seen, momenta, strict=True):
        layer.running_mean, layer.running_var = pooled(
            torch.stack([m for m, _ in found]), torch.stack([v for _, v in found])
        )
        layer.momentum = momentum
    model.eval()
