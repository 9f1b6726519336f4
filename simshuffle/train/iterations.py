"""Epochs and their iterations, on emulated and real ranks: samples, exchange, learning rate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simshuffle.spec.arrays import Ints
from simshuffle.train.training import Training
from simshuffle.workload.exchange import RankPlaces, Shards, Strategy
from simshuffle.workload.exchange.epochs import Epochs, batch_sizes, epoch_samples, samples_per_rank
from simshuffle.workload.exchange.recording import RecordedPlans


class Shuffled(Epochs):
    """Who has which sample in a training, epoch after epoch: `Epochs`.

    Args:
        strategy: which rank trains on what, and what is exchanged.
        training: local batches.
        num_samples: N.
        world_size: M.
        seed: of all that is drawn.
        places: where the ranks are, for strategies with partners of the same host, leaf switch or
            rack.

    Raises:
        InputError: as of `local_batches`.
    """

    def __init__(
        self,
        strategy: Strategy,
        training: Training,
        num_samples: int,
        world_size: int,
        seed: int,
        places: RankPlaces | None,
    ) -> None:
        b, drop_last = training.local_batch_size, training.drop_last
        super().__init__(
            strategy, num_samples, world_size, b, seed, drop_last=drop_last, places=places
        )
        self.training = training

    def learning_rate(self, epoch: int, iteration: int) -> float:
        """The learning rate of an iteration (from 0) of an epoch (from 1): that of its middle, so
        that neither a warm-up begins nor a decay ends with 0."""
        progress = epoch - 1 + (iteration + 0.5) / len(self.batch_sizes)
        return self.training.learning_rate_at(progress, self.world_size)


def planned(
    strategy: Strategy,
    *,
    num_samples: int,
    world_size: int,
    batch_size: int,
    epochs: int,
    seed: int = 0,
) -> RecordedPlans:
    """The exchange of a training with random shards, without the training. Raises InputError if the
    strategy needs importance or places, which only a training or a machine knows."""
    training = Training(local_batch_size=batch_size)
    run = Shuffled(strategy, training, num_samples, world_size, seed, None)
    run.owner = first = strategy.first_owner(num_samples, world_size, run.rng("partition"))
    plans = []
    for _ in range(epochs):
        plans.append(run.next_plan(run.next_shards(), None))
        run.finish_epoch(plans[-1])
    return RecordedPlans(first, plans)


def local_batches(num_samples: int, world_size: int, training: Training) -> list[int]:
    """Local batch size of each of the iterations of an epoch: as `batch_sizes`."""
    b, drop_last = training.local_batch_size, training.drop_last
    return batch_sizes(num_samples, world_size, b, drop_last=drop_last)


def large_batch_warning(num_samples: int, world_size: int, training: Training) -> str:
    """What is said of a local batch that is larger than the shard of a rank; '' of others."""
    n = samples_per_rank(num_samples, world_size, drop_last=training.drop_last)
    b = training.local_batch_size
    if b <= n:
        return ""
    return (
        f"The local batch size {b} is larger than the {n} sample{'s' if n > 1 else ''} of a rank"
        f" ({num_samples} samples, {world_size} ranks): every epoch is one iteration with local"
        f" batches of {n}. Use a smaller one, or fewer ranks."
    )


def pass_batches(shards: Shards, sizes: Sequence[int]) -> list[Ints]:
    """The local batches of a pass over whole shards in their order, each (n, M) sample numbers: of
    these ``sizes``, as in the epoch that follows. What ``drop_last`` leaves out there is in the
    last one; ranks with fewer samples repeat their first ones."""
    return np.split(epoch_samples(shards, drop_last=False), np.cumsum(sizes)[:-1])
