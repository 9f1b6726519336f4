"""torchdata's nodes: sources that are sampled by weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.record import Count
from simshuffle.workload.orders.mixture import Mixed, Mixture, Passes, Stop, drawn_from
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet, Unit
from simshuffle.workload.orders.samplers import DistributedSampler
from simshuffle.workload.orders.streams import handed_out_by_ranks, reseeded_twister

Criteria = Literal[
    "CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED",
    "ALL_DATASETS_EXHAUSTED",
    "FIRST_DATASET_EXHAUSTED",
    "CYCLE_FOREVER",
]


SourceOrders = dict[tuple[int, int, int], Ints64]
"""By source, epoch of its sampler and number of ranks: (M, n) the samples that each rank gets."""


@dataclass
class Samplers:
    """The samplers of a rank, which go on from epoch to epoch."""

    rank: int
    ranks: int
    epochs: Ints64  # (K,) of the sampler of each source
    orders: SourceOrders  # computed so far, with one seed; ranks may share them


class TorchdataNodes(Mixture):
    """torchdata 0.11.0: `Loader(Batcher(MultiNodeWeightedSampler(nodes, weights, stop_criteria,
    seed=seed), batch_size, drop_last=False))`, each node a `SamplerWrapper` of a
    `DistributedSampler` of its source with the same seed; bit by bit
    (torchdata/nodes/samplers/multi_node_weighted_sampler.py, adapters.py).

    Every rank draws sources from a stream of its own, which follows from seed, rank, number of
    ranks and epoch. A source is exhausted when one sample more is asked of it; where it begins
    again, its sampler goes on to its next epoch, so it is in a new order, and the epochs of sources
    are soon not those of the run. A rank reads by itself, so worker 0 hands out everything.

    Attributes:
        kind: its name.
        stopping: what ends an epoch (`stop_criteria`).
        steps: iterations of an epoch with ``CYCLE_FOREVER``, which the trainer counts.
    """

    kind: Literal["torchdata_nodes"]
    unit: ClassVar[Unit] = "sample"
    stopping: Criteria = "CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED"
    steps: Count = 100

    default_sources: ClassVar[dict[str, str]] = {
        "stopping": "torchdata 0.11.0, MultiNodeWeightedSampler"
    }

    @property
    def short_name(self) -> str:
        """'torchdata_nodes' and what ends an epoch."""
        return f"{self.kind} {self.stopping}"

    def stop(self, batch_size: int, steps: int = 0) -> Stop:
        """What ends the mixture of a rank that has trained on so many batches of this epoch."""
        return Stop(
            every=self.stopping != "FIRST_DATASET_EXHAUSTED",
            again=self.stopping.startswith("CYCLE"),
            late=True,
            most=(self.steps - steps) * batch_size if self.stopping == "CYCLE_FOREVER" else None,
        )

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError for sources that do not fit to the set."""
        orders: SourceOrders = {}
        ranks = [self.samplers(rank, readers, orders) for rank in range(readers.world_size)]
        samples: list[Ints64] = []
        for number in range(epoch + 1):
            samples = [
                self.next_epoch(data, each, seed, number, readers.batch_size).sample
                for each in ranks
            ]
        return handed_out_by_ranks(samples)

    def samplers(self, rank: int, readers: Readers, orders: SourceOrders) -> Samplers:
        """Return the samplers of a rank that begins."""
        return Samplers(rank, readers.world_size, np.zeros(len(self.weights), np.int64), orders)

    def next_epoch(
        self, data: ShardedSet, of: Samplers, seed: int, epoch: int, batch_size: int
    ) -> Mixed:
        """What a rank reads in the next epoch, after which its samplers are moved on."""
        draws, count = self.draws(seed, of.rank, of.ranks, epoch), len(self.weights)
        passes, exhausted = self.passes(data, of, seed), [False] * count
        mixed = drawn_from(draws, passes, exhausted, self.stop(batch_size))
        self.move_on(data, of, mixed, np.zeros(count, np.int64), exhausted)
        return mixed

    def move_on(
        self, data: ShardedSet, of: Samplers, mixed: Mixed, had: Ints64, exhausted: list[bool]
    ) -> None:
        """Begin the samplers anew that were asked for a sample, after what a rank read who ``had``
        so many of the pass of each source before."""
        sources, again = self.source_of(data), self.stop(1).again
        sizes = -(-np.bincount(sources) // of.ranks)
        asked = np.bincount(mixed.drawn, minlength=len(sizes)) > 0
        if not again:
            asked &= ~np.array(exhausted)
        times = had + np.bincount(sources[mixed.sample], minlength=len(sizes))
        passes = np.maximum(1, -(-times // sizes)) if again else 1
        of.epochs = of.epochs + np.where(asked, passes, 0)

    def passes(self, data: ShardedSet, of: Samplers, seed: int) -> Passes:
        """The samples of a rank, of each source and each time that it is begun."""
        first = [int(data.begin[own[0]]) for own in self.shards(data)]
        sizes, epochs = np.bincount(self.source_of(data)), of.epochs

        def samples(source: int, again: int) -> Ints64:
            epoch = int(epochs[source]) + again
            key = source, epoch, of.ranks
            if key not in of.orders:
                alone = ShardedSet(sizes[source : source + 1], np.ones(1))
                sampler = DistributedSampler(kind="distributed_sampler")
                order = sampler.epoch(alone, Readers(1, of.ranks, 1, 1), seed, epoch)
                # rows are sorted by rank, and each rank has as many
                of.orders[key] = first[source] + order.sample.reshape(of.ranks, -1)
            own: Ints64 = of.orders[key][of.rank]
            return own

        return samples

    def draws(
        self, seed: int, rank: int, ranks: int, epoch: int, used: int = 0
    ) -> Iterator[Ints64]:
        """The sources that a rank draws, without the first ``used``."""
        chosen = _numbers(reseeded_twister((seed * ranks + rank) % 2**32), epoch + 1)[-1]
        rng = np.random.RandomState(int(chosen) % (2**32 - 1) % 2**32)
        while True:
            block = multinomial(rng, np.array(self.weights), 1000)
            yield block[used:]
            used = max(0, used - len(block))


def _numbers(rng: np.random.RandomState, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """(count,) numbers of 64 bits as torch draws them, the upper half first."""
    halves = rng.randint(0, 2**32, 2 * count, np.uint32).astype(np.uint64).reshape(-1, 2)
    return (halves[:, 0] << np.uint64(32)) | halves[:, 1]


def multinomial(rng: np.random.RandomState, weights: Floats, count: int) -> Ints64:
    """What ``torch.multinomial`` gives on a CPU for weights of 64 bits, with replacement."""
    drawn = (_numbers(rng, count) & np.uint64(2**53 - 1)).astype(np.float64) / 2**53
    shares = np.cumsum(weights)
    return np.searchsorted(shares / shares[-1], drawn, side="left").astype(np.int64)
