"""Orders of samples that are read one by one: PyTorch's sampler, this project's
strategies without exchange, and synchronised shuffle.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.spec.rng import stream
from simshuffle.workload.orders.order import (
    EpochOrder,
    Order,
    Readers,
    ShardedSet,
    Unit,
)
from simshuffle.workload.orders.streams import (
    check_inputs,
    deal_batches,
    order_from_ranks,
    order_from_streams,
    reseeded_twister,
)

# from so many samples on, torch draws numbers of 64 bits, in another order
_MAX_SAMPLES = (2**32 - 1) // 20


def torch_randperm(size: int, seed: int) -> Ints64:
    """Permute the numbers below ``size`` as ``torch.randperm`` does on a CPU after
    ``manual_seed``: (size,) int64.

    For sizes below (2^32 - 1) / 20, which is not checked. The seed counts modulo 2^32.
    """
    return torch_permutation(size, reseeded_twister(seed % 2**32))


def torch_permutation(size: int, twister: np.random.RandomState) -> Ints64:
    """Permute the numbers below ``size`` as ``torch.randperm`` does on a CPU.

    Each position in turn is swapped with one of those from it on, by a number of 32
    bits of the Mersenne Twister. ``twister`` goes on by ``size`` - 1 numbers.
    """
    from simshuffle.workload.orders.kernels import swap_forward  # noqa: PLC0415 - numba

    words = twister.randint(0, 2**32, max(size - 1, 0), np.uint32)
    # position k is swapped with k + word mod (n - k)
    positions = np.arange(size - 1)
    samples = np.arange(size)
    swap_forward(samples, positions + words % (size - positions))
    return samples


class DistributedSampler(Order):
    """``torch.utils.data.DistributedSampler`` (PyTorch 2.13,
    torch/utils/data/distributed.py) under a ``DataLoader``. A new permutation of all
    samples in each epoch, dealt to the ranks one by one; of a rank, batch k goes to
    worker k mod workers. Shards do not matter: a sample is fetched by itself.

    Attributes:
        kind: its name.
        shuffle: whether samples are permuted; if not, they come in the order of their
            numbers.
        drop_last: whether samples that cannot be shared evenly are left out. If not,
            the first ones of the permutation are read again.
    """

    kind: Literal["distributed_sampler"]
    unit: ClassVar[Unit] = "sample"
    shuffle: bool = True
    drop_last: bool = False

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch, as after ``set_epoch(epoch)``.

        Raises:
            InputError: for no samples or readers, a seed out of range, too many
                samples, or fewer than ranks with ``drop_last``, where PyTorch silently
                gives no rank any.
        """
        check_inputs(data, readers, seed, epoch, 2**64)
        ranks = readers.world_size
        if data.size >= _MAX_SAMPLES:
            rule = (
                f"PyTorch's permutation is known for fewer than {_MAX_SAMPLES} samples"
            )
            remedy = "Take a part of the set"
            refuse("data.samples", rule, str(data.size), remedy, "order")
        if self.drop_last and data.size < ranks:
            rule = f"each of {ranks} ranks must get a sample; PyTorch gives none of them any"
            remedy = "Set it to false, or take fewer ranks"
            refuse("drop_last", rule, f"{data.size} samples", remedy, "order")
        samples = (
            torch_randperm(data.size, seed + epoch)
            if self.shuffle
            else np.arange(data.size)
        )
        samples_per_rank = (
            data.size // ranks if self.drop_last else -(-data.size // ranks)
        )
        # sample k goes to rank k mod M; the first samples again where some are missing
        return deal_batches(np.resize(samples, (samples_per_rank, ranks)).T, readers)


class TorchFt(DistributedSampler):
    """``torchft.data.DistributedSampler`` (torchft 0.2.0, torchft/data.py).

    It deals to as many replica groups as there may be. A node is a group; the samples
    of groups that are not there are nobody's.

    Attributes:
        kind: its name.
        replica_groups: the most groups that there may be.
    """

    kind: Literal["torchft"]  # type: ignore[assignment]
    replica_groups: int = Field(ge=1)

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch for all groups, and drop the samples of groups
        that are not there.

        Raises:
            InputError: as of `DistributedSampler.epoch`, and for more nodes than
                groups.
        """
        if readers.nodes > self.replica_groups:
            rule = f"must not exceed the {self.replica_groups} replica groups"
            refuse(
                "readers.nodes", rule, str(readers.nodes), "Allow more groups", "order"
            )
        order = super().epoch(
            data, replace(readers, nodes=self.replica_groups), seed, epoch
        )
        is_present = order.rank < readers.world_size
        return EpochOrder(
            order.rank[is_present],
            order.worker[is_present],
            order.position[is_present],
            order.sample[is_present],
        )


class Accelerate(Order):
    """A shuffled ``DataLoader`` that ``accelerate.prepare`` has made one of each rank
    (accelerate 1.15.0, accelerate/data_loader.py: ``SeedableRandomSampler``,
    ``BatchSamplerShard``, ``DataLoaderDispatcher``; ``use_seedable_sampler=True``). The
    permutation is that of `DistributedSampler`, but batch k goes to rank k mod ranks.
    ``split_batches``, where a batch is cut into one of each rank, deals out the same.

    Attributes:
        kind: its name.
        even_batches: whether samples that cannot be shared evenly are completed by the
            first ones.
        drop_last: whether they are left out.
        dispatch: whether rank 0 reads for all, which completes the last batch alone, by
            the first sample of each rank: 'no', or 'batches' or 'split', without or
            with ``split_batches``.
    """

    kind: Literal["accelerate"]
    unit: ClassVar[Unit] = "sample"
    even_batches: bool = True
    drop_last: bool = False
    dispatch: Literal["no", "batches", "split"] = "no"

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch, as after ``set_epoch(epoch)``.

        Raises:
            InputError: for no samples or readers, a seed out of range, too many
                samples, or fewer than an iteration with ``drop_last``.
        """
        return self.remaining_order(0, data, readers, seed, epoch)

    def remaining_order(
        self,
        num_skipped: int,
        data: ShardedSet,
        readers: Readers,
        seed: int,
        epoch: int,
    ) -> EpochOrder:
        """Return the order of an epoch without the first ``num_skipped`` samples of its
        permutation.

        They are dropped first; the rest is dealt, and its last round completed, as a
        set of its own. The last round of a single rank stays incomplete unless
        ``dispatch`` is set.

        Raises:
            InputError: as of `epoch`.
        """
        check_inputs(data, readers, seed, epoch, 2**64)
        ranks = readers.world_size
        batch_size = readers.batch_size
        round_size = ranks * batch_size  # samples of an iteration of all ranks
        if data.size >= _MAX_SAMPLES or (self.drop_last and data.size < round_size):
            rule = (
                f"from {round_size if self.drop_last else 1} to {_MAX_SAMPLES} samples"
            )
            refuse("data.samples", rule, str(data.size), "Take another set", "order")
        samples = torch_randperm(data.size, seed + epoch)[num_skipped:]
        rounds, incomplete = divmod(len(samples), round_size)
        if self.drop_last or not incomplete:
            samples = samples[: rounds * round_size]
        elif self.dispatch != "no":
            last_round = self._dispatched_round(samples, rounds * round_size, readers)
            samples = np.concatenate(
                [samples[: rounds * round_size], last_round.ravel()]
            )
            rounds += 1
        else:
            rounds += 1
            if self.even_batches and ranks > 1:
                completed = np.resize(samples, rounds * round_size)
            else:
                completed = np.full(rounds * round_size, -1)
            completed[: len(samples)] = samples
            samples = completed
        # (rounds, M, b) to (M, rounds * b)
        of_ranks = samples.reshape(rounds, ranks, batch_size).transpose(1, 0, 2)
        return deal_batches(of_ranks.reshape(ranks, -1), readers)

    @staticmethod
    def _dispatched_round(samples: Ints64, first: int, readers: Readers) -> Ints64:
        """Return the samples of each rank in the last round, which rank 0 completes:
        (M, b), -1 where a rank gets none.

        Args:
            samples: of the epoch; the last round begins at ``first``.
            first: index of its first sample.
            readers: the processes that read.
        """
        ranks = readers.world_size
        batch_size = readers.batch_size
        last = samples[first:]
        samples_per_rank = -(-len(last) // ranks)
        if len(last) % ranks:
            last = np.concatenate([last, samples[:ranks]])
        # each rank gets its share of the round; -1 where samples or places are missing
        num_dealt = samples_per_rank * ranks
        missing = max(num_dealt - len(last), 0)
        dealt = np.pad(last, (0, missing), constant_values=-1)[:num_dealt]
        padded = np.full((ranks, batch_size), -1)
        padded[:, :samples_per_rank] = dealt.reshape(ranks, samples_per_rank)
        return padded


class OwnOrder(Order):
    """Global and local shuffle, as `global_shuffle` and `local_shuffle` have them: a
    new random partition of the set for each epoch, or one for all, in a new order each
    epoch. The same law, from streams of its own. A rank's samples are dealt to its
    workers in turn.

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

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch, from 0; every set and every reader will do.

        Sample k of a rank goes to worker k mod workers. Parts differ by one sample at
        most; a rank has none where there are fewer samples than ranks.
        """
        is_local = self.shuffle == "local"
        rng = stream(seed, "orders/own/partition", 0 if is_local else epoch)
        ends = np.arange(readers.world_size + 1) * data.size // readers.world_size
        parts = np.split(rng.permutation(data.size), ends[1:-1])
        if is_local:
            rng = stream(seed, "orders/own/order", epoch)
            parts = [rng.permutation(part) for part in parts]
        return order_from_streams(
            (rank, worker, part[worker :: readers.workers])
            for rank, part in enumerate(parts)
            for worker in range(readers.workers)
        )


class Synchronised(Order):
    """Synchronised shuffling (Yun, Rajput & Sra, arXiv 2110.10342): every rank keeps
    its N/M samples, drawn once, and in each epoch all go through the places of their
    parts in the same random order. Nothing is sent. A rank reads by itself: worker 0
    hands out everything.
    """

    kind: Literal["synchronised"]
    unit: ClassVar[Unit] = "sample"

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch, from 0; all rows are of worker 0.

        Raises:
            InputError: if the parts of the ranks are empty or not of one size, so that
                they have no permutation in common.
        """
        part_size, surplus = divmod(data.size, readers.world_size)
        if surplus or not part_size:
            rule = (
                f"must hold a multiple of {readers.world_size} samples: one permutation serves"
                " all ranks"
            )
            remedy = f"Leave out {surplus}." if part_size else "Read with fewer ranks."
            refuse("data.samples", rule, f"{data.size} samples", remedy, "")
        permutation = stream(seed, "orders/synchronised/parts").permutation(data.size)
        parts = permutation.reshape(readers.world_size, part_size)
        order = stream(seed, "orders/synchronised/places", epoch).permutation(part_size)
        return order_from_ranks(part[order] for part in parts)
