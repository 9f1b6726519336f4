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

MOST_EPOCHS = 8
"""Epochs that are simulated until two agree."""
ALIKE = 0.01
"""Two epochs agree if their lengths differ by at most this share, or ``time_tolerance``."""
READS = ("io", "decode")
"""Phases in which a rank waits for its samples."""
LEFT_OUT = ("name", "description", "failures", "recovery", "sweep")
"""Keys of a scenario that an epoch without failures does not know."""


def epoch_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario whose epochs are simulated: without failures and checkpoints, whose time is
    added later."""
    plain = {key: value for key, value in document.items() if key not in LEFT_OUT}
    plain["workload"] = {k: v for k, v in document["workload"].items() if k != "checkpoint"}
    return plain | {"name": "epochs", "epochs": MOST_EPOCHS}


@dataclass(frozen=True)
class EpochCell(NetworkCell):
    """The first epoch of a run, and the one that repeats."""

    document: Mapping[str, Any]  # as `epoch_document` makes it
    label: str  # of the run, for people

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [by_content(dict(self.document)), ALIKE]

    @property
    def _run(self) -> RunCell:
        return RunCell(self.document, self.label)

    @property
    def cost(self) -> float:
        """As for `Cell`: three epochs are usual."""
        return self._run.cost * 3 / MOST_EPOCHS

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return self._run.memory

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: seconds of the first epoch and its staging, of the one that repeats, and
        of the latter's waiting for samples."""
        scenario = from_dict(self.document, self.label)
        alike = max(ALIKE, scenario.time_tolerance)
        first = staging = before = 0.0
        for number, timeline in enumerate(simulate_epochs(scenario, ""), 1):
            seconds = report.phase_seconds(timeline)
            row = report.epochs(timeline, seconds).iloc[0]
            length = float(row["epoch_s"])
            tell(min(number / 4, 1.0))
            if number == 1:
                first, staging = length, float(row["staging_s"])
            # the first is cold, so the second and the third are the first two that may agree
            elif number > 2 and abs(length - before) <= alike * length:
                reads = sum(float(seconds[of].iloc[0]) for of in READS if of in seconds)
                values = {"first_s": first, "staging_s": staging, "steady_s": length}
                more = {"reads_s": reads, "iterations": int(row["iterations"]), "epochs": number}
                return Outcome(values | more)
            before = length
        raise SimshuffleError(
            f"{self.label}: {MOST_EPOCHS} epochs do not repeat: the last two differ by more than"
            f" {100 * alike:g} %. Set time_tolerance to what may differ."
        )
