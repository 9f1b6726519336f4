"""WebDataset, which saves no state: the epoch is drawn again when training begins anew."""

from __future__ import annotations

import random
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.buffers import WebDataset
from simshuffle.workload.orders.order import (
    EpochOrder,
    Order,
    Readers,
    ShardedSet,
    Unit,
)
from simshuffle.workload.orders.shuffle_buffers import shuffle_in_buffer
from simshuffle.workload.orders.streams import (
    order_from_streams,
    require_shards,
    samples_of_shards,
)
from simshuffle.workload.resuming.law import (
    Batches,
    Crash,
    OrderResumptionLaw,
    ResumedEpoch,
    batches_from_order,
)


class ResampledShards(Order):
    """`webdataset` 1.0.2: `ResampledShards(urls, seed=seed, deterministic=True)`
    (shardlists.py), `detshuffle` for the samples, and `with_epoch(samples)`. No order
    of `simshuffle.workload.orders`: an epoch has some samples twice and others not at
    all.

    Each worker draws shards of the whole set with replacement, by `make_seed` of 1000
    rank + worker, of the epoch and of the seed, and reads them until it has handed out
    enough.

    Attributes:
        samples: samples that a worker hands out in an epoch.
        buffer_size: samples in its buffer.
        initial: samples that are in it before the first is handed out.
        detshuffle: whether what is drawn follows from the seed. Without it, as with
            `WebDataset(resampled=True)`, the library draws by clock and process, and a
            stream for each epoch and worker stands for that.
    """

    kind: Literal["webdataset_resampled"]
    unit: ClassVar[Unit] = "shard"
    samples: int = Field(ge=1)
    buffer_size: int = Field(default=1000, ge=1)
    initial: int = Field(default=100, ge=0)
    detshuffle: bool = True

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch, from 0.

        Raises:
            InputError: for a set without a shard.
        """
        require_shards(data)
        shard_sizes = data.samples.tolist()

        def read(rank: int, worker: int) -> Ints64:
            """Return the ``samples`` that a worker hands out, some perhaps twice."""
            shard_seed = (1000 * rank + worker) * 31**2 + epoch * 31 + seed & 0x7FFFFFFF
            clock = f"webdataset {seed} {epoch} {rank} {worker}"
            shard_source = shard_seed if self.detshuffle else f"shards {clock}"
            shard_rng = random.Random(shard_source)  # noqa: S311
            sample_rng = random.Random(seed + epoch if self.detshuffle else clock)  # noqa: S311
            shards: list[int] = []
            missing = self.samples + self.buffer_size + self.initial + 2
            while missing > 0:
                shards.append(shard_rng.randint(0, len(shard_sizes) - 1))
                missing -= shard_sizes[shards[-1]]
            samples = samples_of_shards(data, shards)
            shuffled = shuffle_in_buffer(
                samples, self.buffer_size, self.initial, sample_rng
            )
            return shuffled[: self.samples]

        return order_from_streams(
            (rank, worker, read(rank, worker))
            for rank in range(readers.world_size)
            for worker in range(readers.workers)
        )


class WebDatasetRestart(OrderResumptionLaw):
    """`webdataset` 1.0.2 has no state
    (https://github.com/webdataset/webdataset/issues/271): the epoch begins again.

    The samples that it draws then depend on who counts epochs. A user makes a pipeline
    for each epoch, with seed + epoch: then the epoch is drawn again. Otherwise stages
    count (`detshuffle` in filters.py and `ResampledShards` in shardlists.py begin at 0
    in each process): after a restart epoch 0 is drawn again, whichever it was. Workers
    are new processes in each epoch unless they are kept, so theirs is always epoch 0.

    Attributes:
        kind: its name.
        of: the order of the loader, or that it draws shards with replacement.
        counted_by: who counts epochs.
        persistent_workers: whether workers are kept from epoch to epoch.
    """

    kind: Literal["webdataset"]
    library: ClassVar[str] = "webdataset 1.0.2"
    saves: ClassVar[str] = "nothing; its user keeps the number of the epoch"
    of: Annotated[WebDataset | ResampledShards, Field(discriminator="kind")]
    counted_by: Literal["user", "stage"] = "user"
    persistent_workers: bool = False

    @property
    def short_name(self) -> str:
        """The short name of the order, and 'restarted'."""
        return f"{self.of.short_name}, restarted"

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> Batches:
        """Return the batches of an epoch of a run that was not broken off."""
        return self._counted_epoch(data, readers, seed, epoch, epoch)

    def resume(self, data: ShardedSet, crash: Crash, seed: int) -> ResumedEpoch:
        """Return the whole epoch, for those who read now, in new processes.

        Orders by the clock are drawn anew. With ``detshuffle`` and stages that count,
        it is what epoch 0 draws.
        """
        epoch = crash.epoch if self.of.detshuffle else -1 - crash.epoch
        return ResumedEpoch(
            self._counted_epoch(data, crash.readers_after, seed, epoch, 0)
        )

    def later_epoch(
        self, data: ShardedSet, crash: Crash, seed: int, epoch: int
    ) -> Batches:
        """Return the batches of a later epoch, by processes that began with the broken
        epoch, and count from there.

        Orders by the clock are those of a run that was not broken off.
        """
        return self._counted_epoch(
            data, crash.readers_after, seed, epoch, epoch - crash.epoch
        )

    def _counted_epoch(
        self,
        data: ShardedSet,
        readers: Readers,
        seed: int,
        epoch: int,
        epochs_before: int,
    ) -> Batches:
        """Return an epoch of processes that have gone through ``epochs_before`` epochs.

        With ``detshuffle``, a user adds ``epoch`` to the seed and draws epoch 0; stages
        draw epoch ``epochs_before``, or 0 in workers that are not kept. (One worker is
        the rank itself, which is kept.) Without ``detshuffle``, ``epoch`` numbers the
        stream that stands for the clock, and may be negative.
        """
        if self.of.detshuffle:
            seed += epoch if self.counted_by == "user" else 0
            is_persistent = readers.workers == 1 or self.persistent_workers
            epoch = epochs_before if self.counted_by == "stage" and is_persistent else 0
        return batches_from_order(self.of.epoch(data, readers, seed, epoch), readers)
