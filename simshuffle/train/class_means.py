"""Classifying by the nearest class mean: how embeddings learnt without labels are judged."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from simshuffle.train.network import RankedNetwork
from simshuffle.train.source import Ints, Source

SAMPLES_OF_A_CLASS = 64
"""Training samples that a class mean is taken of, at most. Each rank embeds them with its own
statistics, so few must do; the mean strays by an eighth of what single samples do."""


class ClassMeans:
    """The mean embedding of each class, by rank: of normalised embeddings of training samples as
    they are, without augmentation, in eval mode.

    Args:
        network: that embeds; with the statistics of every rank.
        train: the training samples.
        order: (N,), in which they are taken: of every class the first `SAMPLES_OF_A_CLASS`.
        temperature: that cosines are divided by.
    """

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
        """Cosines of ``outputs`` (n ranks, numbers) to the class means of their own rank, over the
        temperature: (n ranks, classes).

        Args:
            outputs: of the network, the rank being the fastest index.
            first: lowest rank.
            ranks: how many.
        """
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
