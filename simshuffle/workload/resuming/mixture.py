"""The laws of loaders that mix sources, when training goes on from their states."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.fetching import iteration_of_rows
from simshuffle.workload.orders.hugging_face_interleave import HuggingFaceInterleave
from simshuffle.workload.orders.mixture import MixedSamples, draw_samples
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet
from simshuffle.workload.orders.streams import concatenate_or_empty, order_from_streams
from simshuffle.workload.orders.torchdata_nodes import (
    RankSamplers,
    SourceOrders,
    TorchdataNodes,
)
from simshuffle.workload.resuming.law import (
    Batches,
    Crash,
    OrderResumptionLaw,
    Refusal,
    ResumedEpoch,
    batches_from_order,
    cut_into_batches,
    refuse_other_workers,
)


class RemainingSources(NamedTuple):
    """The samples of sources after a state."""

    samples: list[Ints64]  # of each source, those that remain
    # of each source with a shard at its position, the samples of this shard that are read and
    # thrown away
    discarded: list[Ints64]


def batches_per_worker(
    order: EpochOrder, readers: Readers, steps: int
) -> tuple[Ints64, Ints64]:
    """Count the batches that a `DataLoader` takes from its workers in the first
    ``steps`` iterations.

    Returns:
        (M, W) batches of each worker, fewer in all than ``steps`` where the rank has
        fewer; and (M,) the worker of the rank whose turn is next.
    """
    iteration = iteration_of_rows(order, readers)
    num_batches = np.zeros((readers.world_size, readers.workers), np.int64)
    next_worker = np.zeros(readers.world_size, np.int64)
    # an iteration that a rank has belongs to worker (iteration mod workers)
    for rank in range(readers.world_size):
        workers = np.unique(iteration[order.rank == rank])[:steps] % readers.workers
        num_batches[rank] = np.bincount(workers, minlength=readers.workers)
        next_worker[rank] = (workers[-1] + 1) % readers.workers if len(workers) else 0
    return num_batches, next_worker


class InterleaveResume(OrderResumptionLaw):
    """`datasets` 5.2.0 under a `StatefulDataLoader` of torchdata 0.11.0
    (`_restore_main_state`, which wants as many workers as before); rank r goes on with
    the state of rank r mod M.

    A worker's state says how often its generator was drawn from, which sources are
    exhausted, and of each the shard, by its place in the list of that worker, and the
    samples that were had of it. It is put on whatever list the worker has now. Where
    every rank read everything and does again, the rest is dealt to those who read now,
    and nothing is lost. Where ranks had shards of their own, other ranks take up their
    own lists at places that are others' (`load_state_dict`). From one to the other,
    names of the state do not fit: a KeyError.

    A worker that had handed out nothing has the state of the data set as it was made:
    its number is not in its generator, and the epoch is 0; so it is used in epoch 0
    alone, where other sources are drawn than without a crash.

    Of sources in memory, a rank skips as many samples of its part as it had trained on.

    Attributes:
        kind: its name.
        of: the order.
    """

    kind: Literal["hugging_face_interleave"]
    library: ClassVar[str] = "datasets 5.2.0, torchdata 0.11.0"
    saves: ClassVar[str] = (
        "of each worker its draws, and of each source a shard and a sample"
    )
    of: HuggingFaceInterleave

    def resume(
        self, data: ShardedSet, crash: Crash, seed: int
    ) -> ResumedEpoch | Refusal:
        """Return the rest of the epoch after the state, or the library's error.

        Samples that a worker reads up to its place in a shard count as skipped, cut
        into batches; of sources in memory nothing does. Errors are for other numbers of
        workers, for shards that are shared before or after but not both, and in memory
        for a rank that would skip more than it has.

        Raises:
            InputError: if the order cannot deal with those who read before or now.
        """
        readers_before = crash.readers_before
        readers_after = crash.readers_after
        order_before = self.of.epoch(data, readers_before, seed, crash.epoch)
        self.of.epoch(data, readers_after, seed, crash.epoch)  # may be refused
        refusal = refuse_other_workers(readers_before, readers_after)
        if refusal is not None:
            return refusal
        num_batches, next_worker = batches_per_worker(
            order_before, readers_before, crash.step
        )
        if not self.of.streamed:
            return self._resume_in_memory(data, crash, seed, num_batches)
        if self.of.reads_all(data, readers_before) != self.of.reads_all(
            data, readers_after
        ):
            return Refusal("KeyError", "ranks share shards before or after, not both")
        streams = []
        skipped = []
        for rank in range(readers_after.world_size):
            state_rank = rank % readers_before.world_size
            discarded = []
            for worker in range(readers_after.workers):
                worker_batches = int(num_batches[state_rank, worker])
                samples, worker_discarded = self._resume_worker(
                    data, crash, seed, (rank, worker), worker_batches
                )
                streams.append((rank, worker, samples))
                discarded += worker_discarded
            skipped.append(concatenate_or_empty(discarded))
        order = order_from_streams(streams)
        first_worker = next_worker[order.rank % readers_before.world_size]
        turn = (order.worker - first_worker) % readers_after.workers
        remaining = batches_from_order(replace(order, worker=turn), readers_after)
        return ResumedEpoch(
            remaining, cut_into_batches(skipped, readers_after.batch_size)
        )

    def _resume_worker(
        self,
        data: ShardedSet,
        crash: Crash,
        seed: int,
        rank_and_worker: tuple[int, int],
        num_batches: int,
    ) -> tuple[Ints64, list[Ints64]]:
        """Return the samples that a worker hands out, and those that it reads and
        throws away, an array for each source with a shard at its place.

        Args:
            data: the set in shards.
            crash: the point at which training broke off.
            seed: of the run.
            rank_and_worker: of those who read now.
            num_batches: that the worker had handed out whose state it loads; with 0 it
                begins the epoch.
        """
        readers_before = crash.readers_before
        readers_after = crash.readers_after
        rank, worker = rank_and_worker
        order = self.of
        sources = order.shards_of_worker(data, readers_after, crash.epoch, rank, worker)
        passes = [concatenate_or_empty(shards) for shards in sources]
        first_pass = RemainingSources(passes, [])
        exhausted = [False] * len(sources)
        num_drawn = 0
        seeded_workers = readers_after.workers
        if num_batches:
            state_rank = rank % readers_before.world_size
            old_sources = order.shards_of_worker(
                data, readers_before, crash.epoch, state_rank, worker
            )
            draws = order.draw_sources(seed, crash.epoch, worker, readers_after.workers)
            mixed = order.draw_mixture(old_sources, draws)
            ranks_sharing = (
                readers_before.world_size
                if order.reads_all(data, readers_before)
                else 1
            )
            num_read = num_batches * readers_before.batch_size * ranks_sharing
            num_drawn, source_counts = mixed.counts_after(
                min(num_read, len(mixed.sample)), len(sources)
            )
            counts = source_counts.tolist()
            exhausted = [
                count >= max(1, _count_samples(source))
                for count, source in zip(counts, old_sources, strict=True)
            ]
            positions = [
                _position_after(source, count)
                for count, source in zip(counts, old_sources, strict=True)
            ]
            first_pass = _split_at(sources, positions)
        elif not crash.epoch:
            seeded_workers = 1  # its number is not in its generator
        draws = order.draw_sources(seed, crash.epoch, worker, seeded_workers, num_drawn)
        mixed = draw_samples(
            draws,
            lambda source, pass_index: (passes if pass_index else first_pass.samples)[
                source
            ],
            exhausted,
            order.stop_rule,
        )
        samples = order.samples_of_rank(mixed.sample, data, readers_after, rank)
        return samples, first_pass.discarded

    def _resume_in_memory(
        self, data: ShardedSet, crash: Crash, seed: int, num_batches: Ints64
    ) -> ResumedEpoch | Refusal:
        """Return the rest of an epoch of sources in memory; a rank skips as many
        samples of its part as rank r mod M had trained on.

        An error if its part has fewer. Skipped samples are not read.

        Args:
            data: the set in shards.
            crash: the point at which training broke off.
            seed: of the run.
            num_batches: (M, W) batches that workers had handed out.
        """
        samples_before = self.of.samples_of_ranks(data, crash.readers_before, seed)
        samples_after = self.of.samples_of_ranks(data, crash.readers_after, seed)
        remaining = []
        for rank, row in enumerate(samples_after):
            rank_samples = row[row >= 0]
            state_rank = rank % len(samples_before)
            num_trained = (
                int(num_batches[state_rank].sum()) * crash.readers_before.batch_size
            )
            num_trained = min(num_trained, int((samples_before[state_rank] >= 0).sum()))
            if num_trained > len(rank_samples):
                return Refusal(
                    "StopIteration", "a rank would skip beyond the end of its share"
                )
            remaining.append(rank_samples[num_trained:])
        return ResumedEpoch(cut_into_batches(remaining, crash.readers_after.batch_size))


class NodesResume(OrderResumptionLaw):
    """torchdata 0.11.0 (`Loader.load_state_dict`, `MultiNodeWeightedSampler.reset`,
    `SamplerWrapper.reset`); rank r goes on with the state of rank r mod M.

    The state says where the generator of sources is, and of each source which epoch its
    sampler is in and how many samples were had of it; as many are passed over of what
    the sampler gives the rank now, and it is an error if it gives fewer. So other ranks
    draw the sources of those whose state they have, and ranks that have the same state
    draw alike. A sampler that is not asked for anything in the rest of the epoch does
    not go on to its next epoch, and gives in the following one what it gave in this. A
    rank that has nothing left begins its next epoch at once, and stays ahead of the
    others (`Loader.__iter__`, `restart_on_stop_iteration`).

    Attributes:
        kind: its name.
        of: the order.
    """

    kind: Literal["torchdata_nodes"]
    library: ClassVar[str] = "torchdata 0.11.0"
    saves: ClassVar[str] = (
        "of each rank its generator, and of each source its epoch and samples"
    )
    of: TorchdataNodes

    def resume(
        self, data: ShardedSet, crash: Crash, seed: int
    ) -> ResumedEpoch | Refusal:
        """Return the rest of the epoch after the state, or the library's error.

        A rank that has nothing left has its next epoch in place of the rest. It is an
        error if a source now gives a rank fewer samples than its state counts. All
        ranks must have had ``crash.step`` full batches.

        Raises:
            InputError: for sources that do not fit to the set.
        """
        world_size = crash.readers_after.world_size
        orders: SourceOrders = {}
        ranks = [
            self._resume_rank(data, crash, seed, rank, orders)
            for rank in range(world_size)
        ]
        remaining = [resumed.mixed.sample for resumed in ranks if resumed is not None]
        if len(remaining) < len(ranks):
            return Refusal(
                "ValueError: Tried to fast-forward", "beyond the end of a share"
            )
        return ResumedEpoch(cut_into_batches(remaining, crash.readers_after.batch_size))

    def later_epoch(
        self, data: ShardedSet, crash: Crash, seed: int, epoch: int
    ) -> Batches:
        """Return a later epoch; the samplers go on from where they are.

        Ranks that are an epoch ahead stay ahead. Ranks for which the library fails
        begin with fresh samplers.
        """
        readers = crash.readers_after
        samples = []
        orders: SourceOrders = {}
        for rank in range(readers.world_size):
            resumed = self._resume_rank(data, crash, seed, rank, orders)
            mixed = resumed.mixed if resumed else None
            samplers = (
                resumed.samplers
                if resumed
                else self.of.first_samplers(rank, readers, orders)
            )
            epochs_ahead = resumed.epochs_ahead if resumed else 0
            for index in range(
                crash.epoch + 1 + epochs_ahead, epoch + 1 + epochs_ahead
            ):
                mixed = self.of.next_epoch(
                    data, samplers, seed, index, readers.batch_size
                )
            samples.append(mixed.sample if mixed else concatenate_or_empty([]))
        return cut_into_batches(samples, readers.batch_size)

    def _resume_rank(
        self, data: ShardedSet, crash: Crash, seed: int, rank: int, orders: SourceOrders
    ) -> _ResumedRank | None:
        """Return the samples of a rank in the rest of the epoch, or in the next epoch
        if nothing is left; None if the library fails.

        All epochs up to the crash are drawn first. ``orders`` is read and extended.
        """
        order = self.of
        readers_before = crash.readers_before
        readers_after = crash.readers_after
        # the rank whose state is loaded, up to the crash
        old = order.first_samplers(
            rank % readers_before.world_size, readers_before, orders
        )
        for index in range(crash.epoch):
            order.next_epoch(data, old, seed, index, readers_before.batch_size)
        epochs = old.epochs
        broken = order.next_epoch(
            data, old, seed, crash.epoch, readers_before.batch_size
        )
        # a rank whose epoch was shorter has had all of it
        num_trained = min(crash.step * readers_before.batch_size, len(broken.sample))
        num_draws, draws_of_source = broken.counts_after(num_trained, len(epochs))

        # (K,) of each source: samples that were had, passes that were begun anew since, and samples
        # that were had of the current pass
        source_of_sample = order.source_of(data)
        trained_sources = source_of_sample[broken.sample[:num_trained]]
        samples_had = np.bincount(trained_sources, minlength=len(epochs))
        sizes = -(-np.bincount(source_of_sample) // old.world_size)
        exhausted = (draws_of_source > sizes).tolist()
        passes_begun = np.zeros_like(samples_had)
        if order.stop_rule(1).restarts_sources:
            passes_begun = np.maximum(0, -(-samples_had // sizes) - 1)
        had_of_pass = samples_had - passes_begun * sizes

        samplers = RankSamplers(
            rank, readers_after.world_size, epochs + passes_begun, orders
        )
        passes = order.source_passes(data, samplers, seed)
        had = had_of_pass.tolist()
        if any(len(passes(source, 0)) < count for source, count in enumerate(had)):
            return None
        first_pass = [passes(source, 0)[count:] for source, count in enumerate(had)]
        draws = order.draw_sources(
            seed, old.rank, old.world_size, crash.epoch, num_draws
        )
        remaining = draw_samples(
            draws,
            lambda source, index: (
                passes(source, index) if index else first_pass[source]
            ),
            exhausted,
            order.stop_rule(readers_after.batch_size, crash.step),
        )
        order.advance_samplers(data, samplers, remaining, had_of_pass, exhausted)
        if len(remaining.sample):
            return _ResumedRank(remaining, samplers, epochs_ahead=0)
        next_epoch = order.next_epoch(
            data, samplers, seed, crash.epoch + 1, readers_after.batch_size
        )
        return _ResumedRank(next_epoch, samplers, epochs_ahead=1)


class _ResumedRank(NamedTuple):
    """A rank that goes on from a state of `NodesResume`."""

    # that it reads in the rest of the epoch, or in the next epoch if it is ahead
    mixed: MixedSamples
    samplers: RankSamplers  # after that
    epochs_ahead: int  # by which it is ahead of the other ranks: 0 or 1


def _count_samples(shards: list[Ints64]) -> int:
    """Return the samples of all ``shards``."""
    return sum(map(len, shards))


def _position_after(shards: list[Ints64], num_drawn: int) -> tuple[int, int]:
    """Return where a source stands that was drawn ``num_drawn`` times, in whichever
    pass.

    Returns:
        The index of the shard, and the samples that were had of it, from 1 on; (0, 0)
        at the beginning of a pass.
    """
    num_had = num_drawn % max(1, _count_samples(shards))
    if not num_had:
        return 0, 0
    ends = np.cumsum([len(shard) for shard in shards])
    index = int(np.searchsorted(ends, num_had - 1, side="right"))
    return index, num_had - int(ends[index]) + len(shards[index])


def _split_at(
    sources: list[list[Ints64]], positions: list[tuple[int, int]]
) -> RemainingSources:
    """Split sources at positions: the index of a shard, and the samples that were had
    of this shard.

    Shards before the position are in neither part. A position behind the last shard
    leaves nothing in either; one behind the end of its shard discards the whole shard.
    """
    remaining = []
    discarded = []
    for shards, (shard_index, num_had) in zip(sources, positions, strict=True):
        following = shards[shard_index:]
        discarded += [shard[:num_had] for shard in following[:1]]
        current = [shard[num_had:] for shard in following[:1]]
        remaining.append(concatenate_or_empty(current + following[1:]))
    return RemainingSources(remaining, discarded)
