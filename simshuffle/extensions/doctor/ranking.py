"""Rank causes by what they cost, and remedies by what they gain, with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simshuffle.extensions.doctor.causes import SAMPLE_CODE, UNTOLD
from simshuffle.extensions.doctor.certainty import certainty_of
from simshuffle.extensions.doctor.loop import RecordedLoop
from simshuffle.extensions.doctor.remedies import RemedyCandidate
from simshuffle.extensions.doctor.repeated_work import ANEW
from simshuffle.extensions.doctor.start_causes import EVALUATION, STARTS
from simshuffle.extensions.doctor.without_cause import LoopWithoutCause
from simshuffle.spec.arrays import Floats

ROUNDING = 1e-9
"""Share of a batch's time up to which a gain is the rounding of sums."""
LEAST_GAIN = 0.03
"""Share of the loop's time from which something is a remedy (chosen)."""
MODEL_ERROR = 0.1
"""Share of the loop's time by which nine of ten predicted gains of generated trainings
were off beyond the interval of chance and assumptions (benchmarks/doctor_cases, seed 4).
"""
BLOCKS = 40
"""Blocks of batches in which a record is resampled (chosen)."""
RESAMPLES = 400
"""Resamples of a record (chosen)."""
LOW_QUANTILE, HIGH_QUANTILE = 0.05, 0.95
"""Shares of the resamples below the ends of a 90 % interval."""
CLEAR_MARGIN = 0.3
"""Share by which the first cause outweighs the next, from which it counts in full
(chosen).
"""


@dataclass(frozen=True)
class Cause:
    """A cause of time that a loop loses."""

    name: str  # of the cause
    seconds: float  # that all batches of the loop would take less without it
    share: float  # of the loop's seconds that are ``seconds``
    confidence: (
        float  # share of generated trainings with such evidence in which it was right
    )
    sentence: str  # what the record shows of the cause
    # from 0 to 1: how often it comes first in resamples of the record, and how far
    evidence: float = 0.0
    certainty: str = ""  # the confidence in words, with the cases that it rests on
    # of the loop's seconds that removing it saves where the first cause is already mended
    share_after: float = 0.0


@dataclass(frozen=True)
class Remedy:
    """A change that would make a loop faster."""

    name: str  # of the change
    gain_s: float  # predicted s that a batch takes less
    # ends of the 90 % interval of ``gain_s`` (s), of chance, the replay and what is assumed; low
    # may be below 0
    low: float
    high: float
    share: float  # of the time of a batch that ``gain_s`` is
    cost: str  # cores, bytes, a change of code
    # settings for the recorder; None where it cannot change it
    change: Mapping[str, Any] | None
    limit: str  # what takes longest of a batch after the change
    cause: str  # that the change is against; '' where it may help against several


def _resample_sums(gains: Floats, loop: RecordedLoop) -> Floats:
    """Return the s saved over all batches in resamples of a record, (RESAMPLES, N),
    drawn alike in every call.

    Blocks of batches are drawn with replacement, because consecutive batches depend on
    each other. The first batch of every epoch but the first stays in each resample: it
    is no chance.

    Args:
        gains: (batches, N) s that each batch takes less in N other loops.
        loop: the loop of the batches.
    """
    first_batches = (
        np.array(loop.times.epoch_bounds[1:-1], dtype=int) - loop.first_counted_batch
    )
    drawn_gains = gains.copy()
    drawn_gains[first_batches] = 0.0
    edges = np.unique(np.linspace(0, len(gains), BLOCKS + 1).astype(int))
    # (blocks, N) sums; (RESAMPLES, blocks) which blocks a resample has
    blocks = np.add.reduceat(drawn_gains, edges[:-1], axis=0)
    drawn = np.random.default_rng(0).integers(
        len(blocks), size=(RESAMPLES, len(blocks))
    )
    return np.asarray(blocks[drawn].sum(axis=1) + gains[first_batches].sum(axis=0))


def rank_causes(
    candidates: Sequence[LoopWithoutCause],
    *,
    saved_s: Floats,
    saved_after: Callable[[int], Floats],
    loop: RecordedLoop,
    loop_s: float,
    min_share: float,
) -> list[Cause]:
    """Return the causes that cost at least ``min_share``: the heaviest first, and then
    those that cost as much in the mean of what they save alone and after the first, and
    half as much after it.

    Heaviest is the one with the most seconds times weight. Of several candidates of one
    name, as of several workers, the heaviest stays; [] if none costs enough alone.
    Evidence counts the candidates that cost enough alone, each by itself.

    Args:
        candidates: N possible causes.
        saved_s: (batches, N) s that each batch takes less without each of them.
        saved_after: returns, for the index of a candidate, (N,) s that all batches take
            less without each of them, where that candidate is already mended.
        loop: without the waits that other programs caused.
        loop_s: s of all batches.
        min_share: share of ``loop_s`` that a cause costs at least.
    """
    alone_s = saved_s.sum(axis=0)
    weight = np.array([candidate.weight for candidate in candidates])
    costly = np.flatnonzero(alone_s >= min_share * loop_s)
    if not len(costly):
        return []
    costly = costly[np.argsort(-(alone_s * weight)[costly], kind="stable")]
    first_index = int(costly[0])
    first = candidates[first_index]
    first_of_resample = np.argmax(
        _resample_sums(saved_s[:, costly], loop) * weight[costly], axis=1
    )
    rival_weights = [
        alone_s[index] * weight[index]
        for index in costly[1:]
        if not _explains_nothing_new(
            candidates[index].name, alone_s[index], {first.name: alone_s[first_index]}
        )
    ]
    heaviest = alone_s[first_index] * weight[first_index]
    margin = 1.0 - max(rival_weights, default=0.0) / heaviest
    cause = Cause(
        name=first.name,
        seconds=float(alone_s[first_index]),
        share=float(alone_s[first_index] / loop_s),
        confidence=0.0,
        sentence=first.sentence,
        evidence=float(np.mean(first_of_resample == 0)),
        share_after=float(alone_s[first_index] / loop_s),
    )
    causes = {first.name: _rate_evidence(cause, margin)}

    after_s = saved_after(first_index)
    mean_s = (alone_s + after_s) / 2
    for index in np.argsort(-mean_s * weight, kind="stable"):
        candidate = candidates[index]
        explained_s = {cause.name: cause.seconds for cause in causes.values()}
        if mean_s[index] >= min_share * loop_s and not _explains_nothing_new(
            candidate.name, mean_s[index], explained_s
        ):
            causes[candidate.name] = Cause(
                name=candidate.name,
                seconds=float(alone_s[index]),
                share=float(alone_s[index] / loop_s),
                confidence=0.0,
                sentence=candidate.sentence,
                share_after=float(after_s[index] / loop_s),
            )
    return list(causes.values())


_COVERED_BY: Mapping[str, Sequence[str]] = {
    ANEW: (SAMPLE_CODE, "transform", "opens", UNTOLD, "slow sample", "decode"),
    STARTS: ("gil", "loop dips", "collate", "workers anew", SAMPLE_CODE, "send"),
    EVALUATION: ("loop dips", "gil"),
    "loader dips": (STARTS, "slow sample", SAMPLE_CODE, "transform", "decode"),
    "slow sample": (SAMPLE_CODE, "transform", "decode"),
    "slow worker": ("slow sample", SAMPLE_CODE, "transform", "decode", UNTOLD),
    "loop dips": ("gil",),
    UNTOLD: ("latency", "slow sample"),
}
"""By cause, broader causes whose time is the same."""
MOST_COVERED = 1.6
"""Times the seconds of a cause, up to which a broader one is the same (chosen)."""


def _explains_nothing_new(
    name: str, lost_s: float, explained_s: Mapping[str, float]
) -> bool:
    """Return whether an earlier cause has the name of a later one, or is a part of the
    later one that costs nearly as much.

    Args:
        name: of the cause.
        lost_s: s that it costs.
        explained_s: s that earlier causes cost, by name.
    """
    return name in explained_s or any(
        name in _COVERED_BY.get(earlier, ()) and lost_s <= MOST_COVERED * seconds
        for earlier, seconds in explained_s.items()
    )


def _rate_evidence(cause: Cause, margin: float) -> Cause:
    """Return a cause with the confidence that generated trainings give its evidence.

    Evidence is how often the cause comes first in resamples; half of it counts only by
    the share ``margin`` by which it outweighs the next cause.
    """
    evidence = cause.evidence * (0.5 + 0.5 * min(max(margin, 0.0) / CLEAR_MARGIN, 1.0))
    certainty = certainty_of(cause.name, evidence)
    return replace(
        cause,
        evidence=float(evidence),
        confidence=certainty.share,
        certainty=certainty.words(),
    )


def rank_remedies(
    candidates: Sequence[RemedyCandidate],
    *,
    gains: Floats,
    best_gains: Floats,
    loop: RecordedLoop,
    batch_s: Floats,
    replay_error: float,
) -> list[Remedy]:
    """Return the remedies that save at least `LEAST_GAIN` of the loop's time, the best
    first.

    The interval of a gain holds the gain. At both ends it is widened by the error of the
    replay, and by `MODEL_ERROR`, which takes no low end below 0. The low end counts only
    the share that remains if assumptions do not hold.

    Args:
        candidates: N possible remedies.
        gains: (batches, N) s that each batch takes less with each of them.
        best_gains: (batches, N) as ``gains``, if nothing that is assumed holds the loop
            up.
        loop: without the waits that other programs caused.
        batch_s: (batches,) s of each batch, with these waits.
        replay_error: share by which the replay of the record is off, not below 0.
    """
    if not candidates:
        return []
    remedies = []
    mean_batch_s = float(batch_s.mean())
    mean_gains = gains.mean(axis=0)
    error_s = replay_error * mean_batch_s
    model_error_s = MODEL_ERROR * mean_batch_s
    low_sums = np.quantile(_resample_sums(gains, loop), LOW_QUANTILE, axis=0)
    high_sums = np.quantile(_resample_sums(best_gains, loop), HIGH_QUANTILE, axis=0)
    for index, candidate in enumerate(candidates):
        gain_s = float(mean_gains[index])
        if gain_s < LEAST_GAIN * mean_batch_s:
            continue
        low = low_sums[index] / len(batch_s) * candidate.assumption_free_share
        low = float(min(low, gain_s) - error_s)
        low = min(low, max(low - model_error_s, 0.0))
        remedy = Remedy(
            name=candidate.name,
            gain_s=gain_s,
            low=low if abs(low) > ROUNDING * mean_batch_s else 0.0,
            high=min(
                float(
                    max(high_sums[index] / len(batch_s), gain_s)
                    + error_s
                    + model_error_s
                ),
                mean_batch_s,
            ),
            share=gain_s / mean_batch_s,
            cost=candidate.cost,
            change=candidate.change,
            limit=candidate.limit,
            cause=candidate.cause,
        )
        remedies.append(remedy)
    return sorted(remedies, key=lambda remedy: -remedy.gain_s)
