"""Epochs and their iterations, on emulated and real ranks: samples, exchange, learning
rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simshuffle.spec.arrays import Ints
from simshuffle.train.training import Training
from simshuffle.workload.exchange import RankPlaces, Shards, Strategy
from simshuffle.workload.exchange.epochs import (
    Epochs,
    batch_sizes,
    epoch_samples,
    samples_per_rank,
)


class TrainingEpochs(Epochs):
    """The epochs of a training: `Epochs`, with its local batches and learning rate.

    Args:
        strategy: which rank trains on which samples, and which are exchanged.
        training: local batches.
        num_samples: N.
        world_size: M.
        seed: of all that is drawn.
        places: host, leaf switch and rack of the ranks, for strategies with partners of
            the same one.

    Raises:
        InputError: there are more ranks than samples; or with ``drop_last`` a rank has
            too few samples to fill a batch.
    """

    def __init__(
        self,
        strategy: Strategy,
        training: Training,
        num_samples: int,
        world_size: int,
        *,
        seed: int,
        places: RankPlaces | None,
    ) -> None:
        super().__init__(
            strategy,
            num_samples,
            world_size,
            training.local_batch_size,
            seed,
            drop_last=training.drop_last,
            places=places,
        )
        self.training = training

    def learning_rate(self, epoch: int, iteration: int) -> float:
        """Return the learning rate of an iteration (from 0) of an epoch (from 1).

        It is that of the iteration's middle, so that neither a warm-up begins nor a
        decay ends with 0.
        """
        # epochs from the beginning to the middle of the iteration
        progress = epoch - 1 + (iteration + 0.5) / len(self.batch_sizes)
        return self.training.learning_rate_at(progress, self.world_size)


def local_batches(num_samples: int, world_size: int, training: Training) -> list[int]:
    """Return the local batch size of each iteration of an epoch: all equal, but the
    last may be smaller unless ``training.drop_last``.

    Raises:
        InputError: as of `TrainingEpochs`.
    """
    return batch_sizes(
        num_samples, world_size, training.local_batch_size, drop_last=training.drop_last
    )


def large_batch_message(num_samples: int, world_size: int, training: Training) -> str:
    """Return the text of a warning of a local batch that is larger than a rank's shard;
    '' if it is not.
    """
    shard_size = samples_per_rank(num_samples, world_size, drop_last=training.drop_last)
    batch_size = training.local_batch_size
    if batch_size <= shard_size:
        return ""
    return (
        f"The local batch size {batch_size} is larger than the {shard_size}"
        f" sample{'s' if shard_size > 1 else ''} of a rank ({num_samples} samples,"
        f" {world_size} ranks): every epoch is one iteration with local batches of {shard_size}."
        " Use a smaller local batch size, or fewer ranks."
    )


def pass_batches(shards: Shards, sizes: Sequence[int]) -> list[Ints]:
    """Return the local batches of a pass over whole shards, each (n, M) sample indices.

    They have these ``sizes``, as in the epoch that follows. Samples that ``drop_last``
    leaves out there are in the last batch; ranks with fewer samples repeat their first
    ones.
    """
    return np.split(epoch_samples(shards, drop_last=False), np.cumsum(sizes)[:-1])
