"""What a resume did to the samples of an epoch and of a run, by counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.mixing import companions
from simshuffle.workload.resuming.law import Batches

Continues = Literal["same", "permuted", "other"]
"""Whether what follows is what would have followed: 'same' samples in the same order (whatever
their order within an iteration), the same samples in another, or 'other' samples."""


@dataclass(frozen=True)
class Account:
    """What became of an epoch of N samples that was broken off."""

    trained: int  # rows before the state was saved
    rest: int  # rows after it
    lost: int  # samples that the epoch would have had, and has not
    repeated: int  # rows after it whose sample the epoch had before it
    twice: int  # samples that the epoch has more than once, in all
    twice_whole: int  # the same of the epoch if it had not been broken off
    never: int  # samples that no epoch of the run has
    continues: Continues


def account(
    size: int, whole: Batches, steps: int, rest: Batches, others: Sequence[Batches] = ()
) -> Account:
    """What became of an epoch that would have been ``whole``, of which ``steps`` iterations were
    done, and then ``rest``; ``others`` are all other epochs of the run."""
    before, expected = whole.first(steps), whole.since(steps)
    times = np.bincount(np.concatenate([before.sample, rest.sample]), minlength=size)
    planned = np.bincount(whole.sample, minlength=size)
    had = np.bincount(before.sample, minlength=size) > 0
    seen = times.copy()
    for other in others:
        seen += np.bincount(other.sample, minlength=size)
    return Account(
        trained=len(before.sample),
        rest=len(rest.sample),
        lost=int(((planned > 0) & (times == 0)).sum()),
        repeated=int(had[rest.sample].sum()),
        twice=int((times > 1).sum()),
        twice_whole=int((planned > 1).sum()),
        never=int((seen == 0).sum()),
        continues=continues(expected, rest),
    )


def continues(expected: Batches, rest: Batches) -> Continues:
    """Whether ``rest`` is what was ``expected``."""
    if not np.array_equal(np.sort(expected.sample), np.sort(rest.sample)):
        return "other"
    # ranks one after another, or dealt to one by one; and iterations of equal sizes, as sets
    ways = (_by_rank, _in_turn, _as_sets)
    same = any(np.array_equal(way(expected), way(rest)) for way in ways)
    return "same" if same else "permuted"


def _by_rank(rows: Batches) -> Ints64:
    return rows.sample[np.lexsort((np.arange(len(rows.rank)), rows.rank, rows.step))]


def _in_turn(rows: Batches) -> Ints64:
    return rows.sample[np.lexsort((rows.rank, _places(rows), rows.step))]


def _as_sets(rows: Batches) -> Ints64:
    order = np.lexsort((rows.sample, rows.step))
    return np.concatenate([rows.step[order], rows.sample[order]])


def _places(rows: Batches) -> Ints64:
    """(n,) the place of each row in its batch."""
    return np.arange(len(rows.rank)) - np.searchsorted(rows.batch, rows.batch, side="left")


def batch_companions(before: Batches, after: Batches) -> float:
    """Share of the pairs of a batch that are in one batch again; see
    `simshuffle.workload.orders.mixing.companions`."""
    return companions(before, before.batch, after, after.batch)
