"""What is simulated for a validation, as a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from simshuffle.scenario.inputs import by_content
from simshuffle.scenario.scenario import load_scenario
from simshuffle.studies.simulation.cell import NetworkCell
from simshuffle.studies.validation.predict import UNSIMULATED, Answer, Task, answer
from simshuffle.studies.validation.runs import Parts, Times
from simshuffle.study.cell import Outcome, Tell

RECORDS: Mapping[str, type[Times | Parts]] = {"times": Times, "parts": Parts}
"""What answers all quantities of a run, by the name that an outcome gives it."""


@dataclass(frozen=True)
class TaskCell(NetworkCell):
    """A task. What it names is part of the key, so that another scenario of that name is another
    task."""

    task: Task

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [asdict(self.task), _named(self.task)]

    @property
    def label(self) -> str:
        """As for `Cell`."""
        return " ".join(filter(None, (self.task.scenario, self.task.values)))

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: the times of a run, the parts of an iteration, or one number."""
        found = answer(self.task)
        for name, record in RECORDS.items():
            if isinstance(found, record):
                return Outcome({name: asdict(found)})
        return Outcome({"value": found})


def _named(task: Task) -> Any:
    """The scenario that a task names, as it is resolved; other kinds bring their data along."""
    if task.kind in UNSIMULATED:
        return None
    return by_content(load_scenario(task.scenario).to_dict())


def answer_of(values: Mapping[str, Any]) -> Answer:
    """What a task was answered, from the values of its outcome."""
    for name, record in RECORDS.items():
        if name in values:
            return record(**values[name])
    return float(values["value"])
