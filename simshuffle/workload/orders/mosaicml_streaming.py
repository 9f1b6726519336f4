"""MosaicML Streaming: shards of canonical nodes, shuffled within them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.spec.record import Count
from simshuffle.workload.orders.order import (
    EpochOrder,
    Order,
    Readers,
    ShardedSet,
    Unit,
)
from simshuffle.workload.orders.streams import (
    check_inputs,
    cut_spans,
    deal_batches,
    samples_of_shards,
)

_DATASET = "mosaicml-streaming 0.13.0, streaming/base/dataset.py"
Algorithm = Literal["naive", "py1s", "py2s", "py1b", "py1br", "py1e"]
Shuffle = Callable[[ShardedSet, int, int, int, int], Ints64]
"""Given a set, canonical nodes, block size, seed and epoch, returns (N,) the samples of
all canonical nodes, one after another, in the order of the epoch.
"""
SpanShuffle = Callable[[list[list[Ints64]], int, np.random.Generator], list[Ints64]]
"""Given the spans of each canonical node in this epoch's order, a block size and a
generator, returns the samples in their order, in arrays of which each goes on where the
one before ended.
"""


def _naive(
    data: ShardedSet, nodes: int, block_size: int, seed: int, epoch: int
) -> Ints64:
    """Permute all samples at once; canonical nodes and blocks have no effect."""
    return np.random.default_rng(seed + epoch).permutation(data.size)


def _spans_of_nodes(
    data: ShardedSet, shards: Ints64, samples: Ints64, nodes: int
) -> list[list[Ints64]]:
    """Return the samples of each span of each canonical node, as views of ``samples``.

    A span is the part of a shard that lies in one canonical node. With fewer samples
    than canonical nodes, some have no span.

    Args:
        data: the set in shards.
        shards: in the order in which they are laid out.
        samples: (N,) their samples, as laid out.
        nodes: canonical nodes.
    """
    spans_of_nodes: list[list[Ints64]] = [[] for _ in range(nodes)]
    ends = data.size * np.arange(1, nodes + 1) // nodes
    for span in cut_spans(data, shards, ends):
        spans_of_nodes[span.part].append(samples[span.begin : span.end])
    return spans_of_nodes


def _with_fixed_shards(shuffle_spans: SpanShuffle) -> Shuffle:
    """Return the shuffle that lays shards out in an order drawn once for the run.

    They are cut into canonical nodes; in each epoch the spans of each node are
    permuted, and ``shuffle_spans`` shuffles their samples. Shards without samples are
    left out.
    """

    def shuffle(
        data: ShardedSet, nodes: int, block_size: int, seed: int, epoch: int
    ) -> Ints64:
        """Return the samples of all canonical nodes in the order of the epoch: (N,)."""
        shards = np.flatnonzero(data.samples)
        np.random.default_rng(seed).shuffle(shards)
        spans_of_nodes = _spans_of_nodes(
            data, shards, samples_of_shards(data, shards), nodes
        )
        rng = np.random.default_rng(seed + epoch)
        for spans in spans_of_nodes:
            rng.shuffle(spans)
        return np.concatenate(shuffle_spans(spans_of_nodes, block_size, rng))

    return shuffle


def _py1s(
    spans_of_nodes: list[list[Ints64]], block_size: int, rng: np.random.Generator
) -> list[Ints64]:
    """Permute the samples within each span of all canonical nodes, in place.

    Returns the spans of all nodes in one list.
    """
    all_spans = [span for spans in spans_of_nodes for span in spans]
    for span in all_spans:
        rng.shuffle(span)
    return all_spans


def _py2s(
    data: ShardedSet, nodes: int, block_size: int, seed: int, epoch: int
) -> Ints64:
    """Permute samples within shards before these are cut, and within spans after it.

    The first permutation is the same in all epochs. Blocks have no effect.
    """
    shards = np.flatnonzero(data.samples)
    run_rng = np.random.default_rng(seed)
    run_rng.shuffle(shards)
    samples = samples_of_shards(data, shards)
    for shard_samples in np.split(samples, np.cumsum(data.samples[shards])[:-1]):
        run_rng.shuffle(shard_samples)
    epoch_rng = np.random.default_rng(seed + epoch)
    all_spans: list[Ints64] = []
    for spans in _spans_of_nodes(data, shards, samples, nodes):
        epoch_rng.shuffle(spans)
        all_spans += _py1s([spans], block_size, epoch_rng)
    return np.concatenate(all_spans)


def _py1b(
    spans_of_nodes: list[list[Ints64]], block_size: int, rng: np.random.Generator
) -> list[Ints64]:
    """Permute the samples within blocks of each canonical node.

    Returns an array of samples for each node that has any.
    """
    samples_of_nodes = [np.concatenate(spans) for spans in spans_of_nodes if spans]
    for samples in samples_of_nodes:
        for begin in range(0, len(samples), block_size):
            rng.shuffle(samples[begin : begin + block_size])
    return samples_of_nodes


def _py1br(
    spans_of_nodes: list[list[Ints64]], block_size: int, rng: np.random.Generator
) -> list[Ints64]:
    """Permute the samples within blocks of random size of each canonical node.

    Blocks are moved ahead by a random part of a block, the same for all blocks of a
    node. The second block begins inside the first, which is how the library counts.
    Returns an array of samples for each node.
    """
    offsets = rng.integers(0, int(0.75 * block_size), len(spans_of_nodes)).tolist()
    samples_of_nodes = [
        np.concatenate(spans) if spans else np.empty(0, np.int64)
        for spans in spans_of_nodes
    ]
    for samples, offset in zip(samples_of_nodes, offsets, strict=True):
        position = 0
        blocks = []
        while position < len(samples):
            size = int(rng.integers(int(0.75 * block_size), int(1.25 * block_size)))
            begin = max(position - offset, 0)
            end = min(position + size - offset, len(samples))
            blocks.append((begin, end))
            position += end - begin
        for begin, end in blocks:
            rng.shuffle(samples[begin:end])
    return samples_of_nodes


def _py1e(
    spans_of_nodes: list[list[Ints64]], block_size: int, rng: np.random.Generator
) -> list[Ints64]:
    """Move each sample at random, within a block of random size around its span.

    The block does not reach beyond the canonical node. Returns an array of samples for
    each node; spans are shuffled in place.

    Raises:
        InputError: a node has no samples.
    """
    samples_of_nodes = []
    for spans in spans_of_nodes:
        if not spans:
            rule = "each canonical node has a sample, as the library fails otherwise"
            remedy = "Take fewer of them"
            refuse(
                "num_canonical_nodes", rule, str(len(spans_of_nodes)), remedy, "order"
            )
        for span in spans:
            rng.shuffle(span)
        # each sample moves by a random distance; then all are sorted by position
        samples = np.concatenate(spans)
        positions = np.arange(len(samples), dtype=float)
        begin = 0
        for span in spans:
            end = begin + len(span)
            block = int(rng.integers(int(0.75 * block_size), int(1.25 * block_size)))
            reach = max((block - len(span)) / 2, 0.0)
            max_back = max(-reach, -begin)
            max_ahead = min(reach, len(samples) - end)
            positions[begin:end] += rng.uniform(max_back, max_ahead, len(span))
            begin = end
        samples_of_nodes.append(samples[np.argsort(positions)])
    return samples_of_nodes


SHUFFLES: dict[Algorithm, Shuffle] = {
    "naive": _naive,
    "py1s": _with_fixed_shards(_py1s),
    "py2s": _py2s,
    "py1b": _with_fixed_shards(_py1b),
    "py1br": _with_fixed_shards(_py1br),
    "py1e": _with_fixed_shards(_py1e),
}


class MosaicmlStreaming(Order):
    """``StreamingDataset(shuffle=True)`` of one stream, all samples once
    (mosaicml-streaming 0.13.0: streaming/base/shuffle, partition, batching/random.py;
    ``py1b``, which it no longer has, of 0.9.1). A shard is downloaded whole before any
    of its samples is handed out.

    Shards are laid out in an order that is drawn once for the run and cut evenly into
    the canonical nodes, which the nodes share among them: a node reads the same shards
    in all epochs. Only with ``naive`` does it read others.

    Attributes:
        kind: its name.
        shuffle_algo: ``naive``: all samples at once. Within a canonical node: ``py1s``
            and ``py2s``: samples of a shard; ``py1b``: of a block; ``py1br``: of a
            block with random size and begin; ``py1e``: each shard spread over about a
            block.
        partition_algo: how samples are shared; ``relaxed`` and ``orig`` are the same
            where the number of nodes did not change.
        num_canonical_nodes: parts between which nothing is ever exchanged, a multiple
            or divisor of the nodes. By default the nodes on which the run began, or 64
            times as many for ``py1s`` and ``py2s``.
        shuffle_block_size: samples. By default 4,000,000 over the canonical nodes, but
            at least 262,144; a canonical node with fewer samples is shuffled as a
            whole. ``naive``, ``py1s`` and ``py2s`` have no use for it.
        initial_nodes: on how many nodes the run began, if it was resumed; None if it
            was not. Batches of the whole world are then as large as before.
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
        """Return C, the number of canonical nodes: ``num_canonical_nodes`` or the
        default.

        The default is the nodes on which the run began, or 64 times as many for
        ``py1s`` and ``py2s``.
        """
        initial_nodes = self.initial_nodes or readers.nodes
        factor = 64 if self.shuffle_algo in ("py1s", "py2s") else 1
        return self.num_canonical_nodes or initial_nodes * factor

    def block_size(self, readers: Readers) -> int:
        """Return the samples of a block: ``shuffle_block_size`` or the default.

        The default is 4,000,000 over the canonical nodes, but at least 262,144.
        """
        return self.shuffle_block_size or max(
            4_000_000 // self.canonical_nodes(readers), 2**18
        )

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch; ``seed`` is the library's ``shuffle_seed``.

        With fewer shards than ranks or workers several of them read the same shard, and
        download it once a node. With fewer samples than canonical nodes or ranks,
        samples are repeated.

        Raises:
            InputError: for no samples or readers, or a seed out of range; canonical
                nodes and nodes of which neither is a multiple of the other, or which
                have too few samples; a block that is larger than the set, or of one
                sample with ``py1br``; a resumed run whose batches cannot be shared as
                before.
        """
        return self.remaining_order(data, readers, seed, epoch, 0)

    def remaining_order(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int, num_done: int
    ) -> EpochOrder:
        """Return the order of the rest of an epoch; positions count from 0 again.

        Args:
            data: the set in shards.
            readers: the processes that read.
            seed: the library's ``shuffle_seed``.
            epoch: from 0.
            num_done: samples of the epoch that all ranks together have had; those that
                are no whole turn of the nodes are read again.

        Raises:
            InputError: as of `epoch`.
        """
        check_inputs(data, readers, seed, epoch, 2**64)
        self._check_block(data)
        order = SHUFFLES[self.shuffle_algo](
            data, self.canonical_nodes(readers), self.block_size(readers), seed, epoch
        )
        positions = self._positions_of_ranks(data.size, readers, num_done)
        return deal_batches(np.where(positions < 0, -1, order[positions]), readers)

    def _check_block(self, data: ShardedSet) -> None:
        """Raise an InputError for a given block larger than the set, or too small for
        ``py1br``.

        The default block, and algorithms without blocks, are always accepted.
        """
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

    def _positions_of_ranks(self, size: int, readers: Readers, num_done: int) -> Ints64:
        """Return the positions in the shuffled order that each rank reads, (M, n); -1
        for none.

        A resumed run on another number of nodes shares batches of the whole world as
        the run did that began. With ``orig``, or if canonical nodes and nodes fit
        together, it is shared like a run that begins.

        Args:
            size: samples of the set.
            readers: the processes that read.
            num_done: samples that all ranks together have had.

        Raises:
            InputError: if batches cannot be shared so, or the canonical nodes do not
                fit.
        """
        canonical = self.canonical_nodes(readers)
        initial_nodes = self.initial_nodes or readers.nodes
        small, large = sorted((canonical, readers.nodes))
        if (
            self.partition_algo == "orig"
            or initial_nodes == readers.nodes
            or large % small == 0
        ):
            return _positions_of_ranks(size, canonical, readers, num_done)

        iteration_size = readers.world_size * readers.batch_size
        initial_ranks = initial_nodes * readers.ranks
        if iteration_size % initial_ranks:
            rule = (
                f"the {iteration_size} samples of an iteration must be a multiple of the ranks "
                "on which the run began, as the library fails otherwise"
            )
            remedy = "Keep the batch of the whole world as it was"
            refuse("initial_nodes", rule, f"{initial_ranks} ranks", remedy, "order")
        initial_batch = iteration_size // initial_ranks
        initial_readers = Readers(
            initial_nodes, readers.ranks, readers.workers, initial_batch
        )
        initial = _positions_of_ranks(size, canonical, initial_readers, num_done)
        # (initial ranks, iterations, batch) to (iterations, ranks, batch): those of an iteration in
        # a row
        by_iteration = initial.reshape(initial_ranks, -1, initial_batch).transpose(
            1, 0, 2
        )
        by_rank = by_iteration.reshape(-1, readers.world_size, readers.batch_size)
        return by_rank.transpose(1, 0, 2).reshape(readers.world_size, -1)


def _positions_of_ranks(
    size: int, canonical: int, readers: Readers, num_done: int
) -> Ints64:
    """Return the positions that each rank of a run that was not resumed reads, (M, n);
    -1 for none.

    Canonical nodes take turns on the nodes, and ranks on the samples that a node reads.
    Where equal shares lack samples, samples from shortly before the end are repeated.
    n is a multiple of a batch of each worker of a rank; -1 stands at the end.

    Args:
        size: samples of the set.
        canonical: C, canonical nodes.
        readers: the processes that read.
        num_done: samples that all ranks together have had; those that are no whole turn
            of the nodes are read again.

    Raises:
        InputError: if neither of canonical nodes and nodes is a multiple of the other,
            or a canonical node has too few samples for its nodes.
    """
    small, large = sorted((canonical, readers.nodes))
    if large % small:
        rule = (
            f"must be a multiple or a divisor of the {readers.nodes} nodes, as the library "
            "fails otherwise"
        )
        remedy = f"Take {readers.nodes}"
        refuse("num_canonical_nodes", rule, str(canonical), remedy, "order")
    nodes_per_canonical = max(1, readers.nodes // canonical)
    rows = _positions_of_canonical_nodes(size, canonical, nodes_per_canonical)
    # (nodes, n) the positions that each node has still to read
    on_node = rows.T.reshape(-1, readers.nodes)[num_done // readers.nodes :].T

    # repeat columns, so that the ranks of a node have equally many
    length = on_node.shape[1]
    ranks = readers.ranks
    missing = -length % ranks
    if missing <= length - ranks + 1:
        repeated = np.arange(missing) + length - ranks + 1 - missing
    else:
        repeated = np.arange(missing) % length
    # (nodes, n / ranks, ranks) to (nodes, ranks, n / ranks): ranks take turns
    shared = np.concatenate([on_node, on_node[:, repeated]], axis=1)
    by_rank = shared.reshape(readers.nodes, -1, ranks).transpose(0, 2, 1)
    sequences = by_rank.reshape(readers.world_size, -1)
    padding = -sequences.shape[1] % (readers.workers * readers.batch_size)
    return np.pad(sequences, ((0, 0), (0, padding)), constant_values=-1)


def _positions_of_canonical_nodes(
    size: int, canonical: int, nodes_per_canonical: int
) -> Ints64:
    """Return the positions in the shuffled order of each canonical node, (C, n).

    Each canonical node is shared by ``nodes_per_canonical`` nodes, which divide n.
    Where samples are missing for that, some are repeated.

    Raises:
        InputError: if a canonical node has too few samples for its nodes.
    """
    max_size = -(-size // canonical)
    missing = -max_size % nodes_per_canonical
    if size < canonical or (size == canonical and nodes_per_canonical > 1):
        length = max_size + missing
        return (np.arange(canonical * length) % size).reshape(canonical, length)
    if missing > max_size - nodes_per_canonical + 1:
        rule = (
            f"a canonical node needs more samples for {nodes_per_canonical} nodes, as"
            " the library fails otherwise"
        )
        remedy = "Take more samples, or as many canonical nodes as nodes"
        refuse("data.samples", rule, f"{max_size} samples", remedy, "order")
    # a smaller canonical node repeats its last position; then columns are repeated
    bounds = np.arange(canonical + 1) * size // canonical
    first = bounds[:-1, None]
    sizes = np.diff(bounds)[:, None]
    rows = first + np.minimum(np.arange(max_size), sizes - 1)
    repeated = np.arange(missing) + max_size - nodes_per_canonical + 1 - missing
    return np.concatenate([rows, rows[:, repeated]], axis=1)
