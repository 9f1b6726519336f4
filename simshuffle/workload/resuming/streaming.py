"""MosaicML Streaming and LitData: a count of samples, and the order of the epoch again."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.errors import InputError
from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.fetching import in_time
from simshuffle.workload.orders.litdata import LitdataFull, LitdataWindow
from simshuffle.workload.orders.mosaicml_streaming import MosaicmlStreaming
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet
from simshuffle.workload.orders.streams import numbered
from simshuffle.workload.resuming.law import (
    Batches,
    Crash,
    Refused,
    Resume,
    Resumed,
    ResumeOf,
    batches_of,
    joined,
)


def counted_by_rank_0(law: Resume, data: ShardedSet, crash: Crash, seed: int) -> int:
    """The samples that a state of MosaicML Streaming says: those of rank 0, times the ranks."""
    done = law.epoch(data, crash.before, seed, crash.epoch).first(crash.step)
    return int((done.rank == 0).sum()) * crash.before.world_size


def too_far(had: int, size: int, readers: Readers) -> Refused | None:
    """The error of MosaicML Streaming for more samples than an epoch of ``size`` has with those who
    read now (streaming/base/partition/__init__.py)."""
    if had <= size + readers.world_size - size % readers.world_size:
        return None
    said = f"Resuming further into the dataset ({had}) than it has samples ({size})"
    return Refused(f"ValueError: {said}")


class ResumedMosaicml(ResumeOf):
    """``StreamingDataLoader.state_dict`` of rank 0, loaded by all ranks (mosaicml-streaming 0.13.0,
    streaming/base/dataloader.py, dataset.py ``_resume``, partition/orig.py ``drop_first``).

    All ranks together had as many samples as rank 0 had, times the ranks. The order of the whole
    set is that of the nodes with which the run began; those samples are taken off its front, and
    what is left is dealt to the ranks that read now, whatever batches and workers they have. With
    the batch of the whole world as before, each iteration has the samples that it would have had.
    What is no whole turn of the nodes that read now is read again.

    The nodes with which the run began are kept in the copy of the set that a worker has. Later
    epochs of new workers, which are forked from a rank, know nothing of them, unless the rank has
    saved a state since it went on.

    Attributes:
        kind: its name.
        of: the order.
        persistent_workers: whether the workers outlive the epoch; or, what comes to the same, a
            state is saved between going on and the end of the epoch.
    """

    kind: Literal["mosaicml_streaming"]
    library: ClassVar[str] = "mosaicml-streaming 0.13.0"
    saves: ClassVar[str] = "epoch, samples of all ranks, canonical nodes, nodes at first"
    of: MosaicmlStreaming = MosaicmlStreaming(kind="mosaicml_streaming")
    persistent_workers: bool = False

    def _begun(self, crash: Crash) -> MosaicmlStreaming:
        return self.of.model_copy(update={"initial_nodes": crash.before.nodes})

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed | Refused:
        """What is left in the order, or an error of Python's that says why it cannot be dealt."""
        had = counted_by_rank_0(self, data, crash, seed)
        if (refused := too_far(had, data.size, crash.after)) is not None:
            return refused
        try:
            rest = self._begun(crash).since(data, crash.after, seed, crash.epoch, had)
        except InputError as error:
            problem = error.problems[0]
            return Refused(_said_of_nodes(problem.path), problem.rule)
        return Resumed(batches_of(rest, crash.after))

    def later(self, data: ShardedSet, crash: Crash, seed: int, epoch: int) -> Batches:
        """As the run began if the workers persist, and otherwise as if it had begun with those who
        read now, unless the canonical nodes are given. Raises an InputError if then nodes do not
        divide them, as the library fails, be it after an epoch in which it did not."""
        if not self.persistent_workers:
            return self.epoch(data, crash.after, seed, epoch)
        return batches_of(self._begun(crash).epoch(data, crash.after, seed, epoch), crash.after)


def _said_of_nodes(key: str) -> str:
    """What the library says where the order refuses ``key``."""
    if key == "num_canonical_nodes":
        return "ValueError: Either canonical or physical nodes must be evenly divisible"
    if key == "initial_nodes":
        return "ValueError: A global batch size of "
    return "ValueError: "


class ResumedLitdata(ResumeOf):
    """``StreamingDataLoader.state_dict`` (litdata 0.2.76, litdata/streaming/dataloader.py,
    dataset.py ``_resume`` and ``_canonical_plans``, elastic.py).

    A rank counts a whole batch for each iteration. With as many ranks, workers and samples of a
    batch as before, each worker leaves out what it handed out if batches came from all workers in
    turn, which they do not where some have fewer; and a rank that counts as many samples as it has
    in its first epoch begins the next epoch at once. That nodes changed is not noticed.

    With others, the samples of all ranks and workers are laid out as they are handed out, that many
    times the ranks are left out, down to a whole iteration of those who read now, and the rest is
    dealt to them in batches; what is no whole batch for each worker is left out where the last is
    dropped. On a parallel file system it is runs of samples of one chunk that are dealt, and of a
    chunk that was being read the rest is left out. Ranks refuse what a rank counted if it is more
    than they have themselves; and one rank the state of several, or several that of one, if what is
    dropped was left to the default.

    Attributes:
        kind: its name.
        of: the order.
    """

    kind: Literal["litdata"]
    library: ClassVar[str] = "litdata 0.2.76"
    saves: ClassVar[str] = "epoch, samples of a rank, ranks, workers, batch, drop_last"
    of: Annotated[LitdataFull | LitdataWindow, Field(discriminator="kind")] = LitdataFull(
        kind="litdata_full"
    )

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed | Refused:
        """What workers have left, or are dealt anew; or an error of Python's."""
        before, after = crash.before, crash.after
        if _grid(before) == _grid(after):
            rest = batches_of(self._replayed(data, crash, seed), after)
            return Resumed(self._begun_anew(data, crash, seed, crash.epoch, rest))
        dropped = [self.of.drops(readers) for readers in (before, after)]
        if dropped[0] != dropped[1]:
            return Refused(
                "ValueError: The provided `drop_last` state doesn't match the current one. "
                f"Found `{dropped[1]}` instead of `{dropped[0]}`."
            )
        if (self._ahead(data, crash, seed) > 0).any():
            return Refused(
                "ValueError: The provided `num_samples_yielded` state is greater than the dataset "
                f"length. Found `{crash.step * before.batch_size}`"
            )
        begun = self.of.epoch(data, before, seed, crash.epoch)
        stream = begun.sample[in_time(begun, before)]
        had = crash.step * before.batch_size * before.world_size
        if isinstance(self.of, LitdataWindow):
            dealt = _dealt_by_visit(stream, had, data.shard_of(stream), after, dropped[1])
        else:
            dealt = _dealt_by_batch(stream, had, after, dropped[1])
        return Resumed(batches_of(dealt, after))

    def later(self, data: ShardedSet, crash: Crash, seed: int, epoch: int) -> Batches:
        """As if begun by those who read now; ranks that began the next epoch at once stay ahead."""
        rows = self.epoch(data, crash.after, seed, epoch)
        if _grid(crash.before) != _grid(crash.after):
            return rows
        return self._begun_anew(data, crash, seed, epoch, rows)

    def _ahead(self, data: ShardedSet, crash: Crash, seed: int) -> Ints64:
        """(M,) by how much the count of samples exceeds what each rank has in the first epoch."""
        first = self.of.epoch(data, crash.after, seed, 0)
        has = np.bincount(first.rank, minlength=crash.after.world_size)
        ahead: Ints64 = crash.step * crash.before.batch_size - has
        return ahead

    def _replayed(self, data: ShardedSet, crash: Crash, seed: int) -> EpochOrder:
        """What workers have left; the one whose turn it is comes first."""
        whole, workers = self.of.epoch(data, crash.after, seed, crash.epoch), crash.after.workers
        rounds, turn = divmod(crash.step, workers)
        skipped = crash.after.batch_size * (rounds + (whole.worker < turn))
        left = whole.position >= skipped
        return EpochOrder(
            whole.rank[left],
            (whole.worker[left] - turn) % workers,
            (whole.position - skipped)[left],
            whole.sample[left],
        )

    def _begun_anew(
        self, data: ShardedSet, crash: Crash, seed: int, epoch: int, rows: Batches
    ) -> Batches:
        """``rows``, but the epoch after ``epoch`` for the ranks that count a whole epoch."""
        anew = self._ahead(data, crash, seed) >= 0
        if not anew.any():
            return rows
        following = self.epoch(data, crash.after, seed, epoch + 1)
        both = joined(
            rows.where(np.flatnonzero(~anew[rows.rank])),
            following.where(np.flatnonzero(anew[following.rank])),
        )
        return both.where(np.argsort(both.rank, kind="stable"))


def _grid(readers: Readers) -> tuple[int, int, int]:
    return readers.world_size, readers.workers, readers.batch_size


def _dealt_by_batch(stream: Ints64, had: int, readers: Readers, drops: bool) -> EpochOrder:
    """What follows ``had`` samples, in batches to rank after rank, and worker after worker."""
    of_all = readers.world_size * readers.batch_size
    left = stream[had // of_all * of_all :]
    if drops:
        whole = of_all * readers.workers
        left = left[: len(left) // whole * whole]
    batch = np.arange(len(left)) // readers.batch_size
    rank, turn = batch % readers.world_size, batch // readers.world_size
    return _sorted(rank, turn % readers.workers, left)


def _dealt_by_visit(
    stream: Ints64, had: int, chunk: Ints64, readers: Readers, drops: bool
) -> EpochOrder:
    """What follows ``had`` samples, in runs of samples of one chunk to worker after worker."""
    left, of_left = stream[had:], chunk[had:]
    if had and left.size and chunk[had - 1] == of_left[0]:
        kept = of_left != of_left[0]
        left, of_left = left[kept], of_left[kept]
    visit = np.cumsum(np.diff(of_left, prepend=of_left[:1]) != 0)
    workers = readers.world_size * readers.workers
    if drops and visit.size:
        dealt = visit < (visit[-1] + 1) // workers * workers
        left, visit = left[dealt], visit[dealt]
    worker = visit % workers
    return _sorted(worker // readers.workers, worker % readers.workers, left)


def _sorted(rank: Ints64, worker: Ints64, sample: Ints64) -> EpochOrder:
    rows = np.lexsort((np.arange(len(rank)), worker, rank))
    return numbered(rank[rows], worker[rows], sample[rows])
