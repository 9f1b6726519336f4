"""Try remedies: run the script again with each remedy, beside an equally long run
without any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from simshuffle.errors import SimshuffleError
from simshuffle.extensions.doctor.diagnosis import Diagnosis
from simshuffle.extensions.doctor.gains import Gain, gain
from simshuffle.extensions.doctor.records.collected import collect_record
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.extensions.doctor.running import ScriptEnd, run_recorded

BOUND = "no waiting (bound)"
"""Name of the trial with a loader that plays its cached batches again."""
REPLAYED = 8
"""Batches that such a loader caches (chosen: memory for few, and more than workers
fetch ahead of one).
"""
UNCHANGED = "the script as it is"
"""Name of the run without a change."""


class Trial(NamedTuple):
    """A remedy that is to be tried."""

    name: str  # of the remedy
    change: Mapping[str, Any]  # settings with which the recorder makes it
    predicted: Gain | None  # None where no gain was predicted


@dataclass(frozen=True)
class TrialOutcome:
    """The result of a trial of a remedy."""

    name: str  # of the remedy
    predicted: Gain | None  # None where no gain was predicted
    measured: Gain | None  # None where no gain could be measured
    why: str = ""  # why no gain could be measured

    @property
    def within(self) -> bool:
        """True if the intervals of the predicted and the measured gain overlap; False
        if either gain is missing.
        """
        if self.measured is None or self.predicted is None:
            return False
        measured = self.measured
        predicted = self.predicted
        return predicted.low <= measured.high and measured.low <= predicted.high


@dataclass(frozen=True)
class ScriptRuns:
    """Runs of a script again, each for a part of its time."""

    command: Sequence[str]  # its words
    folder: Path  # for the rows of the runs, a folder for each
    say: Callable[[str], None]  # gets a sentence on each run
    seconds: float  # of steps of each run
    to_stderr: bool = False  # whether what the script prints goes to the standard error

    def record(
        self, name: str, changes: Mapping[str, Any] | None = None
    ) -> tuple[Record, ScriptEnd]:
        """Run the script, and return its record and how it ended.

        The rows stay in a new folder `try-N` of ``folder``.

        Args:
            name: of the run, for people.
            changes: what the recorder changes of its loaders.

        Raises:
            SimshuffleError: there is no record, the script failed or could not be
                started, or a change could not be made; it says why.
            KeyboardInterrupt: a signal asked this program to end meanwhile.
        """
        self.say(f"Trying: {name}.")
        rows = self.folder / f"try-{len(list(self.folder.glob('try-*')))}"
        rows.mkdir()
        end = run_recorded(
            self.command,
            rows,
            self.say,
            seconds=self.seconds,
            changes=changes,
            to_stderr=self.to_stderr,
        )
        if end.signal_number:
            raise KeyboardInterrupt
        if end.status:
            raise SimshuffleError(f"the script ended with status {end.status}")
        try:
            record = collect_record(rows, {"command": [*self.command]})
        except SimshuffleError:
            raise SimshuffleError("no batch was recorded") from None
        if unchanged := record.about.get("unchanged"):
            raise SimshuffleError("; ".join(unchanged))
        return record, end


def choose_trials(diagnosis: Diagnosis, count: int) -> list[Trial]:
    """Return the best ``count`` remedies that the recorder can make, or fewer if there
    are fewer, and last the bound without waiting, which has no predicted gain.

    Predicted gains are shares of a batch's time.
    """
    batch_s = diagnosis.loop.batch_s
    trials = []
    for remedy in diagnosis.remedies:
        if remedy.change is not None:
            gains_s = (remedy.gain_s, remedy.low, remedy.high)
            predicted = Gain(*(seconds / batch_s for seconds in gains_s))
            trials.append(Trial(remedy.name, remedy.change, predicted))
    return [*trials[:count], Trial(BOUND, {"replay": REPLAYED}, None)]


def try_all(runs: ScriptRuns, trials: Sequence[Trial]) -> list[TrialOutcome]:
    """Run the script as it is, then once with each of the trials.

    A trial that fails has no measured gain, and says why. An interrupt raises nothing,
    and leaves out the trial that runs and the remaining ones.

    Returns:
        The outcomes of the trials that ended, in their order, without the run as it is.

    Raises:
        SimshuffleError: the script cannot be measured as it is.
    """
    outcomes: list[TrialOutcome] = []
    try:
        control, _ = runs.record(UNCHANGED)
        for trial in trials:
            try:
                record, _ = runs.record(trial.name, trial.change)
                measured = gain(control, record, trial.change.get("replay", 0))
            except SimshuffleError as error:
                outcomes.append(
                    TrialOutcome(trial.name, trial.predicted, None, str(error))
                )
            else:
                outcomes.append(TrialOutcome(trial.name, trial.predicted, measured))
    except KeyboardInterrupt:
        runs.say("Interrupted: the other remedies are not tried.")
    return outcomes
