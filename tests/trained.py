"""Trainings that never took place: records made by hand as a study of `simshuffle train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simshuffle.errors import SimulationError
from simshuffle.studies.training.record import PLANS, TABLES, RunRecord, outcome_of
from simshuffle.studies.training.study import STUDY, Trainings
from simshuffle.study import engine
from simshuffle.study.cell import Outcome, PlainCell, Tell
from simshuffle.study.store import TABLE
from simshuffle.study.study import Request


@dataclass(frozen=True, eq=False)
class Made(PlainCell):
    """A run whose record is there already; without one it is lost, for ``why``."""

    label: str
    record: RunRecord | None
    why: str = ""

    @property
    def key(self) -> Any:
        return [self.label, self.why]

    @property
    def parts(self) -> frozenset[str]:
        plans = [PLANS] if self.record and self.record.plans is not None else []
        return frozenset([*(f"{name}{TABLE}" for name in TABLES), *plans])

    def run(self, tell: Tell) -> Outcome:
        if self.record is None:
            raise SimulationError(self.why)
        return outcome_of(self.record)


def request(
    name: str, records: Mapping[str, RunRecord | str], descriptions: Mapping[str, dict[str, Any]]
) -> Request[Trainings]:
    """A study of these runs; a text is why one is lost, and those that are only described are
    missing."""
    cells = {
        run: Made(run, None, of) if isinstance(of, str) else Made(run, of)
        for run, of in records.items()
    }
    trainings = Trainings(name, "Made up.", "cpu", cells, descriptions)
    return Request(name, trainings, {"study.yaml": f"name: {name}\n"})


def saved(
    folder: Path,
    name: str,
    records: Mapping[str, RunRecord | str],
    descriptions: Mapping[str, dict[str, Any]],
) -> Path:
    """The folder of such a study."""
    return engine.run(STUDY, request(name, records, descriptions)).save(folder)
