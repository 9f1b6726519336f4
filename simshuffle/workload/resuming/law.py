"""What a loader does with the state that it saved, when training goes on with other ranks."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simshuffle.spec.arrays import Ints64
from simshuffle.spec.record import Sourced
from simshuffle.workload.exchange.dealing import Moved
from simshuffle.workload.orders.fetching import iteration
from simshuffle.workload.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit


@dataclass(frozen=True)
class Crash:
    """Where training was broken off, and with whom it goes on."""

    before: Readers
    after: Readers
    epoch: int  # from 0
    step: int  # iterations of this epoch that were done when the state was saved


@dataclass(frozen=True)
class Batches:
    """What ranks train on: a row for each sample, by rank, step, and place in the batch."""

    rank: Ints64  # (n,)
    step: Ints64  # (n,) iteration of the rank, from 0 and without gaps
    sample: Ints64  # (n,) its number

    @property
    def columns(self) -> tuple[Ints64, Ints64, Ints64]:
        """Rank, step and sample."""
        return self.rank, self.step, self.sample

    def where(self, rows: Ints64) -> Batches:
        """Those rows alone."""
        return Batches(*(column[rows] for column in self.columns))

    def first(self, steps: int) -> Batches:
        """The first so many iterations."""
        return self.where(np.flatnonzero(self.step < steps))

    def since(self, steps: int) -> Batches:
        """What follows them; its steps are from 0 again."""
        rest = self.where(np.flatnonzero(self.step >= steps))
        return Batches(rest.rank, rest.step - steps, rest.sample)

    def then(self, rest: Batches) -> Batches:
        """These, and ``rest`` after them."""
        return joined(self, Batches(rest.rank, rest.step + self.steps, rest.sample))

    def in_time(self) -> Batches:
        """In the order in which hosts meet them: in every iteration the batches of all ranks, rank
        by rank."""
        return self.where(np.lexsort((self.rank, self.step)))

    @property
    def batch(self) -> Ints64:
        """(n,) the batch of each row: a number for each rank and step."""
        return self.rank * (self.steps + 1) + self.step

    @property
    def steps(self) -> int:
        """Iterations of the rank that has most."""
        return int(self.step.max(initial=-1)) + 1


NOTHING = Batches(*(np.empty(0, np.int64) for _ in range(3)))


def joined(*parts: Batches) -> Batches:
    """The rows of all, one after another."""
    return Batches(*map(np.concatenate, zip(*(part.columns for part in parts), strict=True)))


def batches_of(order: EpochOrder, readers: Readers) -> Batches:
    """What ranks train on whose workers hand out ``order``: a batch of each worker in turn, and
    those that have none left are passed over, as by a ``DataLoader`` of PyTorch."""
    turn = iteration(order, readers)
    rows = np.lexsort((order.position, turn, order.rank))
    rank, turn = order.rank[rows], turn[rows]
    new = np.ones(len(rows), np.bool_)
    new[1:] = (rank[1:] != rank[:-1]) | (turn[1:] != turn[:-1])
    number = np.cumsum(new) - 1
    # the number of the first batch of each rank
    step = number - number[np.searchsorted(rank, rank, side="left")]
    return Batches(rank, step, order.sample[rows])


def dealt_in_batches(sequences: list[Ints64], batch_size: int) -> Batches:
    """What ranks train on who cut their samples, one array a rank, into batches in turn."""
    counts = [len(own) for own in sequences]
    step = [np.arange(count) // batch_size for count in counts]
    join = np.concatenate
    nothing = np.empty(0, np.int64)
    return Batches(
        np.repeat(np.arange(len(counts)), counts),
        join([nothing, *step]),
        join([nothing, *sequences]),
    )


@dataclass(frozen=True)
class Resumed:
    """What comes of a saved state."""

    rest: Batches  # what is trained on in the rest of the epoch, steps from 0
    skipped: Batches = NOTHING  # what ranks read and throw away before their first batch


@dataclass(frozen=True)
class Refused:
    """The library does not go on with this state."""

    says: str  # its error, shortened
    why: str = ""  # what it is about, where the error does not say it

    @property
    def told(self) -> str:
        """The error, and what it is about."""
        return f"{self.says.rstrip(': ')}: {self.why}" if self.why else self.says


OTHER_WORKERS = "the number of workers is another"


def other_workers(before: Readers, after: Readers) -> Refused | None:
    """The error of torchdata's ``StatefulDataLoader`` for another number of workers, 1 being the
    rank itself."""
    if before.workers == after.workers:
        return None
    alone = {before.workers: "_snapshot", after.workers: "_num_yielded"}.get(1)
    says = f" State doesn't contain key '{alone}'" if alone else ""
    return Refused(f"AssertionError:{says}", OTHER_WORKERS)


class Resume(Sourced):
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
        """Its name in labels, tables and figures."""
        return self.kind

    @property
    @abstractmethod
    def order(self) -> Order:
        """The order of epochs that are not broken off."""

    @property
    def unit(self) -> Unit:
        """What is fetched at once."""
        return self.order.unit

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> Batches:
        """An epoch that is not broken off. Raises an InputError as of `Order.epoch`."""
        return batches_of(self.order.epoch(data, readers, seed, epoch), readers)

    @abstractmethod
    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed | Refused:
        """What comes of the state, or the error of the library. Raises an InputError if the set or
        the readers are not what the loader can do with."""

    def moved(self, data: ShardedSet, crash: Crash, seed: int) -> Moved | None:
        """What is dealt out anew where ranks keep samples of their own; None where they do not."""
        return None

    def later(self, data: ShardedSet, crash: Crash, seed: int, epoch: int) -> Batches:
        """An epoch after the one that was broken off. By default as if the run had begun with those
        who read now."""
        return self.epoch(data, crash.after, seed, epoch)


class ResumeOf(Resume):
    """The law of a loader whose order is given.

    Attributes:
        of: the order.
    """

    of: Order

    @property
    def short_name(self) -> str:
        """That of the order."""
        return self.of.short_name

    @property
    def order(self) -> Order:
        """As given."""
        return self.of
