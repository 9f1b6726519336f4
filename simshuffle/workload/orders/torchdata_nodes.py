"""torchdata's nodes: sources that are sampled by weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.record import Count
from simshuffle.workload.orders.mixture import (
    MixedSamples,
    Mixture,
    Passes,
    StopRule,
    draw_samples,
)
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet, Unit
from simshuffle.workload.orders.samplers import DistributedSampler
from simshuffle.workload.orders.streams import order_from_ranks, reseeded_twister

Criteria = Literal[
    "CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED",
    "ALL_DATASETS_EXHAUSTED",
    "FIRST_DATASET_EXHAUSTED",
    "CYCLE_FOREVER",
]


SourceOrders = dict[tuple[int, int, int], Ints64]
"""(M, n) samples that each rank gets of a source in one pass, by the source's index,
the epoch of its sampler, and M.
"""


@dataclass
class RankSamplers:
    """The samplers of a rank, one for each source, which go on from epoch to epoch."""

    rank: int
    world_size: int  # M
    epochs: Ints64  # (K,) the epoch of each source's sampler
    orders: SourceOrders  # computed so far, with one seed; ranks may share them


class TorchdataNodes(Mixture):
    """torchdata 0.11.0: `Loader(Batcher(MultiNodeWeightedSampler(nodes, weights,
    stop_criteria, seed=seed), batch_size, drop_last=False))`, each node a
    `SamplerWrapper` of a `DistributedSampler` of its source with the same seed; bit by
    bit (torchdata/nodes/samplers/multi_node_weighted_sampler.py, adapters.py).

    Every rank draws sources from a stream of its own, which follows from seed, rank,
    number of ranks and epoch. A source is exhausted when one sample more is asked of
    it; where it begins again, its sampler goes on to its next epoch, so it is in a new
    order, and the epochs of sources are soon not those of the run. A rank reads by
    itself, so worker 0 hands out everything.

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
        """'torchdata_nodes' and the stop criterion."""
        return f"{self.kind} {self.stopping}"

    def stop_rule(self, batch_size: int, steps: int = 0) -> StopRule:
        """Return the rule that ends the mixture of a rank.

        Args:
            batch_size: b.
            steps: batches of this epoch that the rank has trained on, fewer than the
                epoch has; they count only with ``CYCLE_FOREVER``.
        """
        max_samples = None
        if self.stopping == "CYCLE_FOREVER":
            max_samples = (self.steps - steps) * batch_size
        return StopRule(
            needs_all_exhausted=self.stopping != "FIRST_DATASET_EXHAUSTED",
            restarts_sources=self.stopping.startswith("CYCLE"),
            ends_late=True,
            max_samples=max_samples,
        )

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Mix the sources of an epoch, after drawing all epochs before it.

        All rows are of worker 0. The time is in proportion to ``epoch``.

        Raises:
            InputError: for sources that do not fit to the set.
        """
        orders: SourceOrders = {}
        ranks = [
            self.first_samplers(rank, readers, orders)
            for rank in range(readers.world_size)
        ]
        samples: list[Ints64] = []
        for index in range(epoch + 1):
            samples = [
                self.next_epoch(data, samplers, seed, index, readers.batch_size).sample
                for samplers in ranks
            ]
        return order_from_ranks(samples)

    def first_samplers(
        self, rank: int, readers: Readers, orders: SourceOrders
    ) -> RankSamplers:
        """Return the samplers of a rank that begins, all at epoch 0; they read and
        extend ``orders``.
        """
        epochs = np.zeros(len(self.weights), np.int64)
        return RankSamplers(rank, readers.world_size, epochs, orders)

    def next_epoch(
        self,
        data: ShardedSet,
        samplers: RankSamplers,
        seed: int,
        epoch: int,
        batch_size: int,
    ) -> MixedSamples:
        """Draw the samples of a rank in the next epoch, and advance its samplers.

        Args:
            data: the set in shards.
            samplers: of the rank; their epochs change.
            seed: of the run.
            epoch: of the run, from 0, which decides the sources that are drawn.
            batch_size: b; it counts only with ``CYCLE_FOREVER``.

        Raises:
            InputError: for sources that do not fit to the set.
        """
        draws = self.draw_sources(seed, samplers.rank, samplers.world_size, epoch)
        passes = self.source_passes(data, samplers, seed)
        num_sources = len(self.weights)
        exhausted = [False] * num_sources
        mixed = draw_samples(draws, passes, exhausted, self.stop_rule(batch_size))
        samples_before = np.zeros(num_sources, np.int64)
        self.advance_samplers(data, samplers, mixed, samples_before, exhausted)
        return mixed

    def advance_samplers(
        self,
        data: ShardedSet,
        samplers: RankSamplers,
        mixed: MixedSamples,
        samples_before: Ints64,
        exhausted: list[bool],
    ) -> None:
        """Advance the epoch of each sampler whose source was drawn.

        If sources begin again, it advances by the passes that were begun, at least 1.
        If not, by 1, unless the source was exhausted before.

        Args:
            data: the set in shards.
            samplers: of the rank; their epochs change.
            mixed: the samples that the rank has read.
            samples_before: (K,) samples of the current pass of each source that it had
                read before.
            exhausted: (K,) whether each source was exhausted before.
        """
        source_of_sample = self.source_of(data)
        restarts = self.stop_rule(1).restarts_sources
        # (K,) samples of a rank in a pass over each source
        sizes = -(-np.bincount(source_of_sample) // samplers.world_size)
        is_drawn = np.bincount(mixed.source_of_draw, minlength=len(sizes)) > 0
        if not restarts:
            is_drawn &= ~np.array(exhausted)
        samples_read = np.bincount(source_of_sample[mixed.sample], minlength=len(sizes))
        passes = (
            np.maximum(1, -(-(samples_before + samples_read) // sizes))
            if restarts
            else 1
        )
        samplers.epochs = samplers.epochs + np.where(is_drawn, passes, 0)

    def source_passes(
        self, data: ShardedSet, samplers: RankSamplers, seed: int
    ) -> Passes:
        """Return a function that gives a rank's samples of each source and pass over
        it, counted from the epoch at which the source's sampler is now.

        It keeps what it has computed in the samplers' ``orders``.
        """
        first_sample = [
            int(data.begin[shards[0]]) for shards in self.shards_of_sources(data)
        ]
        sizes = np.bincount(self.source_of(data))
        first_epochs = samplers.epochs

        def samples(source: int, pass_index: int) -> Ints64:
            """Return the samples, in order, that the rank gets in a pass, from 0."""
            epoch = int(first_epochs[source]) + pass_index
            key = source, epoch, samplers.world_size
            if key not in samplers.orders:
                source_set = ShardedSet(sizes[source : source + 1], np.ones(1))
                sampler = DistributedSampler(kind="distributed_sampler")
                readers = Readers(1, samplers.world_size, 1, 1)
                order = sampler.epoch(source_set, readers, seed, epoch)
                # rows are sorted by rank, and each rank has as many
                samples_of_ranks = order.sample.reshape(samplers.world_size, -1)
                samplers.orders[key] = first_sample[source] + samples_of_ranks
            rank_samples: Ints64 = samplers.orders[key][samplers.rank]
            return rank_samples

        return samples

    def draw_sources(
        self, seed: int, rank: int, world_size: int, epoch: int, num_used: int = 0
    ) -> Iterator[Ints64]:
        """Yield, without end, arrays of the sources that a rank draws, without the
        first ``num_used`` of all.

        The first arrays may be shorter or empty. All draws follow from the arguments.
        """
        seeds = reseeded_twister((seed * world_size + rank) % 2**32)
        epoch_seed = _torch_uint64(seeds, epoch + 1)[-1]
        rng = np.random.RandomState(int(epoch_seed) % (2**32 - 1) % 2**32)
        while True:
            block = torch_multinomial(rng, np.array(self.weights), 1000)
            yield block[num_used:]
            num_used = max(0, num_used - len(block))


def _torch_uint64(
    rng: np.random.RandomState, count: int
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Draw numbers of 64 bits as torch does, the upper half first: (count,).

    Two words of 32 bits each are taken from ``rng``.
    """
    # (count, 2) upper and lower half
    words = rng.randint(0, 2**32, 2 * count, np.uint32).astype(np.uint64).reshape(-1, 2)
    return (words[:, 0] << np.uint64(32)) | words[:, 1]


def torch_multinomial(
    rng: np.random.RandomState, weights: Floats, count: int
) -> Ints64:
    """Draw as ``torch.multinomial`` does on a CPU, with replacement, from weights of 64
    bits.

    Args:
        rng: from which two words of 32 bits are taken for each draw.
        weights: (K,) not negative; they need not sum to 1.
        count: of draws.

    Returns:
        (count,) indices into ``weights``.
    """
    mantissa_bits = np.uint64(2**53 - 1)
    uniform = (_torch_uint64(rng, count) & mantissa_bits).astype(np.float64) / 2**53
    cumulative = np.cumsum(weights)
    return np.searchsorted(cumulative / cumulative[-1], uniform, side="left").astype(
        np.int64
    )
