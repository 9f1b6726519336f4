"""The shuffles of MosaicML Streaming: each gives the samples of all canonical nodes, one after
another, in the order of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from simshuffle.errors import InputError, Problem
from simshuffle.orders.dealing import laid_out, spans
from simshuffle.orders.order import ShardedSet
from simshuffle.spec.arrays import Ints64

Algorithm = Literal["naive", "py1s", "py2s", "py1b", "py1br", "py1e"]
Shuffle = Callable[[ShardedSet, int, int, int, int], Ints64]
"""Of a set, canonical nodes, block size, seed and epoch: (N,) samples."""
Within = Callable[[list[list[Ints64]], int, np.random.Generator], list[Ints64]]
"""Of the spans of each canonical node in this epoch's order and a block size: the samples in their
order, each array of which goes on where the one before ended."""


def _naive(data: ShardedSet, nodes: int, block_size: int, seed: int, epoch: int) -> Ints64:
    return np.random.default_rng(seed + epoch).permutation(data.size)


def _spans_of_nodes(
    data: ShardedSet, shards: Ints64, samples: Ints64, nodes: int
) -> list[list[Ints64]]:
    """The samples of each canonical node, as laid out, by span."""
    cut = spans(data, shards, data.size * np.arange(1, nodes + 1) // nodes)
    of_node: list[list[Ints64]] = [[] for _ in range(nodes)]
    for node, begin, end in zip(
        cut.part.tolist(), cut.begin.tolist(), cut.end.tolist(), strict=True
    ):
        of_node[node].append(samples[begin:end])
    return of_node


def _fixed_shards(within: Within) -> Shuffle:
    """The shuffle that cuts shards in an order drawn for the run, and permutes a canonical node's
    spans in each epoch."""

    def shuffle(data: ShardedSet, nodes: int, block_size: int, seed: int, epoch: int) -> Ints64:
        shards = np.flatnonzero(data.samples)
        np.random.default_rng(seed).shuffle(shards)
        of_node = _spans_of_nodes(data, shards, laid_out(data, shards), nodes)
        rng = np.random.default_rng(seed + epoch)
        for own in of_node:
            rng.shuffle(own)
        return np.concatenate(within(of_node, block_size, rng))

    return shuffle


def _py1s(of_node: list[list[Ints64]], block_size: int, rng: np.random.Generator) -> list[Ints64]:
    every = [span for own in of_node for span in own]
    for span in every:
        rng.shuffle(span)
    return every


def _py2s(data: ShardedSet, nodes: int, block_size: int, seed: int, epoch: int) -> Ints64:
    """Shards are permuted inside before they are cut, and spans again after it."""
    shards, fixed = np.flatnonzero(data.samples), np.random.default_rng(seed)
    fixed.shuffle(shards)
    samples = laid_out(data, shards)
    for shard in np.split(samples, np.cumsum(data.samples[shards])[:-1]):
        fixed.shuffle(shard)
    rng = np.random.default_rng(seed + epoch)
    every: list[Ints64] = []
    for own in _spans_of_nodes(data, shards, samples, nodes):
        rng.shuffle(own)
        every += _py1s([own], block_size, rng)
    return np.concatenate(every)


def _py1b(of_node: list[list[Ints64]], block_size: int, rng: np.random.Generator) -> list[Ints64]:
    nodes = [np.concatenate(own) for own in of_node if own]
    for samples in nodes:
        for begin in range(0, len(samples), block_size):
            rng.shuffle(samples[begin : begin + block_size])
    return nodes


def _py1br(of_node: list[list[Ints64]], block_size: int, rng: np.random.Generator) -> list[Ints64]:
    """Blocks of random size are moved ahead by a random part of one, the same for all blocks of a
    node. The second block begins inside the first, which is how the library counts."""
    ahead = rng.integers(0, int(0.75 * block_size), len(of_node)).tolist()
    nodes = [np.concatenate(own) if own else np.empty(0, np.int64) for own in of_node]
    for samples, earlier in zip(nodes, ahead, strict=True):
        reached, blocks = 0, []
        while reached < len(samples):
            size = int(rng.integers(int(0.75 * block_size), int(1.25 * block_size)))
            begin = max(reached - earlier, 0)
            end = min(reached + size - earlier, len(samples))
            blocks.append((begin, end))
            reached += end - begin
        for begin, end in blocks:
            rng.shuffle(samples[begin:end])
    return nodes


def _py1e(of_node: list[list[Ints64]], block_size: int, rng: np.random.Generator) -> list[Ints64]:
    """A sample is moved by as much as keeps its span within a block of random size and within the
    canonical node."""
    nodes = []
    for own in of_node:
        if not own:
            rule = "each canonical node has a sample, as the library fails otherwise"
            remedy = "Take fewer of them"
            raise InputError(
                Problem("num_canonical_nodes", rule, str(len(of_node)), remedy), "order"
            )
        for span in own:
            rng.shuffle(span)
        samples = np.concatenate(own)
        places, begin = np.arange(len(samples), dtype=float), 0
        for span in own:
            block = int(rng.integers(int(0.75 * block_size), int(1.25 * block_size)))
            reach, end = max((block - len(span)) / 2, 0.0), begin + len(span)
            back, ahead = max(-reach, -begin), min(reach, len(samples) - end)
            places[begin:end] += rng.uniform(back, ahead, len(span))
            begin = end
        nodes.append(samples[np.argsort(places)])
    return nodes


SHUFFLES: dict[Algorithm, Shuffle] = {
    "naive": _naive,
    "py1s": _fixed_shards(_py1s),
    "py2s": _py2s,
    "py1b": _fixed_shards(_py1b),
    "py1br": _fixed_shards(_py1br),
    "py1e": _fixed_shards(_py1e),
}
