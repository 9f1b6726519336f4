"""Loaders of training of language models: Megatron's samplers, Levanter, Ray Train."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.buffers import RayLocal
from simshuffle.workload.orders.levanter import Levanter as LevanterOrder
from simshuffle.workload.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.workload.orders.samplers import randperm
from simshuffle.workload.orders.streams import check, dealt
from simshuffle.workload.resuming.law import (
    Batches,
    Crash,
    Refused,
    Resume,
    Resumed,
    dealt_in_batches,
)

DataloaderType = Literal["single", "cyclic", "batch"]


class MegatronOrder(Order):
    """The samplers of Megatron. What ranks get of the samples from some count of consumed ones on,
    a pass of them; each pass but that of `cyclic` begins where the first did. The seed of the run
    does not matter: `cyclic` permutes by the number of the epoch, the others do not permute.

    Attributes:
        kind: its name.
        dataloader_type: `single` deals batches to ranks in turn; `batch` deals global batches to
            ranks one by one; `cyclic` permutes.
        data_sharding: of `cyclic`: whether each rank has samples of its own, a new order of them in
            each epoch, or all have one permutation.
    """

    kind: Literal["megatron"] = "megatron"
    unit: ClassVar[Unit] = "sample"
    dataloader_type: DataloaderType = "single"
    data_sharding: bool = True

    @property
    def short_name(self) -> str:
        """'megatron' and which sampler."""
        sharded = ", sharded" if self.dataloader_type == "cyclic" and self.data_sharding else ""
        return f"megatron {self.dataloader_type}{sharded}"

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError for fewer samples than a batch of all ranks, where
        `cyclic` divides by zero and the others have no batch."""
        check(data, readers, seed, epoch, 2**64)
        parts, _ = self.passes(data.size, readers, [0] * readers.world_size, epoch)
        longest = max(map(len, parts))
        padded = [np.pad(part, (0, longest - len(part)), constant_values=-1) for part in parts]
        return dealt(np.array(padded), readers)

    def passes(
        self, size: int, readers: Readers, consumed: list[int], later: int
    ) -> tuple[list[Ints64], list[int]]:
        """Of each rank, the samples of the pass that many after the one which begins with as many
        samples ``consumed`` as its sampler says, and what it says after that pass. A remainder of
        the count of `cyclic` is not looked at."""
        if size < (together := readers.batch_size * readers.world_size):
            rule = f"must hold a batch of each rank, {together} samples"
            refuse("data.samples", rule, f"{size} samples", "Read with fewer ranks", "order")
        if self.dataloader_type != "cyclic":
            parts = [self._in_order(size, readers, r, count) for r, count in enumerate(consumed)]
            return parts, consumed
        for _ in range(later + 1):
            parts = [self._permuted(size, readers, r, count) for r, count in enumerate(consumed)]
            consumed = [
                count + len(part) * readers.world_size
                for part, count in zip(parts, consumed, strict=True)
            ]
        return parts, consumed

    def _in_order(self, size: int, readers: Readers, rank: int, consumed: int) -> Ints64:
        ranks, batch = readers.world_size, readers.batch_size
        rest = np.arange(consumed % size, size)
        rest = rest[: len(rest) // (ranks * batch) * ranks * batch]
        if self.dataloader_type == "single":
            return rest.reshape(-1, ranks, batch)[:, rank].ravel()
        return rest[rank::ranks]

    def _permuted(self, size: int, readers: Readers, rank: int, consumed: int) -> Ints64:
        ranks, batch = readers.world_size, readers.batch_size
        epoch, done = divmod(consumed, size - size % (ranks * batch))
        if self.data_sharding:
            bucket = size // (ranks * batch) * batch
            own = rank * bucket + randperm(bucket, epoch)[done // ranks :]
        else:
            own = randperm(size // batch * batch, epoch)[done:][rank::ranks]
        return own[: len(own) // batch * batch]


class Megatron(Resume):
    """Megatron's count of consumed samples: `MegatronPretrainingSampler`,
    `MegatronPretrainingRandomSampler` and `MegatronPretrainingBatchSampler` under
    `build_pretraining_data_loader` (Megatron-Bridge 0.3.1, megatron/bridge/data/samplers.py; the
    first two are those of Megatron-LM, megatron/training/datasets/data_samplers.py).

    An iteration is one of micro-batches: where gradients are accumulated, only every so many
    iterations can be a checkpoint. The count is that of rank 0, which writes the checkpoint:
    iterations done, by samples that all ranks read in one.

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
        """That of the order."""
        return self.order.short_name

    @property
    def order(self) -> MegatronOrder:
        """Its samplers."""
        return MegatronOrder(dataloader_type=self.dataloader_type, data_sharding=self.data_sharding)

    def consumed(self, data: ShardedSet, crash: Crash) -> int:
        """Samples that the state says are consumed."""
        readers, done = crash.before, 0
        if crash.epoch:
            parts, counts = self.order.passes(
                data.size, readers, [0] * readers.world_size, crash.epoch - 1
            )
            cyclic = self.dataloader_type == "cyclic"
            done = counts[0] if cyclic else crash.epoch * len(parts[0]) * readers.world_size
        return done + crash.step * readers.batch_size * readers.world_size

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed | Refused:
        """The rest by the sampler, or its assertion."""
        consumed, readers = self.consumed(data, crash), crash.after
        together = readers.batch_size * readers.world_size
        if self.dataloader_type == "single" and consumed >= data.size:
            return Refused(f"AssertionError: no samples left to consume: {consumed}, {data.size}")
        rest = self._passed(data, crash, 0)
        active = data.size - data.size % together
        if self.dataloader_type == "cyclic" and consumed % active % together:
            why = "the count is no multiple of the new batch of all ranks"
            return Refused("AssertionError:", why)
        return Resumed(rest)

    def later(self, data: ShardedSet, crash: Crash, seed: int, epoch: int) -> Batches:
        """The passes after that: as the samplers count on."""
        return self._passed(data, crash, epoch - crash.epoch)

    def _passed(self, data: ShardedSet, crash: Crash, later: int) -> Batches:
        readers = crash.after
        consumed = [self.consumed(data, crash)] * readers.world_size
        parts, _ = self.order.passes(data.size, readers, consumed, later)
        return dealt_in_batches(parts, readers.batch_size)


class Levanter(Resume):
    """Levanter: the number of the step (lib/levanter/src/levanter/data/loader.py,
    `DataLoader.iter_from_step`, and schedule.py, `BatchSchedule.global_data_offset_by_step`, of
    marin-community/marin). By source, not recorded: it needs JAX.

    The state of training has no place in the data. It is the samples of all steps before this one
    by the schedule that holds now. Who reads does not matter as long as a batch of all ranks is
    what it was. With another one, written as a constant, the place is wrong by its difference times
    the steps; a schedule that says when it changed is right. An epoch ends with a batch that need
    not be full, as in `simshuffle.workload.orders.levanter`.

    Attributes:
        kind: its name.
        of: the order of the loader.
        scheduled: whether the batch of all ranks, if it changes, is a schedule that says so.
    """

    kind: Literal["levanter"]
    library: ClassVar[str] = "marin-levanter 0.2.20"
    saves: ClassVar[str] = "the number of the step"
    of: LevanterOrder = LevanterOrder(kind="levanter")
    scheduled: bool = False

    @property
    def order(self) -> LevanterOrder:
        """As given."""
        return self.of

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed:
        """The rest from that place on, of whichever epoch; the order of all is the same."""
        _, done = self._place(data, crash)
        return Resumed(self._rest(data, crash, seed, done))

    def later(self, data: ShardedSet, crash: Crash, seed: int, epoch: int) -> Batches:
        """Whole epochs: all have the same order."""
        return self._rest(data, crash, seed, 0)

    def _place(self, data: ShardedSet, crash: Crash) -> tuple[int, int]:
        """The epoch in which training goes on, and how many of its samples are passed over."""
        before, after = (
            readers.world_size * readers.batch_size for readers in (crash.before, crash.after)
        )
        if self.scheduled or before == after:
            return crash.epoch, crash.step * before
        steps = crash.epoch * -(-data.size // before) + crash.step
        epoch, done = divmod(steps, -(-data.size // after))
        return epoch, done * after

    def _rest(self, data: ShardedSet, crash: Crash, seed: int, done: int) -> Batches:
        alone = Readers(1, 1, 1, data.size)
        samples = self.of.epoch(data, alone, seed, 0).sample[done:]
        readers = crash.after
        rank = np.arange(len(samples)) // readers.batch_size % readers.world_size
        parts = [samples[rank == one] for one in range(readers.world_size)]
        return dealt_in_batches(parts, readers.batch_size)


class RayTrain(Resume):
    """Ray Train 2.60.0: `get_dataset_shard("train").iter_torch_batches`, of which
    ray/data/_internal/iterator/stream_split_iterator.py has no state. By source, not recorded: its
    order is by chance.

    A run that is restored begins an epoch of the data again, whatever the checkpoint of the model
    says. `streaming_split` deals blocks to whoever asks; here they are dealt in turn, as in the
    order `ray_local`. With ``equal=True``, which is the default of Ray Train
    (ray/train/_internal/data_config.py), ranks get equal numbers of rows, and what is left over is
    nobody's.

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
        """Blocks in turn, and a local buffer."""
        return RayLocal(kind="ray_local", buffer_size=self.buffer_size)

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed:
        """The whole epoch, for those who read now."""
        return Resumed(self.epoch(data, crash.after, seed, crash.epoch))
