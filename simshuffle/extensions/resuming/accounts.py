"""Count the samples of a run that was killed and went on.

The counts are of the broken epoch, of the epochs after it, and of a run that is killed
once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simshuffle.extensions.resuming.outcomes import AuditOutcome
from simshuffle.extensions.resuming.ranks import HANGS as NO_BATCH
from simshuffle.studies.loader.resume_tables import (
    GOES_ON,
    HANGS,
    REFUSES,
    classify_outcome,
)
from simshuffle.workload.resuming.account import (
    Account,
    Continues,
    account_for_epoch,
    compare_continuation,
)
from simshuffle.workload.resuming.law import Batches, join_batches

WORST: tuple[Continues, ...] = ("same", "permuted", "other")
"""How epochs go on, the worst last."""


@dataclass(frozen=True)
class LaterEpochs:
    """Samples that the epochs after a broken one lack, or have too often; sums over
    these epochs.
    """

    lost_later: int  # samples that they would have had, and have not; all epochs
    twice_later: (
        int  # rows whose sample their epoch had before, beyond those there would be
    )
    continues: Continues  # order of the worst of these epochs; 'same' if there are none


@dataclass(frozen=True)
class SecondCrash:
    """The outcome of a run that is killed once more, at the worst of the places that
    were tried.
    """

    second: str  # EPOCH:STEP of the places, steps since the run went on; '' for none
    second_outcome: str  # outcome of `RESUMES` at the worst place; '' for none
    second_lost: int  # samples of the broken epoch and of those after it
    second_twice: int  # that come more than once, beyond those that would anyway
    error: str = ""  # at the worst place; '' for none
    place: str = ""  # the worst of ``second``, as EPOCH:STEP


NO_SECOND_CRASH = SecondCrash("", "", 0, 0)


def outcome_after(outcome: AuditOutcome) -> str:
    """Return what a loader does with its state: an outcome of `RESUMES`.

    It hangs or refuses where the outcome has an error, else it goes on or begins again.
    It begins again if all samples from before the crash come again in the broken epoch.
    """
    if outcome.error:
        return HANGS if outcome.error == NO_BATCH else REFUSES
    return classify_outcome(outcome.before_rows[-1], outcome.after_rows[0])


def count_broken(
    outcome: AuditOutcome, size: int, *, repeatable: bool
) -> Account | None:
    """Return the account of the broken epoch of ``size`` samples.

    None of a loader that refuses or hangs. A ``repeatable`` loader is counted against
    the reference epoch. Another one is counted against all samples of the set, less as
    many as its uninterrupted epoch misses, and continues as 'other'.
    """
    if outcome.error:
        return None
    uninterrupted = outcome.reference[0]
    trained = outcome.before_rows[-1]
    resumed = outcome.after_rows[0]
    other_epochs = [*outcome.before_rows[:-1], *outcome.after_rows[1:]]
    if repeatable:
        return account_for_epoch(
            size, uninterrupted, outcome.trained_steps, resumed, other_epochs
        )
    missing_samples = np.setdiff1d(np.arange(size), trained.sample)
    # all samples once: what was trained, the others as of rank 0 after the last step
    complete_epoch = join_batches(
        trained,
        Batches(
            0 * missing_samples,
            0 * missing_samples + outcome.trained_steps,
            missing_samples,
        ),
    )
    counted = account_for_epoch(
        size, complete_epoch, outcome.trained_steps, resumed, other_epochs
    )
    always_missing = size - len(np.unique(uninterrupted.sample))
    planned = _count_twice(uninterrupted)
    lost = max(counted.lost - always_missing, 0)
    return replace(counted, lost=lost, twice_whole=planned, continues="other")


def count_later(
    outcome: AuditOutcome, other_orders: Sequence[Batches] = ()
) -> LaterEpochs:
    """Return what the epochs after the broken one lack or have too often.

    Args:
        outcome: of a run that went on. One without later epochs, as after an error,
            lacks nothing and continues as the 'same'.
        other_orders: epochs with the ranks before the crash, from the one after the
            broken one on; their order counts as right, too. The better of both is
            counted, the worst of all epochs.
    """
    lost = 0
    twice = 0
    worst = 0
    later_epochs = zip(outcome.after_rows[1:], outcome.reference[1:], strict=False)
    for index, (rows, expected) in enumerate(later_epochs):
        lost += max(len(np.unique(expected.sample)) - len(np.unique(rows.sample)), 0)
        twice += max(_count_repeats(rows) - _count_repeats(expected), 0)
        orders = [expected, *other_orders[index : index + 1]]
        worst = max(
            worst,
            min(WORST.index(compare_continuation(order, rows)) for order in orders),
        )
    return LaterEpochs(lost, twice, WORST[worst])


def count_second(
    outcome_of_run: AuditOutcome, size: int, *, repeatable: bool
) -> SecondCrash:
    """Return what comes of a run that is killed once more, at the worst place tried.

    A place is worse if the run does not go on, then if it has an error, then by rows
    lost and repeated. ``second`` lists all places, ``place`` the worst. It is
    `NO_SECOND_CRASH` if none was tried.
    """
    crashes = []
    for second in outcome_of_run.second:
        place = f"{second.point.epoch}:{second.point.step}"
        outcome = outcome_after(second)
        lost = 0
        twice = 0
        broken = count_broken(second, size, repeatable=repeatable)
        if broken is not None:
            later = count_later(second)
            lost = broken.lost + later.lost_later
            twice = max(broken.twice - broken.twice_whole, 0) + later.twice_later
        crashes.append(SecondCrash(place, outcome, lost, twice, second.error, place))
    if not crashes:
        return NO_SECOND_CRASH
    worst = max(
        crashes,
        key=lambda crash: (
            crash.second_outcome != GOES_ON,
            crash.error != "",
            _count_bad_rows(crash),
        ),
    )
    return replace(worst, second=", ".join(crash.second for crash in crashes))


def _count_bad_rows(second: SecondCrash) -> int:
    """Return the samples that are lost, and those that come too often, together."""
    return second.second_lost + second.second_twice


def _count_twice(rows: Batches) -> int:
    """Count the samples that come more than once."""
    return int((np.bincount(rows.sample) > 1).sum())


def _count_repeats(rows: Batches) -> int:
    """Count the rows whose sample came before."""
    return len(rows.sample) - len(np.unique(rows.sample))


def describe_later(later: LaterEpochs) -> str:
    """Return what became of the epochs after the broken one, where that is not right;
    else ''.

    'Other' samples without loss or repetition count as right.
    """
    if faults := _describe_faults(later.lost_later, later.twice_later):
        return f"In later epochs {faults}."
    if later.continues == "permuted":
        return (
            "Later epochs have their samples in another order than without the crash."
        )
    return ""


def describe_second(second: SecondCrash) -> str:
    """Return what comes of a second crash, where that is not right; else ''."""
    if is_right(second):
        return ""
    epoch, _, step = second.place.partition(":")
    plural = "s" * (step != "1")
    where = (
        f"After a second kill in epoch {epoch}, {step} step{plural} after the run"
        " went on or the epoch began,"
    )
    if second.second_outcome == HANGS:
        return f"{where} the run hangs."
    if second.second_outcome == REFUSES:
        return f"{where} the run refuses to go on: {second.error.rstrip('.')}."
    faults = _describe_faults(second.second_lost, second.second_twice)
    return f"{where} {faults or 'the run begins again'}."


def _describe_faults(lost: int, twice: int) -> str:
    """Return how many samples are lost and how many come more than once; '' for none."""
    faults = [f"{lost:,} samples are lost"] * bool(lost)
    faults += [f"{twice:,} samples come more than once"] * bool(twice)
    return " and ".join(faults)


def is_right(second: SecondCrash) -> bool:
    """Return whether a second crash, if there was one, loses and repeats nothing.

    A run that does not go on is not right; the order of samples does not count.
    """
    return second.second_outcome in {"", GOES_ON} and not _count_bad_rows(second)
