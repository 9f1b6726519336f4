"""The warm epoch of a run as a cell: its seconds, and those of the papers' labels in it."""

from __future__ import annotations

from simshuffle.results import report
from simshuffle.results.timeline import Timeline
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.simulate import simulate
from simshuffle.studies.simulation.cell import RunCell
from simshuffle.study.cell import Outcome, Tell

EPOCHS = 2
"""Epochs of every run. The first is cold and only planned; the second, which is simulated and
measured, is like all that follow."""

Seconds = dict[str, float]


class WarmCell(RunCell):
    """The second epoch of a scenario from `prepared`, alone: what `seconds` says of it."""

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`: none."""
        return frozenset()

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`."""
        return Outcome(seconds(warm_epoch(self.scenario, tell)))


def warm_epoch(scenario: Scenario, tell: Tell | None = None) -> Timeline:
    """The second epoch alone, of a scenario from `prepared`."""
    return simulate(scenario, progress=tell, first_epoch=EPOCHS)


def seconds(timeline: Timeline) -> Seconds:
    """Seconds of the second epoch: of the whole, and of each of the papers' labels (mean over
    ranks; they add up to the whole)."""
    epochs = report.epochs(timeline)
    parts = report.booked(report.breakdown(timeline))
    parts = parts[parts["epoch"] == EPOCHS]
    of_label = dict.fromkeys(report.LABELS, 0.0) | {
        str(label): float(value)
        for label, value in zip(parts["label"], parts["seconds"], strict=True)
    }
    return {
        report.WHOLE: float(epochs.loc[epochs["epoch"] == EPOCHS, "epoch_s"].iloc[0]),
        **of_label,
    }


def prepared(scenario: Scenario, **changes: object) -> Scenario:
    """``scenario`` without sweep and of two epochs, with other fields."""
    return scenario.model_copy(update={"sweep": {}, "epochs": EPOCHS, **changes})
