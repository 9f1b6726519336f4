"""What mixtures of sources do with their states."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.fetching import iteration
from simshuffle.workload.orders.hugging_face_interleave import HuggingFaceInterleave
from simshuffle.workload.orders.mixture import Mixed, drawn_from
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet
from simshuffle.workload.orders.streams import handed_out, joined
from simshuffle.workload.orders.torchdata_nodes import Samplers, SourceOrders, TorchdataNodes
from simshuffle.workload.resuming.law import (
    Batches,
    Crash,
    Refused,
    Resumed,
    ResumeOf,
    batches_of,
    dealt_in_batches,
    other_workers,
)

Left = tuple[list[Ints64], list[Ints64]]
"""Of each source: what is left of it, and what is read and thrown away before."""


def handed_in(order: EpochOrder, readers: Readers, steps: int) -> tuple[Ints64, Ints64]:
    """What a `DataLoader` has taken from its workers in the first ``steps`` iterations: (M, W)
    batches, and (M,) the worker whose turn is next."""
    turn, count = iteration(order, readers), readers.workers
    taken = np.zeros((readers.world_size, count), np.int64)
    then = np.zeros(readers.world_size, np.int64)
    for rank in range(readers.world_size):
        workers = np.unique(turn[order.rank == rank])[:steps] % count
        taken[rank] = np.bincount(workers, minlength=count)
        then[rank] = (workers[-1] + 1) % count if len(workers) else 0
    return taken, then


class InterleaveResume(ResumeOf):
    """`datasets` 5.2.0 under a `StatefulDataLoader` of torchdata 0.11.0 (`_restore_main_state`,
    which wants as many workers as before); rank r goes on with the state of rank r mod M.

    A worker's state says how often its generator was drawn from, which sources are exhausted, and
    of each the shard, by its place in the list of that worker, and the samples that were had of it.
    It is put on whatever list the worker has now. Where every rank read everything and does again,
    the rest is dealt to those who read now, and nothing is lost. Where ranks had shards of their
    own, other ranks take up their own lists at places that are others' (`load_state_dict`). From
    one to the other, names of the state do not fit: a KeyError.

    A worker that had handed out nothing has the state of the data set as it was made: its number is
    not in its generator, and the epoch is 0; so it is used in epoch 0 alone, where other sources
    are drawn than without a crash.

    Of sources in memory, a rank skips as many samples of its part as it had trained on.

    Attributes:
        kind: its name.
        of: the order.
    """

    kind: Literal["hugging_face_interleave"]
    library: ClassVar[str] = "datasets 5.2.0, torchdata 0.11.0"
    saves: ClassVar[str] = "of each worker its draws, and of each source a shard and a sample"
    of: HuggingFaceInterleave

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed | Refused:
        """See `Resume`."""
        before = self.of.epoch(data, crash.before, seed, crash.epoch)
        self.of.epoch(data, crash.after, seed, crash.epoch)
        if (refused := other_workers(crash.before, crash.after)) is not None:
            return refused
        taken, then = handed_in(before, crash.before, crash.step)
        if not self.of.streamed:
            return self._in_memory(data, crash, seed, taken)
        if self.of.whole(data, crash.before) != self.of.whole(data, crash.after):
            return Refused("KeyError", "ranks share shards before or after, not both")
        streams, skipped = [], []
        states = crash.before.world_size
        for rank in range(crash.after.world_size):
            thrown = []
            for worker in range(crash.after.workers):
                count = int(taken[rank % states, worker])
                rest, read = self._went_on(data, crash, seed, (rank, worker), count)
                streams.append((rank, worker, rest))
                thrown += read
            skipped.append(joined(thrown))
        found = handed_out(streams)
        turn = (found.worker - then[found.rank % states]) % crash.after.workers
        left = batches_of(replace(found, worker=turn), crash.after)
        return Resumed(left, dealt_in_batches(skipped, crash.after.batch_size))

    def _went_on(
        self, data: ShardedSet, crash: Crash, seed: int, who: tuple[int, int], batches: int
    ) -> tuple[Ints64, list[Ints64]]:
        """What a worker hands out, and what it reads and throws away, with the state of one that
        had handed out so many batches."""
        of, (rank, worker), workers = self.of, who, crash.after.workers
        own = of.shards_of(data, crash.after, crash.epoch, rank, worker)
        whole = [joined(shards) for shards in own]
        left: Left = (whole, [])
        exhausted, used = [False] * len(own), 0
        if batches:
            saved = rank % crash.before.world_size
            old = of.shards_of(data, crash.before, crash.epoch, saved, worker)
            mixed = of.mixed(old, of.draws(seed, crash.epoch, worker, workers))
            every = of.whole(data, crash.before)
            count = batches * crash.before.batch_size * (crash.before.world_size if every else 1)
            used, times = mixed.times(min(count, len(mixed.sample)), len(own))
            exhausted = [int(at) >= max(1, _size(one)) for at, one in zip(times, old, strict=True)]
            places = [_place(one, int(at)) for at, one in zip(times, old, strict=True)]
            left = _left(own, places)
        elif not crash.epoch:
            workers = 1
        draws = of.draws(seed, crash.epoch, worker, workers, used)
        mixed = drawn_from(
            draws, lambda source, again: (whole if again else left[0])[source], exhausted, of.stop
        )
        return of.kept(mixed.sample, data, crash.after, rank), left[1]

    def _in_memory(
        self, data: ShardedSet, crash: Crash, seed: int, taken: Ints64
    ) -> Resumed | Refused:
        before, after = (self.of.of_ranks(data, each, seed) for each in (crash.before, crash.after))
        rest = []
        for rank, row in enumerate(after):
            own = row[row >= 0]
            saved = rank % len(before)
            trained = int(taken[saved].sum()) * crash.before.batch_size
            trained = min(trained, int((before[saved] >= 0).sum()))
            if trained > len(own):
                return Refused("StopIteration", "a rank would skip beyond the end of its share")
            rest.append(own[trained:])
        return Resumed(dealt_in_batches(rest, crash.after.batch_size))


class NodesResume(ResumeOf):
    """torchdata 0.11.0 (`Loader.load_state_dict`, `MultiNodeWeightedSampler.reset`,
    `SamplerWrapper.reset`); rank r goes on with the state of rank r mod M.

    The state says where the generator of sources is, and of each source which epoch its sampler is
    in and how many samples were had of it; as many are passed over of what the sampler gives the
    rank now, and it is an error if it gives fewer. So other ranks draw the sources of those whose
    state they have, and ranks that have the same state draw alike. A sampler that is not asked for
    anything in the rest of the epoch does not go on to its next epoch, and gives in the following
    one what it gave in this. A rank that has nothing left begins its next epoch at once, and stays
    ahead of the others (`Loader.__iter__`, `restart_on_stop_iteration`).

    Attributes:
        kind: its name.
        of: the order.
    """

    kind: Literal["torchdata_nodes"]
    library: ClassVar[str] = "torchdata 0.11.0"
    saves: ClassVar[str] = "of each rank its generator, and of each source its epoch and samples"
    of: TorchdataNodes

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed | Refused:
        """See `Resume`."""
        orders: SourceOrders = {}
        ranks = range(crash.after.world_size)
        found = [self._went_on(data, crash, seed, rank, orders) for rank in ranks]
        rest = [one[0].sample for one in found if one is not None]
        if len(rest) < len(found):
            return Refused("ValueError: Tried to fast-forward", "beyond the end of a share")
        return Resumed(dealt_in_batches(rest, crash.after.batch_size))

    def later(self, data: ShardedSet, crash: Crash, seed: int, epoch: int) -> Batches:
        """See `Resume`: the samplers go on from where they are."""
        samples = []
        orders: SourceOrders = {}
        for rank in range(crash.after.world_size):
            found = self._went_on(data, crash, seed, rank, orders)
            mixed, own, ahead = found or (None, self.of.samplers(rank, crash.after, orders), 0)
            for number in range(crash.epoch + 1 + ahead, epoch + 1 + ahead):
                mixed = self.of.next_epoch(data, own, seed, number, crash.after.batch_size)
            samples.append(mixed.sample if mixed else joined([]))
        return dealt_in_batches(samples, crash.after.batch_size)

    def _went_on(
        self, data: ShardedSet, crash: Crash, seed: int, rank: int, orders: SourceOrders
    ) -> tuple[Mixed, Samplers, int] | None:
        """What a rank reads in the rest of the epoch, its samplers then, and by how many epochs it
        is ahead; None for an error."""
        of, batch_size = self.of, crash.before.batch_size
        old = of.samplers(rank % crash.before.world_size, crash.before, orders)
        for number in range(crash.epoch):
            of.next_epoch(data, old, seed, number, batch_size)
        epochs = old.epochs
        mixed = of.next_epoch(data, old, seed, crash.epoch, batch_size)
        used, asked = mixed.times(crash.step * batch_size, len(epochs))
        sources, again = of.source_of(data), of.stop(1).again
        times = np.bincount(sources[mixed.sample[: crash.step * batch_size]], minlength=len(epochs))
        sizes = -(-np.bincount(sources) // old.ranks)
        exhausted = (asked > sizes).tolist()
        begun = np.maximum(0, -(-times // sizes) - 1) if again else np.zeros_like(times)
        had = times - begun * sizes
        now = Samplers(rank, crash.after.world_size, epochs + begun, orders)
        passes = of.passes(data, now, seed)
        if any(len(passes(source, 0)) < count for source, count in enumerate(had.tolist())):
            return None
        draws = of.draws(seed, old.rank, old.ranks, crash.epoch, used)
        left = [passes(source, 0)[count:] for source, count in enumerate(had.tolist())]
        rest = drawn_from(
            draws,
            lambda source, number: passes(source, number) if number else left[source],
            exhausted,
            of.stop(crash.after.batch_size, crash.step),
        )
        of.move_on(data, now, rest, had, exhausted)
        if len(rest.sample):
            return rest, now, 0
        return of.next_epoch(data, now, seed, crash.epoch + 1, crash.after.batch_size), now, 1


def _size(shards: list[Ints64]) -> int:
    return sum(map(len, shards))


def _place(shards: list[Ints64], times: int) -> tuple[int, int]:
    """The shard, by its place among them, and the samples had of it, of a source that was drawn so
    often; (0, 0) where it is at its beginning."""
    had = times % max(1, _size(shards))
    if not had:
        return 0, 0
    ends = np.cumsum([len(each) for each in shards])
    shard = int(np.searchsorted(ends, had - 1, side="right"))
    return shard, had - int(ends[shard]) + len(shards[shard])


def _left(own: list[list[Ints64]], places: list[tuple[int, int]]) -> Left:
    """What is left of sources from those places on, and what is read of them before."""
    rest, read = [], []
    for shards, (shard, had) in zip(own, places, strict=True):
        now = shards[shard:]
        read += [each[:had] for each in now[:1]]
        rest.append(joined([each[had:] for each in now[:1]] + now[1:]))
    return rest, read
