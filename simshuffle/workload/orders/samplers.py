"""Orders of samples that are read one by one: PyTorch's sampler, this project's strategies without
exchange, and synchronised shuffle."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.spec.rng import stream
from simshuffle.workload.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.workload.orders.streams import (
    check,
    dealt,
    handed_out,
    handed_out_by_ranks,
    reseeded_twister,
)

_MOST = (2**32 - 1) // 20  # from here on torch draws numbers of 64 bits, in another order


def randperm(size: int, seed: int) -> Ints64:
    """What ``torch.randperm`` gives on a CPU after ``manual_seed``."""
    return permuted(size, reseeded_twister(seed % 2**32))


def permuted(size: int, twister: np.random.RandomState) -> Ints64:
    """What ``torch.randperm`` gives on a CPU: each place in turn is swapped with one of those from
    it on, by a number of 32 bits of the Mersenne Twister."""
    from simshuffle.workload.orders.kernels import swap_forward  # noqa: PLC0415 - numba

    drawn = twister.randint(0, 2**32, max(size - 1, 0), np.uint32)
    places = np.arange(size - 1)
    samples = np.arange(size)
    swap_forward(samples, places + drawn % (size - places))
    return samples


class DistributedSampler(Order):
    """``torch.utils.data.DistributedSampler`` (PyTorch 2.13, torch/utils/data/distributed.py)
    under a ``DataLoader``. A new permutation of all samples in each epoch, dealt to the ranks one
    by one; of a rank, batch k goes to worker k mod workers. Shards do not matter: a sample is
    fetched by itself.

    Attributes:
        kind: its name.
        shuffle: whether samples are permuted; if not, they come in the order of their numbers.
        drop_last: whether samples that cannot be shared evenly are left out. If not, the first ones
            of the permutation are read again.
    """

    kind: Literal["distributed_sampler"]
    unit: ClassVar[Unit] = "sample"
    shuffle: bool = True
    drop_last: bool = False

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """The order of an epoch, as after ``set_epoch(epoch)``. Raises an InputError for no samples
        or readers, a seed out of range, too many samples, or fewer than ranks with ``drop_last``,
        where PyTorch silently gives no rank any."""
        check(data, readers, seed, epoch, 2**64)
        ranks = readers.world_size
        if data.size >= _MOST:
            rule = f"PyTorch's permutation is known for fewer than {_MOST} samples"
            remedy = "Take a part of the set"
            refuse("data.samples", rule, str(data.size), remedy, "order")
        if self.drop_last and data.size < ranks:
            rule = f"each of {ranks} ranks must get a sample; PyTorch gives none of them any"
            remedy = "Set it to false, or take fewer ranks"
            refuse("drop_last", rule, f"{data.size} samples", remedy, "order")
        samples = randperm(data.size, seed + epoch) if self.shuffle else np.arange(data.size)
        share = data.size // ranks if self.drop_last else -(-data.size // ranks)
        return dealt(np.resize(samples, (share, ranks)).T, readers)


class TorchFt(DistributedSampler):
    """``torchft.data.DistributedSampler`` (torchft 0.2.0, torchft/data.py): the same for as many
    replica groups as there may be. A node is a group; the samples of groups that are not there are
    nobody's.

    Attributes:
        kind: its name.
        replica_groups: the most groups that there may be.
    """

    kind: Literal["torchft"]  # type: ignore[assignment]
    replica_groups: int = Field(ge=1)

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `DistributedSampler`. Raises an InputError also for more nodes than groups."""
        if readers.nodes > self.replica_groups:
            rule = f"must not exceed the {self.replica_groups} replica groups"
            refuse("readers.nodes", rule, str(readers.nodes), "Allow more groups", "order")
        order = super().epoch(data, replace(readers, nodes=self.replica_groups), seed, epoch)
        there = order.rank < readers.world_size
        return EpochOrder(
            order.rank[there], order.worker[there], order.position[there], order.sample[there]
        )


class Accelerate(Order):
    """A shuffled ``DataLoader`` that ``accelerate.prepare`` has made one of each rank (accelerate
    1.15.0, accelerate/data_loader.py: ``SeedableRandomSampler``, ``BatchSamplerShard``,
    ``DataLoaderDispatcher``; ``use_seedable_sampler=True``). The permutation is that of
    `DistributedSampler`, but batch k goes to rank k mod ranks. ``split_batches``, where a batch is
    cut into one of each rank, deals out the same.

    Attributes:
        kind: its name.
        even_batches: whether samples that cannot be shared evenly are completed by the first ones.
        drop_last: whether they are left out.
        dispatch: whether rank 0 reads for all, which completes the last batch alone, by the first
            sample of each rank: 'no', or 'batches' or 'split', without or with ``split_batches``.
    """

    kind: Literal["accelerate"]
    unit: ClassVar[Unit] = "sample"
    even_batches: bool = True
    drop_last: bool = False
    dispatch: Literal["no", "batches", "split"] = "no"

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """The order of an epoch, as after ``set_epoch(epoch)``. Raises an InputError as of
        `DistributedSampler`."""
        return self.after(0, data, readers, seed, epoch)

    def after(
        self, skipped: int, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """The order of what is left of the permutation after so many samples."""
        check(data, readers, seed, epoch, 2**64)
        ranks, batch = readers.world_size, readers.world_size * readers.batch_size
        if data.size >= _MOST or (self.drop_last and data.size < batch):
            rule = f"from {batch if self.drop_last else 1} to {_MOST} samples"
            refuse("data.samples", rule, str(data.size), "Take another set", "order")
        samples = randperm(data.size, seed + epoch)[skipped:]
        rounds, left = divmod(len(samples), batch)
        if self.drop_last or not left:
            samples = samples[: rounds * batch]
        elif self.dispatch != "no":
            rounds += 1
            last = samples[(rounds - 1) * batch :]
            share = -(-left // ranks)
            if left % ranks:
                last = np.concatenate([last, samples[: min(ranks, batch)]])
            padded = np.full((ranks, readers.batch_size), -1)
            padded[:, :share] = np.pad(
                last, (0, max(share * ranks - len(last), 0)), constant_values=-1
            )[: share * ranks].reshape(ranks, share)
            samples = np.concatenate([samples[: (rounds - 1) * batch], padded.ravel()])
        else:
            rounds += 1
            even = self.even_batches and ranks > 1
            more = np.resize(samples, rounds * batch) if even else np.full(rounds * batch, -1)
            more[: len(samples)] = samples
            samples = more
        dealt_out = samples.reshape(rounds, ranks, readers.batch_size).transpose(1, 0, 2)
        return dealt(dealt_out.reshape(ranks, -1), readers)


class Own(Order):
    """Global and local shuffle, as `global_shuffle` and `local_shuffle` have them: a new random
    partition of the set for each epoch, or one for all, in a new order each epoch. The same law,
    from streams of its own. A rank's samples are dealt to its workers in turn.

    Attributes:
        shuffle: which of the two.
    """

    kind: Literal["own"]
    unit: ClassVar[Unit] = "sample"
    shuffle: Literal["global", "local"]

    @property
    def short_name(self) -> str:
        """'own global' or 'own local'."""
        return f"own {self.shuffle}"

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Every set and every reader will do."""
        local = self.shuffle == "local"
        partition = stream(seed, "orders/own/partition", 0 if local else epoch)
        ends = np.arange(readers.world_size + 1) * data.size // readers.world_size
        parts = np.split(partition.permutation(data.size), ends[1:-1])
        if local:
            rng = stream(seed, "orders/own/order", epoch)
            parts = [rng.permutation(part) for part in parts]
        return handed_out(
            (rank, worker, part[worker :: readers.workers])
            for rank, part in enumerate(parts)
            for worker in range(readers.workers)
        )


class Synchronised(Order):
    """Synchronised shuffling (Yun, Rajput & Sra, arXiv 2110.10342): every rank keeps its N/M
    samples, drawn once, and in each epoch all go through the places of their parts in the same
    random order. Nothing is sent. A rank reads by itself: worker 0 hands out everything."""

    kind: Literal["synchronised"]
    unit: ClassVar[Unit] = "sample"

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError if the parts of the ranks are not of one size, so that
        they have no permutation in common."""
        size, left = divmod(data.size, readers.world_size)
        if left or not size:
            rule = (
                f"must hold a multiple of {readers.world_size} samples: one permutation serves"
                " all ranks"
            )
            remedy = f"Leave out {left}." if size else "Read with fewer ranks."
            refuse("data.samples", rule, f"{data.size} samples", remedy, "")
        parts = stream(seed, "orders/synchronised/parts").permutation(data.size)
        order = stream(seed, "orders/synchronised/places", epoch).permutation(size)
        return handed_out_by_ranks(part[order] for part in parts.reshape(readers.world_size, size))
