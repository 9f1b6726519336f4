"""What is simulated for a validation, as a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from simshuffle.scenario.inputs import by_content
from simshuffle.scenario.scenario import load_scenario
from simshuffle.studies.simulation.cell import NetworkCell
from simshuffle.studies.validation.oracle import Parts
from simshuffle.studies.validation.predict import SINGLE, Task, answer
from simshuffle.studies.validation.runs import Times
from simshuffle.study.cell import Outcome, Tell


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
        if isinstance(found, Parts):
            return Outcome({"parts": asdict(found)})
        return Outcome({"times": asdict(found)} if isinstance(found, Times) else {"value": found})


def _named(task: Task) -> Any:
    """The scenario that a task names, as it is resolved; other kinds bring their data along."""
    if task.kind not in {"run", "oracle", *SINGLE}:
        return None
    return by_content(load_scenario(task.scenario).to_dict())


def answer_of(values: Mapping[str, Any]) -> Times | Parts | float:
    """What a task was answered, from the values of its outcome."""
    if "parts" in values:
        return Parts(**values["parts"])
    if "times" not in values:
        return float(values["value"])
    times = values["times"]
    return Times(tuple(times["epochs"]), times["staging"], times["samples"])
