"""Hugging Face's datasets: sources that are interleaved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.mixture import (
    MixedSamples,
    Mixture,
    StopRule,
    draw_samples,
    sources_at_random,
    sources_in_turn,
)
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet, Unit
from simshuffle.workload.orders.shuffle_buffers import worker_generator
from simshuffle.workload.orders.streams import (
    deal_batches,
    order_from_streams,
    require_shard_for_each,
    samples_of_shards,
)

Stopping = Literal[
    "first_exhausted", "all_exhausted", "all_exhausted_without_replacement"
]


class HuggingFaceInterleave(Mixture):
    """`datasets` 5.2.0: `split_dataset_by_node(interleave_datasets(sources,
    probabilities, seed, stopping_strategy=...), rank, world_size)` with
    `set_epoch(epoch)`, bit by bit (combine.py, iterable_dataset.py
    `RandomlyCyclingMultiSourcesExamplesIterable`, arrow_dataset.py
    `_interleave_map_style_datasets`).

    Of streamed sources every process draws its own mixture, until that ends. If the
    shards of the source that has fewest are a multiple of the ranks, a rank gets every
    M-th shard of each source, and all ranks draw the same sources at the same time. If
    not, every rank reads everything and keeps every M-th sample. Workers share the
    shards of their rank. From epoch 1 on the generator is that of the epoch alone: the
    seed no longer counts. A source that is exhausted begins again in the same order.
    (2.12.0 forgot ``all_exhausted`` where the mixture was shuffled, and stopped at the
    first: https://github.com/huggingface/datasets/issues/5812.)

    Of sources in memory there is one mixture for all epochs, of which a rank gets a
    contiguous part.

    One worker means that the rank reads by itself (`num_workers=0`).

    Attributes:
        kind: its name.
        stopping: what ends the mixture (`stopping_strategy`).
        drawn: whether sources are drawn by `probabilities`, or come in turn, without
            weights.
        streamed: whether sources are `IterableDataset`, or `Dataset`.
    """

    kind: Literal["hugging_face_interleave"]
    unit: ClassVar[Unit] = "shard"
    stopping: Stopping = "first_exhausted"
    drawn: bool = True
    streamed: bool = True

    default_sources: ClassVar[dict[str, str]] = {
        "stopping": "datasets 5.2.0, interleave_datasets"
    }

    @property
    def short_name(self) -> str:
        """'hugging_face_interleave' and the stopping strategy."""
        return f"{self.kind} {self.stopping}"

    @property
    def stop_rule(self) -> StopRule:
        """The rule that ends the mixture."""
        return StopRule(
            needs_all_exhausted=self.stopping != "first_exhausted",
            restarts_sources=self.stopping == "all_exhausted",
        )

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Mix the sources of an epoch, from 0.

        Of sources in memory all epochs are equal, and batch k of a rank goes to worker
        k mod workers.

        Raises:
            InputError: for sources that do not fit to the set; and, where they are
                streamed, if a rank has fewer shards of a source than workers, where the
                library stops those without.
        """
        if not self.streamed:
            return deal_batches(self.samples_of_ranks(data, readers, seed), readers)
        self.check(data, readers)
        streams = []
        for rank in range(readers.world_size):
            for worker in range(readers.workers):
                shards = self.shards_of_worker(data, readers, epoch, rank, worker)
                draws = self.draw_sources(seed, epoch, worker, readers.workers)
                mixed = self.draw_mixture(shards, draws)
                samples = self.samples_of_rank(mixed.sample, data, readers, rank)
                streams.append((rank, worker, samples))
        return order_from_streams(streams)

    def check(self, data: ShardedSet, readers: Readers) -> None:
        """Raise an InputError for sources or readers that `epoch` refuses where sources
        are streamed.
        """
        smallest_source = min(self.shards_of_sources(data), key=len)
        reads_all = self.reads_all(data, readers)
        require_shard_for_each(
            ShardedSet(data.samples[smallest_source], data.nbytes[smallest_source]),
            "readers.workers",
            readers.workers * (1 if reads_all else readers.world_size),
            "workers of a rank" if reads_all else "workers of all ranks",
            "datasets warns of too many workers, and stops those without shards",
        )

    def reads_all(self, data: ShardedSet, readers: Readers) -> bool:
        """Return True if every rank reads all samples and keeps a part.

        It does where the shards of the source that has fewest are no multiple of the
        ranks.

        Raises:
            InputError: for sources that do not fit to the set.
        """
        return min(map(len, self.shards_of_sources(data))) % readers.world_size != 0

    def shards_of_worker(
        self, data: ShardedSet, readers: Readers, epoch: int, rank: int, worker: int
    ) -> list[list[Ints64]]:
        """Return the samples of each shard that a worker reads, a list for each source.

        The order of shards is that of the set in epoch 0, and then follows from the
        epoch alone.
        """
        samples_of_sources = []
        for shards in self.shards_of_sources(data):
            order = list(range(len(shards)))
            if epoch:
                np.random.default_rng(epoch).shuffle(order)
            if not self.reads_all(data, readers):
                order = order[rank :: readers.world_size]
            samples_of_sources.append(
                [
                    samples_of_shards(data, [shards[index]])
                    for index in order[worker :: readers.workers]
                ]
            )
        return samples_of_sources

    def draw_sources(
        self, seed: int, epoch: int, worker: int, workers: int, num_used: int = 0
    ) -> Iterator[Ints64]:
        """Yield, without end, arrays of the sources that a worker draws, without the
        first ``num_used``.

        They come in turn unless ``drawn``; all ranks draw alike.

        Args:
            seed: of the run, which counts in epoch 0 alone.
            epoch: from 0.
            worker: of a rank; it counts only if there are several.
            workers: of a rank.
            num_used: sources that are left out at the beginning.
        """
        if not self.drawn:
            return sources_in_turn(len(self.weights), num_used % len(self.weights))
        rng = worker_generator(epoch or seed, epoch, worker, workers)
        return sources_at_random(rng, self.shares, num_used)

    def draw_mixture(
        self, shards: list[list[Ints64]], draws: Iterator[Ints64]
    ) -> MixedSamples:
        """Draw the mixture of a process that begins, up to its end by `stop_rule`.

        Args:
            shards: samples of each shard that it reads, a list for each source.
            draws: yields the sources; it may be read further than is needed.
        """
        samples = [np.concatenate([np.empty(0, np.int64), *parts]) for parts in shards]
        exhausted = [False] * len(samples)
        return draw_samples(
            draws, lambda source, _: samples[source], exhausted, self.stop_rule
        )

    def samples_of_rank(
        self, samples: Ints64, data: ShardedSet, readers: Readers, rank: int
    ) -> Ints64:
        """Return the samples that a rank hands out of those that it reads: every M-th
        if all ranks read all, else all.
        """
        return (
            samples[rank :: readers.world_size]
            if self.reads_all(data, readers)
            else samples
        )

    def samples_of_ranks(self, data: ShardedSet, readers: Readers, seed: int) -> Ints64:
        """Return the samples of each rank of sources in memory, (M, n); -1 where it has
        none.

        Each rank has a contiguous part of one mixture, which all epochs have.
        """
        sources = [
            samples_of_shards(data, shards) for shards in self.shards_of_sources(data)
        ]
        draws = self.draw_sources(seed, 0, 0, 1)
        samples = self.draw_mixture([[source] for source in sources], draws).sample
        if not self.drawn and self.stopping != "all_exhausted_without_replacement":
            # the last round is not broken off where sources are in memory
            sizes = np.array([len(source) for source in sources])
            rounds = sizes.max() if self.stop_rule.needs_all_exhausted else sizes.min()
            columns = [source[np.arange(rounds) % len(source)] for source in sources]
            samples = np.stack(columns, axis=1).ravel()
        # a contiguous part for each rank, the first ones longer by one
        parts = np.array_split(samples, readers.world_size)
        table = np.full((len(parts), max(map(len, parts))), -1)
        for rank, part in enumerate(parts):
            table[rank, : len(part)] = part
        return table
