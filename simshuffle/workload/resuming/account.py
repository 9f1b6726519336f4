"""Account for the samples of an epoch and of a run after a loader went on from a state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simshuffle.spec.arrays import Ints64
from simshuffle.workload.orders.mixing import companion_share
from simshuffle.workload.resuming.law import Batches

Continues = Literal["same", "permuted", "other"]
"""Comparison of the rest of an epoch with the samples that would have followed: 'same'
samples in equal order (whatever their order within an iteration), these samples
'permuted', or 'other' ones.
"""


@dataclass(frozen=True)
class Account:
    """Counts of the samples of an epoch of N samples that was broken off."""

    trained: int  # rows before the state was saved
    rest: int  # rows after the state was saved
    lost: int  # samples that the epoch would have had, and has not
    repeated: int  # rows after the state whose sample was trained on before it
    twice: int  # samples that the epoch has more than once, before and after the state
    twice_whole: (
        int  # samples that it would have had more than once, had it not been broken off
    )
    never: int  # samples that neither this epoch nor any of ``other_epochs`` has
    continues: Continues  # how the rest compares with what would have followed


def account_for_epoch(
    num_samples: int,
    unbroken: Batches,
    steps: int,
    remaining: Batches,
    other_epochs: Sequence[Batches] = (),
) -> Account:
    """Count the samples of an epoch that broke off.

    Args:
        num_samples: N.
        unbroken: the epoch as it would have been, sorted by rank and step.
        steps: its iterations that were done before the state was saved.
        remaining: the rest of the epoch as it was, sorted likewise, with steps from 0.
        other_epochs: all other epochs of the run, for ``never`` alone; by default none.
    """
    trained = unbroken.first_steps(steps)
    expected = unbroken.after_steps(steps)
    # (N,) how often each sample is in the epoch, and how often it would have been
    times = np.bincount(
        np.concatenate([trained.sample, remaining.sample]), minlength=num_samples
    )
    planned_times = np.bincount(unbroken.sample, minlength=num_samples)
    was_trained = np.bincount(trained.sample, minlength=num_samples) > 0
    times_in_run = times.copy()
    for epoch in other_epochs:
        times_in_run += np.bincount(epoch.sample, minlength=num_samples)
    return Account(
        trained=len(trained.sample),
        rest=len(remaining.sample),
        lost=int(((planned_times > 0) & (times == 0)).sum()),
        repeated=int(was_trained[remaining.sample].sum()),
        twice=int((times > 1).sum()),
        twice_whole=int((planned_times > 1).sum()),
        never=int((times_in_run == 0).sum()),
        continues=compare_continuation(expected, remaining),
    )


def compare_continuation(expected: Batches, remaining: Batches) -> Continues:
    """Compare the rest of an epoch with the expected rest: 'same', 'permuted' or
    'other'.

    The rest is 'other' if a sample is not in both equally often. It is the 'same' if
    samples are in equal order by step and then by rank, or as if each step dealt them
    to the ranks one by one, or if every step has the same samples. The first two ignore
    where steps begin. Both arguments are sorted by rank and step, with steps from 0.
    """
    if not np.array_equal(np.sort(expected.sample), np.sort(remaining.sample)):
        return "other"
    # ranks one after another, or dealt to one by one; and iterations of equal sizes, as sets
    arrangements = (_samples_by_rank, _samples_in_turn, _steps_as_sets)
    is_same = any(
        np.array_equal(arrange(expected), arrange(remaining))
        for arrange in arrangements
    )
    return "same" if is_same else "permuted"


def _samples_by_rank(rows: Batches) -> Ints64:
    """Return the samples by step, then by rank."""
    return rows.sample[np.lexsort((np.arange(len(rows.rank)), rows.rank, rows.step))]


def _samples_in_turn(rows: Batches) -> Ints64:
    """Return the samples by step, then by index in the batch, then by rank."""
    return rows.sample[np.lexsort((rows.rank, _indices_in_batch(rows), rows.step))]


def _steps_as_sets(rows: Batches) -> Ints64:
    """Return the sorted steps, and then the samples sorted within each step."""
    order = np.lexsort((rows.sample, rows.step))
    return np.concatenate([rows.step[order], rows.sample[order]])


def _indices_in_batch(rows: Batches) -> Ints64:
    """Return the index of each row in its batch, (n,), of rows sorted by rank and step."""
    return np.arange(len(rows.rank)) - np.searchsorted(
        rows.batch, rows.batch, side="left"
    )


def batch_companions(previous: Batches, current: Batches) -> float:
    """Return the share of pairs of samples in one batch of ``previous`` that are in one
    batch of ``current`` again; 0 if there are no pairs.

    A pair counts as parted if ``current`` lacks one of its samples. Of a sample that
    comes more than once the first time counts (`mixing.companion_share`).
    """
    return companion_share(previous, previous.batch, current, current.batch)
