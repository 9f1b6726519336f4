"""MosaicML Streaming: shards of canonical nodes, shuffled within them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.spec.record import Count
from simshuffle.workload.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.workload.orders.streams import check, dealt, samples_of, spans

_DATASET = "mosaicml-streaming 0.13.0, streaming/base/dataset.py"
Algorithm = Literal["naive", "py1s", "py2s", "py1b", "py1br", "py1e"]
Shuffle = Callable[[ShardedSet, int, int, int, int], Ints64]
"""Of a set, canonical nodes, block size, seed and epoch: (N,) the samples of all canonical nodes,
one after another, in the order of the epoch."""
Within = Callable[[list[list[Ints64]], int, np.random.Generator], list[Ints64]]
"""Of the spans of each canonical node in this epoch's order and a block size: the samples in their
order, each array of which goes on where the one before ended."""


def _naive(data: ShardedSet, nodes: int, block_size: int, seed: int, epoch: int) -> Ints64:
    return np.random.default_rng(seed + epoch).permutation(data.size)


def _spans_of_nodes(
    data: ShardedSet, shards: Ints64, samples: Ints64, nodes: int
) -> list[list[Ints64]]:
    """The samples of each canonical node, as laid out, by span."""
    of_node: list[list[Ints64]] = [[] for _ in range(nodes)]
    ends = data.size * np.arange(1, nodes + 1) // nodes
    for node, _, begin, end in spans(data, shards, ends):
        of_node[node].append(samples[begin:end])
    return of_node


def _fixed_shards(within: Within) -> Shuffle:
    """The shuffle that cuts shards in an order drawn for the run, and permutes a canonical node's
    spans in each epoch."""

    def shuffle(data: ShardedSet, nodes: int, block_size: int, seed: int, epoch: int) -> Ints64:
        shards = np.flatnonzero(data.samples)
        np.random.default_rng(seed).shuffle(shards)
        of_node = _spans_of_nodes(data, shards, samples_of(data, shards), nodes)
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
    samples = samples_of(data, shards)
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
            refuse("num_canonical_nodes", rule, str(len(of_node)), remedy, "order")
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


class MosaicmlStreaming(Order):
    """``StreamingDataset(shuffle=True)`` of one stream, all samples once (mosaicml-streaming
    0.13.0: streaming/base/shuffle, partition, batching/random.py; ``py1b``, which it no longer
    has, of 0.9.1). A shard is downloaded whole before any of its samples is handed out.

    Shards are laid out in an order that is drawn once for the run and cut evenly into the canonical
    nodes, which the nodes share among them: a node reads the same shards in all epochs. Only with
    ``naive`` does it read others.

    Attributes:
        kind: its name.
        shuffle_algo: ``naive``: all samples at once. Within a canonical node: ``py1s`` and
            ``py2s``: samples of a shard; ``py1b``: of a block; ``py1br``: of a block with random
            size and begin; ``py1e``: each shard spread over about a block.
        partition_algo: how samples are shared; ``relaxed`` and ``orig`` are the same where the
            number of nodes did not change.
        num_canonical_nodes: parts between which nothing is ever exchanged, a multiple or divisor of
            the nodes. By default the nodes, or 64 times as many for ``py1s`` and ``py2s``.
        shuffle_block_size: samples. By default 4,000,000 over the canonical nodes, but at least
            262,144; a canonical node with fewer samples is shuffled as a whole. ``naive``, ``py1s``
            and ``py2s`` have no use for it.
        initial_nodes: on how many nodes the run began, if it was resumed; None if it was not.
            Batches of the whole world are then as large as before.
    """

    default_sources: ClassVar[dict[str, str]] = {
        "shuffle_algo": f"default of {_DATASET}",
        "partition_algo": f"default of {_DATASET}",
    }

    kind: Literal["mosaicml_streaming"]
    unit: ClassVar[Unit] = "shard"
    shuffle_algo: Algorithm = "py1e"
    partition_algo: Literal["orig", "relaxed"] = "relaxed"
    num_canonical_nodes: Count | None = None
    shuffle_block_size: Count | None = None
    initial_nodes: Count | None = None

    @property
    def short_name(self) -> str:
        """'mosaicml' and the algorithm."""
        return f"mosaicml {self.shuffle_algo}"

    def canonical_nodes(self, readers: Readers) -> int:
        """C, given or by default."""
        begun = self.initial_nodes or readers.nodes
        return self.num_canonical_nodes or begun * (
            64 if self.shuffle_algo in ("py1s", "py2s") else 1
        )

    def block_size(self, readers: Readers) -> int:
        """Samples, given or by default."""
        return self.shuffle_block_size or max(4_000_000 // self.canonical_nodes(readers), 2**18)

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """The order of an epoch; ``seed`` is the library's ``shuffle_seed``. With fewer shards than
        ranks or workers several of them read the same shard, and download it once a node. With
        fewer samples than canonical nodes or ranks, samples are repeated. Raises an InputError for
        no samples or readers, or a seed out of range; canonical nodes and nodes of which neither is
        a multiple of the other, or which have too few samples; a block that is larger than the set,
        or of one sample with ``py1br``; a resumed run whose batches cannot be shared as before."""
        return self.since(data, readers, seed, epoch, 0)

    def since(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int, first: int
    ) -> EpochOrder:
        """The order of what is left of an epoch of which all ranks together have had the ``first``
        samples; the rest is as of `epoch`."""
        check(data, readers, seed, epoch, 2**64)
        self._check_block(data)
        order = SHUFFLES[self.shuffle_algo](
            data, self.canonical_nodes(readers), self.block_size(readers), seed, epoch
        )
        places = self._places(data.size, readers, first)
        return dealt(np.where(places < 0, -1, order[places]), readers)

    def _check_block(self, data: ShardedSet) -> None:
        size = self.shuffle_block_size
        if size is None or self.shuffle_algo not in ("py1b", "py1br", "py1e"):
            return
        if size > data.size:
            rule = (
                f"a block is no larger than the set of {data.size} samples; "
                "the library silently shuffles a canonical node as a whole"
            )
            remedy = "Leave it out to have just that, or take a smaller one"
            refuse("shuffle_block_size", rule, str(size), remedy, "order")
        if size == 1 and self.shuffle_algo == "py1br":
            rule = "py1br needs a block of at least 2 samples, as the library fails otherwise"
            refuse("shuffle_block_size", rule, "1", "Take a larger one", "order")

    def _places(self, size: int, readers: Readers, first: int) -> Ints64:
        """(M, n) the places in the shuffled order that each rank reads after the ``first`` of all
        ranks, -1 for none."""
        canonical, begun = self.canonical_nodes(readers), self.initial_nodes or readers.nodes
        small, large = sorted((canonical, readers.nodes))
        if self.partition_algo == "orig" or begun == readers.nodes or large % small == 0:
            return _places(size, canonical, readers, first)
        in_iteration, ranks = readers.world_size * readers.batch_size, begun * readers.ranks
        if in_iteration % ranks:
            rule = (
                f"the {in_iteration} samples of an iteration must be a multiple of the ranks "
                "on which the run began, as the library fails otherwise"
            )
            remedy = "Keep the batch of the whole world as it was"
            refuse("initial_nodes", rule, f"{ranks} ranks", remedy, "order")
        batch = in_iteration // ranks
        begun_with = Readers(begun, readers.ranks, readers.workers, batch)
        before = _places(size, canonical, begun_with, first)
        in_order = before.reshape(ranks, -1, batch).transpose(1, 0, 2)
        now = in_order.reshape(-1, readers.world_size, readers.batch_size)
        return now.transpose(1, 0, 2).reshape(readers.world_size, -1)


def _places(size: int, canonical: int, readers: Readers, first: int) -> Ints64:
    """The same of a run that was not resumed: canonical nodes take turns on the nodes, and ranks on
    what a node reads. What is missing to equal shares are samples from shortly before the end. Of
    the ``first``, what is no whole turn of the nodes is read again."""
    small, large = sorted((canonical, readers.nodes))
    if large % small:
        rule = (
            f"must be a multiple or a divisor of the {readers.nodes} nodes, as the library "
            "fails otherwise"
        )
        remedy = f"Take {readers.nodes}"
        refuse("num_canonical_nodes", rule, str(canonical), remedy, "order")
    rows = _canonical_rows(size, canonical, max(1, readers.nodes // canonical))
    on_node = rows.T.reshape(-1, readers.nodes)[first // readers.nodes :].T
    have, ranks = on_node.shape[1], readers.ranks
    missing = -have % ranks
    if missing <= have - ranks + 1:
        again = np.arange(missing) + have - ranks + 1 - missing
    else:
        again = np.arange(missing) % have
    shared = np.concatenate([on_node, on_node[:, again]], axis=1)
    by_rank = shared.reshape(readers.nodes, -1, ranks).transpose(0, 2, 1)
    sequences = by_rank.reshape(readers.world_size, -1)
    unused = -sequences.shape[1] % (readers.workers * readers.batch_size)
    return np.pad(sequences, ((0, 0), (0, unused)), constant_values=-1)


def _canonical_rows(size: int, canonical: int, nodes: int) -> Ints64:
    """(C, n) the places of each canonical node, which ``nodes`` nodes share."""
    longest = -(-size // canonical)
    missing = -longest % nodes
    if size < canonical or (size == canonical and nodes > 1):
        length = longest + missing
        return (np.arange(canonical * length) % size).reshape(canonical, length)
    if missing > longest - nodes + 1:
        rule = (
            f"a canonical node needs more samples for {nodes} nodes, as the library fails otherwise"
        )
        remedy = "Take more samples, or as many canonical nodes as nodes"
        refuse("data.samples", rule, f"{longest} samples", remedy, "order")
    bounds = np.arange(canonical + 1) * size // canonical
    first, count = bounds[:-1, None], np.diff(bounds)[:, None]
    rows = first + np.minimum(np.arange(longest), count - 1)
    again = np.arange(missing) + longest - nodes + 1 - missing
    return np.concatenate([rows, rows[:, again]], axis=1)
