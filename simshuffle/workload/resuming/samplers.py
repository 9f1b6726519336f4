"""Loaders of PyTorch whose sampler is wound forward to the number of samples that were
read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.order import Order, Readers, ShardedSet
from simshuffle.workload.orders.samplers import DistributedSampler, TorchFt
from simshuffle.workload.resuming.law import (
    OTHER_WORKERS,
    Batches,
    Crash,
    Refusal,
    ResumedEpoch,
    ResumptionLaw,
)


def skip_samples(epoch: Batches, num_skipped: Ints64, batch_size: int) -> Batches:
    """Return the rest of ``epoch`` when rank r has passed over ``num_skipped[r]``
    samples, cut into batches anew; steps begin at 0 again.

    Args:
        epoch: sorted by rank and step.
        num_skipped: (M,) samples; a rank that has no more has no rows in the rest.
        batch_size: of the batches of the rest.
    """
    # (n,) index of each row among those of its rank, before and after skipping
    index_in_rank = np.arange(len(epoch.rank)) - np.searchsorted(epoch.rank, epoch.rank)
    index_after_skip = index_in_rank - num_skipped[epoch.rank]
    rows = np.flatnonzero(index_after_skip >= 0)
    return Batches(
        epoch.rank[rows], index_after_skip[rows] // batch_size, epoch.sample[rows]
    )


class StatefulDataLoader(ResumptionLaw):
    """``StatefulDataLoader`` over a ``DistributedSampler`` (torchdata 0.11.0,
    torchdata/stateful_dataloader/sampler.py ``_BatchSamplerIterator.load_state_dict``:
    the samples that were read are counted, and the new sampler is wound forward by as
    many; stateful_dataloader.py ``_StatefulMultiProcessingDataLoaderIter``). Each rank
    saves a state, and rank r reads that of rank r, or of rank 0 where there is none;
    all count the same. The sampler deals samples out anew to other ranks: what the
    count passes over is then not what was read. A count beyond the end is a
    ``StopIteration``; other workers fail an assertion.

    Attributes:
        kind: its name.
        stateful_sampler: whether the sampler is torchdata's
            ``StatefulDistributedSampler``, whose epoch silently ends where the count is
            beyond it. What it counted in the epoch before is its count until it is
            asked for the first sample: so if no snapshot was taken yet, the state of a
            later epoch says that all is read.
        snapshot_every_n_steps: steps from one snapshot to the next; steps since then
            are read again and thrown away.
        in_process: whether the rank reads without workers (``num_workers=0``), where
            every state is a snapshot, and workers do not matter.
        same_ranks: whether a state of other ranks is refused, as by torchtitan
            (torchtitan/components/dataloader.py ``ParallelAwareDataloader``; pytorch/torchtitan
            #816), which keeps the states of all ranks by ``dp_rank_{r}``.
    """

    kind: Literal["stateful_dataloader"]
    library: ClassVar[str] = "torchdata 0.11.0"
    saves: ClassVar[str] = "the samples that each rank has read"
    stateful_sampler: bool = False
    snapshot_every_n_steps: int = Field(default=1, ge=1)
    in_process: bool = False
    same_ranks: bool = False

    @property
    def order(self) -> Order:
        """The order of the sampler."""
        return DistributedSampler(kind="distributed_sampler")

    def resume(
        self, data: ShardedSet, crash: Crash, seed: int
    ) -> ResumedEpoch | Refusal:
        """Return the rest of the epoch behind the count of samples, and what is read
        again and thrown away before it; or the error.

        The count is that of the last snapshot; steps since then are read again. It is
        an error to have other workers, unless ``in_process``, or other ranks with
        ``same_ranks``; or to pass over more than a rank has, unless
        ``stateful_sampler``: then the rank has nothing left. It is always an error if
        fewer batches are left than a rank must read again.
        """
        readers_before = crash.readers_before
        readers_after = crash.readers_after
        if self.same_ranks and readers_before.world_size != readers_after.world_size:
            return Refusal(
                "AssertionError: dp_degree is inconsistent before and after checkpoint"
            )
        if not self.in_process and readers_before.workers != readers_after.workers:
            return Refusal("AssertionError", OTHER_WORKERS)
        steps_after_snapshot = (
            0 if self.in_process else crash.step % self.snapshot_every_n_steps
        )
        counted = (crash.step - steps_after_snapshot) * readers_before.batch_size
        if (
            self.stateful_sampler
            and not counted
            and crash.epoch
            and steps_after_snapshot
        ):
            counted = -(-data.size // readers_before.world_size)

        # (M,) for each rank that reads now: its samples, those that it skips, and the steps whose
        # batches it reads again and throws away
        epoch = self.epoch(data, readers_after, seed, crash.epoch)
        rank_samples = np.bincount(epoch.rank, minlength=readers_after.world_size)
        has_state = np.arange(readers_after.world_size) < self._num_states(
            readers_before
        )
        num_skipped = counted * has_state
        steps_reread = steps_after_snapshot * has_state

        remaining = skip_samples(epoch, num_skipped, readers_after.batch_size)
        num_batches = -(
            -np.maximum(rank_samples - num_skipped, 0) // readers_after.batch_size
        )
        is_beyond_end = not self.stateful_sampler and (num_skipped > rank_samples).any()
        if is_beyond_end or (num_batches < steps_reread).any():
            return Refusal(
                "StopIteration", "a rank would skip beyond the end of its share"
            )
        is_reread = remaining.step < steps_reread[remaining.rank]
        trained = remaining.select(np.flatnonzero(~is_reread))
        trained = Batches(
            trained.rank, trained.step - steps_reread[trained.rank], trained.sample
        )
        return ResumedEpoch(trained, remaining.select(np.flatnonzero(is_reread)))

    def _num_states(self, readers_before: Readers) -> int:
        """Return how many ranks, from rank 0 on, find a state: here all, as a number
        beyond any number of ranks.
        """
        return 2**62


class TorchFtLoader(StatefulDataLoader):
    """The `StatefulDataLoader` over the sampler of torchft 0.2.0, as torchft/data.py
    advises.

    Each replica group keeps the states of its own ranks (meta-pytorch/torchft#58), and
    ranks that have none begin the epoch.

    Attributes:
        kind: its name.
        replica_groups: the most groups that there may be.
    """

    kind: Literal["torchft"]  # type: ignore[assignment]
    library: ClassVar[str] = "torchft 0.2.0, torchdata 0.11.0"
    replica_groups: int = Field(ge=1)

    @property
    def order(self) -> Order:
        """The order of the sampler."""
        return TorchFt(kind="torchft", replica_groups=self.replica_groups)

    def _num_states(self, readers_before: Readers) -> int:
        """Return how many ranks there were: only they find a state."""
        return readers_before.world_size


class Lightning(ResumptionLaw):
    """``Trainer.fit(ckpt_path=...)`` of Lightning with a ``DistributedSampler``
    (lightning 2.6.6, pytorch/loops/fit_loop.py ``setup_data`` and ``on_advance_start``,
    training_epoch_loop.py ``on_run_start``). The epoch that goes on has as many steps
    as are left of it. A plain loader begins again, so the first of it are trained on
    twice, and the last not at all. Its iterator is made before the sampler is told the
    epoch: with workers or a state it is that of epoch 0
    (Lightning-AI/pytorch-lightning#21938).

    Attributes:
        kind: its name.
        stateful: whether the loader is torchdata's ``StatefulDataLoader``; see
            `StatefulDataLoader`, whose errors another one hides.
        in_process: whether the rank reads without workers.
    """

    kind: Literal["lightning"]
    library: ClassVar[str] = "lightning 2.6.6"
    saves: ClassVar[str] = "the steps of the epoch"
    stateful: bool = False
    in_process: bool = False

    @property
    def order(self) -> Order:
        """The order of the sampler."""
        return DistributedSampler(kind="distributed_sampler")

    def resume(
        self, data: ShardedSet, crash: Crash, seed: int
    ) -> ResumedEpoch | Refusal:
        """Return the batches that are trained on until the steps of an epoch are done.

        A plain loader gives its first batches, as many as steps are left; a whole epoch
        if none is left. A ``stateful`` loader gives all behind its count, as
        `StatefulDataLoader` does, or fails with an error of Lightning. The order is
        that of epoch 0, unless ``in_process`` and not ``stateful``.
        """
        knows_epoch = self.in_process and not self.stateful
        epoch = self.epoch(
            data, crash.readers_after, seed, crash.epoch if knows_epoch else 0
        )
        if not self.stateful:
            remaining_steps = epoch.steps - crash.step
            steps = remaining_steps if remaining_steps > 0 else epoch.steps
            return ResumedEpoch(epoch.first_steps(steps))
        law = StatefulDataLoader(kind="stateful_dataloader", in_process=self.in_process)
        resumed = law.resume(data, replace(crash, epoch=0), seed)
        if isinstance(resumed, Refusal):
            return Refusal("RuntimeError: Please call `iter(combined_loader)` first.")
        return resumed
