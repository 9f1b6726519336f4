"""What became of the samples of a run that was killed and went on: in the broken epoch, in the
epochs after it, and when it is killed once more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simshuffle.extensions.resuming.auditing import AuditOutcome
from simshuffle.extensions.resuming.ranks import HANGS as NO_BATCH
from simshuffle.studies.loader.resume_tables import GOES_ON, HANGS, REFUSES, outcome_of
from simshuffle.workload.resuming.account import Account, Continues, account, continues
from simshuffle.workload.resuming.law import Batches, joined

WORST: tuple[Continues, ...] = ("same", "permuted", "other")
"""How epochs go on, the worst last."""


@dataclass(frozen=True)
class Later:
    """What the epochs after a broken one have."""

    lost_later: int  # samples that they would have had, and have not; all epochs
    twice_later: int  # rows whose sample their epoch had before, beyond those there would be
    continues: Continues


@dataclass(frozen=True)
class Second:
    """What comes of a run that is killed once more; the worst place of those that were tried."""

    second: str  # EPOCH:STEP of the places, steps since the run went on; '' for none
    second_outcome: str
    second_lost: int  # samples of the broken epoch and of those after it
    second_twice: int
    error: str = ""
    place: str = ""  # the worst of ``second``


NOT_TRIED = Second("", "", 0, 0)


def outcome_after(tried: AuditOutcome) -> str:
    """Return what a loader does with its state: one of the outcomes of `RESUMES`."""
    if tried.error:
        return HANGS if tried.error == NO_BATCH else REFUSES
    return outcome_of(tried.before_rows[-1], tried.after_rows[0])


def count_broken(tried: AuditOutcome, size: int, *, repeatable: bool) -> Account | None:
    """Return the account of the broken epoch of ``size`` samples; None of a loader that does not go
    on. A loader that is never the same is counted against all samples that its uninterrupted epoch
    has at least."""
    if tried.error:
        return None
    whole, before = tried.reference[0], tried.before_rows[-1]
    rest, others = tried.after_rows[0], [*tried.before_rows[:-1], *tried.after_rows[1:]]
    if repeatable:
        return account(size, whole, tried.trained_steps, rest, others)
    left = np.setdiff1d(np.arange(size), before.sample)
    full = joined(before, Batches(0 * left, 0 * left + tried.trained_steps, left))
    found = account(size, full, tried.trained_steps, rest, others)
    spared = size - len(np.unique(whole.sample))
    planned = _count_twice(whole)
    lost = max(found.lost - spared, 0)
    return replace(found, lost=lost, twice_whole=planned, continues="other")


def count_later(tried: AuditOutcome, also: Sequence[Batches] = ()) -> Later:
    """Return what the epochs after the broken one lack or have too often.

    Args:
        tried: the run.
        also: what these epochs have with the ranks before: an order that is right, too.
    """
    lost, twice, worst = 0, 0, 0
    later = zip(tried.after_rows[1:], tried.reference[1:], strict=False)
    for index, (rows, expected) in enumerate(later):
        lost += max(len(np.unique(expected.sample)) - len(np.unique(rows.sample)), 0)
        twice += max(_count_repeats(rows) - _count_repeats(expected), 0)
        orders = [expected, *also[index : index + 1]]
        worst = max(worst, min(WORST.index(continues(order, rows)) for order in orders))
    return Later(lost, twice, WORST[worst])


def count_second(tried: AuditOutcome, size: int, *, repeatable: bool) -> Second:
    """Return what comes of a run that is killed once more, at the worst of the places tried."""
    found = []
    for second in tried.second:
        place = f"{second.point.epoch}:{second.point.step}"
        outcome, lost, twice = outcome_after(second), 0, 0
        counted = count_broken(second, size, repeatable=repeatable)
        if counted is not None:
            later = count_later(second)
            lost = counted.lost + later.lost_later
            twice = max(counted.twice - counted.twice_whole, 0) + later.twice_later
        found.append(Second(place, outcome, lost, twice, second.error, place))
    if not found:
        return NOT_TRIED
    worst = max(found, key=lambda one: (one.second_outcome != GOES_ON, one.error != "", _sum(one)))
    return replace(worst, second=", ".join(one.second for one in found))


def _sum(second: Second) -> int:
    return second.second_lost + second.second_twice


def _count_twice(rows: Batches) -> int:
    """Return how many samples come more than once."""
    return int((np.bincount(rows.sample) > 1).sum())


def _count_repeats(rows: Batches) -> int:
    """Return how many rows have a sample that came before."""
    return len(rows.sample) - len(np.unique(rows.sample))


def describe_later(later: Later) -> str:
    """Return what became of the epochs after the broken one, where that is not right; else ''."""
    parts = [f"{later.lost_later:,} samples are lost"] * bool(later.lost_later)
    parts += [f"{later.twice_later:,} come more than once"] * bool(later.twice_later)
    if parts:
        return f"Of the epochs after it {' and '.join(parts)}."
    if later.continues == "permuted":
        return "The epochs after it have their samples in another order than without the crash."
    return ""


def describe_second(second: Second) -> str:
    """Return what comes of a second crash, where that is not right; else ''."""
    if is_right(second):
        return ""
    epoch, _, step = second.place.partition(":")
    plural = "s" * (step != "1")
    head = (
        f"Killed again in epoch {epoch}, {step} step{plural} after it went on or that epoch began,"
    )
    if second.second_outcome == HANGS:
        return f"{head} it hangs."
    if second.second_outcome == REFUSES:
        return f"{head} it refuses to go on: {second.error.rstrip('.')}."
    parts = [f"{second.second_lost:,} samples are lost"] * bool(second.second_lost)
    parts += [f"{second.second_twice:,} come more than once"] * bool(second.second_twice)
    return f"{head} {' and '.join(parts) or 'it begins again'}."


def is_right(second: Second) -> bool:
    """Return whether a second crash, if there was one, loses and repeats nothing."""
    return second.second_outcome in {"", GOES_ON} and not _sum(second)
