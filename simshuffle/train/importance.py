"""Importance of samples: their loss, of an inference pass over all shards or as they were last
trained on; and its summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from simshuffle.exchange import Shards
from simshuffle.train.iterations import epoch_samples, pass_batches
from simshuffle.train.network import RankedNetwork
from simshuffle.train.source import Source

Floats = NDArray[np.float64]


def inference_losses(network: RankedNetwork, source: Source, shards: Shards) -> Floats:
    """The loss of every sample, (N,), by the rank that has it: in eval mode, with this rank's
    running statistics."""
    samples = epoch_samples(shards, drop_last=False)
    # without those that fill up smaller shards
    own = np.arange(len(samples))[:, None] < shards.sizes[None, :]
    losses = np.empty(len(shards.order))
    network.model.eval()
    with torch.no_grad():
        for first, part in network.parts(samples):
            count = max(1, network.rows_at_once // part.shape[1])
            for begin in range(0, len(part), count):
                some = part[begin : begin + count]
                found = network.losses(source, first, some)[0].double().cpu().numpy()
                found = found.reshape(some.shape)
                mine = own[begin : begin + count, first : first + part.shape[1]]
                losses[some[mine]] = found[mine]
    network.model.train()
    return losses


def refreshing_losses(
    network: RankedNetwork, source: Source, shards: Shards, sizes: Sequence[int]
) -> Floats:
    """The loss of every sample, (N,), by the rank that has it: in training mode, in the local
    batches of these ``sizes`` that the epoch has. Running statistics take them in; weights stay.

    A sample with which a rank fills up its last batch keeps the loss that it had first.
    """
    losses, begin = np.empty(len(shards.order)), 0
    with torch.no_grad():
        for samples in pass_batches(shards, sizes):
            own = np.arange(begin, begin + len(samples))[:, None] < shards.sizes[None, :]
            begin += len(samples)
            for first, part in network.parts(samples):
                found = network.losses(source, first, part)[0].double().cpu().numpy()
                mine = own[:, first : first + part.shape[1]]
                losses[part[mine]] = found.reshape(part.shape)[mine]
    return losses


def importance_row(
    epoch: int, source: str, losses: Floats, owner: NDArray[np.integer]
) -> dict[str, Any]:
    """A row of the importance table: of ``losses`` (N,) in nats (NaN where a sample has none yet),
    given the rank (N,) of each sample."""
    known = ~np.isnan(losses)
    values, ranks = losses[known], owner[known]
    low, middle, high = np.percentile(values, [10, 50, 90])
    tenth = -(-len(values) // 10)
    total = values.sum()
    return {
        "epoch": epoch,
        "source": source,
        "mean": values.mean(),
        "std": values.std(),
        "min": values.min(),
        "p10": low,
        "p50": middle,
        "p90": high,
        "max": values.max(),
        "top_tenth_share": np.partition(values, -tenth)[-tenth:].sum() / total
        if total > 0
        else tenth / len(values),
        "between_ranks": between_ranks(values, ranks),
    }


def between_ranks(values: Floats, ranks: NDArray[np.integer]) -> float:
    """Variance of the ranks' means, weighted with their samples, over that of all ``values`` (n,):
    from 0 to 1; 0 if all are equal."""
    count = np.bincount(ranks)
    mean = np.bincount(ranks, values) / np.maximum(count, 1)
    variance = values.var()
    between = float((count * (mean - values.mean()) ** 2).sum() / len(values))
    return between / variance if variance > 0 else 0.0
