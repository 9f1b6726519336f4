"""MosaicML Streaming: shards of canonical nodes, shuffled within them."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.errors import InputError, Problem
from simshuffle.orders.dealing import check, dealt
from simshuffle.orders.mosaicml_shuffles import SHUFFLES, Algorithm
from simshuffle.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.spec.arrays import Ints64
from simshuffle.spec.record import Count

_DATASET = "mosaicml-streaming 0.13.0, streaming/base/dataset.py"


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
        """The order of an epoch; ``seed`` is the library's ``shuffle_seed``.

        With fewer shards than ranks or workers several of them read the same shard, and download
        it once a node. With fewer samples than canonical nodes or ranks, samples are repeated.

        Raises:
            InputError: no samples or readers, or a seed out of range; canonical nodes and nodes of
                which neither is a multiple of the other, or which have too few samples; a block
                that is larger than the set, or of one sample with ``py1br``; a resumed run whose
                batches cannot be shared as before.
        """
        check(data, readers, seed, epoch, 2**64)
        self._check_block(data)
        order = SHUFFLES[self.shuffle_algo](
            data, self.canonical_nodes(readers), self.block_size(readers), seed, epoch
        )
        places = self._places(data.size, readers)
        return dealt(np.where(places < 0, -1, order[places]), readers)

    def _check_block(self, data: ShardedSet) -> None:
        size = self.shuffle_block_size
        if size is None or self.shuffle_algo not in ("py1b", "py1br", "py1e"):
            return
        problem = None
        if size > data.size:
            rule = (
                f"a block is no larger than the set of {data.size} samples; "
                "the library silently shuffles a canonical node as a whole"
            )
            remedy = "Leave it out to have just that, or take a smaller one"
            problem = Problem("shuffle_block_size", rule, str(size), remedy)
        elif size == 1 and self.shuffle_algo == "py1br":
            rule = "py1br needs a block of at least 2 samples, as the library fails otherwise"
            remedy = "Take a larger one"
            problem = Problem("shuffle_block_size", rule, "1", remedy)
        if problem:
            raise InputError(problem, "order")

    def _places(self, size: int, readers: Readers) -> Ints64:
        """(M, n) the places in the shuffled order that each rank reads, -1 for none."""
        canonical, begun = self.canonical_nodes(readers), self.initial_nodes or readers.nodes
        small, large = sorted((canonical, readers.nodes))
        if self.partition_algo == "orig" or begun == readers.nodes or large % small == 0:
            return _places(size, canonical, readers)
        in_iteration, ranks = readers.world_size * readers.batch_size, begun * readers.ranks
        if in_iteration % ranks:
            rule = (
                f"the {in_iteration} samples of an iteration must be a multiple of the ranks "
                "on which the run began, as the library fails otherwise"
            )
            remedy = "Keep the batch of the whole world as it was"
            raise InputError(Problem("initial_nodes", rule, f"{ranks} ranks", remedy), "order")
        batch = in_iteration // ranks
        before = _places(size, canonical, Readers(begun, readers.ranks, readers.workers, batch))
        in_order = before.reshape(ranks, -1, batch).transpose(1, 0, 2)
        now = in_order.reshape(-1, readers.world_size, readers.batch_size)
        return now.transpose(1, 0, 2).reshape(readers.world_size, -1)


def _places(size: int, canonical: int, readers: Readers) -> Ints64:
    """The same of a run that was not resumed: canonical nodes take turns on the nodes, and ranks on
    what a node reads. What is missing to equal shares are samples from shortly before the end."""
    small, large = sorted((canonical, readers.nodes))
    if large % small:
        rule = (
            f"must be a multiple or a divisor of the {readers.nodes} nodes, as the library "
            "fails otherwise"
        )
        remedy = f"Take {readers.nodes}"
        raise InputError(Problem("num_canonical_nodes", rule, str(canonical), remedy), "order")
    rows = _canonical_rows(size, canonical, max(1, readers.nodes // canonical))
    on_node = rows.T.reshape(-1, readers.nodes).T
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
        raise InputError(Problem("data.samples", rule, f"{longest} samples", remedy), "order")
    bounds = np.arange(canonical + 1) * size // canonical
    first, count = bounds[:-1, None], np.diff(bounds)[:, None]
    rows = first + np.minimum(np.arange(longest), count - 1)
    again = np.arange(missing) + longest - nodes + 1 - missing
    return np.concatenate([rows, rows[:, again]], axis=1)
