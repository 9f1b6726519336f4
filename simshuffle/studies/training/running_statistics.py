"""Count the samples that the running statistics of batch norm rest on.

The count goes by iteration or epoch by epoch, for a training that was done or one that
is only planned. Pure numpy; nothing is trained.

Running statistics keep 1 - m of themselves in every iteration and take m of the batch's
(PyTorch's ``momentum``, 0.1). So in the end sample i has the weight

    w_i = sum of m (1 - m)^(T - t) / b over the batches t, of T, in which the rank had it

and they rest on n = (sum w)^2 / sum w^2 samples (L. Kish, Survey Sampling, 1965). Three
counts of n are here. Two follow this definition; the third is older and coarser:

- `number_by_iteration` counts batches: what the running statistics really weigh;
- `StatisticsMemory` is its expectation in closed form, for strategies that keep all or nothing;
- `effective_number` counts whole epochs, as if all samples of one weighed alike. The column
  ``effective_samples`` of trainings is this one. It is S of a shard that never changes, however
  large; the first is at most b (2 - m)/m, 152 for b = 8 and m = 0.1.

By iteration and by epoch, 1/n - 1/n of global shuffle is equal where a shard is kept or
drawn anew, in expectation and for whole batches: the counts differ in what an epoch's
own samples contribute, which is equal under every strategy. So a curve of accuracy that
was fitted to that difference by one count holds for the other. Where samples are
exchanged at random the counts differ a little: the first of an epoch's order go, so
that those that stay were trained on late, and weigh more. At Q = 0.5 that makes the
difference a tenth larger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simshuffle.spec.arrays import Floats, Ints
from simshuffle.workload.exchange import RankPlaces, Strategy
from simshuffle.workload.exchange.epochs import Epochs, batch_sizes

SMALLEST_SHARE = 1e-6
"""Shares of running statistics that are smaller than this part of a new one's are left
out.
"""


# ------------------------------------------------------------------------------- epoch by epoch


def share_after_epoch(momentum: float, iterations: int) -> float:
    """Return the share of running statistics that is left after an epoch.

    Each iteration leaves 1 - ``momentum`` of it.
    """
    return (1.0 - momentum) ** iterations


def count_remembered_epochs(retained_share: float) -> int:
    """Return how many of the last epochs running statistics still remember, at least
    one.

    An epoch is remembered while it has at least `SMALLEST_SHARE` of a new epoch's
    share, where running statistics keep ``retained_share`` over an epoch. It is 1 for a
    share of 0, and more than 1e300 for a share of 1: limit it to the epochs there are.
    """
    forgetting_rate = -math.log(retained_share) if retained_share > 0.0 else math.inf
    return 1 + math.floor(-math.log(SMALLEST_SHARE) / max(forgetting_rate, 1e-300))


def effective_number(
    owners: Sequence[Ints], world_size: int, retained_share: float
) -> float:
    """Return the number of samples that a rank's running statistics rest on, by whole
    epochs.

    It is the mean over the ranks that held a sample in an epoch that counts; NaN if no
    rank did. All samples of an epoch weigh alike.

    Running statistics forget: an epoch's share in them shrinks to ``retained_share`` of
    it in the next. So sample i has the weight w_i, the sum of ``retained_share`` to the
    power of the epochs that have gone since each one in which the rank held it. The
    number is (sum w)^2 / sum w^2 (Kish, Survey Sampling, 1965): that of a shard if it
    never changes, more if others come.

    Args:
        owners: the rank of each sample, (N,), in each of at least one epoch, the last
            one at the end; -1 where no rank had it.
        world_size: M.
        retained_share: `share_after_epoch`, from 0, where only the last epoch counts,
            to 1.
    """
    samples = len(owners[0])
    # weights by (rank, sample), of which few are not 0: a row for each epoch in which a rank held a
    # sample, then one for each pair
    # entries (epochs x N,): rank N + sample, negative where no rank had the sample
    pairs = np.concatenate(
        [owner.astype(np.int64) * samples + np.arange(samples) for owner in owners]
    )
    weights = np.repeat(retained_share ** np.arange(len(owners) - 1, -1, -1.0), samples)
    numbers = _effective_numbers(
        pairs[pairs >= 0], weights[pairs >= 0], samples, world_size
    )
    return float(np.mean(numbers))


def _effective_numbers(
    pairs: Ints, weights: Floats, samples: int, world_size: int
) -> Floats:
    """Return (sum w)^2 / sum w^2 of each rank that has any weight, in order of rank.

    Ranks whose weights are all 0, or that have no pair, are left out, so that the
    array may be shorter than M.

    Args:
        pairs: rank times ``samples`` plus sample, for each of ``weights``; pairs may
            repeat, and their weights add up.
        weights: the weight of each entry of ``pairs``.
        samples: N, the number of distinct samples.
        world_size: M.
    """
    # w of each distinct (rank, sample)
    distinct_pairs, pair_index = np.unique(pairs, return_inverse=True)
    weight = np.bincount(pair_index, weights)

    # (M,): sum w and sum w^2 of each rank
    rank = distinct_pairs // samples
    total = np.bincount(rank, weight, world_size)
    squares = np.bincount(rank, weight**2, world_size)
    holds_samples = total > 0
    numbers: Floats = total[holds_samples] ** 2 / squares[holds_samples]
    return numbers


# --------------------------------------------------------------------------------- by iteration


def number_by_iteration(
    training_rows: Sequence[Ints], batch_size: int, momentum: float
) -> Floats:
    """Return the number of samples behind each rank's running statistics, (ranks,).

    Each batch counts as much as the statistics remember of it after the last of these
    epochs; of batches that are forgotten (`SMALLEST_SHARE`) nothing counts. Ranks
    without a sample in the batches that count are left out, so that the array may be
    shorter than M.

    Args:
        training_rows: for each of at least one epoch (n, M) numbers of the samples that
            each of M ranks trains on, in order, as `Epochs.training_rows` gives them;
            -1 for none. Any ranks do, such as some of many.
        batch_size: b; the last batch of an epoch may be smaller.
        momentum: m, above 0 to 1.
    """
    retained_share = 1.0
    batches = []
    weights = []
    for epoch_rows in reversed(training_rows):
        # batches from the last one of the epoch to the first
        for begin in range(
            (len(epoch_rows) - 1) // batch_size * batch_size, -1, -batch_size
        ):
            if retained_share < SMALLEST_SHARE:
                break
            batch = epoch_rows[begin : begin + batch_size]
            size = np.maximum((batch >= 0).sum(axis=0), 1)
            batches.append(batch)
            weights.append(
                np.broadcast_to(momentum * retained_share / size, batch.shape)
            )
            retained_share *= 1.0 - momentum

    # (samples of all batches, M): a sample and its weight m (1 - m)^(T - t) / b
    sample = np.concatenate(batches)
    weight = np.concatenate(weights)
    world_size = sample.shape[1]
    samples = int(sample.max()) + 1
    pairs = np.arange(world_size, dtype=np.int64) * samples + sample
    is_sample = sample >= 0
    return _effective_numbers(pairs[is_sample], weight[is_sample], samples, world_size)


@dataclass(frozen=True)
class StatisticsMemory:
    """The memory of a rank's running statistics after so many epochs, in closed form.

    Each epoch trains on an equal number of samples S, each once, in a random order of
    its own.
    """

    # samples of each batch of an epoch, as `batch_sizes` gives them
    batches: Sequence[int]
    momentum: float  # m, above 0 to 1
    epochs: int  # epochs of the training, at least 1

    @property
    def samples(self) -> int:
        """S, the number of samples that a rank trains on in an epoch."""
        return sum(self.batches)

    @property
    def retained_share(self) -> float:
        """a, the share of the statistics that is left after an epoch."""
        return share_after_epoch(self.momentum, len(self.batches))

    @cached_property
    def _total_weight(self) -> float:
        """The sum of the weights of all epochs, of which the last one's is 1 - a."""
        return 1.0 - self.retained_share**self.epochs

    @cached_property
    def inverse_without_repeats(self) -> float:
        """1/n if no sample ever came again: the sum over all batches of weight^2 /
        size, the weights of all batches being scaled to sum to 1.

        For whole batches and many epochs it is m/(b (2 - m)).
        """
        # (batches,) from the last of an epoch to the first: sizes, and weights m (1 - m)^t
        batch_samples = np.array(self.batches[::-1], np.float64)
        batch_weights = self.momentum * self._powers(len(batch_samples))
        last_epoch = float(np.sum(batch_weights**2 / batch_samples))
        epochs = float(np.sum(self.retained_share ** (2.0 * np.arange(self.epochs))))
        return last_epoch * epochs / self._total_weight**2

    @cached_property
    def inverse_of_repeats(self) -> float:
        """The amount that a shard that never changes adds to 1/n.

        Each of its samples is there once an epoch, at a place of its own, so that two
        epochs d and e share sum w w = W_d W_e / S, W being the weight of all of an
        epoch, scaled to sum to 1 over all epochs. For many epochs it is
        2 a/((1 + a) S).
        """
        powers = self.retained_share ** np.arange(float(self.epochs))
        epoch_weights = (1.0 - self.retained_share) * powers
        # the sum of W_d W_e over all pairs of two different epochs
        products = float(epoch_weights.sum() ** 2 - (epoch_weights**2).sum())
        return products / self.samples / self._total_weight**2

    def _powers(self, count: int) -> Floats:
        """Return (1 - m)^t for t from 0 to ``count`` - 1: (count,)."""
        return np.asarray((1.0 - self.momentum) ** np.arange(float(count)))

    def number_from_returns(self, return_probability: float) -> float:
        """Return n where samples come back to their rank with a probability.

        ``return_probability`` is that of a sample of an epoch to be with its rank again
        in any other epoch: 1 of local shuffle, 1/M of global shuffle.
        """
        return 1.0 / (
            self.inverse_without_repeats + return_probability * self.inverse_of_repeats
        )

    def pool_ranks(self, number: float, ranks: int, world_size: int) -> float:
        """Return n of the statistics of ``ranks`` ranks together; each alone rests on
        ``number``.

        The result is ``number`` itself where the world has one rank. Where ``number``
        is not above that of local shuffle, ranks share nothing.

        Together means the mean of their statistics, or batches that they normalise as
        one.

        1/n = (1/n_1 + (x - 1) y)/x for x ranks, y being what two of them share: of the
        samples that a rank no longer has, each of the M - 1 others has as many. All
        ranks together rest on what one rank with all samples and batches of M b would.
        """
        if world_size == 1:
            return number
        absent_overlap = max(
            self.inverse_of_repeats - (1.0 / number - self.inverse_without_repeats), 0.0
        )
        return ranks / (1.0 / number + (ranks - 1) * absent_overlap / (world_size - 1))


# ----------------------------------------------------------------- before a training is done

MAX_CHANCE_RETURNS = 0.01
"""Most that samples that come back by chance may add to 1/n, as a share of 1/n, where
fewer ranks are emulated.
"""
MIN_EMULATED_RANKS = 16
MIN_EMULATED_SAMPLES = 1 << 15
MAX_EMULATED_SAMPLES = 1 << 21
"""Least ranks, least samples and most samples (of all ranks together) that are
emulated.
"""
MAX_FOLLOWED_RANKS = 64
"""Most ranks whose statistics are followed; n is the mean over these ranks."""
NORMAL_90 = 1.6448536269514722
"""Standard deviations from the mean within which 90 % of a normal distribution lies."""


@dataclass(frozen=True)
class EffectiveSamples:
    """The number of samples that a rank's running statistics rest on, with its
    interval.
    """

    number: float  # n, mean over the ranks that were followed
    # low, high: the 90 % interval of this mean, from how much ranks differ; both are
    # ``number`` where n is exact or only one rank was followed
    low: float
    high: float
    # memory of the rank's statistics in closed form, for all ranks and epochs asked for
    memory: StatisticsMemory
    ranks: int  # ranks that were emulated; 0 where n is exact
    epochs: int  # epochs that were emulated; 0 where n is exact


def estimate_effective_samples(
    strategy: Strategy,
    num_samples: int,
    world_size: int,
    batch_size: int,
    *,
    momentum: float = 0.1,
    epochs: int = 90,
    drop_last: bool = False,
    seed: int = 0,
    places: RankPlaces | None = None,
) -> EffectiveSamples:
    """Estimate the number of samples that a rank's running statistics rest on after a
    training.

    The training is on random shards. Nothing is trained: the strategy alone deals
    samples.

    As many epochs are followed as are remembered, and no more than ``epochs``. None
    have to go by before: shards are as well mixed at first as ever, and of samples that
    came at one time as many go in an epoch as of the oldest later on.

    If who sends to whom does not depend on the number of ranks, fewer ranks are
    emulated, each with as many samples as before. They are so many that samples that
    come back by chance add at most `MAX_CHANCE_RETURNS` of 1/n. `MAX_EMULATED_SAMPLES`
    goes before this rule: with large shards chance may add more. If it depends on the
    ranks (a loader's order, partners of the same host), all ranks are emulated.

    Local shuffle and global shuffle, which keep all samples or draw all anew, get their
    exact n in closed form, without draws; ``ranks`` and ``epochs`` are 0 then.

    Importances are drawn from an exponential distribution in every epoch, as in the
    simulator. Real losses last from epoch to epoch, so that strategies that select by
    them rest on less.

    Args:
        strategy: decides which rank trains on which samples.
        num_samples, world_size, batch_size: N, M and b.
        momentum: m of the running statistics, above 0 to 1.
        epochs: of the training.
        drop_last: whether samples that fill no batch are left out.
        seed: of all that is drawn.
        places: hosts, leaves and racks of the ranks, for strategies with close
            partners.

    Raises:
        InputError: raised by `batch_sizes` or by the strategy.
    """
    sizes = batch_sizes(num_samples, world_size, batch_size, drop_last=drop_last)
    memory = StatisticsMemory(sizes, momentum, epochs)
    if not strategy.fetches and not strategy.fraction:
        exact = memory.number_from_returns(
            1.0 / world_size if strategy.redraws else 1.0
        )
        return EffectiveSamples(exact, exact, exact, memory, 0, 0)

    ranks = world_size
    if not strategy.fetches and not strategy.needs_places:
        ranks = _count_emulated_ranks(memory, world_size)
    samples = (
        num_samples if ranks == world_size else round(num_samples / world_size * ranks)
    )
    emulated_epochs = Epochs(
        strategy, samples, ranks, batch_size, seed, drop_last=drop_last, places=places
    )
    remembered = min(count_remembered_epochs(memory.retained_share), epochs)
    training_rows = _emulate_training_rows(emulated_epochs, remembered)

    numbers = number_by_iteration(training_rows, batch_size, momentum)
    mean = float(numbers.mean())
    half_width = NORMAL_90 * _standard_error(numbers)
    return EffectiveSamples(
        mean, mean - half_width, mean + half_width, memory, ranks, remembered
    )


def _standard_error(numbers: Floats) -> float:
    """Return the standard error of the mean of ``numbers``; 0 of a single one."""
    if len(numbers) < 2:
        return 0.0
    return float(numbers.std(ddof=1)) / math.sqrt(len(numbers))


def _count_emulated_ranks(memory: StatisticsMemory, world_size: int) -> int:
    """Return how many ranks are emulated of a strategy that does not depend on their
    number.

    The number is even, as the exchange between pairs needs it, or all of
    ``world_size``. `MIN_EMULATED_RANKS` goes before `MAX_EMULATED_SAMPLES`, and that
    before `MAX_CHANCE_RETURNS`.
    """
    # ranks beyond which chance returns, 1/M of a shard, add at most MAX_CHANCE_RETURNS of 1/n
    retained_share = memory.retained_share
    chance_ranks = math.ceil(
        2.0 * retained_share / max(1.0 - retained_share, 1e-12) / MAX_CHANCE_RETURNS
    )
    preferred_ranks = max(
        MIN_EMULATED_RANKS,
        min(chance_ranks, world_size),
        MIN_EMULATED_SAMPLES // memory.samples,
    )
    max_ranks = max(MIN_EMULATED_RANKS, MAX_EMULATED_SAMPLES // memory.samples)
    ranks = min(preferred_ranks, max_ranks)
    return min(world_size, ranks + ranks % 2)


def _emulate_training_rows(emulated_epochs: Epochs, epochs: int) -> list[Ints]:
    """Return the samples that the first ranks train on in each epoch, for
    `number_by_iteration`.

    Each array is (n, ranks) with at most `MAX_FOLLOWED_RANKS` ranks. The first owners
    of ``emulated_epochs`` are drawn, and its epochs are finished one after another:
    it is changed in place. Strategies that need importances get drawn ones.
    """
    emulated_epochs.owner = emulated_epochs.strategy.first_owner(
        emulated_epochs.num_samples,
        emulated_epochs.world_size,
        emulated_epochs.rng("partition"),
    )
    training_rows = []
    for epoch in range(1, epochs + 1):
        shards = emulated_epochs.next_shards()
        rows = emulated_epochs.training_rows(shards)[:, :MAX_FOLLOWED_RANKS]
        training_rows.append(np.ascontiguousarray(rows))
        importance = None
        if emulated_epochs.strategy.needs_importance:  # in place of a real one
            importance = emulated_epochs.rng("importance", epoch).exponential(
                size=emulated_epochs.num_samples
            )
        emulated_epochs.finish_epoch(emulated_epochs.next_plan(shards, importance))
    return training_rows
