"""Why a loop waits, and what helps: the record of a training replayed with one thing less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simshuffle.extensions.doctor.causes import Without, causes
from simshuffle.extensions.doctor.loop import LEAST_BATCHES, RecordedLoop, loop_of
from simshuffle.extensions.doctor.quiet import quieted
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.extensions.doctor.remedies import Helps, remedies
from simshuffle.extensions.doctor.replay import Way, elapsed, together
from simshuffle.spec.arrays import Floats
from simshuffle.study.schema import Schema, amount, real, share, text

if TYPE_CHECKING:
    from rich.table import Table

HEALTHY = 0.05
"""Share of the loop's time below which nothing is a cause (chosen)."""
MOST_HIDDEN = 5.0
"""Other programs hide what is small: that share grows as they make the loop longer, up to this many
times (chosen)."""
ROUNDING = 1e-9
"""Share of a batch's time up to which a gain is the rounding of sums."""
LEAST_GAIN = 0.01
"""Share of the loop's time below which nothing is a remedy (chosen)."""
BLOCKS, RESAMPLES = 40, 400
"""Blocks of batches in which a record is resampled, and how often (chosen)."""
ENDS = (0.05, 0.95)
"""Shares of the resamples below the ends of an interval: 90 % lie between."""
FEW = 32
"""Batches below which a note says that they are few (chosen)."""
IN_STEPS = ("copy", "forward", "backward", "optimizer", "allreduce")

CAUSES = Schema(
    {
        "cause": text("of the loop's time"),
        "seconds": amount("that the loop would take less without it", look=".3g"),
        "share": share("of the loop's time", head="of the loop", look="percent"),
        "confidence": share("that it is the first", look=".2f"),
    }
)
REMEDIES = Schema(
    {
        "remedy": text("what to do"),
        "gain_s": real("s a batch, predicted", head="saves (s a batch)", look=".3g"),
        "low": real("end of its 90 % interval", look=".3g"),
        "high": real("end of its 90 % interval", look=".3g"),
        "share": real("of the loop's time", head="of the loop", look="percent"),
        "cost": text("what it takes"),
        "limit": text("what binds after it", head="then binds"),
    }
)


@dataclass(frozen=True)
class Totals:
    """What a loop took; sums over its batches, means over its ranks. The first batch is left out:
    the loop waits for it once."""

    batches: int  # of a rank
    epochs: int
    ranks: int
    seconds: float
    waited_s: float
    step_s: float
    of_steps: Mapping[str, float]  # s of them, by operation
    batch_s: float  # a batch
    first_s: float  # until the first batch was there
    seen: bool  # whether it was recorded what makes the batches
    replay_error: float  # share by which the replay of what was recorded is off
    least_share: float  # of the seconds, below which nothing is a cause
    waits_known: bool = True  # whether it was recorded how long the loop waited for its data


@dataclass(frozen=True)
class Cause:
    """What a loop loses time with."""

    name: str
    seconds: float  # that the loop would take less without it
    share: float  # of the loop's seconds
    confidence: float  # share of resamples of the record in which it comes first
    sentence: str  # what is seen of it


@dataclass(frozen=True)
class Remedy:
    """What would help."""

    name: str
    gain_s: float  # a batch
    low: float  # end of the 90 % interval of ``gain_s``, of chance, the replay and what is assumed
    high: float  # the other end
    share: float  # of the loop's seconds
    cost: str  # cores, bytes, a change of code
    change: Mapping[str, Any] | None  # that the recorder can make; None where it can make none
    limit: str  # what binds after it
    cause: str  # that it is against; '' where it may help against several


@dataclass(frozen=True)
class Diagnosis:
    """What a record shows."""

    source: str
    loop: Totals
    causes: list[Cause]  # the first explains most; [] if the loop is healthy, or nothing is known
    remedies: list[Remedy]  # that which saves most first
    notes: list[str]

    def verdict(self) -> str:
        """One sentence."""
        loop = self.loop
        waited = loop.waited_s / loop.seconds
        head = f"The loop waits for its data {100 * waited:.3g} % of its {loop.seconds:.3g} s"
        if not loop.waits_known:
            head = (
                f"A step takes {loop.batch_s:.3g} s. Waits for data are not in this record, in"
                " which no DataLoader is called; where there are any, they are a part of the step"
            )
        if self.causes:
            first = self.causes[0]
            return (
                f"{head}; most is lost with {first.name}: {first.seconds:.3g} s "
                f"({100 * first.share:.3g} %), with confidence {first.confidence:.2f}. "
                f"{first.sentence}"
            )
        if waited >= HEALTHY and not self.loop.seen:
            return f"{head}; why, this record cannot tell."
        if not loop.waits_known:
            return f"{head}."
        least = f"{100 * self.loop.least_share:.2g} %"
        return f"Healthy: {head[0].lower()}{head[1:]}, and nothing costs it {least} or more."

    def parts(self) -> list[str | Table]:
        """What a terminal shows: the causes, the remedies, notes and the sentence."""
        out: list[str | Table] = []
        if self.causes:
            rows = [(c.name, c.seconds, c.share, c.confidence) for c in self.causes]
            title = f"What {self.loop.batches} batches lose time with"
            out.append(CAUSES.listing(CAUSES.framed(rows), title, list(CAUSES.columns)))
        if self.remedies:
            named = [
                (r.name, r.gain_s, r.low, r.high, r.share, r.cost, r.limit) for r in self.remedies
            ]
            columns = ["remedy", "cost", "limit", "gain_s", "low", "high", "share"]
            out.append(REMEDIES.listing(REMEDIES.framed(named), "What helps", columns, 3))
        return [*out, *self.notes, self.verdict()]

    def as_json(self) -> dict[str, Any]:
        """All as plain values, in s."""
        return {**asdict(self), "verdict": self.verdict()}


def diagnose(record: Record) -> Diagnosis:
    """What the slowest loop of a record loses time with, and what would help.

    Every cause is taken away from what was recorded, and the loop replayed: what it then takes less
    is the cause's. A special case that explains half of what a broad one does goes before it.
    Raises an InputError if the record has no loop.
    """
    measured = loop_of(record)
    own = elapsed(measured.way).mean(axis=1)
    error = own.sum() / measured.measured.mean(axis=1).sum() - 1
    begins_at = measured.begins_at
    loop, noisy = quieted(measured), own[begins_at:]
    own = elapsed(loop.way).mean(axis=1)[begins_at:]
    # others make all of it longer alike
    longer = float(noisy.sum() / own.sum())
    tried = causes(loop)
    gains = longer * _gains(own, [of.way for of in tried])
    least = HEALTHY * min(longer, MOST_HIDDEN)
    totals = _totals(measured, error, least)
    # of a step or two nothing says how sure a cause is
    enough = len(own) >= LEAST_BATCHES - begins_at
    found = _causes(tried, gains, loop, float(noisy.sum()), least) if enough else []
    notes = [*record.about.get("notes", []), *loop.notes]
    if loop.made_by:
        notes.append(f"The replay of what was recorded is {100 * abs(error):.2f} % off.")
    if len(own) < FEW:
        count = "1 batch is" if len(own) == 1 else f"{len(own)} batches are"
        notes.append(f"{count} few: a longer record would be surer.")
    helps = remedies(loop, {of.name: of.way for of in tried}, [of.name for of in found])
    saved = longer * _gains(own, [of.way for of in helps])
    best = longer * _gains(own, [of.best or of.way for of in helps])
    drawn = _remedies(helps, saved, best, loop, noisy, abs(error))
    return Diagnosis(record.source, totals, found, drawn, notes)


def _totals(loop: RecordedLoop, error: float, least: float) -> Totals:
    begins_at = loop.begins_at
    sums = {
        name: float(loop.of(name)[begins_at:].mean(axis=1).sum())
        for name in ("wait", "step", *IN_STEPS)
    }
    batches, ranks = loop.way.load.shape
    batches -= begins_at
    seconds = sums["wait"] + sums["step"]
    return Totals(
        batches=batches,
        epochs=len(loop.way.first) - 1,
        ranks=ranks,
        seconds=seconds,
        waited_s=sums["wait"],
        step_s=sums["step"],
        of_steps={name: sums[name] for name in IN_STEPS if name in loop.known},
        batch_s=seconds / batches,
        first_s=float(loop.of("wait")[0].mean()),
        seen=loop.made_by,
        replay_error=float(error),
        least_share=least,
        waits_known=loop.waits_known,
    )


def _gains(own: Floats, ways: Sequence[Way]) -> Floats:
    """s that each of the last batches, as many as in ``own``, takes less in N other ways,
    (batches, N), in the mean over ranks."""
    out = np.zeros((len(own), len(ways)))
    alike: dict[tuple[int, int, bool], list[int]] = {}
    for place, way in enumerate(ways):
        alike.setdefault((way.workers, way.prefetch, way.in_order), []).append(place)
    for places in alike.values():
        out[:, places] = own[:, None] - together([ways[of] for of in places])[-len(own) :].mean(
            axis=-1
        )
    return out


def _resampled(gains: Floats, loop: RecordedLoop) -> Floats:
    """Sums over the batches, (RESAMPLES, N), of blocks of them drawn with replacement: batches that
    follow one another depend on each other. The first of every epoch stay: they are no chance."""
    first = np.array(loop.way.first[1:-1], dtype=int) - loop.begins_at
    others = gains.copy()
    others[first] = 0.0
    edges = np.unique(np.linspace(0, len(gains), BLOCKS + 1).astype(int))
    blocks = np.add.reduceat(others, edges[:-1], axis=0)
    drawn = np.random.default_rng(0).integers(len(blocks), size=(RESAMPLES, len(blocks)))
    return np.asarray(blocks[drawn].sum(axis=1) + gains[first].sum(axis=0))


def _causes(
    tried: Sequence[Without], gains: Floats, loop: RecordedLoop, seconds: float, least: float
) -> list[Cause]:
    """Those that cost at least a share of the loop's seconds, the one to be named first before."""
    costs = np.flatnonzero(gains.sum(axis=0) >= least * seconds).tolist()
    if not costs:
        return []
    weight = np.array([tried[of].weight for of in costs])
    first = np.argmax(_resampled(gains[:, costs], loop) * weight, axis=1)
    order = np.argsort(-gains.sum(axis=0)[costs] * weight, kind="stable")
    found: dict[str, Cause] = {}
    for at in order:
        of, lost = tried[costs[at]], float(gains[:, costs[at]].sum())
        cause = Cause(of.name, lost, lost / seconds, float(np.mean(first == at)), of.sentence)
        found.setdefault(of.name, cause)  # of several workers or ranks the slowest
    return list(found.values())


def _remedies(
    helps: Sequence[Helps],
    gains: Floats,
    best: Floats,
    loop: RecordedLoop,
    own: Floats,
    error: float,
) -> list[Remedy]:
    """Those that save at least `LEAST_GAIN` of the loop's time."""
    if not helps:
        return []
    out = []
    batch_s = float(own.mean())
    low_end = np.quantile(_resampled(gains, loop), ENDS[0], axis=0) / len(own)
    ends = low_end, np.quantile(_resampled(best, loop), ENDS[1], axis=0) / len(own)
    for of, gain, least, most in zip(helps, gains.mean(axis=0).tolist(), *ends, strict=True):
        if gain >= LEAST_GAIN * batch_s:
            low = float(min(least * of.sure, gain) - error * batch_s)
            low = low if abs(low) > ROUNDING * batch_s else 0.0
            high = float(max(most, gain) + error * batch_s)
            more = (gain / batch_s, of.cost, of.change, of.limit, of.cause)
            out.append(Remedy(of.name, gain, low, high, *more))
    return sorted(out, key=lambda of: -of.gain_s)
