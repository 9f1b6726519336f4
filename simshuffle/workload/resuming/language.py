"""Loaders of the training of language models: Megatron's samplers, Levanter, Ray Train."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.buffers import RayLocal
from simshuffle.workload.orders.levanter import Levanter as LevanterOrder
from simshuffle.workload.orders.order import (
    EpochOrder,
    Order,
    Readers,
    ShardedSet,
    Unit,
)
from simshuffle.workload.orders.samplers import torch_randperm
from simshuffle.workload.orders.streams import check_inputs, deal_batches
from simshuffle.workload.resuming.law import (
    Batches,
    Crash,
    Refusal,
    ResumedEpoch,
    ResumptionLaw,
    cut_into_batches,
)

DataloaderType = Literal["single", "cyclic", "batch"]


class MegatronOrder(Order):
    """The samplers of Megatron, which deal passes over the samples behind those
    consumed.

    Each pass but that of `cyclic` begins where the first did. The seed of the run does
    not matter: `cyclic` permutes by the number of the epoch, the others do not permute.

    Attributes:
        kind: its name.
        dataloader_type: `single` deals batches to ranks in turn; `batch` deals global
            batches to ranks one by one; `cyclic` permutes.
        data_sharding: of `cyclic`: whether each rank has samples of its own, a new
            order of them in each epoch, or all have one permutation.
    """

    kind: Literal["megatron"] = "megatron"
    unit: ClassVar[Unit] = "sample"
    dataloader_type: DataloaderType = "single"
    data_sharding: bool = True

    @property
    def short_name(self) -> str:
        """'megatron' and the kind of sampler."""
        sharded = (
            ", sharded"
            if self.dataloader_type == "cyclic" and self.data_sharding
            else ""
        )
        return f"megatron {self.dataloader_type}{sharded}"

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch, from 0.

        Raises:
            InputError: for fewer samples than a batch of all ranks, where `cyclic`
                divides by zero and the others have no batch; for no readers, or a seed
                out of range.
        """
        check_inputs(data, readers, seed, epoch, 2**64)
        parts, _ = self.passes(data.size, readers, [0] * readers.world_size, epoch)
        longest = max(map(len, parts))
        padded = [
            np.pad(part, (0, longest - len(part)), constant_values=-1) for part in parts
        ]
        return deal_batches(np.array(padded), readers)

    def passes(
        self, size: int, readers: Readers, consumed: list[int], pass_index: int
    ) -> tuple[list[Ints64], list[int]]:
        """Return the samples of each rank in a pass, (n,), and what its sampler counts
        after it.

        Only full batches are dealt. Only `cyclic` counts on from pass to pass; for the
        others ``pass_index`` does not matter, and the counts are ``consumed``. A count
        of `cyclic` that is no multiple of a batch of all ranks is not refused here.

        Args:
            size: samples of the set.
            readers: the processes that read.
            consumed: samples that the sampler of each rank counts before the first
                pass.
            pass_index: from 0.

        Raises:
            InputError: for fewer samples than a batch of all ranks.
        """
        if size < (round_size := readers.batch_size * readers.world_size):
            rule = f"must hold a batch of each rank, {round_size} samples"
            refuse(
                "data.samples",
                rule,
                f"{size} samples",
                "Read with fewer ranks",
                "order",
            )
        if self.dataloader_type != "cyclic":
            parts = [
                self._sequential_part(size, readers, rank, count)
                for rank, count in enumerate(consumed)
            ]
            return parts, consumed
        for _ in range(pass_index + 1):
            parts = [
                self._permuted_part(size, readers, rank, count)
                for rank, count in enumerate(consumed)
            ]
            consumed = [
                count + len(part) * readers.world_size
                for part, count in zip(parts, consumed, strict=True)
            ]
        return parts, consumed

    def _sequential_part(
        self, size: int, readers: Readers, rank: int, consumed: int
    ) -> Ints64:
        """Return the samples of a rank after ``consumed`` samples of all ranks, modulo
        the set's size, in storage order.

        A last batch of all ranks that is not full is left out.
        """
        ranks = readers.world_size
        batch_size = readers.batch_size
        round_size = ranks * batch_size
        # whole batches of all ranks, from the first sample not consumed on
        remaining = np.arange(consumed % size, size)
        remaining = remaining[: len(remaining) // round_size * round_size]
        if self.dataloader_type == "single":
            return remaining.reshape(-1, ranks, batch_size)[:, rank].ravel()
        return remaining[rank::ranks]

    def _permuted_part(
        self, size: int, readers: Readers, rank: int, consumed: int
    ) -> Ints64:
        """Return the samples of a rank in the epoch in which its count ``consumed`` of
        samples of all ranks lies, after the samples that this epoch has consumed.

        A last batch that is not full is left out.
        """
        ranks = readers.world_size
        batch_size = readers.batch_size
        round_size = ranks * batch_size
        # an epoch consumes whole batches of all ranks
        epoch, num_done = divmod(consumed, size - size % round_size)
        if self.data_sharding:
            shard_size = size // round_size * batch_size
            permutation = torch_randperm(shard_size, epoch)[num_done // ranks :]
            samples = rank * shard_size + permutation
        else:
            permutation = torch_randperm(size // batch_size * batch_size, epoch)
            samples = permutation[num_done:][rank::ranks]
        return samples[: len(samples) // batch_size * batch_size]


class MegatronResume(ResumptionLaw):
    """Megatron's count of consumed samples: `MegatronPretrainingSampler`,
    `MegatronPretrainingRandomSampler` and `MegatronPretrainingBatchSampler` under
    `build_pretraining_data_loader` (Megatron-Bridge 0.3.1,
    megatron/bridge/data/samplers.py; the first two are those of Megatron-LM,
    megatron/training/datasets/data_samplers.py).

    An iteration is one of micro-batches: where gradients are accumulated, only every so
    many iterations can be a checkpoint. The count is that of rank 0, which writes the
    checkpoint: iterations done, by samples that all ranks read in one.

    - `single` goes on with that sample. After an epoch it cannot go on; Megatron ends there.
    - `batch` goes on with that sample modulo N, which is not where the epoch was if an epoch leaves
      out samples; and every later pass of the same process begins there too.
    - `cyclic` begins epoch ``consumed // active``, where ``active`` is what a whole epoch consumes
      with those who read now; it fails if the remainder is no multiple of what they read at once.
      Without `data_sharding` what is left of the permutation is dealt anew. With it, each rank
      skips as many of its own part, which is another part when there are other ranks. Where parts
      of a permutation are not even, counts of ranks differ after the first epoch, and so do the
      permutations that they are dealt from.

    Attributes:
        kind: its name.
        dataloader_type: as of `MegatronOrder`.
        data_sharding: as of `MegatronOrder`.
    """

    kind: Literal["megatron"]
    library: ClassVar[str] = "Megatron-Bridge 0.3.1"
    saves: ClassVar[str] = "the samples that all ranks consumed"
    dataloader_type: DataloaderType = "single"
    data_sharding: bool = True

    @property
    def short_name(self) -> str:
        """The short name of the order."""
        return self.order.short_name

    @property
    def order(self) -> MegatronOrder:
        """The order of Megatron's samplers."""
        return MegatronOrder(
            dataloader_type=self.dataloader_type, data_sharding=self.data_sharding
        )

    def consumed_samples(self, data: ShardedSet, crash: Crash) -> int:
        """Return the samples that the state counts as consumed by all ranks since the
        run began.

        The count is that of rank 0, times the ranks. Every iteration of the broken
        epoch counts as a full batch.
        """
        readers = crash.readers_before
        consumed = 0
        if crash.epoch:
            parts, counts = self.order.passes(
                data.size, readers, [0] * readers.world_size, crash.epoch - 1
            )
            if self.dataloader_type == "cyclic":
                consumed = counts[0]
            else:
                consumed = crash.epoch * len(parts[0]) * readers.world_size
        return consumed + crash.step * readers.batch_size * readers.world_size

    def resume(
        self, data: ShardedSet, crash: Crash, seed: int
    ) -> ResumedEpoch | Refusal:
        """Return the rest of the epoch by the sampler, or its assertion. ``seed`` does
        not matter.

        `single` fails if the count is the set's size or more, `cyclic` where the count
        is no multiple of the batch of all ranks that read now.

        Raises:
            InputError: for fewer samples than a batch of all ranks.
        """
        consumed = self.consumed_samples(data, crash)
        readers = crash.readers_after
        round_size = readers.batch_size * readers.world_size
        if self.dataloader_type == "single" and consumed >= data.size:
            return Refusal(
                f"AssertionError: no samples left to consume: {consumed}, {data.size}"
            )
        remaining = self._batches_of_pass(data, crash, 0)
        active = data.size - data.size % round_size
        if self.dataloader_type == "cyclic" and consumed % active % round_size:
            reason = "the count is no multiple of the new batch of all ranks"
            return Refusal("AssertionError:", reason)
        return ResumedEpoch(remaining)

    def later_epoch(
        self, data: ShardedSet, crash: Crash, seed: int, epoch: int
    ) -> Batches:
        """Return a later pass. Samplers of `cyclic` count on; those of the others deal
        the rest of the broken epoch once more.
        """
        return self._batches_of_pass(data, crash, epoch - crash.epoch)

    def _batches_of_pass(
        self, data: ShardedSet, crash: Crash, pass_index: int
    ) -> Batches:
        """Return the batches of a pass by those who read now; pass 0 is the rest of the
        epoch, and so is each later pass unless `cyclic`.
        """
        readers = crash.readers_after
        consumed = [self.consumed_samples(data, crash)] * readers.world_size
        parts, _ = self.order.passes(data.size, readers, consumed, pass_index)
        return cut_into_batches(parts, readers.batch_size)


class LevanterResume(ResumptionLaw):
    """Levanter: the number of the step (lib/levanter/src/levanter/data/loader.py,
    `DataLoader.iter_from_step`, and schedule.py,
    `BatchSchedule.global_data_offset_by_step`, of marin-community/marin). By source,
    not recorded: it needs JAX.

    The state of training does not say how far the data were read. The position is the
    samples of all steps before this one by the schedule that holds now. The readers do
    not matter as long as the batch of all ranks stays as large. With another batch,
    written as a constant, the position is wrong by the difference times the steps; a
    schedule that says when it changed is right. An epoch ends with a batch that need
    not be full, as in `simshuffle.workload.orders.levanter`.

    Attributes:
        kind: its name.
        of: the order of the loader.
        scheduled: whether the batch of all ranks, if it changes, is a schedule that
            says so.
    """

    kind: Literal["levanter"]
    library: ClassVar[str] = "marin-levanter 0.2.20"
    saves: ClassVar[str] = "the number of the step"
    of: LevanterOrder = LevanterOrder(kind="levanter")
    scheduled: bool = False

    @property
    def order(self) -> LevanterOrder:
        """The order ``of``."""
        return self.of

    def resume(self, data: ShardedSet, crash: Crash, seed: int) -> ResumedEpoch:
        """Return the rest of an epoch from the resumed position on, perhaps nothing.

        The position may lie in another epoch than the broken one; epochs do not differ.

        Raises:
            InputError: as of the order, if an era or a window exceeds the set.
        """
        _, num_done = self._resumed_position(data, crash)
        return ResumedEpoch(self._remaining_batches(data, crash, seed, num_done))

    def later_epoch(
        self, data: ShardedSet, crash: Crash, seed: int, epoch: int
    ) -> Batches:
        """Return a whole epoch; no epoch differs from another."""
        return self._remaining_batches(data, crash, seed, 0)

    def _resumed_position(self, data: ShardedSet, crash: Crash) -> tuple[int, int]:
        """Return the epoch in which training goes on, and how many of its samples of
        all ranks are skipped.

        The second may exceed the set's size by a part of a batch.
        """
        size_before, size_after = (
            readers.world_size * readers.batch_size
            for readers in (crash.readers_before, crash.readers_after)
        )
        if self.scheduled or size_before == size_after:
            return crash.epoch, crash.step * size_before
        # all steps, as if each had read the batch of now
        steps = crash.epoch * -(-data.size // size_before) + crash.step
        epoch, steps_of_epoch = divmod(steps, -(-data.size // size_after))
        return epoch, steps_of_epoch * size_after

    def _remaining_batches(
        self, data: ShardedSet, crash: Crash, seed: int, num_done: int
    ) -> Batches:
        """Return the batches of an epoch after its first ``num_done`` samples, dealt to
        those who read now; the last may be smaller.
        """
        one_reader = Readers(1, 1, 1, data.size)
        samples = self.of.epoch(data, one_reader, seed, 0).sample[num_done:]
        readers = crash.readers_after
        rank_of_sample = (
            np.arange(len(samples)) // readers.batch_size % readers.world_size
        )
        parts = [samples[rank_of_sample == rank] for rank in range(readers.world_size)]
        return cut_into_batches(parts, readers.batch_size)


class RayTrainResume(ResumptionLaw):
    """Ray Train 2.60.0: `get_dataset_shard("train").iter_torch_batches`, of which
    ray/data/_internal/iterator/stream_split_iterator.py has no state. By source, not
    recorded: its order is by chance.

    A run that is restored begins an epoch of the data again, whatever the checkpoint of
    the model says. `streaming_split` deals blocks to whoever asks; here they are dealt
    in turn, as in the order `ray_local`. With ``equal=True``, which is the default of
    Ray Train (ray/train/_internal/data_config.py), ranks get equal numbers of rows, and
    what is left over is nobody's.

    Attributes:
        kind: its name.
        buffer_size: as of the order `ray_local`.
    """

    kind: Literal["ray_train"]
    library: ClassVar[str] = "Ray 2.60.0"
    saves: ClassVar[str] = "nothing of the data"
    buffer_size: int = Field(default=1, ge=1)

    @property
    def order(self) -> RayLocal:
        """The order `ray_local`: blocks dealt in turn, and a local buffer."""
        return RayLocal(kind="ray_local", buffer_size=self.buffer_size)

    def resume(self, data: ShardedSet, crash: Crash, seed: int) -> ResumedEpoch:
        """Return the whole epoch, for those who read now."""
        return ResumedEpoch(self.epoch(data, crash.readers_after, seed, crash.epoch))
