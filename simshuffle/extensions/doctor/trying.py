"""Try remedies: run the script again with each remedy, beside an equally long run
without any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from simshuffle.errors import SimshuffleError
from simshuffle.extensions.doctor.causes import UNTOLD
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
WARM = "a second run, whose files are in the page cache"
"""Name of the trial that compares the recording with the script as it is."""
READING = frozenset({UNTOLD, "page cache", "bandwidth", "latency", "opens"})
"""Causes whose time may be that of a page cache which the recording found cold."""
UNCHANGED = "the script as it is"
"""Name of the run without a change."""


class Trial(NamedTuple):
    """A remedy that is to be tried."""

    name: str  # of the remedy
    change: Mapping[str, Any]  # settings with which the recorder makes it
    predicted: Gain | None  # None where no gain was predicted
    tells: str = ""  # name of the cause on which its outcome decides; '' for none


@dataclass(frozen=True)
class TrialOutcome:
    """The result of a trial of a remedy."""

    name: str  # of the remedy
    predicted: Gain | None  # None where no gain was predicted
    measured: Gain | None  # None where no gain could be measured
    why: str = ""  # why no gain could be measured
    conclusion: str = ""  # sentence on what the recording alone could not tell

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
    """Return the trials that tell causes apart, the best ``count`` remedies that the
    recorder can make, or fewer if there are fewer, and last the bound without waiting,
    which has no predicted gain.

    Predicted gains are shares of a batch's time. Nothing is to be told with a ``count``
    of 0.
    """
    batch_s = diagnosis.loop.batch_s
    trials = []
    for remedy in diagnosis.remedies:
        if remedy.change is not None:
            gains_s = (remedy.gain_s, remedy.low, remedy.high)
            predicted = Gain(*(seconds / batch_s for seconds in gains_s))
            trials.append(Trial(remedy.name, remedy.change, predicted))
    telling = _telling_trials(diagnosis, trials) if count else []
    names = {trial.name for trial in telling}
    next_trials = [trial for trial in trials if trial.name not in names]
    bound = Trial(BOUND, {"replay": REPLAYED}, None)
    return [*telling, *next_trials[: max(count - len(names), 0)], bound]


def _telling_trials(diagnosis: Diagnosis, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that change the one thing which tells what a named cause is.

    More workers tell latency from bandwidth, half of them whether what a lock guards
    serves one at a time, fewer threads whether cores or the memory bind, and a second
    run whether the page cache was cold.
    """
    causes = {cause.name for cause in diagnosis.causes}
    workers = diagnosis.loop.workers
    telling = []
    for trial in trials:
        more_workers = trial.change.get("loader", {}).get("num_workers", 0) > workers
        if UNTOLD in causes and more_workers:
            telling.append(trial._replace(tells=UNTOLD))
        elif "cores" in causes and "torch_threads" in trial.change:
            telling.append(trial._replace(tells="cores"))
    if "lock" in causes and workers > 1:
        fewer_workers = workers // 2
        name = f"{fewer_workers} worker{'s' * (fewer_workers > 1)}, not {workers}"
        telling.append(
            Trial(name, {"loader": {"num_workers": fewer_workers}}, None, "lock")
        )
    if READING & causes:
        telling.append(Trial(WARM, {}, None, "page cache"))
    return telling


def conclude(trial: Trial, measured: Gain) -> str:
    """Return the sentence on what a measured gain tells of the cause that the trial is
    to tell; '' where the trial tells nothing, or its interval is too wide to say.
    """
    expected = trial.predicted.share if trial.predicted is not None else 0.0
    gains_nothing = measured.high < expected / 3
    gains_most = measured.low > expected / 2
    if trial.tells == UNTOLD and (gains_nothing or gains_most):
        return _OUTCOMES[UNTOLD][gains_most]
    if trial.tells == "cores" and (gains_nothing or gains_most):
        return _OUTCOMES["cores"][gains_most]
    if trial.tells == "lock" and (measured.low > -SMALL or measured.high < -SMALL):
        return _OUTCOMES["lock"][measured.low > -SMALL]
    if trial.tells == "page cache" and (measured.high < SMALL or measured.low > SMALL):
        return _OUTCOMES["page cache"][measured.low > SMALL]
    return ""


SMALL = 0.1
"""Share of a batch's time below which a change of it is none (chosen)."""
_OUTCOMES: Mapping[str, tuple[str, str]] = {
    UNTOLD: (
        "More workers gain nothing: what they wait for shares a limit, so it is bandwidth.",
        "More workers gain: their requests wait side by side, so it is latency.",
    ),
    "cores": (
        "Fewer threads gain nothing: memory or the step itself binds, not the cores.",
        "Fewer threads gain: threads and workers were in each other's way on the cores.",
    ),
    "lock": (
        "Fewer workers are slower: what the lock guards serves several at a time.",
        "Fewer workers are as fast: what the lock guards serves one at a time.",
    ),
    "page cache": (
        "A second run takes as long: the files come from the page cache, or never do.",
        "A second run is faster: the recording found the page cache cold.",
    ),
}
"""By cause, what a trial says that gains nothing, and one that gains."""


def try_all(
    runs: ScriptRuns, trials: Sequence[Trial], recording: Record | None = None
) -> list[TrialOutcome]:
    """Run the script as it is, then once with each of the trials; the trial `WARM`
    compares the ``recording`` with the script as it is, and runs nothing.

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
                if trial.name == WARM:
                    if recording is None:
                        continue
                    measured = gain(recording, control)
                else:
                    record, _ = runs.record(trial.name, trial.change)
                    measured = gain(control, record, trial.change.get("replay", 0))
            except SimshuffleError as error:
                outcomes.append(
                    TrialOutcome(trial.name, trial.predicted, None, str(error))
                )
            else:
                sentence = conclude(trial, measured)
                outcomes.append(
                    TrialOutcome(
                        trial.name, trial.predicted, measured, conclusion=sentence
                    )
                )
    except KeyboardInterrupt:
        runs.say("Interrupted: the other remedies are not tried.")
    return outcomes
