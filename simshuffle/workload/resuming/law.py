"""The interface of a law: the batches that a loader yields when training goes on from a
saved state.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simshuffle.spec.arrays import Ints64
from simshuffle.spec.record import Sourced
from simshuffle.workload.exchange.dealing import RedistributionCost
from simshuffle.workload.orders.fetching import iteration_of_rows
from simshuffle.workload.orders.order import (
    EpochOrder,
    Order,
    Readers,
    ShardedSet,
    Unit,
)


@dataclass(frozen=True)
class Crash:
    """The point at which training broke off, and the readers before and after it."""

    readers_before: Readers
    readers_after: Readers
    epoch: int  # from 0
    step: int  # iterations of this epoch that were done when the state was saved


@dataclass(frozen=True)
class Batches:
    """The samples that ranks train on: a row for each, by rank, step, and position in
    the batch, unless a method says otherwise.
    """

    rank: Ints64  # (n,)
    step: Ints64  # (n,) iteration of the rank, from 0 and without gaps
    sample: Ints64  # (n,) index in the set

    @property
    def columns(self) -> tuple[Ints64, Ints64, Ints64]:
        """Rank, step and sample, (n,) each."""
        return self.rank, self.step, self.sample

    def select(self, rows: Ints64) -> Batches:
        """Return the rows with these indices alone."""
        return Batches(*(column[rows] for column in self.columns))

    def first_steps(self, steps: int) -> Batches:
        """Return the rows of the first ``steps`` iterations; all if there are fewer."""
        return self.select(np.flatnonzero(self.step < steps))

    def after_steps(self, steps: int) -> Batches:
        """Return the rows after the first ``steps`` iterations, perhaps none; their
        steps begin at 0 again.
        """
        remaining = self.select(np.flatnonzero(self.step >= steps))
        return Batches(remaining.rank, remaining.step - steps, remaining.sample)

    def append(self, following: Batches) -> Batches:
        """Return these rows and, behind them, the rows of ``following`` with steps that
        go on after `steps`. The result is not sorted by rank.
        """
        later = Batches(following.rank, following.step + self.steps, following.sample)
        return join_batches(self, later)

    def sort_by_time(self) -> Batches:
        """Return the rows as hosts meet them, sorted by step and then by rank."""
        return self.select(np.lexsort((self.rank, self.step)))

    @property
    def batch(self) -> Ints64:
        """(n,) a number of each row that tells batches apart, with gaps.

        It is rank x (steps + 1) + step; other `Batches` may number theirs differently.
        """
        return self.rank * (self.steps + 1) + self.step

    @property
    def steps(self) -> int:
        """The iterations of the rank that has most; 0 without rows."""
        return int(self.step.max(initial=-1)) + 1

    def fewest_steps(self, world_size: int) -> int:
        """Return the iterations of the rank, of M, that has fewest; 0 if one has none."""
        steps_of_rank = np.zeros(world_size, np.int64)
        # steps are from 0: the last one of a rank, plus 1
        np.maximum.at(steps_of_rank, self.rank, self.step + 1)
        return int(steps_of_rank.min())


NOTHING = Batches(*(np.empty(0, np.int64) for _ in range(3)))


def join_batches(*parts: Batches) -> Batches:
    """Return the rows of all ``parts``, one part after another."""
    return Batches(
        *map(np.concatenate, zip(*(part.columns for part in parts), strict=True))
    )


def batches_from_order(order: EpochOrder, readers: Readers) -> Batches:
    """Return the batches of ranks whose workers hand out ``order``.

    A rank takes a batch of each worker in turn, and passes over workers that have none
    left, as a ``DataLoader`` of PyTorch does. So its steps have no gaps. Worker 0 of
    each rank comes first. Rows are sorted by rank, step and position.
    """
    iteration = iteration_of_rows(order, readers)
    rows = np.lexsort((order.position, iteration, order.rank))
    rank = order.rank[rows]
    iteration = iteration[rows]
    # (n,) index of each row's batch over all ranks; then minus that of the rank's first batch
    starts_batch = np.ones(len(rows), np.bool_)
    starts_batch[1:] = (rank[1:] != rank[:-1]) | (iteration[1:] != iteration[:-1])
    batch = np.cumsum(starts_batch) - 1
    step = batch - batch[np.searchsorted(rank, rank, side="left")]
    return Batches(rank, step, order.sample[rows])


def cut_into_batches(sequences: list[Ints64], batch_size: int) -> Batches:
    """Return the batches of ranks that each cut their own samples, in their order.

    The last batch of a rank may be smaller; a rank without samples has none.
    ``sequences`` has an array (n,) for each rank.
    """
    sizes = [len(samples) for samples in sequences]
    steps = [np.arange(size) // batch_size for size in sizes]
    empty = np.empty(0, np.int64)
    return Batches(
        np.repeat(np.arange(len(sizes)), sizes),
        np.concatenate([empty, *steps]),
        np.concatenate([empty, *sequences]),
    )


@dataclass(frozen=True)
class ResumedEpoch:
    """The batches of an epoch after its state was loaded."""

    remaining: Batches  # that ranks train on in the rest of the epoch, steps from 0
    skipped: Batches = (
        NOTHING  # that ranks read and throw away before their first batch
    )


@dataclass(frozen=True)
class Refusal:
    """The error with which a library refuses to go on from a state."""

    error: str  # of the library, shortened
    reason: str = ""  # where the error does not say it

    @property
    def message(self) -> str:
        """The error and its reason."""
        return (
            f"{self.error.rstrip(': ')}: {self.reason}" if self.reason else self.error
        )


OTHER_WORKERS = "the number of workers is another"


def refuse_other_workers(
    readers_before: Readers, readers_after: Readers
) -> Refusal | None:
    """Return the error of torchdata's ``StatefulDataLoader`` for another number of
    workers.

    None if the numbers are equal. 1 worker is the rank itself: where only one of the
    numbers is 1, the error names a missing key of the state.
    """
    if readers_before.workers == readers_after.workers:
        return None
    missing_key = {
        readers_before.workers: "_snapshot",
        readers_after.workers: "_num_yielded",
    }.get(1)
    message = f" State doesn't contain key '{missing_key}'" if missing_key else ""
    return Refusal(f"AssertionError:{message}", OTHER_WORKERS)


class ResumptionLaw(Sourced):
    """The law of a loader whose training is broken off and goes on.

    Attributes:
        kind: its name.
        library: whose code the law was read in, and its version.
        saves: what its state says, in a few words.
    """

    kind: str
    library: ClassVar[str]
    saves: ClassVar[str]

    @property
    def short_name(self) -> str:
        """The law's name in labels, tables and figures."""
        return self.kind

    @property
    @abstractmethod
    def order(self) -> Order:
        """The order of epochs that are not broken off."""

    @property
    def unit(self) -> Unit:
        """The portion that is fetched at once."""
        return self.order.unit

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> Batches:
        """Return the batches of an epoch that is not broken off.

        Raises:
            InputError: as of `Order.epoch`.
        """
        return batches_from_order(self.order.epoch(data, readers, seed, epoch), readers)

    @abstractmethod
    def resume(
        self, data: ShardedSet, crash: Crash, seed: int
    ) -> ResumedEpoch | Refusal:
        """Return the rest of an epoch that broke off, or the error of the library.

        Args:
            data: the set in shards.
            crash: the point at which training broke off.
            seed: of the run.

        Raises:
            InputError: if the loader cannot deal with the set or the readers.
        """

    def redistribution_cost(
        self, data: ShardedSet, crash: Crash, seed: int
    ) -> RedistributionCost | None:
        """Return the cost of dealing samples anew, where ranks keep samples of their
        own; else, and by default, None.
        """
        return None

    def later_epoch(
        self, data: ShardedSet, crash: Crash, seed: int, epoch: int
    ) -> Batches:
        """Return the batches of an epoch after the one that broke off.

        By default they are as if the run had begun with those who read now.

        Args:
            data: the set in shards.
            crash: the point at which training broke off.
            seed: of the run.
            epoch: from 0; later than that of ``crash``.
        """
        return self.epoch(data, crash.readers_after, seed, epoch)


class OrderResumptionLaw(ResumptionLaw):
    """The law of a loader whose order is a key.

    Attributes:
        of: the order.
    """

    of: Order

    @property
    def short_name(self) -> str:
        """The short name of the order."""
        return self.of.short_name

    @property
    def order(self) -> Order:
        """The order ``of``."""
        return self.of
