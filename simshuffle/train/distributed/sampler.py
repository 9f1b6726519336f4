"""The sampler of a DataLoader: what this rank trains on in the epoch that is scheduled, in
order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from simshuffle.errors import InputError, Problem


class ShardSampler(Sampler[int]):
    """Sample numbers, in the order in which this rank trains on them. The scheduler sets it anew
    for every epoch.

    Its length is the same on all ranks and in all epochs: N/M, rounded up, or down with
    ``drop_last``. A rank with a smaller shard repeats its first samples, as torch's
    DistributedSampler does.

    Attributes:
        order: (n,) of the epoch that is scheduled; empty before the first.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self.order: NDArray[np.integer] = np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Samples of an epoch."""
        return self._length

    def __iter__(self) -> Iterator[int]:
        """The numbers.

        Raises:
            InputError: no epoch is scheduled.
        """
        if len(self.order) != self._length:
            raise InputError(
                Problem(
                    "sampler", "has no order yet", "", "Call scheduler.scheduling(epoch) first."
                ),
                "scheduler",
            )
        return iter(self.order.tolist())
