"""The epochs of a run, simulated until they repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simshuffle.errors import SimshuffleError
from simshuffle.job.scenario.reading import by_content
from simshuffle.job.scenario.scenario import from_dict
from simshuffle.job.sim.cell import NetworkCell, RunCell
from simshuffle.job.sim.simulate import simulate_epochs
from simshuffle.report import report
from simshuffle.study.cell import Outcome, Tell

MAX_EPOCHS = 8
"""Epochs that are simulated until two agree."""
EPOCH_TOLERANCE = 0.01
"""Two epochs agree if their lengths differ by at most this share, or
``time_tolerance``.
"""
READ_PHASES = ("io", "decode")
"""Phases in which a rank waits for its samples."""
IGNORED_KEYS = ("name", "description", "failures", "recovery", "sweep")
"""Keys of a scenario that an epoch without failures does not know."""


def epoch_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scenario whose epochs are simulated, as plain values.

    It lacks failures and checkpoints, whose time is added later, and the sweep; it has
    `MAX_EPOCHS` epochs.
    """
    epoch_values = {
        key: value for key, value in document.items() if key not in IGNORED_KEYS
    }
    epoch_values["workload"] = {
        key: value for key, value in document["workload"].items() if key != "checkpoint"
    }
    return epoch_values | {"name": "epochs", "epochs": MAX_EPOCHS}


@dataclass(frozen=True)
class EpochCell(NetworkCell):
    """Cell that simulates the epochs of a run until they repeat."""

    document: Mapping[str, Any]  # as `epoch_document` makes it
    label: str  # of the run, for people

    @property
    def key(self) -> Any:
        """Return what decides the outcome: the contents of the scenario, and the
        tolerance.
        """
        return [by_content(dict(self.document)), EPOCH_TOLERANCE]

    @property
    def _run(self) -> RunCell:
        """Return the run of the scenario, for its cost and memory."""
        return RunCell(self.document, self.label)

    @property
    def cost(self) -> float:
        """Return the seconds of one core of three epochs, as most runs repeat by then."""
        return self._run.cost * 3 / MAX_EPOCHS

    @property
    def memory(self) -> float:
        """Return the memory of the run (bytes)."""
        return self._run.memory

    def run(self, tell: Tell) -> Outcome:
        """Simulate epochs until two agree, and return their lengths.

        The third epoch is the first that may agree, with the second. The outcome has
        first_s and staging_s, of the first epoch and of the staging before it;
        steady_s, of the last epoch, which repeats the one before; reads_s, of it the
        mean over ranks of waiting for samples; and iterations, of an epoch, and epochs,
        the number that was simulated.

        Raises:
            SimshuffleError: `MAX_EPOCHS` epochs do not repeat.
        """
        scenario = from_dict(self.document, self.label)
        tolerance = max(EPOCH_TOLERANCE, scenario.time_tolerance)
        first_length = staging_seconds = previous_length = 0.0
        for epoch, timeline in enumerate(simulate_epochs(scenario, ""), 1):
            seconds = report.phase_seconds(timeline)
            row = report.epochs(timeline, seconds).iloc[0]
            length = float(row["epoch_s"])
            tell(min(epoch / 4, 1.0))
            if epoch == 1:
                first_length = length
                staging_seconds = float(row["staging_s"])
            # the first is cold, so the second and the third are the first two that may agree
            elif epoch > 2 and abs(length - previous_length) <= tolerance * length:
                reads = sum(
                    float(seconds[phase].iloc[0])
                    for phase in READ_PHASES
                    if phase in seconds
                )
                return Outcome(
                    {
                        "first_s": first_length,
                        "staging_s": staging_seconds,
                        "steady_s": length,
                        "reads_s": reads,
                        "iterations": int(row["iterations"]),
                        "epochs": epoch,
                    }
                )
            previous_length = length
        raise SimshuffleError(
            f"{self.label}: no two of {MAX_EPOCHS} epochs agree: the last two differ by more than"
            f" {100 * tolerance:g} %. Set time_tolerance to a larger difference."
        )
