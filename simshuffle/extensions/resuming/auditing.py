"""Audit a loader: run it uninterrupted, kill it at chosen steps, resume it, record its
samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from simshuffle.errors import refuse
from simshuffle.extensions.resuming.outcomes import (
    Audit,
    AuditOutcome,
    AuditRequest,
    AuditTimes,
    KillPoint,
)
from simshuffle.extensions.resuming.ranks import ENDED, HANGS, KILLED
from simshuffle.extensions.resuming.script import Script, rows_of
from simshuffle.study.options import COMMAND_LINE
from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming.account import compare_continuation
from simshuffle.workload.resuming.law import NOTHING, Batches, join_batches

PATIENCE = 5.0
"""Seconds that other ranks may go on after one has failed (chosen: errors come
together).
"""
MAX_FURTHER = 2
"""Batches that ranks may go on after their state was saved, before they are killed
(chosen).
"""


def audit(
    script: Script, request: AuditRequest, tell: Callable[[float], None] | None = None
) -> Audit:
    """Run a script as requested; ``tell`` gets the share that is done.

    Outcomes are by point, then by the readers after. The loader is repeatable if two
    uninterrupted runs are equal, and runs that went on are equal to these before the
    crash.

    Raises:
        InputError: the loader does not work without a crash, has no such step, or gives
            numbers of no samples; or the script itself ends.
    """
    runs = _Runs(script, request, tell)
    uninterrupted = {request.before: runs.run_without_crash(request.before, "--from")}
    repetition = runs.run_without_crash(request.before, "--from")
    points = choose_points(request, uninterrupted[request.before])
    other_readers = [
        readers
        for readers in dict.fromkeys(request.after)
        if readers not in uninterrupted
    ]
    restarts = sum(1 + (point.epoch + 1 < request.epochs) for point in points) + len(
        points
    )
    runs.total = 2 + len(other_readers) + len(points) + restarts * len(request.after)
    uninterrupted |= {
        readers: runs.run_without_crash(readers, "--to") for readers in other_readers
    }
    outcomes = [
        outcome for point in points for outcome in runs.broken_off(point, uninterrupted)
    ]
    epoch_pairs = zip(uninterrupted[request.before], repetition, strict=True)
    repeatable = all(have_equal_rows(*pair) for pair in epoch_pairs) and all(
        have_equal_rows(
            outcome.before_rows[-1],
            uninterrupted[request.before][outcome.point.epoch].first_steps(
                outcome.point.step
            ),
        )
        for outcome in outcomes
        if outcome.after_rows
    )
    command = script.command
    return Audit(
        request,
        command.name,
        command.words,
        script.versions,
        uninterrupted,
        repeatable,
        outcomes,
    )


def have_equal_rows(rows: Batches, other_rows: Batches) -> bool:
    """Return whether ranks trained on equal samples at equal steps in equal order."""
    return all(map(np.array_equal, rows.columns, other_rows.columns))


def choose_points(request: AuditRequest, epochs: Sequence[Batches]) -> list[KillPoint]:
    """Return the requested points, each once, and then points drawn at random.

    Drawn points are other ones, before the last step of an epoch, by the seed; fewer
    than ``tries`` where steps are too few. At drawn ones ranks go on for up to
    `MAX_FURTHER` batches. ``epochs`` are uninterrupted ones with the ranks before.

    Raises:
        InputError: a step is beyond its epoch, or no epoch has a middle.
    """
    size = request.before.world_size
    steps = [epoch.fewest_steps(size) for epoch in epochs]
    points = []
    for epoch, step in dict.fromkeys(request.at):
        if step > steps[epoch]:
            rule = f"must be a step of the epoch, which has {steps[epoch]} steps"
            remedy = "Name an earlier step, or raise --samples."
            refuse("--at", rule, f"{step} of epoch {epoch}", remedy, COMMAND_LINE)
        points.append(KillPoint(epoch, step, 0))
    middle_places = [
        (epoch, step)
        for epoch, num_steps in enumerate(steps)
        for step in range(1, num_steps)
    ]
    if request.tries and not middle_places:
        rule = "an epoch must have at least 2 steps of every rank, to break off in the middle"
        remedy = "Raise --samples, or lower --batch-size."
        refuse("--try", rule, f"{max(steps)} steps", remedy, COMMAND_LINE)
    rng = np.random.default_rng(request.seed)
    undrawn = [place for place in middle_places if place not in request.at]
    for index in rng.permutation(len(undrawn))[: request.tries].tolist():
        epoch, step = undrawn[index]
        num_batches = int(rng.integers(min(MAX_FURTHER, steps[epoch] - step) + 1))
        points.append(KillPoint(epoch, step, num_batches))
    return points


class _Runs:
    """The runs of the ranks of a script, counted for progress."""

    def __init__(
        self,
        script: Script,
        request: AuditRequest,
        tell: Callable[[float], None] | None,
    ) -> None:
        self.total = 0  # how many there will be; 0 while that is not known
        self._script = script
        self._request = request
        self._tell = tell
        self._num_done = 0

    def _run(
        self,
        readers: Readers,
        point: KillPoint,
        readers_before: Readers | None = None,
        **job_options: Any,
    ) -> tuple[Path, list[str]]:
        """Run the ranks of a script once, and count the run for progress.

        Returns what `Script.job` does: the folder of what ranks wrote, which the caller
        removes, and how each rank ended. ``readers_before`` are those of the request if
        None.
        """
        request = self._request
        readers_before = readers_before or request.before
        run_facts = {
            **asdict(readers),
            "seed": request.seed,
            "samples": list(request.samples),
            "epochs": request.epochs,
            "epoch": point.epoch,
            "step": point.step,
            "ranks_before": readers_before.world_size,
            "workers_before": readers_before.workers,
        }
        folder_and_ends = self._script.job(
            run_facts, request.seconds, patience=PATIENCE, **job_options
        )
        self._num_done += 1
        if self._tell is not None and self.total:
            self._tell(min(self._num_done / self.total, 1.0))
        return folder_and_ends

    def run_without_crash(self, readers: Readers, option: str) -> list[Batches]:
        """Run the ranks uninterrupted, and return the batches of each epoch.

        ``option`` names the readers in errors.

        Raises:
            InputError: the loader fails, hangs, or gives no sample numbers.
        """
        request = self._request
        script = self._script.command.script
        folder, came_to = self._run(
            readers, KillPoint(0, 0, 0), first=0, last=request.epochs - 1
        )
        shown_option = f"{option} {readers.nodes}x{readers.ranks}"
        if error := first_failure(came_to, ENDED):
            kind, _, value = error.partition(": ")
            if kind == "BatchError":
                rule = "batches must be numbers of samples"
                remedy = "Let make(run) return a loader of such numbers."
                refuse(script, rule, value, remedy, COMMAND_LINE)
            rule = (
                f"must run {request.epochs} epochs with {shown_option} without a crash"
            )
            remedy = "Repair the script (see -v), or change the ranks, --samples or --shards."
            if error == HANGS:
                remedy = f"Allow more than {request.seconds:g} s with --seconds, or repair it."
            refuse(script, rule, error, remedy, COMMAND_LINE)
        epochs = [
            read_batches(folder, readers, epoch) for epoch in range(request.epochs)
        ]
        rmtree(folder)
        for epoch in epochs:
            check_sample_numbers(epoch, request.size, script)
        return epochs

    def broken_off(
        self, point: KillPoint, uninterrupted: Mapping[Readers, Sequence[Batches]]
    ) -> list[AuditOutcome]:
        """Kill the loader at a point, and return its outcome for each set of readers.

        These are the readers that resume. A resumed run that lacks and repeats nothing
        is killed once more at `second_places`. All folders are removed. Where ranks are
        not killed as told, none resume: each outcome has their error. ``uninterrupted``
        has the batches of uninterrupted epochs, by readers.
        """
        request = self._request
        readers_before = self._request.before
        killed: dict[str, Any] = {"kill_at": point.step, "further": point.further}
        folder, came_to = self._run(
            readers_before, point, first=0, last=point.epoch, **killed
        )
        error = first_failure(came_to, KILLED)
        rows = [
            read_batches(folder, readers_before, epoch)
            for epoch in range(point.epoch + 1)
        ]
        sizes = [path.stat().st_size for path in folder.glob("*.state")]
        state_size_and_times = (max(sizes, default=0), read_times(folder))
        if error:
            rmtree(folder)
            return [
                AuditOutcome(
                    point, readers, rows, (), error, *state_size_and_times, NO_TIMES
                )
                for readers in request.after
            ]
        outcomes = []
        for readers in request.after:
            reference = [
                uninterrupted[readers_before][point.epoch],
                *uninterrupted[readers][point.epoch + 1 :],
            ]
            started = AuditOutcome(
                point,
                readers,
                rows,
                (),
                "",
                *state_size_and_times,
                NO_TIMES,
                reference,
                trained_steps=point.step,
            )
            places = second_places(point, readers_before, readers, uninterrupted)
            outcome, resumed_folder = self._resume(
                started, folder, readers_before, point.step, places
            )
            if not outcome.error and has_all(outcome):
                killed_again = [
                    self._kill_again(outcome, resumed_folder, place) for place in places
                ]
                second = [again for again in killed_again if again is not None]
                outcome = replace(outcome, second=second)
            outcomes.append(outcome)
            rmtree(resumed_folder)
        rmtree(folder)
        return outcomes

    def _resume(
        self,
        started: AuditOutcome,
        states: Path,
        readers_before: Readers,
        step: int,
        save_at: Sequence[tuple[int, int]] = (),
    ) -> tuple[AuditOutcome, Path]:
        """Resume a crashed run; return its outcome, and the folder of what the ranks
        wrote.

        Args:
            started: the outcome so far.
            states: folder of the states that ``readers_before`` left.
            step: iterations of the epoch that are done, as a trainer counts.
            save_at: epochs and steps at which the ranks save their states again.

        With an error the outcome has no ``after_rows``. Numbers of no samples raise an
        InputError.
        """
        epoch = started.point.epoch
        readers = started.after
        folder, came_to = self._run(
            readers,
            replace(started.point, step=step),
            readers_before,
            states=str(states),
            saved=readers_before.world_size,
            first=epoch,
            last=self._request.epochs - 1,
            save_at=[[*place] for place in save_at],
        )
        error = first_failure(came_to, ENDED)
        epochs = [] if error else range(epoch, self._request.epochs)
        epochs_after = [
            read_batches(folder, readers, later_epoch) for later_epoch in epochs
        ]
        for rows in epochs_after:
            check_sample_numbers(rows, self._request.size, self._script.command.script)
        return replace(
            started, after_rows=epochs_after, error=error, resumed=read_times(folder)
        ), folder

    def _kill_again(
        self, outcome: AuditOutcome, resumed_folder: Path, kill_place: tuple[int, int]
    ) -> AuditOutcome | None:
        """Return what comes of a run that went on, killed once more at ``kill_place``.

        That is (epoch, steps since it went on or the epoch began). The same readers
        resume; the reference is the run that went on. None where not all of its ranks
        came there.
        """
        epoch, step = kill_place
        states = resumed_folder / f"{epoch}-{step}"
        readers = outcome.after
        if len(list(states.glob("*.state"))) < readers.world_size:
            return None
        past_epochs = outcome.before_rows[:-1]
        broken = outcome.before_rows[-1]
        if epoch == outcome.point.epoch:
            before_rows = [
                *past_epochs,
                broken.append(outcome.after_rows[0].first_steps(step)),
            ]
            reference = [broken.append(outcome.after_rows[0]), *outcome.reference[1:]]
            trained_steps = outcome.trained_steps + step
        else:
            following = outcome.after_rows[1]
            before_rows = [
                *past_epochs,
                broken.append(outcome.after_rows[0]),
                following.first_steps(step),
            ]
            reference = [following, *outcome.reference[2:]]
            trained_steps = step
        started = replace(
            outcome,
            point=KillPoint(epoch, step, 0),
            before_rows=before_rows,
            after_rows=(),
            reference=reference,
            trained_steps=trained_steps,
        )
        second, out = self._resume(started, states, readers, trained_steps)
        rmtree(out)
        return second


def second_places(
    point: KillPoint,
    readers_before: Readers,
    readers_after: Readers,
    uninterrupted: Mapping[Readers, Sequence[Batches]],
) -> list[tuple[int, int]]:
    """Return where a resumed run is killed once more, as (epoch, steps).

    Steps count from where the run went on, or from the begin of the next epoch. The
    places are in the middle of the rest of the broken epoch, and of the next epoch, if
    there is one; too short ones are left out. No number of steps is that of the first
    crash: a loader that counts from the wrong step must not be right by chance.
    """
    steps_before = uninterrupted[readers_before][point.epoch].fewest_steps(
        readers_before.world_size
    )
    steps_after = [
        epoch.fewest_steps(readers_after.world_size)
        for epoch in uninterrupted[readers_after]
    ]
    remaining_steps = (
        steps_after[point.epoch] * (steps_before - point.step) // max(steps_before, 1)
    )
    lengths = [(point.epoch, remaining_steps)]
    lengths += [*enumerate(steps_after)][point.epoch + 1 : point.epoch + 2]
    places = []
    for epoch, length in lengths:
        middle = length // 2
        # one beside it, so that this is no step of the first crash
        if middle == point.step:
            middle += 1 if middle + 1 < length else -1
        if middle >= 1:
            places.append((epoch, middle))
    return places


def has_all(outcome: AuditOutcome) -> bool:
    """Return whether the epochs from the broken one on have the samples that they
    should.

    Samples count by how often they come, in any order. The run must have gone on.
    """
    broken = join_batches(outcome.before_rows[-1], outcome.after_rows[0])
    return all(
        compare_continuation(expected, rows) != "other"
        for rows, expected in zip(
            [broken, *outcome.after_rows[1:]], outcome.reference, strict=True
        )
    )


NO_TIMES = AuditTimes(None, None)


def first_failure(ends: Sequence[str], expected: str) -> str:
    """Return the first end of a rank that is not ``expected``; '' if there is none.

    A rank that hangs waits for another rank that failed, so its end counts last. A rank
    that ended or was killed against expectation is 'a rank ended' or 'a rank killed'.
    """
    unexpected = [end for end in ends if end != expected]
    not_hanging = [end for end in unexpected if end != HANGS]
    if not_hanging and not_hanging[0] in {ENDED, KILLED}:
        return f"a rank {not_hanging[0]}"
    return (not_hanging or unexpected or [""])[0].rstrip(": ")


def read_batches(out: Path, readers: Readers, epoch: int) -> Batches:
    """Read the samples on which the ranks of a run trained in an epoch.

    Rows are by rank, step (of this run, from 0), and place in the batch; `NOTHING` if
    there are none.
    """
    rows = [
        (rank, step, sample)
        for rank, batches in enumerate(rows_of(out, readers.world_size, epoch))
        for step, batch in enumerate(batches)
        for sample in batch
    ]
    # columns of (samples, 3): rank, step, sample
    return Batches(*np.array(rows, np.int64).reshape(-1, 3).T) if rows else NOTHING


def check_sample_numbers(epoch: Batches, size: int, script: str) -> None:
    """Refuse an epoch with numbers outside of 0 to ``size`` - 1, by an InputError."""
    wrong = epoch.sample[(epoch.sample < 0) | (epoch.sample >= size)]
    if len(wrong):
        rule = f"batches must be numbers of samples, from 0 to {size - 1}"
        remedy = "Set --samples to their number, or use numbers below sum(run.samples)."
        refuse(script, rule, str(wrong[0]), remedy, COMMAND_LINE)


def read_times(out: Path) -> AuditTimes:
    """Read the seconds of the slowest rank of a run; `NO_TIMES` if none had a batch."""
    records = [
        json.loads(path.read_text(encoding="utf-8")) for path in out.glob("*.times")
    ]
    if not records:
        return NO_TIMES
    return AuditTimes(
        *(max(record[name] for record in records) for name in ("made", "first"))
    )
