"""Auditing a loader: it runs uninterrupted, is killed at chosen steps and goes on, and what it
trained on is counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from simshuffle.audit.ranks import ENDED, HANGS, KILLED
from simshuffle.audit.script import Script, rows_of
from simshuffle.errors import refuse
from simshuffle.orders.order import Readers
from simshuffle.resuming.law import NOTHING, Batches
from simshuffle.study.options import COMMAND_LINE

PATIENCE = 5.0
"""Seconds that other ranks may go on after one has failed (chosen: errors come together)."""
MOST_FURTHER = 2
"""Batches that ranks may go on after their state was saved, before they are killed (chosen)."""


@dataclass(frozen=True)
class Asked:
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
class Point:
    """Where the loader is killed."""

    epoch: int
    step: int  # at which its state is saved
    further: int  # batches that it goes on before it is killed


@dataclass(frozen=True)
class Times:
    """What a run of ranks took, the longest of them; None where no rank had a batch."""

    made_s: float | None  # for `make` or `resume`
    first_batch_s: float | None  # the same, and the first batch


@dataclass(frozen=True)
class Tried:
    """What came of a point and a change of ranks."""

    point: Point
    after: Readers
    before_rows: Sequence[Batches]  # what was trained on, of each epoch up to that of the point
    after_rows: Sequence[Batches]  # the rest of that epoch, and the epochs after it; () if none
    error: str  # '' for none, 'hangs', or what a rank said
    state_nbytes: int  # of the rank with most; 0 if there is none
    started: Times  # before the crash
    resumed: Times


@dataclass(frozen=True)
class Audit:
    """All that was seen."""

    asked: Asked
    name: str  # of the loader
    words: Sequence[str]  # of the command
    versions: Mapping[str, str]  # of the libraries that it has loaded
    whole: Mapping[Readers, Sequence[Batches]]  # the uninterrupted epochs of each shape
    repeatable: bool  # whether the same seed gave the same epochs
    tried: Sequence[Tried]


def audit(script: Script, asked: Asked, tell: Callable[[float], None] | None = None) -> Audit:
    """Run a script as asked, and tell the share that is done. Raises an InputError if the loader
    does not work without a crash, or has no such step."""
    runs = _Runs(script, asked, tell)
    whole = {asked.before: runs.whole(asked.before, "--from")}
    again = runs.whole(asked.before, "--from")
    points = _points(asked, whole[asked.before])
    others = [readers for readers in dict.fromkeys(asked.after) if readers not in whole]
    runs.total = 2 + len(others) + len(points) * (1 + len(asked.after))
    whole |= {readers: runs.whole(readers, "--to") for readers in others}
    tried = [one for point in points for one in runs.broken_off(point)]
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


def _points(asked: Asked, whole: Sequence[Batches]) -> list[Point]:
    """The points that were asked for, and those that are drawn: in the middle of an epoch."""
    size = asked.before.world_size
    steps = [_fewest(epoch, size) for epoch in whole]
    points = []
    for epoch, step in dict.fromkeys(asked.at):
        if step > steps[epoch]:
            rule = f"must be a step of the epoch, which has {steps[epoch]}"
            remedy = "Name an earlier one, or raise --samples."
            refuse("--at", rule, f"{step} of epoch {epoch}", remedy, COMMAND_LINE)
        points.append(Point(epoch, step, 0))
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
        points.append(Point(epoch, step, further))
    return points


def _fewest(epoch: Batches, world_size: int) -> int:
    """Steps of the rank that has fewest."""
    of_rank = np.zeros(world_size, np.int64)
    np.maximum.at(of_rank, epoch.rank, epoch.step + 1)
    return int(of_rank.min())


class _Runs:
    """Runs of the ranks of a script."""

    def __init__(self, script: Script, asked: Asked, tell: Callable[[float], None] | None) -> None:
        self.total = 0  # how many there will be; 0 while that is not known
        self._script, self._asked, self._tell, self._done = script, asked, tell, 0

    def _run(self, readers: Readers, point: Point, **of: Any) -> tuple[Path, list[str]]:
        asked, before = self._asked, self._asked.before
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
            self._tell(self._done / self.total)
        return found

    def whole(self, readers: Readers, option: str) -> list[Batches]:
        """The uninterrupted epochs. Raises an InputError if there are none."""
        asked, script = self._asked, self._script.command.script
        out, came_to = self._run(readers, Point(0, 0, 0), first=0, last=asked.epochs - 1)
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

    def broken_off(self, point: Point) -> list[Tried]:
        """The loader killed there, and gone on with all who are to."""
        asked, before = self._asked, self._asked.before
        killed = {"kill_at": point.step, "further": point.further, "last": point.epoch}
        out, came_to = self._run(before, point, first=0, **killed)
        error = _error(came_to, KILLED)
        rows = [_batches(out, before, epoch) for epoch in range(point.epoch + 1)]
        sizes = [path.stat().st_size for path in out.glob("*.state")]
        known = (max(sizes, default=0), _times(out))
        if error:
            rmtree(out)
            return [Tried(point, of, rows, (), error, *known, _NONE) for of in asked.after]
        found = []
        for readers in asked.after:
            then, came_to = self._run(
                readers,
                point,
                states=str(out),
                saved=before.world_size,
                first=point.epoch,
                last=asked.epochs - 1,
            )
            error = _error(came_to, ENDED)
            epochs = [] if error else range(point.epoch, asked.epochs)
            after = [_batches(then, readers, epoch) for epoch in epochs]
            for epoch in after:
                _check_numbers(epoch, asked.size, self._script.command.script)
            found.append(Tried(point, readers, rows, after, error, *known, _times(then)))
            rmtree(then)
        rmtree(out)
        return found


_NONE = Times(None, None)


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


def _times(out: Path) -> Times:
    found = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("*.times")]
    if not found:
        return _NONE
    return Times(*(max(each[name] for each in found) for name in ("made", "first")))
