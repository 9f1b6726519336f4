"""This project's own way to go on: nothing of an epoch is lost or read twice, whoever goes on."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import field_validator

from simshuffle.spec.arrays import Ints
from simshuffle.spec.library import parse_kind
from simshuffle.workload.exchange import TrainedExchange
from simshuffle.workload.exchange.dealing import Dealt, Moved
from simshuffle.workload.exchange.epochs import Epochs
from simshuffle.workload.orders.fetching import pieces
from simshuffle.workload.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.workload.orders.streams import check
from simshuffle.workload.orders.streams import dealt as by_workers
from simshuffle.workload.resuming.law import Batches, Crash, Resume, Resumed, dealt_in_batches


class Scheduled(Order):
    """The order of `simshuffle.train.distributed.Scheduler`, bit for bit, under a ``DataLoader``:
    batch k of a rank goes to worker k mod workers.

    Attributes:
        kind: its name.
        strategy: of the exchange, without importance: that only a training knows.
        drop_last: whether what fills no batch is left out. If not, ranks with a sample less repeat
            their first one.
    """

    kind: Literal["scheduled"]
    unit: ClassVar[Unit] = "sample"
    strategy: TrainedExchange
    drop_last: bool = False

    @property
    def short_name(self) -> str:
        """'own', and the strategy."""
        return f"own {self.strategy.short_name}"

    def begun(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> Epochs:
        """The run as that epoch, from 0, begins. Raises InputError as of `epoch`."""
        check(data, readers, seed, epoch, 2**64)
        run = self.run(data, readers, seed)
        run.owner = self.strategy.first_owner(data.size, run.world_size, run.rng("partition"))
        return self.until(run, epoch)

    def run(self, data: ShardedSet, readers: Readers, seed: int) -> Epochs:
        """A run that has no samples yet."""
        how = self.strategy, data.size, readers.world_size, readers.batch_size, seed
        return Epochs(*how, drop_last=self.drop_last)

    def until(self, run: Epochs, epoch: int) -> Epochs:
        """The same, done until that epoch, from 0, begins."""
        while run.epochs_done < epoch:
            run.exchanged(run.next_plan(run.next_shards(), None))
        return run

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError for fewer samples than ranks, or than fill a batch with
        ``drop_last``; or a strategy that needs importance or places."""
        run = self.begun(data, readers, seed, epoch)
        return by_workers(run.trained(run.next_shards()).T.astype(np.int64), readers)


class SchedulerResume(Resume):
    """`simshuffle.train.distributed.Scheduler`: the law that it follows itself (`Epochs.go_on`). By
    as many ranks, whatever their workers, the epoch goes on as it would have. By others each sample
    that is left is trained on once: ranks that go on keep theirs as far as all are even, and only
    the rest moves. A sample is repeated only where fewer are left for the last iteration than there
    are ranks: each must have a batch there.

    Attributes:
        kind: its name.
        strategy, drop_last: as of `Scheduled`.
    """

    kind: Literal["own"]
    library: ClassVar[str] = "simshuffle"
    saves: ClassVar[str] = "owner of each sample, what was left, iterations done of it"
    strategy: TrainedExchange
    drop_last: bool = False

    @field_validator("strategy", mode="before")
    @classmethod
    def _named(cls, strategy: Any) -> Any:
        """A strategy by its kind alone."""
        return parse_kind(strategy) if isinstance(strategy, str) else strategy

    @property
    def short_name(self) -> str:
        """That of the order."""
        return self.order.short_name

    @property
    def order(self) -> Scheduled:
        """That of the scheduler."""
        return Scheduled(kind="scheduled", strategy=self.strategy, drop_last=self.drop_last)

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed:
        """What is left of the epoch, each sample once. Raises an InputError as of `Scheduled`."""
        return Resumed(_batches(self._gone_on(data, crash, seed)[0]))

    def later(self, data: ShardedSet, crash: Crash, seed: int, epoch: int) -> Batches:
        """An epoch after that, from where samples are then."""
        return _batches(self.order.until(self._gone_on(data, crash, seed)[0], epoch))

    def moved(
        self, data: ShardedSet, crash: Crash, seed: int, came: Ints | None = None
    ) -> Moved | None:
        """What going on costs; ``came`` as of `Epochs.go_on`. None where every epoch is drawn
        anew."""
        if self.strategy.redraws:
            return None
        found = self._gone_on(data, crash, seed, came)[1]
        return found.moved(pieces(data, "sample").nbytes[: len(found.after)])

    def _gone_on(
        self, data: ShardedSet, crash: Crash, seed: int, came: Ints | None = None
    ) -> tuple[Epochs, Dealt]:
        run = self.order.begun(data, crash.before, seed, crash.epoch)
        now = self.order.run(data, crash.after, seed)
        return now, now.go_on(run.state(crash.step), came)


def _batches(run: Epochs) -> Batches:
    rows = run.trained(run.next_shards())[run.steps_done * run.batch_size :]
    columns = rows.T.astype(np.int64)
    return dealt_in_batches([part[part >= 0] for part in columns], run.batch_size)
