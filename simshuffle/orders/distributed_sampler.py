"""PyTorch's sampler of a data set whose samples are read one by one."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.errors import refuse
from simshuffle.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.orders.streams import check, dealt
from simshuffle.spec.arrays import Ints64

_MOST = (2**32 - 1) // 20  # from here on torch draws numbers of 64 bits, in another order


def _permutation(size: int, seed: int) -> Ints64:
    """What ``torch.randperm`` gives on a CPU: each place in turn is swapped with one of those from
    it on, by a number of 32 bits of the Mersenne Twister."""
    drawn = np.random.RandomState(seed % 2**32).randint(0, 2**32, max(size - 1, 0), np.uint32)
    places = np.arange(size - 1)
    chosen = places + drawn % (size - places)
    samples = list(range(size))
    for place, other in enumerate(chosen.tolist()):
        samples[place], samples[other] = samples[other], samples[place]
    return np.array(samples, np.int64)


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
        samples = _permutation(data.size, seed + epoch) if self.shuffle else np.arange(data.size)
        share = data.size // ranks if self.drop_last else -(-data.size // ranks)
        return dealt(np.resize(samples, (share, ranks)).T, readers)
