"""Auditing a loader: it runs uninterrupted, is killed at chosen steps and goes on, and what it
trained on is counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from simshuffle.errors import refuse
from simshuffle.extensions.resuming.ranks import ENDED, HANGS, KILLED
from simshuffle.extensions.resuming.script import Script, rows_of
from simshuffle.study.options import COMMAND_LINE
from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming.law import NOTHING, Batches, joined

PATIENCE = 5.0
"""Seconds that other ranks may go on after one has failed (chosen: errors come together)."""
MOST_FURTHER = 2
"""Batches that ranks may go on after their state was saved, before they are killed (chosen)."""


@dataclass(frozen=True)
class AuditRequest:
    """What an audit is to do."""

    before: Readers
    after: tuple[Readers, ...]
    samples: tuple[int, ...]  # of each shard
    epochs: int
    seed: int
    at: tuple[tuple[int, int], ...]  # epochs and steps at which states are saved
    tries: int  # further points, drawn at random
    seconds: float  # that each run of the ranks may take

    @property
    def size(self) -> int:
        """N, samples."""
        return sum(self.samples)


@dataclass(frozen=True)
class KillPoint:
    """Where the loader is killed."""

    epoch: int
    step: int  # at which its state is saved
    further: int  # batches that it goes on before it is killed


@dataclass(frozen=True)
class AuditTimes:
    """What a run of ranks took, the longest of them; None where no rank had a batch."""

    made_s: float | None  # for `make` or `resume`
    first_batch_s: float | None  # the same, and the first batch


@dataclass(frozen=True)
class AuditOutcome:
    """What came of a point and a change of ranks."""

    point: KillPoint
    after: Readers
    before_rows: Sequence[Batches]  # what was trained on, of each epoch up to that of the point
    after_rows: Sequence[Batches]  # the rest of that epoch, and the epochs after it; () if none
    error: str  # '' for none, 'hangs', or what a rank said
    state_nbytes: int  # of the rank with most; 0 if there is none
    started: AuditTimes  # before the crash
    resumed: AuditTimes
    # what the broken epoch, and each after it, has without this crash
    reference: Sequence[Batches] = ()
    trained_steps: int = 0  # iterations of the first of these that were done
    second: Sequence[AuditOutcome] = ()  # the same, killed once more


@dataclass(frozen=True)
class Audit:
    """All that was seen."""

    asked: AuditRequest
    name: str  # of the loader
    words: Sequence[str]  # of the command
    versions: Mapping[str, str]  # of the libraries that it has loaded
    whole: Mapping[Readers, Sequence[Batches]]  # the uninterrupted epochs of each shape
    repeatable: bool  # whether the same seed gave the same epochs
    tried: Sequence[AuditOutcome]


def audit(
    script: Script, asked: AuditRequest, tell: Callable[[float], None] | None = None
) -> Audit:
    """Run a script as asked, and tell the share that is done. Raises an InputError if the loader
    does not work without a crash, or has no such step."""
    runs = _Runs(script, asked, tell)
    whole = {asked.before: runs.whole(asked.before, "--from")}
    again = runs.whole(asked.before, "--from")
    points = _points(asked, whole[asked.before])
    others = [readers for readers in dict.fromkeys(asked.after) if readers not in whole]
    restarts = sum(1 + (point.epoch + 1 < asked.epochs) for point in points) + len(points)
    runs.total = 2 + len(others) + len(points) + restarts * len(asked.after)
    whole |= {readers: runs.whole(readers, "--to") for readers in others}
    tried = [one for point in points for one in runs.broken_off(point, whole)]
    pairs = zip(whole[asked.before], again, strict=True)
    repeatable = all(alike(*pair) for pair in pairs) and all(
        alike(one.before_rows[-1], whole[asked.before][one.point.epoch].first(one.point.step))
        for one in tried
        if one.after_rows
    )
    command = script.command
    return Audit(asked, command.name, command.words, script.versions, whole, repeatable, tried)


def alike(one: Batches, other: Batches) -> bool:
    """Whether ranks trained on the same."""
    return all(map(np.array_equal, one.columns, other.columns))


def _points(asked: AuditRequest, whole: Sequence[Batches]) -> list[KillPoint]:
    """The points that were asked for, and those that are drawn: in the middle of an epoch."""
    size = asked.before.world_size
    steps = [_fewest(epoch, size) for epoch in whole]
    points = []
    for epoch, step in dict.fromkeys(asked.at):
        if step > steps[epoch]:
            rule = f"must be a step of the epoch, which has {steps[epoch]}"
            remedy = "Name an earlier one, or raise --samples."
            refuse("--at", rule, f"{step} of epoch {epoch}", remedy, COMMAND_LINE)
        points.append(KillPoint(epoch, step, 0))
    middle = [(epoch, step) for epoch, most in enumerate(steps) for step in range(1, most)]
    if asked.tries and not middle:
        rule = "an epoch must have 2 steps or more, of every rank, to break off in the middle"
        remedy = "Raise --samples, or lower --batch-size."
        refuse("--try", rule, f"{max(steps)} steps", remedy, COMMAND_LINE)
    rng = np.random.default_rng(asked.seed)
    left = [place for place in middle if place not in asked.at]
    for place in rng.permutation(len(left))[: asked.tries].tolist():
        epoch, step = left[place]
        further = int(rng.integers(min(MOST_FURTHER, steps[epoch] - step) + 1))
        points.append(KillPoint(epoch, step, further))
    return points


def _fewest(epoch: Batches, world_size: int) -> int:
    """Steps of the rank that has fewest."""
    of_rank = np.zeros(world_size, np.int64)
    np.maximum.at(of_rank, epoch.rank, epoch.step + 1)
    return int(of_rank.min())


class _Runs:
    """Runs of the ranks of a script."""

    def __init__(
        self, script: Script, asked: AuditRequest, tell: Callable[[float], None] | None
    ) -> None:
        self.total = 0  # how many there will be; 0 while that is not known
        self._script, self._asked, self._tell, self._done = script, asked, tell, 0

    def _run(
        self, readers: Readers, point: KillPoint, before: Readers | None = None, **of: Any
    ) -> tuple[Path, list[str]]:
        asked = self._asked
        before = before or asked.before
        run = {
            **asdict(readers),
            "seed": asked.seed,
            "samples": list(asked.samples),
            "epochs": asked.epochs,
            "epoch": point.epoch,
            "step": point.step,
            "ranks_before": before.world_size,
            "workers_before": before.workers,
        }
        found = self._script.job(run, asked.seconds, patience=PATIENCE, **of)
        self._done += 1
        if self._tell is not None and self.total:
            self._tell(min(self._done / self.total, 1.0))
        return found

    def whole(self, readers: Readers, option: str) -> list[Batches]:
        """The uninterrupted epochs. Raises an InputError if there are none."""
        asked, script = self._asked, self._script.command.script
        out, came_to = self._run(readers, KillPoint(0, 0, 0), first=0, last=asked.epochs - 1)
        shown = f"{option} {readers.nodes}x{readers.ranks}"
        if error := _error(came_to, ENDED):
            kind, _, value = error.partition(": ")
            if kind == "BatchError":
                rule, remedy = "batches must be numbers of samples", "Let make(run) give those."
                refuse(script, rule, value, remedy, COMMAND_LINE)
            rule = f"must run {asked.epochs} epochs with {shown} without a crash"
            remedy = "Repair it (-v shows where), or change the ranks, --samples or --shards."
            if error == HANGS:
                remedy = f"It has {asked.seconds:g} s; give it more with --seconds, or repair it."
            refuse(script, rule, error, remedy, COMMAND_LINE)
        found = [_batches(out, readers, epoch) for epoch in range(asked.epochs)]
        rmtree(out)
        for epoch in found:
            _check_numbers(epoch, asked.size, script)
        return found

    def broken_off(
        self, point: KillPoint, whole: Mapping[Readers, Sequence[Batches]]
    ) -> list[AuditOutcome]:
        """Return what comes of the loader killed at a point, for each who is to go on; ``whole``
        has the uninterrupted epochs."""
        asked, before = self._asked, self._asked.before
        killed: dict[str, Any] = {"kill_at": point.step, "further": point.further}
        out, came_to = self._run(before, point, first=0, last=point.epoch, **killed)
        error = _error(came_to, KILLED)
        rows = [_batches(out, before, epoch) for epoch in range(point.epoch + 1)]
        sizes = [path.stat().st_size for path in out.glob("*.state")]
        known = (max(sizes, default=0), _times(out))
        if error:
            rmtree(out)
            return [AuditOutcome(point, of, rows, (), error, *known, _NONE) for of in asked.after]
        found = []
        for readers in asked.after:
            reference = [whole[before][point.epoch], *whole[readers][point.epoch + 1 :]]
            started = AuditOutcome(
                point, readers, rows, (), "", *known, _NONE, reference, trained_steps=point.step
            )
            places = second_places(point, before, readers, whole)
            tried, then = self._resumed(started, out, before, point.step, places)
            if not tried.error and has_all(tried):
                second = [self._second(tried, then, place) for place in places]
                tried = replace(tried, second=[one for one in second if one is not None])
            found.append(tried)
            rmtree(then)
        rmtree(out)
        return found

    def _resumed(
        self,
        started: AuditOutcome,
        states: Path,
        before: Readers,
        step: int,
        save_at: Sequence[tuple[int, int]] = (),
    ) -> tuple[AuditOutcome, Path]:
        """Return a crash with what follows it, and the folder of what the ranks wrote: the ranks
        ``before`` left ``states`` after this ``step`` of the epoch, as a trainer counts."""
        epoch, readers = started.point.epoch, started.after
        then, came_to = self._run(
            readers,
            replace(started.point, step=step),
            before,
            states=str(states),
            saved=before.world_size,
            first=epoch,
            last=self._asked.epochs - 1,
            save_at=[[*place] for place in save_at],
        )
        error = _error(came_to, ENDED)
        epochs = [] if error else range(epoch, self._asked.epochs)
        after = [_batches(then, readers, each) for each in epochs]
        for rows in after:
            _check_numbers(rows, self._asked.size, self._script.command.script)
        return replace(started, after_rows=after, error=error, resumed=_times(then)), then

    def _second(
        self, tried: AuditOutcome, then: Path, place: tuple[int, int]
    ) -> AuditOutcome | None:
        """Return what comes of a run that went on, killed once more at ``place`` (epoch, steps
        since it went on); None where not all of its ranks came there."""
        epoch, step = place
        states, readers = then / f"{epoch}-{step}", tried.after
        if len(list(states.glob("*.state"))) < readers.world_size:
            return None
        past, broken = tried.before_rows[:-1], tried.before_rows[-1]
        if epoch == tried.point.epoch:
            before_rows = [*past, broken.then(tried.after_rows[0].first(step))]
            reference = [broken.then(tried.after_rows[0]), *tried.reference[1:]]
            trained_steps = tried.trained_steps + step
        else:
            following = tried.after_rows[1]
            before_rows = [*past, broken.then(tried.after_rows[0]), following.first(step)]
            reference = [following, *tried.reference[2:]]
            trained_steps = step
        started = replace(
            tried,
            point=KillPoint(epoch, step, 0),
            before_rows=before_rows,
            after_rows=(),
            reference=reference,
            trained_steps=trained_steps,
        )
        second, out = self._resumed(started, states, readers, trained_steps)
        rmtree(out)
        return second


def second_places(
    point: KillPoint, before: Readers, after: Readers, whole: Mapping[Readers, Sequence[Batches]]
) -> list[tuple[int, int]]:
    """Return where a run that goes on is killed once more: epochs, and steps since it went on, in
    the middle of what is left of the broken epoch, and of the next one.

    No number of steps is that of the first crash: a loader that counts from the wrong step must
    not be right by chance."""
    steps_before = _fewest(whole[before][point.epoch], before.world_size)
    steps_after = [_fewest(epoch, after.world_size) for epoch in whole[after]]
    left = steps_after[point.epoch] * (steps_before - point.step) // max(steps_before, 1)
    lengths = [(point.epoch, left)]
    lengths += [*enumerate(steps_after)][point.epoch + 1 : point.epoch + 2]
    places = []
    for epoch, length in lengths:
        middle = length // 2
        if middle == point.step:
            middle += 1 if middle + 1 < length else -1
        if middle >= 1:
            places.append((epoch, middle))
    return places


def has_all(tried: AuditOutcome) -> bool:
    """Return whether the epochs from the broken one on have the samples that they would have."""
    broken = joined(tried.before_rows[-1], tried.after_rows[0])
    return all(
        np.array_equal(np.sort(rows.sample), np.sort(expected.sample))
        for rows, expected in zip([broken, *tried.after_rows[1:]], tried.reference, strict=True)
    )


_NONE = AuditTimes(None, None)


def _error(came_to: Sequence[str], wanted: str) -> str:
    """'' if all ranks came to what is wanted; else what the first of the others came to. One that
    waits for another is not the one that failed."""
    wrong = [one for one in came_to if one != wanted]
    told = [one for one in wrong if one != HANGS]
    if told and told[0] in {ENDED, KILLED}:
        return f"a rank {told[0]}"
    return (told or wrong or [""])[0].rstrip(": ")


def _batches(out: Path, readers: Readers, epoch: int) -> Batches:
    """What the ranks of a run trained on in an epoch."""
    rows = [
        (rank, step, sample)
        for rank, batches in enumerate(rows_of(out, readers.world_size, epoch))
        for step, batch in enumerate(batches)
        for sample in batch
    ]
    return Batches(*np.array(rows, np.int64).reshape(-1, 3).T) if rows else NOTHING


def _check_numbers(epoch: Batches, size: int, script: str) -> None:
    wrong = epoch.sample[(epoch.sample < 0) | (epoch.sample >= size)]
    if len(wrong):
        rule = f"batches must be numbers of samples, from 0 to {size - 1}"
        remedy = "Say with --samples how many it has, or use those of run.samples."
        refuse(script, rule, str(wrong[0]), remedy, COMMAND_LINE)


def _times(out: Path) -> AuditTimes:
    found = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("*.times")]
    if not found:
        return _NONE
    return AuditTimes(*(max(each[name] for each in found) for name in ("made", "first")))
