"""How well an exchange mixes, from the plans alone: on how many samples a rank's statistics rest,
and who stays together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simshuffle.exchange import EpochContext, ShardsContext, Strategy
from simshuffle.exchange.recording import RecordedPlans
from simshuffle.spec.rng import stream

Ints = NDArray[np.integer]
FORGOTTEN = 1e-6
"""Shares of running statistics that are smaller than this part of a new epoch's are left out."""


def planned(
    strategy: Strategy,
    *,
    num_samples: int,
    world_size: int,
    batch_size: int,
    epochs: int,
    seed: int = 0,
) -> RecordedPlans:
    """The exchange of a training with random shards, without the training.

    Args:
        strategy: that needs neither importance nor places.
        num_samples: N.
        world_size: M.
        batch_size: b, samples of a rank in an iteration.
        epochs: of the training.
        seed: of the shards and of the exchange.

    Raises:
        InputError: the strategy needs what only a training or a machine knows.
    """
    owner = first = strategy.first_owner(num_samples, world_size, stream(seed, "partition"))
    held, plans = strategy.first_held(num_samples), []
    for epoch in range(1, epochs + 1):
        context = EpochContext(
            strategy.epoch_shards(
                ShardsContext(
                    owner, world_size, epoch, stream(seed, "shuffle", epoch), seed, batch_size
                )
            ),
            batch_size=batch_size,
            iterations=-(-num_samples // world_size // batch_size),
            epoch=epoch,
            rng=stream(seed, "exchange", epoch),
            held=held,
        )
        plans.append(strategy.plan(context))
        owner, held = plans[-1].apply(owner), plans[-1].held_after(held)
    return RecordedPlans(first, plans)


def owners(recorded: RecordedPlans) -> list[Ints]:
    """The rank of each sample in every epoch, and after the last one: (N,) each."""
    out: list[Ints] = [np.asarray(recorded.owner)]
    for plan in recorded.plans:
        out.append(plan.apply(out[-1]))
    return out


def epoch_kept(momentum: float, iterations: int) -> float:
    """What running statistics keep, over an epoch, of what they were before: each iteration leaves
    1 - ``momentum`` of it."""
    return (1.0 - momentum) ** iterations


def epochs_remembered(kept: float) -> int:
    """How many of the last epochs have at least `FORGOTTEN` of a new one's share in running
    statistics that keep ``kept`` over an epoch; at least one."""
    forgets = -math.log(kept) if kept > 0.0 else math.inf
    return 1 + math.floor(-math.log(FORGOTTEN) / max(forgets, 1e-300))


def effective_samples(recorded: RecordedPlans, kept: float) -> float:
    """The number of samples that the running statistics of a rank rest on after the last epoch of a
    training, mean over ranks; as `effective_number`.

    Args:
        recorded: the exchange of a training.
        kept: `epoch_kept`; from 0, where only the last epoch counts, to 1.

    Raises:
        ValueError: ``kept`` is out of range, or there is no epoch.
    """
    world_size = recorded.plans[0].world_size if recorded.plans else 0
    return effective_number(owners(recorded)[:-1], world_size, kept)


def effective_number(of: Sequence[Ints], world_size: int, kept: float) -> float:
    """The number of samples that the running statistics of a rank rest on, mean over ranks.

    Running statistics forget: an epoch's share in them shrinks to ``kept`` of it in the next. So
    sample i has the weight w_i, the sum of ``kept`` to the power of the epochs that have gone since
    each one in which the rank held it. The number is (sum w)^2 / sum w^2 (Kish, Survey Sampling,
    1965): that of a shard if it never changes, more if others come.

    Args:
        of: the rank of each sample, (N,), in every epoch that counts, the last one at the end; -1
            where none had it.
        world_size: ranks.
        kept: `epoch_kept`; from 0, where only the last epoch counts, to 1.

    Raises:
        ValueError: ``kept`` is out of range, or there is no epoch.
    """
    if not 0.0 <= kept <= 1.0:
        raise ValueError(f"kept must be from 0 to 1; got {kept}")
    if not of:
        raise ValueError("there must be an epoch")
    samples = len(of[0])
    # weights by (rank, sample), of which few are not 0: a row for each epoch in which a rank held a
    # sample, then one for each pair
    places = np.concatenate([owner.astype(np.int64) * samples + np.arange(samples) for owner in of])
    weights = np.repeat(kept ** np.arange(len(of) - 1, -1, -1.0), samples)
    pairs, which = np.unique(places[places >= 0], return_inverse=True)
    weight = np.bincount(which, weights[places >= 0])
    rank = pairs // samples
    total, squares = np.bincount(rank, weight, world_size), np.bincount(rank, weight**2, world_size)
    held = total > 0
    return float(np.mean(total[held] ** 2 / squares[held]))


def mates_kept(recorded: RecordedPlans, epochs: int = 1) -> float:
    """Share of the pairs of samples in one shard that are in one shard again ``epochs`` later,
    wherever; mean over all such epochs.

    1 where shards stay or are swapped whole; about 1 / M where every sample goes anywhere.

    Raises:
        ValueError: there are fewer epochs, or no shard of two samples.
    """
    of = owners(recorded)
    if not 1 <= epochs < len(of):
        raise ValueError(f"epochs must be from 1 to {len(of) - 1}; got {epochs}")
    shares = [
        _together(before, after) for before, after in zip(of[:-epochs], of[epochs:], strict=True)
    ]
    return float(np.mean(shares))


def _together(before: Ints, after: Ints) -> float:
    counts = np.bincount(before)
    pairs = int((counts * (counts - 1)).sum())
    if not pairs:
        raise ValueError("no shard has two samples")
    _, both = np.unique(
        before.astype(np.int64) * (int(after.max()) + 1) + after, return_counts=True
    )
    return float((both * (both - 1)).sum() / pairs)
