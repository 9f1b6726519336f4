"""Trying remedies: the script again with each of them, beside an equally long run without any."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from simshuffle.errors import SimshuffleError
from simshuffle.extensions.doctor.diagnosis import Diagnosis
from simshuffle.extensions.doctor.gains import Gain, gain
from simshuffle.extensions.doctor.records.collected import collected
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.extensions.doctor.running import Ended, run_recorded

BOUND = "no waiting (bound)"
"""A loader that plays its cached batches again."""
REPLAYED = 8
"""Batches that it has (chosen: memory for few, and more than workers fetch ahead of one)."""
UNCHANGED = "the script as it is"


class Trial(NamedTuple):
    """What is to be tried."""

    name: str  # of the remedy
    change: Mapping[str, Any]  # what the recorder makes of it
    predicted: Gain | None  # None for what no interval is known of


@dataclass(frozen=True)
class TrialOutcome:
    """What came of it."""

    name: str  # of the remedy
    predicted: Gain | None
    measured: Gain | None  # None where nothing could be measured
    why: str = ""  # then: why not

    @property
    def within(self) -> bool:
        """Whether the intervals of what was predicted and measured have a part in common."""
        of, given = self.measured, self.predicted
        return (
            of is not None and given is not None and given.low <= of.high and of.low <= given.high
        )


@dataclass(frozen=True)
class ScriptRuns:
    """How a script is run again, for a part of its time."""

    command: Sequence[str]
    room: Path  # a folder for rows
    say: Callable[[str], None]  # told of each run
    seconds: float  # of steps of each
    to_stderr: bool = False  # whether what it prints goes there

    def record(self, name: str, changes: Mapping[str, Any] | None = None) -> tuple[Record, Ended]:
        """The record of such a run. Raises a SimshuffleError that says why there is none."""
        self.say(f"Trying: {name}.")
        rows = self.room / f"try-{len(list(self.room.glob('try-*')))}"
        rows.mkdir()
        ended = run_recorded(
            self.command,
            rows,
            self.say,
            seconds=self.seconds,
            changes=changes,
            to_stderr=self.to_stderr,
        )
        if ended.asked:
            raise KeyboardInterrupt
        if ended.status:
            raise SimshuffleError(f"the script ended with status {ended.status}")
        try:
            record = collected(rows, {"command": [*self.command]})
        except SimshuffleError:
            raise SimshuffleError("no batch was recorded") from None
        if unchanged := record.about.get("unchanged"):
            raise SimshuffleError("; ".join(unchanged))
        return record, ended


def trials_of(diagnosis: Diagnosis, count: int) -> list[Trial]:
    """The best ``count`` remedies that the recorder can make, and the bound."""
    batch_s = diagnosis.loop.batch_s
    found = [
        Trial(
            of.name, of.change, Gain(*(value / batch_s for value in (of.gain_s, of.low, of.high)))
        )
        for of in diagnosis.remedies
        if of.change is not None
    ]
    return [*found[:count], Trial(BOUND, {"replay": REPLAYED}, None)]


def try_all(runs: ScriptRuns, trials: Sequence[Trial]) -> list[TrialOutcome]:
    """Run the script as it is, then once with each of the trials; what an interrupt leaves out is
    missing. Raises a SimshuffleError if the script as it is cannot be measured."""
    found: list[TrialOutcome] = []
    try:
        control, _ = runs.record(UNCHANGED)
        for trial in trials:
            try:
                record, _ = runs.record(trial.name, trial.change)
                measured = gain(control, record, trial.change.get("replay", 0))
            except SimshuffleError as error:
                found.append(TrialOutcome(trial.name, trial.predicted, None, str(error)))
            else:
                found.append(TrialOutcome(trial.name, trial.predicted, measured))
    except KeyboardInterrupt:
        runs.say("Interrupted: the other remedies are not tried.")
    return found
