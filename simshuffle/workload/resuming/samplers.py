"""Loaders of PyTorch whose sampler is wound forward to the number of samples that were read."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.order import Order, Readers, ShardedSet
from simshuffle.workload.orders.samplers import DistributedSampler, TorchFt
from simshuffle.workload.resuming.law import OTHER_WORKERS, Batches, Crash, Refused, Resume, Resumed


def after_samples(whole: Batches, count: Ints64, batch_size: int) -> Batches:
    """What is left of ``whole``, sorted by rank and step, when rank r has passed over ``count[r]``
    samples, in batches of ``batch_size``."""
    place = np.arange(len(whole.rank)) - np.searchsorted(whole.rank, whole.rank)
    place -= count[whole.rank]
    left = np.flatnonzero(place >= 0)
    return Batches(whole.rank[left], place[left] // batch_size, whole.sample[left])


class StatefulDataLoader(Resume):
    """``StatefulDataLoader`` over a ``DistributedSampler`` (torchdata 0.11.0,
    torchdata/stateful_dataloader/sampler.py ``_BatchSamplerIterator.load_state_dict``: the samples
    that were read are counted, and the new sampler is wound forward by as many;
    stateful_dataloader.py ``_StatefulMultiProcessingDataLoaderIter``). Each rank saves a state, and
    rank r reads that of rank r, or of rank 0 where there is none; all count the same. The sampler
    deals samples out anew to other ranks: what the count passes over is then not what was read.
    A count beyond the end is a ``StopIteration``; other workers fail an assertion.

    Attributes:
        kind: its name.
        stateful_sampler: whether the sampler is torchdata's ``StatefulDistributedSampler``, whose
            epoch silently ends where the count is beyond it. What it counted in the epoch before is
            its count until it is asked for the first sample: so if no snapshot was taken yet, the
            state of a later epoch says that all is read.
        snapshot_every_n_steps: steps from one snapshot to the next; steps since then are read again
            and thrown away.
        in_process: whether the rank reads without workers (``num_workers=0``), where every state
            is a snapshot, and workers do not matter.
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
        """That of the sampler."""
        return DistributedSampler(kind="distributed_sampler")

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed | Refused:
        """What is left behind the count."""
        before, after = crash.before, crash.after
        if self.same_ranks and before.world_size != after.world_size:
            return Refused("AssertionError: dp_degree is inconsistent before and after checkpoint")
        if not self.in_process and before.workers != after.workers:
            return Refused("AssertionError", OTHER_WORKERS)
        again = 0 if self.in_process else crash.step % self.snapshot_every_n_steps
        count = (crash.step - again) * before.batch_size
        whole = self.epoch(data, after, seed, crash.epoch)
        share = np.bincount(whole.rank, minlength=after.world_size)
        if self.stateful_sampler and not count and crash.epoch and again:
            count = -(-data.size // before.world_size)
        has_state = np.arange(after.world_size) < self._states(before)
        again_of, count_of = again * has_state, count * has_state
        left = after_samples(whole, count_of, after.batch_size)
        batches = -(-np.maximum(share - count_of, 0) // after.batch_size)
        too_far = not self.stateful_sampler and (count_of > share).any()
        if too_far or (batches < again_of).any():
            return Refused("StopIteration", "a rank would skip beyond the end of its share")
        read = left.step < again_of[left.rank]
        rest = left.where(np.flatnonzero(~read))
        rest = Batches(rest.rank, rest.step - again_of[rest.rank], rest.sample)
        return Resumed(rest, left.where(np.flatnonzero(read)))

    def _states(self, before: Readers) -> int:
        """The number of ranks, from rank 0 on, that find a state."""
        return 2**62


class TorchFtLoader(StatefulDataLoader):
    """The same over the sampler of torchft 0.2.0, as torchft/data.py advises; each replica group
    keeps the states of its own ranks (meta-pytorch/torchft#58), and ranks that have none begin the
    epoch.

    Attributes:
        kind: its name.
        replica_groups: the most groups that there may be.
    """

    kind: Literal["torchft"]  # type: ignore[assignment]
    library: ClassVar[str] = "torchft 0.2.0, torchdata 0.11.0"
    replica_groups: int = Field(ge=1)

    @property
    def order(self) -> Order:
        """That of the sampler."""
        return TorchFt(kind="torchft", replica_groups=self.replica_groups)

    def _states(self, before: Readers) -> int:
        return before.world_size


class Lightning(Resume):
    """``Trainer.fit(ckpt_path=...)`` of Lightning with a ``DistributedSampler`` (lightning 2.6.6,
    pytorch/loops/fit_loop.py ``setup_data`` and ``on_advance_start``, training_epoch_loop.py
    ``on_run_start``). The epoch that goes on has as many steps as are left of it. A plain loader
    begins again, so the first of it are trained on twice, and the last not at all. Its iterator is
    made before the sampler is told the epoch: with workers or a state it is that of epoch 0
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
        """That of the sampler."""
        return DistributedSampler(kind="distributed_sampler")

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed | Refused:
        """What is trained on until the steps of an epoch are done."""
        told = self.in_process and not self.stateful
        whole = self.epoch(data, crash.after, seed, crash.epoch if told else 0)
        if not self.stateful:
            left = whole.steps - crash.step
            return Resumed(whole.first(left if left > 0 else whole.steps))
        law = StatefulDataLoader(kind="stateful_dataloader", in_process=self.in_process)
        resumed = law.resumed(data, replace(crash, epoch=0), seed)
        if isinstance(resumed, Refused):
            return Refused("RuntimeError: Please call `iter(combined_loader)` first.")
        return resumed
