"""MosaicML Streaming and LitData, which save a count of samples and draw the order of
the epoch again.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.errors import InputError
from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.fetching import rows_in_time
from simshuffle.workload.orders.litdata import LitdataFull, LitdataWindow
from simshuffle.workload.orders.mosaicml_streaming import MosaicmlStreaming
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet
from simshuffle.workload.orders.streams import number_positions
from simshuffle.workload.resuming.law import (
    Batches,
    Crash,
    OrderResumptionLaw,
    Refusal,
    ResumedEpoch,
    ResumptionLaw,
    batches_from_order,
    join_batches,
)


def samples_by_rank_0(
    law: ResumptionLaw, data: ShardedSet, crash: Crash, seed: int
) -> int:
    """Return M times the samples that rank 0 had of the broken epoch, which a state of
    MosaicML Streaming counts; M ranks read before the crash.
    """
    readers = crash.readers_before
    trained = law.epoch(data, readers, seed, crash.epoch).first_steps(crash.step)
    return int((trained.rank == 0).sum()) * readers.world_size


def refuse_beyond_end(num_done: int, size: int, readers: Readers) -> Refusal | None:
    """Return the error of MosaicML Streaming for more samples than an epoch has; else
    None.

    The count may exceed the epoch: up to the next multiple of the ranks, or by the
    ranks where they divide the epoch.

    Source: streaming/base/partition/__init__.py.

    Args:
        num_done: samples that the state counts.
        size: samples of an epoch.
        readers: the processes that read now.
    """
    if num_done <= size + readers.world_size - size % readers.world_size:
        return None
    message = (
        f"Resuming further into the dataset ({num_done}) than it has samples ({size})"
    )
    return Refusal(f"ValueError: {message}")


class ResumedMosaicml(OrderResumptionLaw):
    """``StreamingDataLoader.state_dict`` of rank 0, loaded by all ranks
    (mosaicml-streaming 0.13.0, streaming/base/dataloader.py, dataset.py ``_resume``,
    partition/orig.py ``drop_first``).

    All ranks together had as many samples as rank 0 had, times the ranks. The order of
    the whole set is that of the nodes with which the run began; those samples are taken
    off its front, and what is left is dealt to the ranks that read now, whatever
    batches and workers they have. With the batch of the whole world as before, each
    iteration has the samples that it would have had. What is no whole turn of the nodes
    that read now is read again.

    The nodes with which the run began are kept in the copy of the set that a worker
    has. Later epochs of new workers, which are forked from a rank, know nothing of
    them, unless the rank has saved a state since it went on.

    Attributes:
        kind: its name.
        of: the order.
        persistent_workers: whether the workers outlive the epoch; or, what comes to the
            same, a state is saved between going on and the end of the epoch.
    """

    kind: Literal["mosaicml_streaming"]
    library: ClassVar[str] = "mosaicml-streaming 0.13.0"
    saves: ClassVar[str] = (
        "epoch, samples of all ranks, canonical nodes, nodes at first"
    )
    of: MosaicmlStreaming = MosaicmlStreaming(kind="mosaicml_streaming")
    persistent_workers: bool = False

    def _order_at_start(self, crash: Crash) -> MosaicmlStreaming:
        """Return the order with the nodes with which the run began."""
        return self.of.model_copy(update={"initial_nodes": crash.readers_before.nodes})

    def resume(
        self, data: ShardedSet, crash: Crash, seed: int
    ) -> ResumedEpoch | Refusal:
        """Return the rest of the order, or the library's error if it cannot be dealt.

        The count of samples is that of rank 0, times the ranks. It is an error if the
        count is beyond the epoch, or if the order refuses those who read now.

        Raises:
            InputError: if the order cannot deal with those who read before.
        """
        readers = crash.readers_after
        num_done = samples_by_rank_0(self, data, crash, seed)
        refusal = refuse_beyond_end(num_done, data.size, readers)
        if refusal is not None:
            return refusal
        order = self._order_at_start(crash)
        try:
            remaining = order.remaining_order(
                data, readers, seed, crash.epoch, num_done
            )
        except InputError as error:
            problem = error.problems[0]
            return Refusal(_error_of_key(problem.path), problem.rule)
        return ResumedEpoch(batches_from_order(remaining, readers))

    def later_epoch(
        self, data: ShardedSet, crash: Crash, seed: int, epoch: int
    ) -> Batches:
        """Return a later epoch: with the nodes with which the run began if the workers
        persist.

        Otherwise it is as if the run had begun with those who read now, unless the
        canonical nodes are given.

        Raises:
            InputError: if neither the nodes nor the canonical nodes are a multiple of
                the other. The library fails, too, even after an epoch in which it did
                not.
        """
        readers = crash.readers_after
        if not self.persistent_workers:
            return self.epoch(data, readers, seed, epoch)
        order = self._order_at_start(crash).epoch(data, readers, seed, epoch)
        return batches_from_order(order, readers)


def _error_of_key(key: str) -> str:
    """Return how the library's error begins where the order refuses ``key``; only the
    kind of the error if the key is about no nodes.
    """
    if key == "num_canonical_nodes":
        return "ValueError: Either canonical or physical nodes must be evenly divisible"
    if key == "initial_nodes":
        return "ValueError: A global batch size of "
    return "ValueError: "


class ResumedLitdata(OrderResumptionLaw):
    """``StreamingDataLoader.state_dict`` (litdata 0.2.76,
    litdata/streaming/dataloader.py, dataset.py ``_resume`` and ``_canonical_plans``,
    elastic.py).

    A rank counts a whole batch for each iteration. With as many ranks, workers and
    samples of a batch as before, each worker leaves out what it handed out if batches
    came from all workers in turn, which they do not where some have fewer; and a rank
    that counts as many samples as it has in its first epoch begins the next epoch at
    once. That nodes changed is not noticed.

    With others, the samples of all ranks and workers are laid out as they are handed
    out, that many times the ranks are left out, down to a whole iteration of those who
    read now, and the rest is dealt to them in batches; what is no whole batch for each
    worker is left out where the last is dropped. On a parallel file system it is runs
    of samples of one chunk that are dealt, and of a chunk that was being read the rest
    is left out. Ranks refuse what a rank counted if it is more than they have
    themselves; and one rank the state of several, or several that of one, if what is
    dropped was left to the default.

    Attributes:
        kind: its name.
        of: the order.
    """

    kind: Literal["litdata"]
    library: ClassVar[str] = "litdata 0.2.76"
    saves: ClassVar[str] = "epoch, samples of a rank, ranks, workers, batch, drop_last"
    of: Annotated[LitdataFull | LitdataWindow, Field(discriminator="kind")] = (
        LitdataFull(kind="litdata_full")
    )

    def resume(
        self, data: ShardedSet, crash: Crash, seed: int
    ) -> ResumedEpoch | Refusal:
        """Return the samples that workers have left, or are dealt anew; or the
        library's error.

        With ranks, workers and batches as before there is no error, and ranks that
        count a whole epoch have their next epoch in place of the rest. With others, it
        is an error if what is dropped changes (``drops_remainder``), or if a rank has
        fewer samples in the first epoch than the count.

        Raises:
            InputError: as of the order, for those who read before or now.
        """
        readers_before = crash.readers_before
        readers_after = crash.readers_after
        if _reader_grid(readers_before) == _reader_grid(readers_after):
            remaining = batches_from_order(
                self._replay_workers(data, crash, seed), readers_after
            )
            return ResumedEpoch(
                self._with_next_epoch(data, crash, seed, crash.epoch, remaining)
            )
        dropped_before = self.of.drops_remainder(readers_before)
        drops_remainder = self.of.drops_remainder(readers_after)
        if dropped_before != drops_remainder:
            return Refusal(
                "ValueError: The provided `drop_last` state doesn't match the current one. "
                f"Found `{drops_remainder}` instead of `{dropped_before}`."
            )
        if (self._samples_beyond_epoch(data, crash, seed) > 0).any():
            return Refusal(
                "ValueError: The provided `num_samples_yielded` state is greater than the dataset "
                f"length. Found `{crash.step * readers_before.batch_size}`"
            )
        order = self.of.epoch(data, readers_before, seed, crash.epoch)
        samples = order.sample[rows_in_time(order, readers_before)]
        num_done = crash.step * readers_before.batch_size * readers_before.world_size
        if isinstance(self.of, LitdataWindow):
            chunks = data.shard_of(samples)
            remaining_order = _deal_by_visit(
                samples,
                num_done,
                chunks,
                readers_after,
                drops_remainder=drops_remainder,
            )
        else:
            remaining_order = _deal_by_batch(
                samples, num_done, readers_after, drops_remainder=drops_remainder
            )
        return ResumedEpoch(batches_from_order(remaining_order, readers_after))

    def later_epoch(
        self, data: ShardedSet, crash: Crash, seed: int, epoch: int
    ) -> Batches:
        """Return a later epoch, as if those who read now had begun the run.

        Ranks that began the next epoch at once stay an epoch ahead.
        """
        batches = self.epoch(data, crash.readers_after, seed, epoch)
        if _reader_grid(crash.readers_before) != _reader_grid(crash.readers_after):
            return batches
        return self._with_next_epoch(data, crash, seed, epoch, batches)

    def _samples_beyond_epoch(
        self, data: ShardedSet, crash: Crash, seed: int
    ) -> Ints64:
        """Return the excess of the count over the samples of each rank that reads now
        in the first epoch, (M,); negative where the count is less.
        """
        first_epoch = self.of.epoch(data, crash.readers_after, seed, 0)
        rank_samples = np.bincount(
            first_epoch.rank, minlength=crash.readers_after.world_size
        )
        excess: Ints64 = crash.step * crash.readers_before.batch_size - rank_samples
        return excess

    def _replay_workers(self, data: ShardedSet, crash: Crash, seed: int) -> EpochOrder:
        """Return the samples that workers have left; the worker whose turn it is comes
        first, as worker 0. Rows are not sorted by worker.
        """
        readers = crash.readers_after
        order = self.of.epoch(data, readers, seed, crash.epoch)
        # batches came from all workers in turn, as the library takes it
        rounds, next_worker = divmod(crash.step, readers.workers)
        # (n,) samples that the worker of each row has handed out
        num_skipped = readers.batch_size * (rounds + (order.worker < next_worker))
        is_left = order.position >= num_skipped
        return EpochOrder(
            order.rank[is_left],
            (order.worker[is_left] - next_worker) % readers.workers,
            (order.position - num_skipped)[is_left],
            order.sample[is_left],
        )

    def _with_next_epoch(
        self, data: ShardedSet, crash: Crash, seed: int, epoch: int, batches: Batches
    ) -> Batches:
        """Return ``batches``, but the epoch after ``epoch`` for ranks that count at
        least the samples of their first epoch. Rows are sorted by rank.
        """
        begins_next = self._samples_beyond_epoch(data, crash, seed) >= 0
        if not begins_next.any():
            return batches
        next_epoch = self.epoch(data, crash.readers_after, seed, epoch + 1)
        mixed = join_batches(
            batches.select(np.flatnonzero(~begins_next[batches.rank])),
            next_epoch.select(np.flatnonzero(begins_next[next_epoch.rank])),
        )
        return mixed.select(np.argsort(mixed.rank, kind="stable"))


def _reader_grid(readers: Readers) -> tuple[int, int, int]:
    """Return ranks of all nodes, workers and batch size, which must not change for a
    state to be replayed.
    """
    return readers.world_size, readers.workers, readers.batch_size


def _deal_by_batch(
    samples: Ints64, num_done: int, readers: Readers, *, drops_remainder: bool
) -> EpochOrder:
    """Deal the samples after ``num_done`` in batches, to each rank, then to each next
    worker.

    ``num_done`` is rounded down to whole iterations of those who read now. With
    ``drops_remainder``, samples at the end that are no batch for every worker of all
    ranks are left out.
    """
    round_size = readers.world_size * readers.batch_size
    remaining = samples[num_done // round_size * round_size :]
    if drops_remainder:
        full_round = round_size * readers.workers
        remaining = remaining[: len(remaining) // full_round * full_round]
    # batch k goes to rank k mod M, and there to worker k / M mod W
    batch = np.arange(len(remaining)) // readers.batch_size
    rank = batch % readers.world_size
    worker = batch // readers.world_size % readers.workers
    return _sort_rows(rank, worker, remaining)


def _deal_by_visit(
    samples: Ints64,
    num_done: int,
    chunks: Ints64,
    readers: Readers,
    *,
    drops_remainder: bool,
) -> EpochOrder:
    """Deal the samples after ``num_done`` in runs of samples of one chunk, to worker
    after worker.

    Args:
        samples: (n,) of the epoch, as they were handed out.
        num_done: samples that were handed out; the rest of a chunk being read is left
            out.
        chunks: (n,) the chunk of each sample.
        readers: the processes that read now.
        drops_remainder: whether the last runs are left out if they are fewer than the
            workers of all ranks.
    """
    remaining = samples[num_done:]
    chunk = chunks[num_done:]
    if num_done and remaining.size and chunks[num_done - 1] == chunk[0]:
        is_other_chunk = chunk != chunk[0]
        remaining = remaining[is_other_chunk]
        chunk = chunk[is_other_chunk]
    # (n,) the run that each sample is in
    visit = np.cumsum(np.diff(chunk, prepend=chunk[:1]) != 0)
    num_workers = readers.world_size * readers.workers
    if drops_remainder and visit.size:
        is_dealt = visit < (visit[-1] + 1) // num_workers * num_workers
        remaining = remaining[is_dealt]
        visit = visit[is_dealt]
    worker = visit % num_workers
    return _sort_rows(worker // readers.workers, worker % readers.workers, remaining)


def _sort_rows(rank: Ints64, worker: Ints64, sample: Ints64) -> EpochOrder:
    """Return the order of these rows, (n,) each, sorted by rank and worker.

    Rows of one worker keep their order.
    """
    rows = np.lexsort((np.arange(len(rank)), worker, rank))
    return number_positions(rank[rows], worker[rows], sample[rows])
