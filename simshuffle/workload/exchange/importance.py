"""Which of its samples a rank sends, by their importance or by how long it has had them; and how
important the rank is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import numpy as np

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.workload.exchange.plan import Shards

MOST_PADDING = 4
"""Shards are sorted as rows of one table unless that has so many times the samples; then one after
the other."""
RankImportance = Literal["max", "mean", "sum"]
Selection = Literal["importance", "sqrt_importance", "highest", "lowest", "oldest", "random"]
"""Which samples of its shard a rank sends, and in which order:

importance: drawn without replacement, each with a probability in proportion to its importance;
sqrt_importance: the same with the square root of the importance;
highest, lowest: the most or the least important ones, in this order;
oldest: those that the rank has had for the most epochs, in this order;
random: the first of its local order, as partial local shuffle does.

Among equals, the order is the local one, which is random.
"""
BY_IMPORTANCE: frozenset[Selection] = frozenset(
    {"importance", "sqrt_importance", "highest", "lowest"}
)


def checked_held(held: Any, shards: Shards, kind: str) -> Ints:
    """``held`` as the epochs that each sample was with its rank, (N,) whole numbers. Raises an
    InputError if it is something else; ``kind`` is that of the strategy, for the text."""
    values, count = np.asarray(held), len(shards.order)
    if held is not None and values.dtype.kind in "iu" and values.shape == (count,):
        return values
    shown = "None" if held is None else f"shape {values.shape} of {values.dtype}"
    rule = (
        f"is needed by {kind} with selection: oldest: one whole number for each of {count} samples"
    )
    remedy = "Begin with strategy.first_held(N), and go on with plan.held_after(held)."
    refuse("held", rule, shown, remedy, "")


def checked_importance(importance: Any, shards: Shards, kind: str) -> Floats:
    """The importance of each sample, (N,) float64: losses in nats. Raises an InputError if they are
    not (N,) finite numbers from 0 on; ``kind`` is that of the strategy, for the text."""
    count = len(shards.order)
    remedy = (
        f"Give an array of {count} losses: of an inference pass, or of the last epoch's training."
    )
    if importance is None:
        refuse("importance", f"is needed by {kind}", "None", remedy, "")
    values = np.asarray(importance)
    if values.dtype.kind not in "iuf":
        refuse("importance", "must be real numbers", f"an array of {values.dtype}", remedy, "")
    if values.shape != (count,):
        rule = f"must be one number for each of {count} samples"
        refuse("importance", rule, f"shape {values.shape}", remedy, "")
    floats = values.astype(np.float64)
    if not (np.isfinite(floats) & (floats >= 0)).all():
        # the first bad value in the order of ranks
        ordered = floats[shards.order]
        at = int(np.argmin(np.isfinite(ordered) & (ordered >= 0)))
        rank = int(np.searchsorted(shards.start, at, side="right")) - 1
        found = f"{ordered[at]:g} for sample {shards.order[at]} of rank {rank}"
        remedy = "A loss that is not finite comes from a diverged training."
        refuse("importance", "must be finite and not negative", found, remedy, "")
    return floats


def selected(
    selection: Selection,
    shards: Shards,
    count: int,
    importance: Floats | None,
    rng: np.random.Generator,
    held: Ints | None = None,
) -> Ints:
    """The samples that each rank sends, in the order of sending: (count, M) sample numbers. "At a
    epoch t, a sample i is selected to exchange with a possibility of p_i = I_i / sum(I_i)"
    (poster). It leaves open over which samples the sum runs, and what becomes of p_i once a sample
    is drawn. Here as in the authors' code (torch.multinomial on the rank's own losses, without
    replacement): the sum runs over the rank's shard, so that every rank sends equally many; samples
    are drawn one after the other, each in proportion to its importance among those not yet drawn;
    and they are sent in the order of drawing. A sample without importance is drawn only after all
    that have some. Raises a ValueError if what they are selected by is not given.

    Args:
        count: samples that each rank sends; at most the smallest shard.
        importance: (N,) finite and not negative; None will do for 'random' and 'oldest'.
        rng: yields the same on every rank. It is asked for one number for each of the N samples, in
            their order, so a rank can work out its own part from its own importances.
        held: (N,) epochs that each sample has been with its rank; None will do but for 'oldest'.
    """
    if selection == "random":
        return shards.first(count)
    if selection == "oldest":
        if held is None:
            raise ValueError("selection of the 'oldest' needs the epochs (N,) they were held")
        return _lowest(shards, -held.astype(np.float64), count)
    if importance is None:
        raise ValueError(f"selection by {selection!r} needs the importance (N,) of the samples")
    return _lowest(shards, _sort_keys(selection, importance, rng), count)


def _sort_keys(selection: Selection, importance: Floats, rng: np.random.Generator) -> Floats:
    """(N,) numbers whose rising order within a shard is that of sending. Drawing in proportion to w
    without replacement is to sort by -log(U) / w with U uniform (Efraimidis and Spirakis,
    Information Processing Letters 97, 2006). The logarithm of it is taken: it has the same order,
    and overflows for no importance."""
    if selection == "highest":
        return -importance
    if selection == "lowest":
        return importance
    power = 0.5 if selection == "sqrt_importance" else 1.0
    exponential = -np.log1p(-rng.random(len(importance)))
    weighted = importance > 0
    drawn = np.log(np.maximum(exponential[weighted], np.finfo(float).tiny))
    keys = np.full(len(importance), np.inf)
    keys[weighted] = drawn - power * np.log(importance[weighted])
    return keys


def _lowest(shards: Shards, keys: Floats, count: int) -> Ints:
    """Of each shard the ``count`` samples of lowest key (N,), in rising order, equals in their
    local order: (count, M)."""
    ordered, sizes, width = keys[shards.order], shards.sizes, int(shards.sizes.max())
    if len(sizes) * width > MOST_PADDING * len(ordered):
        parts = pairwise(shards.start.tolist())
        rising = [a + np.argsort(ordered[a:b], kind="stable")[:count] for a, b in parts]
        return np.asarray(shards.order[np.array(rising).T])
    # rows of equal length are sorted at once; stable, so that padding comes last
    table = np.full((len(sizes), width), np.inf)
    table[np.arange(width) < sizes[:, None]] = ordered
    first = np.argsort(table, axis=1, kind="stable")[:, :count]
    return np.asarray(shards.order[(first + shards.start[:-1, None]).T])


def rank_importance(
    rule: RankImportance, importance: Floats, shards: Shards, sample: Ints, sent: Ints
) -> Floats:
    """Importance of each rank at some moments of an epoch: the max, mean or sum over the samples of
    its shard not yet sent. A sample that a rank sends to itself counts as sent; samples received in
    the same epoch do not count: they belong to the rank from the next epoch on. ``importance`` is
    (N,) of the samples, not negative; ``sample`` (steps, M) what each rank sends, in this order;
    ``sent`` (moments,) how many of them have been sent by then, fewer than the smallest shard has.
    Returns (moments, M)."""
    kept = importance.copy()
    kept[sample.ravel()] = 0.0  # neutral to max and sum
    combine = np.maximum if rule == "max" else np.add
    never_sent = combine.reduceat(kept[shards.order], shards.start[:-1])
    by_step = np.concatenate([never_sent[None], importance[sample[::-1]]])
    left = combine.accumulate(by_step)[::-1][sent]
    return np.asarray(left / (shards.sizes - sent[:, None]) if rule == "mean" else left)
