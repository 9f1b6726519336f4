"""Hugging Face's datasets: sources that are interleaved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.mixture import Mixed, Mixture, Stop, at_random, drawn_from, in_turn
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet, Unit
from simshuffle.workload.orders.streams import dealt, handed_out, need_shards_for, samples_of

Stopping = Literal["first_exhausted", "all_exhausted", "all_exhausted_without_replacement"]


class HuggingFaceInterleave(Mixture):
    """`datasets` 5.2.0: `split_dataset_by_node(interleave_datasets(sources, probabilities, seed,
    stopping_strategy=...), rank, world_size)` with `set_epoch(epoch)`, bit by bit
    (combine.py, iterable_dataset.py `RandomlyCyclingMultiSourcesExamplesIterable`,
    arrow_dataset.py `_interleave_map_style_datasets`).

    Of streamed sources every process draws its own mixture, until that ends. If the shards of the
    source that has fewest are a multiple of the ranks, a rank gets every M-th shard of each source,
    and all ranks draw the same sources at the same time. If not, every rank reads everything and
    keeps every M-th sample. Workers share the shards of their rank. From epoch 1 on the generator
    is that of the epoch alone: the seed no longer counts. A source that is exhausted begins again
    in the same order. (2.12.0 forgot ``all_exhausted`` where the mixture was shuffled, and stopped
    at the first: https://github.com/huggingface/datasets/issues/5812.)

    Of sources in memory there is one mixture for all epochs, of which a rank gets a contiguous
    part.

    One worker means that the rank reads by itself (`num_workers=0`).

    Attributes:
        kind: its name.
        stopping: what ends the mixture (`stopping_strategy`).
        drawn: whether sources are drawn by `probabilities`, or come in turn, without weights.
        streamed: whether sources are `IterableDataset`, or `Dataset`.
    """

    kind: Literal["hugging_face_interleave"]
    unit: ClassVar[Unit] = "shard"
    stopping: Stopping = "first_exhausted"
    drawn: bool = True
    streamed: bool = True

    default_sources: ClassVar[dict[str, str]] = {"stopping": "datasets 5.2.0, interleave_datasets"}

    @property
    def short_name(self) -> str:
        """'hugging_face_interleave' and what ends it."""
        return f"{self.kind} {self.stopping}"

    @property
    def stop(self) -> Stop:
        """What ends the mixture."""
        return Stop(self.stopping != "first_exhausted", self.stopping == "all_exhausted")

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError for sources that do not fit to the set, and for fewer
        shards of a source than a rank has workers, where the library stops those without."""
        if not self.streamed:
            return dealt(self.of_ranks(data, readers, seed), readers)
        self.check(data, readers)
        streams = []
        for rank in range(readers.world_size):
            for worker in range(readers.workers):
                own = self.shards_of(data, readers, epoch, rank, worker)
                mixed = self.mixed(own, self.draws(seed, epoch, worker, readers.workers))
                streams.append((rank, worker, self.kept(mixed.sample, data, readers, rank)))
        return handed_out(streams)

    def check(self, data: ShardedSet, readers: Readers) -> None:
        """Raise an InputError as of `epoch`."""
        fewest = min(self.shards(data), key=len)
        whole = self.whole(data, readers)
        need_shards_for(
            ShardedSet(data.samples[fewest], data.nbytes[fewest]),
            "readers.workers",
            readers.workers * (1 if whole else readers.world_size),
            "workers of a rank" if whole else "workers of all ranks",
            "datasets warns of too many workers, and stops those without shards",
        )

    def whole(self, data: ShardedSet, readers: Readers) -> bool:
        """Whether every rank reads everything and keeps its part of it."""
        return min(map(len, self.shards(data))) % readers.world_size != 0

    def shards_of(
        self, data: ShardedSet, readers: Readers, epoch: int, rank: int, worker: int
    ) -> list[list[Ints64]]:
        """The samples of each shard that a worker reads, of each source in turn."""
        found = []
        for own in self.shards(data):
            order = list(range(len(own)))
            if epoch:
                np.random.default_rng(epoch).shuffle(order)
            if not self.whole(data, readers):
                order = order[rank :: readers.world_size]
            found.append([samples_of(data, [own[at]]) for at in order[worker :: readers.workers]])
        return found

    def draws(
        self, seed: int, epoch: int, worker: int, workers: int, used: int = 0
    ) -> Iterator[Ints64]:
        """The sources that a worker draws, without the first ``used``."""
        if not self.drawn:
            return in_turn(len(self.weights), used % len(self.weights))
        rng = np.random.default_rng(epoch or seed)
        # the library makes a new generator of the first number of the old one for each of these
        if epoch:
            rng = np.random.default_rng(rng.integers(0, 1 << 63) - epoch)
        if workers > 1:
            rng = np.random.default_rng(rng.integers(0, 1 << 63) - worker)
        return at_random(rng, self.shares, used)

    def mixed(self, shards: list[list[Ints64]], draws: Iterator[Ints64]) -> Mixed:
        """What a process reads who begins."""
        whole = [np.concatenate([np.empty(0, np.int64), *own]) for own in shards]
        return drawn_from(draws, lambda source, _: whole[source], [False] * len(whole), self.stop)

    def kept(self, samples: Ints64, data: ShardedSet, readers: Readers, rank: int) -> Ints64:
        """What a rank hands out of what it reads."""
        return samples[rank :: readers.world_size] if self.whole(data, readers) else samples

    def of_ranks(self, data: ShardedSet, readers: Readers, seed: int) -> Ints64:
        """(M, n) the samples of each rank of sources in memory, -1 where it has none."""
        whole = [[samples_of(data, own)] for own in self.shards(data)]
        samples = self.mixed(whole, self.draws(seed, 0, 0, 1)).sample
        if not self.drawn and self.stopping != "all_exhausted_without_replacement":
            # the last round is not broken off where sources are in memory
            lengths = np.array([len(own[0]) for own in whole])
            rounds = lengths.max() if self.stop.every else lengths.min()
            columns = [own[0][np.arange(rounds) % len(own[0])] for own in whole]
            samples = np.stack(columns, axis=1).ravel()
        parts = np.array_split(samples, readers.world_size)
        out = np.full((len(parts), max(map(len, parts))), -1)
        for rank, part in enumerate(parts):
            out[rank, : len(part)] = part
        return out
