"""The law of this project's own scheduler: no sample of an epoch is lost or read twice,
whichever ranks go on.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import field_validator

from simshuffle.spec.arrays import Ints
from simshuffle.spec.library import parse_kind
from simshuffle.workload.exchange import TrainedExchange
from simshuffle.workload.exchange.dealing import Redistribution, RedistributionCost
from simshuffle.workload.exchange.epochs import Epochs
from simshuffle.workload.orders.fetching import divide_into_pieces
from simshuffle.workload.orders.order import (
    EpochOrder,
    Order,
    Readers,
    ShardedSet,
    Unit,
)
from simshuffle.workload.orders.streams import check_inputs, deal_batches
from simshuffle.workload.resuming.law import (
    Batches,
    Crash,
    ResumedEpoch,
    ResumptionLaw,
    cut_into_batches,
)


class SchedulerOrder(Order):
    """The order of `simshuffle.train.distributed.Scheduler`, bit for bit, under a
    ``DataLoader``: batch k of a rank goes to worker k mod workers.

    Attributes:
        kind: its name.
        strategy: of the exchange, without importance: that only a training knows.
        drop_last: whether samples that fill no batch are left out. If not, ranks with a
            sample less repeat their first one.
    """

    kind: Literal["scheduled"]
    unit: ClassVar[Unit] = "sample"
    strategy: TrainedExchange
    drop_last: bool = False

    @property
    def short_name(self) -> str:
        """'own', and the strategy."""
        return f"own {self.strategy.short_name}"

    def begin_epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> Epochs:
        """Return a new run as epoch ``epoch``, from 0, begins; all epochs before it are
        planned.

        Raises:
            InputError: as of `epoch`; for no samples or readers, or a bad seed.
        """
        check_inputs(data, readers, seed, epoch, 2**64)
        run = self.new_run(data, readers, seed)
        run.owner = self.strategy.first_owner(
            data.size, run.world_size, run.rng("partition")
        )
        return self.advance_to(run, epoch)

    def new_run(self, data: ShardedSet, readers: Readers, seed: int) -> Epochs:
        """Return a run at its beginning, whose ``owner`` is not set yet.

        Raises:
            InputError: for fewer samples than ranks, or than fill a batch with
                ``drop_last``.
        """
        return Epochs(
            self.strategy,
            data.size,
            readers.world_size,
            readers.batch_size,
            seed,
            drop_last=self.drop_last,
        )

    def advance_to(self, run: Epochs, epoch: int) -> Epochs:
        """Finish epochs of ``run``, in place, until epoch ``epoch``, from 0, begins;
        return the run. A run that is that far already does not change.

        Raises:
            InputError: for a strategy that needs importance or places.
        """
        while run.epochs_done < epoch:
            run.finish_epoch(run.next_plan(run.next_shards(), None))
        return run

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch, from 0.

        Raises:
            InputError: for fewer samples than ranks, or than fill a batch with
                ``drop_last``; or, from epoch 1 on, a strategy that needs importance or
                places.
        """
        run = self.begin_epoch(data, readers, seed, epoch)
        rows = run.training_rows(run.next_shards())
        return deal_batches(rows.T.astype(np.int64), readers)


class SchedulerResume(ResumptionLaw):
    """The law of `simshuffle.train.distributed.Scheduler`, which follows it itself
    (`Epochs.resume`).

    By as many ranks, whatever their workers, the epoch goes on as it would have. By
    others each sample that remains is trained on once: ranks that go on keep theirs as
    far as all are even, and only the others move. A sample is repeated only where fewer
    remain for the last iteration than there are ranks: each must have a batch there.

    Attributes:
        kind: its name.
        strategy, drop_last: as of `SchedulerOrder`.
    """

    kind: Literal["own"]
    library: ClassVar[str] = "simshuffle"
    saves: ClassVar[str] = "owner of each sample, what was left, iterations done of it"
    strategy: TrainedExchange
    drop_last: bool = False

    @field_validator("strategy", mode="before")
    @classmethod
    def _expand_kind(cls, strategy: Any) -> Any:
        """Read a strategy that is given by its kind alone."""
        return parse_kind(strategy) if isinstance(strategy, str) else strategy

    @property
    def short_name(self) -> str:
        """The short name of the order."""
        return self.order.short_name

    @property
    def order(self) -> SchedulerOrder:
        """The order of the scheduler."""
        return SchedulerOrder(
            kind="scheduled", strategy=self.strategy, drop_last=self.drop_last
        )

    def resume(self, data: ShardedSet, crash: Crash, seed: int) -> ResumedEpoch:
        """Return the rest of the epoch, each remaining sample once.

        In a last iteration of fewer samples than ranks, some samples come again. With
        ``drop_last``, samples that fill no batch are left out.

        Raises:
            InputError: for fewer samples than ranks, or than fill a batch with
                ``drop_last``; or a strategy whose exchange up to the crash needs
                importance or places.
        """
        run, _ = self._resume_run(data, crash, seed)
        return ResumedEpoch(_remaining_batches(run))

    def later_epoch(
        self, data: ShardedSet, crash: Crash, seed: int, epoch: int
    ) -> Batches:
        """Return a later epoch, from where samples are then; the broken epoch and those
        after it are finished first.
        """
        run, _ = self._resume_run(data, crash, seed)
        return _remaining_batches(self.order.advance_to(run, epoch))

    def redistribution_cost(
        self, data: ShardedSet, crash: Crash, seed: int, state_rank: Ints | None = None
    ) -> RedistributionCost | None:
        """Return the cost of dealing samples anew; None where every epoch is drawn
        anew.

        Args:
            data: the set in shards; a sample has an equal part of its shard's bytes.
            crash: the point at which training broke off.
            seed: of the run.
            state_rank: (M,) the rank that each rank was before, -1 for a new one. By
                default each has its number, as far as there were as many.
        """
        if self.strategy.redraws:
            return None
        _, redistribution = self._resume_run(data, crash, seed, state_rank)
        nbytes = divide_into_pieces(data, "sample").nbytes
        return redistribution.cost(nbytes[: len(redistribution.new_owner)])

    def _resume_run(
        self, data: ShardedSet, crash: Crash, seed: int, state_rank: Ints | None = None
    ) -> tuple[Epochs, Redistribution]:
        """Return the run that goes on after ``crash``, and how its samples were dealt
        anew: the owners before and after.

        ``state_rank`` is that of `redistribution_cost`.
        """
        broken_run = self.order.begin_epoch(
            data, crash.readers_before, seed, crash.epoch
        )
        run = self.order.new_run(data, crash.readers_after, seed)
        return run, run.resume(broken_run.state(crash.step), state_rank)


def _remaining_batches(run: Epochs) -> Batches:
    """Return the batches of the epoch that ``run`` is in, after its iterations done;
    steps begin at 0.
    """
    # (n, M) from the first iteration not done; -1 where a rank has a sample less
    rows = run.training_rows(run.next_shards())[run.steps_done * run.batch_size :]
    samples_of_ranks = rows.T.astype(np.int64)
    return cut_into_batches(
        [samples[samples >= 0] for samples in samples_of_ranks], run.batch_size
    )
