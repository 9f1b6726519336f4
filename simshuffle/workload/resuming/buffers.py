"""WebDataset, which saves nothing: what is drawn again when it begins anew."""

from __future__ import annotations

import random
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.buffers import WebDataset, buffered
from simshuffle.workload.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.workload.orders.streams import handed_out, need_shards, samples_of
from simshuffle.workload.resuming.law import Batches, Crash, Resumed, ResumeOf, batches_of


class Resampled(Order):
    """`webdataset` 1.0.2: `ResampledShards(urls, seed=seed, deterministic=True)` (shardlists.py),
    `detshuffle` for the samples, and `with_epoch(samples)`. No order of
    `simshuffle.workload.orders`: an epoch has some samples twice and others not at all.

    Each worker draws shards of the whole set with replacement, by `make_seed` of 1000 rank +
    worker, of the epoch and of the seed, and reads them until it has handed out enough.

    Attributes:
        samples: what a worker hands out in an epoch.
        buffer_size: samples in its buffer.
        initial: samples that are in it before the first is handed out.
        detshuffle: whether what is drawn follows from the seed. Without it, as with
            `WebDataset(resampled=True)`, the library draws by clock and process, and a stream for
            each epoch and worker stands for that.
    """

    kind: Literal["webdataset_resampled"]
    unit: ClassVar[Unit] = "shard"
    samples: int = Field(ge=1)
    buffer_size: int = Field(default=1000, ge=1)
    initial: int = Field(default=100, ge=0)
    detshuffle: bool = True

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError for a set without a shard."""
        need_shards(data)
        sizes = data.samples.tolist()

        def read(rank: int, worker: int) -> Ints64:
            made = (1000 * rank + worker) * 31**2 + epoch * 31 + seed & 0x7FFFFFFF
            clock = f"webdataset {seed} {epoch} {rank} {worker}"
            of_shards = random.Random(made if self.detshuffle else f"shards {clock}")  # noqa: S311
            of_samples = random.Random(seed + epoch if self.detshuffle else clock)  # noqa: S311
            shards: list[int] = []
            missing = self.samples + self.buffer_size + self.initial + 2
            while missing > 0:
                shards.append(of_shards.randint(0, len(sizes) - 1))
                missing -= sizes[shards[-1]]
            out = buffered(samples_of(data, shards), self.buffer_size, self.initial, of_samples)
            return out[: self.samples]

        return handed_out(
            (rank, worker, read(rank, worker))
            for rank in range(readers.world_size)
            for worker in range(readers.workers)
        )


class WebDatasetRestart(ResumeOf):
    """`webdataset` 1.0.2 has no state
    (https://github.com/webdataset/webdataset/issues/271): the epoch begins again.

    What it draws then depends on who counts epochs. A user makes a pipeline for each epoch, with
    seed + epoch: then the epoch is the same again. Otherwise the stages count (`detshuffle` in
    filters.py and `ResampledShards` in shardlists.py begin at 0 in each process): after a restart
    epoch 0 is drawn again, whichever it was. Workers are new processes in each epoch unless they
    are kept, so theirs is always epoch 0.

    Attributes:
        kind: its name.
        of: the order of the loader, or that it draws shards with replacement.
        counted_by: who counts epochs.
        persistent_workers: whether workers are kept from epoch to epoch.
    """

    kind: Literal["webdataset"]
    library: ClassVar[str] = "webdataset 1.0.2"
    saves: ClassVar[str] = "nothing; its user keeps the number of the epoch"
    of: Annotated[WebDataset | Resampled, Field(discriminator="kind")]
    counted_by: Literal["user", "stage"] = "user"
    persistent_workers: bool = False

    @property
    def short_name(self) -> str:
        """That of the order, and 'restarted'."""
        return f"{self.of.short_name}, restarted"

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> Batches:
        """See `Resume`."""
        return self._drawn(data, readers, seed, epoch, epoch)

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed:
        """The whole epoch, for those who read now. What is drawn by the clock is drawn anew."""
        epoch = crash.epoch if self.of.detshuffle else -1 - crash.epoch
        return Resumed(self._drawn(data, crash.after, seed, epoch, 0))

    def later(self, data: ShardedSet, crash: Crash, seed: int, epoch: int) -> Batches:
        """See `Resume`."""
        return self._drawn(data, crash.after, seed, epoch, epoch - crash.epoch)

    def _drawn(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int, counted: int
    ) -> Batches:
        """An epoch of processes that have gone through ``counted`` epochs before it."""
        if self.of.detshuffle:
            seed += epoch if self.counted_by == "user" else 0
            kept = readers.workers == 1 or self.persistent_workers
            epoch = counted if self.counted_by == "stage" and kept else 0
        return batches_of(self.of.epoch(data, readers, seed, epoch), readers)
