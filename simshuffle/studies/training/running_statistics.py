"""What batch-norm statistics rest on: how many samples a rank's running statistics remember, by
iteration or epoch by epoch, of a training that was done or of one that is only planned. Pure numpy;
nothing is trained.

Running statistics keep 1 - m of themselves in every iteration and take m of the batch's (PyTorch's
``momentum``, 0.1). So in the end sample i has the weight

    w_i = sum of m (1 - m)^(T - t) / b over the batches t, of T, in which the rank had it

and they rest on n = (sum w)^2 / sum w^2 samples (L. Kish, Survey Sampling, 1965). Two of the three
counts of n here are of that, one is older and coarser:

- `number_by_iteration` counts batches: what the running statistics really weigh;
- `Forgetting` is its expectation in closed form, for strategies that keep all or nothing;
- `effective_number` counts whole epochs, as if all samples of one weighed alike. The column
  ``effective_samples`` of trainings is this one. It is S of a shard that never changes, however
  large; the first is at most b (2 - m)/m, 152 for b = 8 and m = 0.1.

Both say the same of 1/n - 1/n of global shuffle where a shard is kept or drawn anew, in
expectation and for whole batches: they differ in what an epoch's own samples contribute, which is
the same under every strategy. So a curve of accuracy that was fitted to that difference by one
holds for the other. Where samples are exchanged at random they differ a little: the first of an
epoch's order go, so that those that stay were trained on late, and weigh more. At Q = 0.5 that
makes the difference a tenth larger.
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

FORGOTTEN = 1e-6
"""Shares of running statistics that are smaller than this part of a new one's are left out."""


# ------------------------------------------------------------------------------- epoch by epoch


def epoch_kept(momentum: float, iterations: int) -> float:
    """What running statistics keep over an epoch: each iteration leaves 1 - ``momentum`` of it."""
    return (1.0 - momentum) ** iterations


def epochs_remembered(kept: float) -> int:
    """How many of the last epochs have at least `FORGOTTEN` of a new one's share in running
    statistics that keep ``kept`` over an epoch; at least one."""
    forgets = -math.log(kept) if kept > 0.0 else math.inf
    return 1 + math.floor(-math.log(FORGOTTEN) / max(forgets, 1e-300))


def effective_number(of: Sequence[Ints], world_size: int, kept: float) -> float:
    """The number of samples that the running statistics of a rank rest on, mean over ranks, where
    all samples of an epoch weigh alike.

    Running statistics forget: an epoch's share in them shrinks to ``kept`` of it in the next. So
    sample i has the weight w_i, the sum of ``kept`` to the power of the epochs that have gone since
    each one in which the rank held it. The number is (sum w)^2 / sum w^2 (Kish, Survey Sampling,
    1965): that of a shard if it never changes, more if others come.

    ``of`` is the rank of each sample, (N,), in every epoch that counts, the last one at the end; -1
    where none had it. ``kept`` is `epoch_kept`, from 0, where only the last epoch counts, to 1.
    """
    samples = len(of[0])
    # weights by (rank, sample), of which few are not 0: a row for each epoch in which a rank held a
    # sample, then one for each pair
    places = np.concatenate([owner.astype(np.int64) * samples + np.arange(samples) for owner in of])
    weights = np.repeat(kept ** np.arange(len(of) - 1, -1, -1.0), samples)
    found = _numbers(places[places >= 0], weights[places >= 0], samples, world_size)
    return float(np.mean(found))


def _numbers(places: Ints, weights: Floats, samples: int, world_size: int) -> Floats:
    """(sum w)^2 / sum w^2 of each rank that has any sample; a place is its rank times ``samples``,
    and the sample."""
    pairs, which = np.unique(places, return_inverse=True)
    weight = np.bincount(which, weights)
    rank = pairs // samples
    total, squares = np.bincount(rank, weight, world_size), np.bincount(rank, weight**2, world_size)
    held = total > 0
    numbers: Floats = total[held] ** 2 / squares[held]
    return numbers


# --------------------------------------------------------------------------------- by iteration


def number_by_iteration(trained: Sequence[Ints], batch_size: int, momentum: float) -> Floats:
    """How many samples the running statistics of each rank rest on after the last of these epochs,
    each batch weighed as they weigh it: (M,), or fewer where ranks have none.

    Args:
        trained: for each epoch (n, M) numbers of the samples that each of M ranks trains on, in
            order, as `Epochs.trained` gives them; -1 for none. Any ranks do, such as some of many.
        batch_size: b; the last batch of an epoch may be smaller.
        momentum: m, above 0 to 1.
    """
    kept, pieces = 1.0, []
    for rows in reversed(trained):
        for begin in range((len(rows) - 1) // batch_size * batch_size, -1, -batch_size):
            if kept < FORGOTTEN:
                break
            batch = rows[begin : begin + batch_size]
            size = np.maximum((batch >= 0).sum(axis=0), 1)
            pieces.append((batch, np.broadcast_to(momentum * kept / size, batch.shape)))
            kept *= 1.0 - momentum
    sample, weight = (np.concatenate(of) for of in zip(*pieces, strict=True))
    world_size, samples = sample.shape[1], int(sample.max()) + 1
    places = np.arange(world_size, dtype=np.int64) * samples + sample
    there = sample >= 0
    return _numbers(places[there], weight[there], samples, world_size)


@dataclass(frozen=True)
class Forgetting:
    """What the running statistics of a rank remember after so many epochs, of which each trains on
    the same number of samples S, each once, in a random order of its own."""

    batches: Sequence[int]  # samples of each batch of an epoch, as `batch_sizes` gives them
    momentum: float  # m, above 0 to 1
    epochs: int  # at least 1

    @property
    def samples(self) -> int:
        """S."""
        return sum(self.batches)

    @property
    def kept(self) -> float:
        """a, what is kept over an epoch."""
        return epoch_kept(self.momentum, len(self.batches))

    @cached_property
    def _total(self) -> float:
        """Sum of the weights of all epochs, of which the last one's is 1 - a."""
        return 1.0 - self.kept**self.epochs

    @cached_property
    def fresh(self) -> float:
        """1/n if no sample ever came again: sum over all batches of weight^2 / size. For whole
        batches and many epochs it is m/(b (2 - m))."""
        size = np.array(self.batches[::-1], np.float64)
        last = float(np.sum((self.momentum * self._powers(len(size))) ** 2 / size))
        epochs = float(np.sum(self.kept ** (2.0 * np.arange(self.epochs))))
        return last * epochs / self._total**2

    @cached_property
    def repeats(self) -> float:
        """What a shard that never changes adds to 1/n: each of its samples is there once an epoch,
        at a place of its own, so that two epochs d and e share sum w w = W_d W_e / S, W being the
        weight of all of an epoch. For many epochs it is 2 a/((1 + a) S)."""
        whole = (1.0 - self.kept) * self.kept ** np.arange(float(self.epochs))
        both = float(whole.sum() ** 2 - (whole**2).sum())
        return both / self.samples / self._total**2

    def _powers(self, count: int) -> Floats:
        return np.asarray((1.0 - self.momentum) ** np.arange(float(count)))

    def number(self, stays: float) -> float:
        """n where a sample of an epoch is with its rank again in any other one with the probability
        ``stays``: 1 of local shuffle, 1/M of global shuffle."""
        return 1.0 / (self.fresh + stays * self.repeats)

    def pooled(self, number: float, ranks: int, world_size: int) -> float:
        """n of the statistics of several ranks together, as of the mean of theirs or of batches
        that they normalise as one; ``number`` is that of each alone.

        1/n = (1/n_1 + (x - 1) y)/x for x ranks, y being what two of them share: of the samples that
        a rank no longer has, each of the M - 1 others has as many. All ranks together rest on what
        one rank with all samples and batches of M b would.
        """
        if world_size == 1:
            return number
        gone = max(self.repeats - (1.0 / number - self.fresh), 0.0)
        return ranks / (1.0 / number + (ranks - 1) * gone / (world_size - 1))


# ----------------------------------------------------------------- before a training is done

RETURNS = 0.01
"""What chance returns add to 1/n at most, over what it is, where fewer ranks are emulated."""
LEAST_RANKS, LEAST_SAMPLES, MOST_SAMPLES = 16, 1 << 15, 1 << 21
"""Ranks, and samples of all of them, that are emulated at least and, of samples, at most."""
FOLLOWED = 64
"""Ranks whose statistics are followed; n is their mean."""
NORMAL_90 = 1.6448536269514722
"""Of a normal distribution, 90 % lies within so many standard deviations."""


@dataclass(frozen=True)
class Rests:
    """On how many samples a rank's running statistics rest."""

    number: float  # n, mean over the ranks that were followed
    # low, high: the 90 % interval of n, from how much ranks differ
    low: float
    high: float
    forgetting: Forgetting  # of the rank
    ranks: int  # that were emulated; 0 where n is exact and none had to be
    epochs: int  # that were emulated


def rests_on(
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
) -> Rests:
    """On how many samples the running statistics of a rank rest after so many epochs of a training
    on random shards. Nothing is trained: the strategy alone deals samples.

    As many epochs are followed as are remembered, and no more than ``epochs``. None have to go by
    before: shards are as well mixed at first as ever, and of samples that came at one time as many
    go in an epoch as of the oldest later on. Where who sends to whom does not hang on how
    many ranks there are, fewer of them with as many samples each are emulated: so many that samples
    that come back by chance add no more than `RETURNS` of 1/n to what they would. Where it does (a
    loader's order, partners of the same host) all are.

    Importances are drawn from an exponential distribution in every epoch, as in the simulator.
    Real losses last from epoch to epoch, so that strategies that select by them rest on less.

    Args:
        strategy: which rank trains on what.
        num_samples: N.
        world_size: M.
        batch_size: b.
        momentum: m of the running statistics, above 0 to 1.
        epochs: of the training.
        drop_last: whether what fills no batch is left out.
        seed: of all that is drawn.
        places: where the ranks are, for strategies with partners of the same host, leaf or rack.

    Raises:
        InputError: as of `batch_sizes`, and of the strategy.
    """
    sizes = batch_sizes(num_samples, world_size, batch_size, drop_last=drop_last)
    of = Forgetting(sizes, momentum, epochs)
    remembered = min(epochs_remembered(of.kept), epochs)
    whole = strategy.fetches or strategy.needs_places
    if not strategy.fetches and not strategy.fraction:
        exact = of.number(1.0 / world_size if strategy.redraws else 1.0)
        return Rests(exact, exact, exact, of, 0, 0)
    ranks = world_size if whole else _ranks(of, world_size)
    samples = num_samples if ranks == world_size else round(num_samples / world_size * ranks)
    run = Epochs(strategy, samples, ranks, batch_size, seed, drop_last=drop_last, places=places)
    trained = _followed(run, remembered)
    numbers = number_by_iteration(trained, batch_size, momentum)
    mean = float(numbers.mean())
    error = float(numbers.std(ddof=1)) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0.0
    return Rests(mean, mean - NORMAL_90 * error, mean + NORMAL_90 * error, of, ranks, remembered)


def _ranks(of: Forgetting, world_size: int) -> int:
    """How many ranks are emulated of a strategy that does not hang on their number; even, as the
    exchange between pairs wants them."""
    a = of.kept
    chance = math.ceil(2.0 * a / max(1.0 - a, 1e-12) / RETURNS)
    wanted = max(LEAST_RANKS, min(chance, world_size), LEAST_SAMPLES // of.samples)
    most = max(LEAST_RANKS, MOST_SAMPLES // of.samples)
    found = min(wanted, most)
    return min(world_size, found + found % 2)


def _followed(run: Epochs, epochs: int) -> list[Ints]:
    """What the first ranks train on in so many epochs, as of `number_by_iteration`."""
    run.owner = run.strategy.first_owner(run.num_samples, run.world_size, run.rng("partition"))
    kept = []
    for epoch in range(1, epochs + 1):
        shards = run.next_shards()
        kept.append(np.ascontiguousarray(run.training_rows(shards)[:, :FOLLOWED]))
        importance = None
        if run.strategy.needs_importance:  # in place of a real one
            importance = run.rng("importance", epoch).exponential(size=run.num_samples)
        run.finish_epoch(run.next_plan(shards, importance))
    return kept
