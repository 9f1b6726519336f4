"""Epochs and their iterations, on emulated and real ranks: samples, exchange, learning rate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simshuffle.errors import refuse
from simshuffle.exchange import (
    EpochContext,
    ExchangePlan,
    Places,
    Shards,
    ShardsContext,
    Strategy,
)
from simshuffle.exchange.recording import RecordedPlans
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.spec.rng import stream
from simshuffle.train.training import Training


class Shuffled:
    """Who has which sample, epoch after epoch.

    Args:
        strategy: which rank trains on what, and what is exchanged.
        training: local batches.
        num_samples: N.
        world_size: M.
        seed: of all that is drawn.
        places: where the ranks are, for strategies with partners of the same host, leaf switch or
            rack.

    Attributes:
        num_samples: N.
        batch_sizes: of the iterations of an epoch.
        owner: the rank of each sample before the next epoch, (N,); to be set before the first.
        held: epochs that each sample has been with it by then, (N,); None where nobody asks.
        epochs_done: epochs.

    Raises:
        InputError: as of `local_batches`.
    """

    owner: Ints

    def __init__(
        self,
        strategy: Strategy,
        training: Training,
        num_samples: int,
        world_size: int,
        seed: int,
        places: Places | None,
    ) -> None:
        self.strategy, self.training, self.world_size = strategy, training, world_size
        self.num_samples, self.seed, self.places = num_samples, seed, places
        self.batch_sizes = local_batches(num_samples, world_size, training)
        self.held = strategy.first_held(num_samples)
        self.epochs_done = 0

    def rng(self, name: str, *numbers: int) -> np.random.Generator:
        """The random stream of that name, as `simshuffle.train.run.Run.rng`."""
        return stream(self.seed, name, *numbers)

    def learning_rate(self, epoch: int, iteration: int) -> float:
        """The learning rate of an iteration (from 0) of an epoch (from 1): that of its middle, so
        that neither a warm-up begins nor a decay ends with 0."""
        progress = epoch - 1 + (iteration + 0.5) / len(self.batch_sizes)
        return self.training.learning_rate_at(progress, self.world_size)

    def shards_context(self) -> ShardsContext:
        """What decides who trains on what in the coming epoch."""
        epoch = self.epochs_done + 1
        return ShardsContext(
            self.owner,
            self.world_size,
            epoch,
            self.rng("shuffle", epoch),
            self.seed,
            self.training.local_batch_size,
            ranks_per_host=None if self.places is None else self.places.ranks_per_host,
        )

    def next_shards(self) -> Shards:
        """Who trains on what in the coming epoch."""
        return self.strategy.epoch_shards(self.shards_context())

    def next_plan(self, shards: Shards, importance: Floats | None) -> ExchangePlan:
        """What is exchanged after the coming epoch."""
        epoch = self.epochs_done + 1
        return self.strategy.plan(
            EpochContext(
                shards,
                batch_size=self.training.local_batch_size,
                iterations=len(self.batch_sizes),
                epoch=epoch,
                rng=self.rng("exchange", epoch),
                importance=importance,
                places=self.places,
                held=self.held,
            )
        )

    def exchanged(self, plan: ExchangePlan) -> None:
        """The epoch is done, and samples are where its ``plan`` says."""
        self.owner, self.held = plan.apply(self.owner), plan.held_after(self.held)
        self.epochs_done += 1


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
        run.exchanged(plans[-1])
    return RecordedPlans(first, plans)


def samples_per_rank(num_samples: int, world_size: int, *, drop_last: bool) -> int:
    """n, the samples of a rank in an epoch: N/M, rounded down if ``drop_last``, else up."""
    return num_samples // world_size if drop_last else -(-num_samples // world_size)


def local_batches(num_samples: int, world_size: int, training: Training) -> list[int]:
    """Local batch size of each of the I iterations of an epoch: b, but the last may be smaller
    (unless ``drop_last``). Raises InputError if a rank has no sample, or none fills a batch."""
    if world_size > num_samples:
        rule = f"must not be more than the {num_samples} samples of the data set"
        refuse("world_size", rule, str(world_size), "Use fewer ranks or more data.", "training")
    n = samples_per_rank(num_samples, world_size, drop_last=training.drop_last)
    b = training.local_batch_size
    whole, rest = divmod(n, b)
    sizes = [b] * whole + ([rest] if rest and not training.drop_last else [])
    if not sizes:
        rule = f"with drop_last, must not be more than the {n} samples that a rank has"
        remedy = "Use a smaller one, or drop_last: false."
        refuse("training.local_batch_size", rule, str(b), remedy, "training")
    return sizes


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


def epoch_samples(shards: Shards, *, drop_last: bool) -> Ints:
    """Who trains on what, in order: (n, M) sample numbers. Smaller shards repeat their first
    ones."""
    n = samples_per_rank(len(shards.order), len(shards.sizes), drop_last=drop_last)
    place = np.arange(n)[:, None] % np.maximum(shards.sizes, 1)[None, :]
    return np.asarray(shards.order[shards.start[:-1][None, :] + place])


def pass_batches(shards: Shards, sizes: Sequence[int]) -> list[Ints]:
    """The local batches of a pass over whole shards in their order, each (n, M) sample numbers: of
    these ``sizes``, as in the epoch that follows. What ``drop_last`` leaves out there is in the
    last one; ranks with fewer samples repeat their first ones."""
    return np.split(epoch_samples(shards, drop_last=False), np.cumsum(sizes)[:-1])
