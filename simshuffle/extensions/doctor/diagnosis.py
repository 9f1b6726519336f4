"""Diagnose why a loop waits, and what helps: replay its record without one cause at a
time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from simshuffle.extensions.doctor.causes import candidate_causes
from simshuffle.extensions.doctor.certainty import HEALTHY as HEALTHY_KIND
from simshuffle.extensions.doctor.certainty import certainty_of
from simshuffle.extensions.doctor.joint import without_both
from simshuffle.extensions.doctor.loop import MIN_BATCHES, RecordedLoop, extract_loop
from simshuffle.extensions.doctor.quiet import remove_core_waits
from simshuffle.extensions.doctor.ranking import (
    Cause,
    Remedy,
    rank_causes,
    rank_remedies,
)
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.extensions.doctor.remedies import candidate_remedies
from simshuffle.extensions.doctor.replay import LoopTimes, replay_loop, replay_loops
from simshuffle.extensions.doctor.without_cause import LoopWithoutCause
from simshuffle.spec.arrays import Floats
from simshuffle.study.schema import Schema, amount, real, share, text
from simshuffle.study.verdict import Verdict, join_sentences

if TYPE_CHECKING:
    from rich.table import Table

HEALTHY = 0.15
"""Share of the loop's time from which something is a cause (chosen)."""
NOTEWORTHY = 0.01
"""Share of the loop's time from which the largest thing left is named (chosen)."""
MOST_HIDDEN = 2.0
"""Most times by which `HEALTHY` grows as other programs make the loop longer and hide
what is small (chosen).
"""
MANY_BATCHES = 32
"""Batches below which a note says that they are few (chosen)."""
STEP_PARTS = ("copy", "forward", "backward", "optimizer", "allreduce")
"""Operations of a step."""

CAUSES = Schema(
    {
        "cause": text("what the loop loses time with"),
        "seconds": amount("s that the loop saves without the cause", look=".3g"),
        "share": share("of the loop's time", head="of the loop", look="percent"),
        "share_after": share(
            "of the loop's time, once the first cause is mended",
            head="after the first",
            look="percent",
        ),
        "confidence": share(
            "of trainings with such evidence in which this was right", look=".2f"
        ),
    }
)
REMEDIES = Schema(
    {
        "remedy": text("what to do"),
        "gain_s": real("s a batch, predicted", head="saves (s a batch)", look=".3g"),
        "low": real("low end of the 90 % interval of gain_s", look=".3g"),
        "high": real("high end of the 90 % interval of gain_s", look=".3g"),
        "share": real("of the loop's time", head="of the loop", look="percent"),
        "cost": text("what it takes"),
        "limit": text("what binds after the remedy", head="then binds"),
    }
)


@dataclass(frozen=True)
class Totals:
    """The time of a loop as recorded: sums over its batches, means over its ranks.

    The first batch is left out if waits are known, because the loop waits for it once.
    """

    batches: int  # number of each rank's batches that count
    epochs: int  # number of epochs
    ranks: int  # number of ranks
    seconds: float  # of waits and steps
    waited_s: float  # s that the loop waited for data; 0 if not known
    step_s: float  # s of all steps
    of_steps: Mapping[str, float]  # s of `STEP_PARTS`, by operation, if recorded
    batch_s: float  # mean s of a batch: wait and step
    first_s: float  # s that the loop waited for the very first batch
    seen: bool  # whether the fetches that make the batches were recorded
    replay_error: float  # share by which the replay is longer; below 0 if shorter
    least_share: float  # share of the seconds from which something is a cause
    workers: int = 0  # of a rank's loader
    waits_known: bool = True  # whether the waits for data were recorded


@dataclass(frozen=True)
class Diagnosis:
    """The causes and remedies that a record shows for its loop."""

    source: str  # file or folder of the record
    loop: Totals  # its time
    # the first explains most; [] if the loop is healthy, or nothing is known
    causes: list[Cause]
    remedies: list[Remedy]  # the one that saves most first
    notes: list[str]  # sentences on what could not be seen, or is uncertain
    largest: str = ""  # of a healthy loop: the largest thing left, and its share

    def verdict(self) -> str:
        """Return the lines of `verdict_parts`."""
        return self.verdict_parts.text()

    @property
    def verdict_parts(self) -> Verdict:
        """The first cause and what it costs, or that the loop is healthy, or that the
        record cannot tell; then why, what that rests on, and what to try.

        The record cannot tell why, if the loop waits for `HEALTHY` of its time or more
        and no fetch was recorded. A loop without recorded waits is not called healthy.
        """
        loop = self.loop
        waited_share = loop.waited_s / loop.seconds
        waits = f"{100 * waited_share:.3g} % of the loop's {loop.seconds:.3g} s are waits for data"
        rests_on = [f"{loop.batches} batches", waits]
        if not loop.waits_known:
            rests_on[1] = (
                "no DataLoader is called, so waits for data, if there are any, are a part of the"
                " step"
            )
        if self.causes:
            first = self.causes[0]
            return Verdict(
                answer=[
                    f"Most is lost with {first.name}: {first.seconds:.3g} s of"
                    f" {loop.seconds:.3g} s ({100 * first.share:.3g} %); {first.certainty}."
                ],
                why=first.sentence,
                rests_on=join_sentences(rests_on),
                measure_next=self._what_to_try(),
            )
        if waited_share >= HEALTHY and not loop.seen:
            return Verdict(
                answer=[
                    f"The loop waits for its data {100 * waited_share:.3g} % of its"
                    f" {loop.seconds:.3g} s; this record cannot tell why."
                ],
                rests_on=join_sentences(rests_on[:1]),
                measure_next="run the script under simshuffle doctor.",
            )
        if not loop.waits_known:
            answer = f"A step takes {loop.batch_s:.3g} s."
            return Verdict([answer], rests_on=join_sentences(rests_on))
        certainty = certainty_of(HEALTHY_KIND, 1.0)
        words = f"; {certainty.words()}" if certainty.cases else ""
        min_share = f"{100 * loop.least_share:.2g} %"
        return Verdict(
            answer=[f"Healthy: nothing costs the loop {min_share} or more{words}."],
            why=f"the largest thing left is {self.largest}." if self.largest else "",
            rests_on=join_sentences(rests_on),
        )

    def _what_to_try(self) -> str:
        """Return the sentence on the best remedy that a second run can try; '' if there
        is none.
        """
        for remedy in self.remedies:
            if remedy.change is not None:
                return f"--try 1 runs the script with {remedy.name}."
        return ""

    def parts(self) -> list[str | Table]:
        """Return what a terminal shows: tables of causes and remedies, notes and the
        verdict, in this order; a table without rows is left out.
        """
        tables: list[str | Table] = []
        if self.causes:
            rows = [
                (
                    cause.name,
                    cause.seconds,
                    cause.share,
                    cause.share_after,
                    cause.confidence,
                )
                for cause in self.causes
            ]
            title = f"What {self.loop.batches} batches lose time with"
            tables.append(
                CAUSES.listing(CAUSES.framed(rows), title, list(CAUSES.columns))
            )
        if self.remedies:
            remedy_rows = [
                (
                    remedy.name,
                    remedy.gain_s,
                    remedy.low,
                    remedy.high,
                    remedy.share,
                    remedy.cost,
                    remedy.limit,
                )
                for remedy in self.remedies
            ]
            columns = ["remedy", "cost", "limit", "gain_s", "low", "high", "share"]
            tables.append(
                REMEDIES.listing(REMEDIES.framed(remedy_rows), "What helps", columns, 3)
            )
        return [*tables, *self.notes, self.verdict()]

    def as_json(self) -> dict[str, Any]:
        """Return all fields by their names, ``verdict``, ``verdict_parts`` and
        ``confidence``, as plain values, in s.
        """
        return {
            **asdict(self),
            "confidence": self.confidence,
            **self.verdict_parts.as_json(),
            "verdict": self.verdict(),
        }

    @property
    def confidence(self) -> float | None:
        """Share of generated trainings with such evidence in which the first cause was
        right, or in which a loop that is called healthy was; None if neither is said.
        """
        if self.causes:
            return self.causes[0].confidence
        waited_share = self.loop.waited_s / self.loop.seconds
        can_tell = waited_share < HEALTHY or self.loop.seen
        if not (can_tell and self.loop.waits_known):
            return None
        return certainty_of(HEALTHY_KIND, 1.0).share


def diagnose(record: Record) -> Diagnosis:
    """Return what the slowest loop of a record loses time with, and what would help.

    Every cause is removed from the record in turn, and the loop is replayed: the time
    saved is the cost of the cause. A special case that explains half of what a broad
    one does goes before it. A cause that hides behind the first one counts by the mean
    of what it costs beside it and without it. Waits for cores that other programs had are taken off
    first; the time saved is scaled to the loop as it was recorded. A cause is named
    from `HEALTHY` of the loop's time on; the limit grows, to `MOST_HIDDEN` times that
    at most, as other programs made the loop longer. Of a loop without recorded waits
    and with fewer than `MIN_BATCHES` batches no cause is named.

    Raises:
        InputError: the record has no loop, the loop takes no time, or it has fewer than
            `MIN_BATCHES` batches (1 where waits were not recorded).
    """
    measured = extract_loop(record)
    begin = measured.first_counted_batch
    replayed_s = replay_loop(measured.times).mean(axis=1)
    replay_error = replayed_s.sum() / measured.measured_batch_s.mean(axis=1).sum() - 1
    disturbed_s = replayed_s[begin:]
    loop = remove_core_waits(measured)
    batch_s = replay_loop(loop.times).mean(axis=1)[begin:]
    # other programs make all parts of the loop longer alike
    factor = float(disturbed_s.sum() / batch_s.sum())
    min_share = HEALTHY * min(factor, MOST_HIDDEN)

    candidates = candidate_causes(loop)
    saved_s = factor * _saved_seconds(
        batch_s, [candidate.times for candidate in candidates]
    )
    causes: list[Cause] = []
    largest = _largest_left(candidates, saved_s, float(disturbed_s.sum()))
    # one or two steps do not say how certain a cause is
    if len(batch_s) >= MIN_BATCHES - begin:
        causes = rank_causes(
            candidates,
            saved_s=saved_s,
            saved_after=partial(_saved_after, loop, candidates, factor),
            loop=loop,
            loop_s=float(disturbed_s.sum()),
            min_share=min_share,
        )

    # of several candidates of one name, as of slow workers, the one that costs most
    times_without = {
        candidates[index].name: candidates[index].times
        for index in np.argsort(saved_s.sum(axis=0), kind="stable")
    }
    changes = candidate_remedies(loop, times_without, [cause.name for cause in causes])
    best_times = [change.best_times or change.times for change in changes]
    best_gains = factor * _saved_seconds(batch_s, best_times)
    gains = factor * _saved_seconds(batch_s, [change.times for change in changes])
    quiet_shares = np.array([change.quiet_share for change in changes])
    gains += quiet_shares * (best_gains - gains)
    remedies = rank_remedies(
        changes,
        gains=gains,
        best_gains=best_gains,
        loop=loop,
        batch_s=disturbed_s,
        replay_error=abs(replay_error),
    )
    totals = _totals(measured, replay_error, min_share)
    notes = [*record.about.get("notes", []), *loop.notes]
    notes += _notes_on_trust(loop, replay_error, len(batch_s))
    return Diagnosis(
        record.source, totals, causes, remedies, notes, "" if causes else largest
    )


def _notes_on_trust(
    loop: RecordedLoop, replay_error: float, num_batches: int
) -> list[str]:
    """Return sentences on how far the replay is off, and on a record that is short."""
    notes = []
    if loop.fetches_recorded:
        notes.append(
            f"The replay of what was recorded is {100 * abs(replay_error):.2f} % off."
        )
    if num_batches < MANY_BATCHES:
        count = "1 batch is" if num_batches == 1 else f"{num_batches} batches are"
        notes.append(f"{count} few: a longer record would be surer.")
    return notes


def _saved_after(
    loop: RecordedLoop,
    candidates: Sequence[LoopWithoutCause],
    factor: float,
    first_index: int,
) -> Floats:
    """Return the s that all batches take less without each cause, (N,), where another
    one is already mended; 0 for that one, and where both change the workers.

    Args:
        loop: without the waits that other programs caused.
        candidates: N possible causes.
        factor: on the s, by which other programs made the loop longer.
        first_index: of the candidate that is mended.
    """
    first = candidates[first_index].times
    batch_s = replay_loop(first).mean(axis=1)[loop.first_counted_batch :]
    changes_workers = first.workers != loop.times.workers
    pairs = [
        first
        if index == first_index
        or (changes_workers and candidate.times.workers != loop.times.workers)
        else without_both(loop.times, first, candidate.times)
        for index, candidate in enumerate(candidates)
    ]
    return np.asarray(factor * _saved_seconds(batch_s, pairs).sum(axis=0))


def _largest_left(
    candidates: Sequence[LoopWithoutCause], saved_s: Floats, loop_s: float
) -> str:
    """Return the name and share of the candidate that costs the largest part; '' if
    none costs `NOTEWORTHY` or more.

    Args:
        candidates: N possible causes.
        saved_s: (batches, N) s that each batch takes less without each of them.
        loop_s: s of all batches.
    """
    if not candidates:
        return ""
    shares = saved_s.sum(axis=0) / loop_s
    largest = int(np.argmax(shares))
    if shares[largest] < NOTEWORTHY:
        return ""
    return f"{candidates[largest].name} ({100 * shares[largest]:.2g} %)"


def _totals(loop: RecordedLoop, replay_error: float, min_share: float) -> Totals:
    """Return the totals of a loop as it was recorded.

    Args:
        loop: as it was recorded.
        replay_error: share by which its replay is longer.
        min_share: share of its time from which something is a cause.
    """
    begin = loop.first_counted_batch
    seconds_of = {
        operation: float(loop.sum_of(operation)[begin:].mean(axis=1).sum())
        for operation in ("wait", "step", *STEP_PARTS)
    }
    num_batches, num_ranks = loop.times.load_s.shape
    num_batches -= begin
    seconds = seconds_of["wait"] + seconds_of["step"]
    return Totals(
        batches=num_batches,
        epochs=len(loop.times.epoch_bounds) - 1,
        ranks=num_ranks,
        seconds=seconds,
        waited_s=seconds_of["wait"],
        step_s=seconds_of["step"],
        of_steps={
            part: seconds_of[part]
            for part in STEP_PARTS
            if part in loop.recorded_operations
        },
        batch_s=seconds / num_batches,
        first_s=float(loop.sum_of("wait")[0].mean()),
        seen=loop.fetches_recorded,
        replay_error=float(replay_error),
        least_share=min_share,
        workers=loop.times.workers,
        waits_known=loop.waits_known,
    )


def _saved_seconds(batch_s: Floats, candidates: Sequence[LoopTimes]) -> Floats:
    """Return the s that each batch takes less in N other loops, (batches, N), mean over
    the ranks; below 0 where it takes longer.

    Args:
        batch_s: (batches,) s of the last batches of the loop as it is.
        candidates: N loops with changed times.
    """
    saved_s = np.zeros((len(batch_s), len(candidates)))
    # loops with equal workers and order are replayed together
    indices_of: dict[tuple[int, int, bool], list[int]] = {}
    for index, times in enumerate(candidates):
        loader = (times.workers, times.prefetch, times.in_order)
        indices_of.setdefault(loader, []).append(index)
    for indices in indices_of.values():
        replayed_s = replay_loops([candidates[index] for index in indices])
        saved_s[:, indices] = batch_s[:, None] - replayed_s[-len(batch_s) :].mean(
            axis=-1
        )
    return saved_s
