"""Select the samples that a rank sends, by importance or by how long it has had them;
and compute how important each rank is.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import numpy as np

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.workload.exchange.plan import Shards

MAX_PADDING = 4
"""Shards are sorted as rows of one table, unless the padded table has more than so many
times the samples; then one after the other.
"""
RankImportance = Literal["max", "mean", "sum"]
Selection = Literal[
    "importance", "sqrt_importance", "highest", "lowest", "oldest", "random"
]
"""The samples of its shard that a rank sends, and their order:

importance: drawn without replacement, each with a probability in proportion to its
importance; sqrt_importance: the same with the square root of the importance; highest,
lowest: the most or the least important ones, in this order; oldest: those that the rank
has had for the most epochs, in this order; random: the first of its local order, as
partial local shuffle does.

Among equals, the order is the local one, which is random.
"""
BY_IMPORTANCE: frozenset[Selection] = frozenset(
    {"importance", "sqrt_importance", "highest", "lowest"}
)


def check_epochs_held(epochs_held: Any, shards: Shards, kind: str) -> Ints:
    """Return the given epochs that each sample was with its rank, if (N,) integers.

    Args:
        epochs_held: what the caller gave.
        shards: of the epoch.
        kind: of the strategy, for the text of the error.

    Raises:
        InputError: if they are None, of another shape or no integers.
    """
    values = np.asarray(epochs_held)
    num_samples = len(shards.order)
    if (
        epochs_held is not None
        and values.dtype.kind in "iu"
        and values.shape == (num_samples,)
    ):
        return values
    type_text = (
        "None" if epochs_held is None else f"shape {values.shape} of {values.dtype}"
    )
    rule = (
        f"is needed by {kind} with selection: oldest: one whole number for each of"
        f" {num_samples} samples"
    )
    remedy = "Begin with strategy.first_held(N), and go on with plan.held_after(held)."
    refuse("held", rule, type_text, remedy, "")


def check_importance(importance: Any, shards: Shards, kind: str) -> Floats:
    """Return the given importance of each sample as (N,) float64: losses in nats.

    Args:
        importance: what the caller gave.
        shards: of the epoch.
        kind: of the strategy, for the text of the error.

    Raises:
        InputError: if they are not (N,) finite numbers from 0 on.
    """
    num_samples = len(shards.order)
    remedy = (
        f"Give an array of {num_samples} losses: of an inference pass, or of the last epoch's"
        " training."
    )
    if importance is None:
        refuse("importance", f"is needed by {kind}", "None", remedy, "")
    values = np.asarray(importance)
    if values.dtype.kind not in "iuf":
        refuse(
            "importance",
            "must be real numbers",
            f"an array of {values.dtype}",
            remedy,
            "",
        )
    if values.shape != (num_samples,):
        rule = f"must be one number for each of {num_samples} samples"
        refuse("importance", rule, f"shape {values.shape}", remedy, "")
    losses = values.astype(np.float64)
    if not (np.isfinite(losses) & (losses >= 0)).all():
        # the first bad value in the order of ranks
        ordered = losses[shards.order]
        bad_position = int(np.argmin(np.isfinite(ordered) & (ordered >= 0)))
        rank = int(np.searchsorted(shards.start, bad_position, side="right")) - 1
        sample = shards.order[bad_position]
        bad_value = f"{ordered[bad_position]:g} for sample {sample} of rank {rank}"
        remedy = "A loss that is not finite comes from a diverged training."
        refuse("importance", "must be finite and not negative", bad_value, remedy, "")
    return losses


def select_samples(
    selection: Selection,
    shards: Shards,
    count: int,
    importance: Floats | None,
    rng: np.random.Generator,
    *,
    epochs_held: Ints | None = None,
) -> Ints:
    """Select the samples that each rank sends, in the order of sending.

    "At a epoch t, a sample i is selected to exchange with a possibility of p_i = I_i /
    sum(I_i)" (poster). It leaves open over which samples the sum runs, and what becomes
    of p_i once a sample is drawn. Here as in the authors' code (torch.multinomial on
    the rank's own losses, without replacement): the sum runs over the rank's shard, so
    that every rank sends equally many; samples are drawn one after the other, each in
    proportion to its importance among those not yet drawn; and they are sent in the
    order of drawing. A sample without importance is drawn only after all that have
    some.

    Args:
        selection: by what samples are selected.
        shards: of the epoch.
        count: samples that each rank sends; at most the smallest shard.
        importance: (N,) finite and not negative; None will do for 'random' and
            'oldest'.
        rng: yields the same on every rank. 'importance' and 'sqrt_importance' take one
            number for each of the N samples, in the order of their indices, so that a
            rank can work out its own part from its own importances; the others none.
        epochs_held: (N,) epochs that each sample has been with its rank; None will do
            but for 'oldest'.

    Returns:
        (count, M) sample indices.

    Raises:
        ValueError: if the importance or the epochs that they are selected by are None.
    """
    if selection == "random":
        return shards.first(count)
    if selection == "oldest":
        if epochs_held is None:
            raise ValueError(
                "selection of the 'oldest' needs the epochs (N,) they were held"
            )
        return _lowest_in_each_shard(shards, -epochs_held.astype(np.float64), count)
    if importance is None:
        raise ValueError(
            f"selection by {selection!r} needs the importance (N,) of the samples"
        )
    return _lowest_in_each_shard(shards, _sort_keys(selection, importance, rng), count)


def _sort_keys(
    selection: Selection, importance: Floats, rng: np.random.Generator
) -> Floats:
    """Return (N,) keys whose rising order within a shard is the order of sending.

    Where samples are drawn, ``rng`` gives N numbers, and the key of a sample without
    importance is infinite.

    Drawing in proportion to w without replacement is to sort by -log(U) / w with U
    uniform (Efraimidis and Spirakis, Information Processing Letters 97, 2006). The key
    is the logarithm of that, which has the same order and overflows for no importance.
    """
    if selection == "highest":
        return -importance
    if selection == "lowest":
        return importance
    power = 0.5 if selection == "sqrt_importance" else 1.0
    # drawn for all samples, also those of no weight, so that ranks draw alike
    exponential = -np.log1p(-rng.random(len(importance)))
    has_weight = importance > 0
    log_exponential = np.log(np.maximum(exponential[has_weight], np.finfo(float).tiny))
    keys = np.full(len(importance), np.inf)
    keys[has_weight] = log_exponential - power * np.log(importance[has_weight])
    return keys


def _lowest_in_each_shard(shards: Shards, keys: Floats, count: int) -> Ints:
    """Return the ``count`` samples of lowest key in each shard, in rising order:
    (count, M).

    Samples of equal key are in their local order. ``keys`` is (N,).
    """
    # one shard after another, as in ``shards.order``
    ordered_keys = keys[shards.order]
    sizes = shards.sizes
    width = int(sizes.max())
    if len(sizes) * width > MAX_PADDING * len(ordered_keys):
        positions = [
            start + np.argsort(ordered_keys[start:end], kind="stable")[:count]
            for start, end in pairwise(shards.start.tolist())
        ]
        return np.asarray(shards.order[np.array(positions).T])
    # (M, width) a row for each shard, padded with inf; the stable sort leaves the padding last
    table = np.full((len(sizes), width), np.inf)
    table[np.arange(width) < sizes[:, None]] = ordered_keys
    lowest = np.argsort(table, axis=1, kind="stable")[:, :count]
    return np.asarray(shards.order[(lowest + shards.start[:-1, None]).T])


def rank_importance(
    rule: RankImportance,
    importance: Floats,
    shards: Shards,
    sample: Ints,
    num_sent: Ints,
) -> Floats:
    """Compute each rank's importance at some moments of an epoch, from samples not yet
    sent.

    It is the max, mean or sum over the samples of the rank's shard that it has not sent
    by then. A sample that a rank sends to itself counts as sent. Samples received in
    the same epoch do not count: they belong to the rank from the next epoch on.

    Args:
        rule: 'max', 'mean' or 'sum'.
        importance: (N,) of the samples, not negative.
        shards: of the epoch.
        sample: (steps, M) the samples that each rank sends, in this order.
        num_sent: (moments,) samples that each rank has sent by then, fewer than the
            smallest shard has.

    Returns:
        (moments, M) the importance of each rank.
    """
    combine = np.maximum if rule == "max" else np.add
    never_sent = importance.copy()
    never_sent[sample.ravel()] = 0.0  # neutral to max and sum
    over_never_sent = combine.reduceat(never_sent[shards.order], shards.start[:-1])

    # (1 + steps, M) first the samples that are never sent, then the sent ones from last to first:
    # accumulated and turned around, row s is over the samples left after s steps
    rows = np.concatenate([over_never_sent[None], importance[sample[::-1]]])
    after_steps = combine.accumulate(rows)[::-1][num_sent]
    if rule == "mean":
        after_steps = after_steps / (shards.sizes - num_sent[:, None])
    return np.asarray(after_steps)
