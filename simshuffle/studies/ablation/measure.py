"""What is noted of a run: the seconds of its warm epoch, and of the papers' labels in it."""

from __future__ import annotations

from simshuffle.results import report
from simshuffle.results.timeline import Timeline
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.simulate import simulate

EPOCHS = 2
"""Epochs of every run. The first is cold and only planned; the second, which is simulated and
measured, is like all that follow."""
WHOLE = "epoch"
"""The label of the whole epoch."""

Seconds = dict[str, float]


def labels(scenario: Scenario) -> Seconds:
    """Seconds of the second epoch: of `WHOLE`, and of each of the papers' labels (mean over ranks;
    they add up to the whole)."""
    return seconds(warm_epoch(scenario))


def warm_epoch(scenario: Scenario) -> Timeline:
    """The second epoch alone, of a scenario from `prepared`."""
    return simulate(scenario, first_epoch=EPOCHS)


def seconds(timeline: Timeline) -> Seconds:
    """The same as `labels`, of a run that has a second epoch."""
    epochs = report.epochs(timeline)
    parts = report.breakdown(timeline)
    parts = parts[parts["epoch"] == EPOCHS]
    of_label = dict.fromkeys(report.LABELS, 0.0) | {
        str(label): float(value)
        for label, value in zip(parts["label"], parts["seconds"], strict=True)
    }
    return {WHOLE: float(epochs.loc[epochs["epoch"] == EPOCHS, "epoch_s"].iloc[0]), **of_label}


def prepared(scenario: Scenario, **changes: object) -> Scenario:
    """``scenario`` without sweep and of two epochs, with other fields."""
    return scenario.model_copy(update={"sweep": {}, "epochs": EPOCHS, **changes})
