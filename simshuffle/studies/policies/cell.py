"""What is compared: policies on the cases of a study, a cell for each case; and its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simshuffle.studies.policies import model
from simshuffle.studies.policies.accesses import MOST_READS
from simshuffle.studies.policies.cases import Study, read
from simshuffle.studies.policies.plan import POLICIES
from simshuffle.studies.policies.system import Case, System
from simshuffle.studies.policies.tables import READY, SOURCES, STORED
from simshuffle.study.cell import SMALL_MEMORY, Cell, Outcome, PlainCell, Tell
from simshuffle.study.study import Meta, Outcomes, Request, Tables

SECONDS_PER_READ = 2e-7
"""s of one core for a read of a block under a policy, roughly."""
BYTES_PER_READ = 40.0
"""Bytes of memory for each, roughly."""


@dataclass(frozen=True)
class CaseCell(PlainCell):
    """A case under some policies, all on the same accesses."""

    label: str  # name of the case
    system: System  # the workers
    case: Case  # the data set
    seed: int  # decides who reads what
    policies: tuple[str, ...]  # names; of all if there are none

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        dumped = [of.model_dump(mode="json") for of in (self.system, self.case)]
        return [*dumped, self.seed, sorted(set(self.policies))]

    @property
    def _reads(self) -> float:
        return min(float(self.case.num_samples) * self.case.epochs, MOST_READS)

    @property
    def cost(self) -> float:
        """As for `Cell`."""
        return 0.1 + SECONDS_PER_READ * self._reads * len(self.policies or POLICIES)

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return SMALL_MEMORY + BYTES_PER_READ * self._reads

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: the rows of the tables without the name of the case."""
        found = model.compare(self.system, self.case, self.seed, self.policies)
        epochs = [
            [of.policy, number, *epoch_row(epoch)]
            for of in found
            for number, epoch in enumerate(of.epochs)
        ]
        return Outcome({"policies": [policy_row(of) for of in found], "epochs": epochs})


def epoch_row(epoch: model.Epoch) -> list[float]:
    """The columns of `epochs` behind the number of the epoch."""
    stall = max(epoch.seconds - epoch.compute, 0.0)
    return [epoch.seconds, epoch.compute, stall, epoch.readers, *epoch.nbytes, *epoch.fetch[:READY]]


def policy_row(outcome: model.Outcome) -> list[Any]:
    """The columns of `policies` behind the case; times and shares are empty where a policy cannot
    be used.

    Perfect training takes S_w / c for the same bytes S_w, so that the ratios need no outcome of the
    policy 'perfect'.
    """
    plan, epochs = outcome.plan, outcome.epochs
    if not epochs:
        empty = len(STORED["policies"].columns) - 3
        return [outcome.policy, plan.problem, *[math.nan] * empty]
    seconds = (epochs[0].seconds, epochs[-1].seconds, outcome.seconds)
    least = (epochs[0].compute, epochs[-1].compute, sum(epoch.compute for epoch in epochs))
    ratios = [time / bound for time, bound in zip(seconds, least, strict=True)]
    nbytes = [sum(epoch.nbytes[code] for epoch in epochs) for code in range(len(SOURCES))]
    shares = [value / sum(nbytes) for value in nbytes]
    sizes = (outcome.staging, plan.memory, plan.ssd)
    return [outcome.policy, "", plan.coverage, *seconds, *ratios, *sizes, *shares]


def request(study: Study, policies: Sequence[str]) -> Request[list[CaseCell]]:
    """What is asked for: those policies, or all if none are named, on every case.

    Raises:
        InputError: a policy is not known.
    """
    model.check(policies)
    cells = [
        CaseCell(name, study.system, case, study.seed, tuple(policies))
        for name, case in study.cases.items()
    ]
    asked = {"policies": list(policies)}
    return Request(study.name, cells, {"study.yaml": study.to_yaml()}, asked)


def again(folder: Path, meta: Meta) -> Request[list[CaseCell]]:
    """The request of a result, from its folder."""
    text = (folder / "study.yaml").read_text(encoding="utf-8")
    return request(read(text, "study.yaml"), meta["policies"])


def cells(of: Sequence[CaseCell], outcomes: Outcomes) -> dict[str, Cell]:
    """The cases by name."""
    return {cell.label: cell for cell in of}


def collect(of: Sequence[CaseCell], outcomes: Outcomes) -> Tables:
    """The stored tables."""
    return {
        name: schema.framed(
            [(case, *row) for case, outcome in outcomes.items() for row in outcome.values[name]]
        )
        for name, schema in STORED.items()
    }
