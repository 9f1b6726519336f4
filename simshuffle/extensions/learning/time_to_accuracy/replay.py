"""A setting of a training as a cell: its exchange in a simulation, and what is measured of that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.extensions.learning.time_to_accuracy.tables import LABELS, SIMULATED_COLUMNS
from simshuffle.job.sim.cell import RunCell
from simshuffle.report import report
from simshuffle.report.timeline import Timeline
from simshuffle.study.cell import Outcome, Tell
from simshuffle.workload.exchange import Recorded
from simshuffle.workload.exchange.recording import read_plans

MOST_EPOCHS = 8
"""With exchange there may be more: until a warm epoch has come with every number of samples that
the training exchanged."""


@dataclass(frozen=True)
class ReplayCell(RunCell):
    """A simulation: values of `SIMULATED_COLUMNS`, and ``storage_nbytes``."""

    # of the training, for which what loaders keep is counted; 1 will do for others
    trained_epochs: int = 1

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return {"run": super().key, "trained_epochs": self.trained_epochs}

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`: none."""
        return frozenset()

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`."""
        scenario = self.scenario
        exchange, steps = scenario.workload.exchange, [0] * scenario.epochs
        if isinstance(exchange, Recorded):
            steps = steps_of(exchange.path)
        elif exchange.fetches:  # caches fill: what comes later is like the last that is simulated
            steps = [min(e, scenario.epochs) for e in range(1, self.trained_epochs + 1)]
        found = measured(self.simulate_timeline(tell), weights(steps, scenario.epochs))
        held = self.max_held_nbytes(self.trained_epochs)
        return Outcome({**found, "storage_nbytes": scenario.storage_per_host + held})


def steps_of(plans: str) -> list[int]:
    """Samples that a rank sent in each epoch of a recorded training, or raise InputError."""
    return [len(plan.iteration) for plan in read_plans(Path(plans)).plans]


def epochs_to_simulate(steps: Sequence[int]) -> int:
    """Epochs until every number in ``steps`` (epochs,) has come in a warm epoch, at most
    `MOST_EPOCHS`: Q N/M need not be whole, and then the second epoch is not like all others."""
    wanted, seen = set(steps[1:]), set()
    for epoch, number in enumerate(steps[1:MOST_EPOCHS], 2):
        seen.add(number)
        if seen == wanted:
            return epoch
    return min(len(steps), MOST_EPOCHS)


def weights(steps: Sequence[int], simulated: int) -> dict[int, float]:
    """The share that each warm epoch of a simulation, from 2 to ``simulated``, stands for among
    those of a training that exchange as many samples, or nearly; they add up to 1."""
    known = {epoch: steps[epoch - 1] for epoch in range(2, simulated + 1)}
    out = dict.fromkeys(known, 0.0)
    for number in steps[1:]:
        near = min(known.values(), key=lambda other: (abs(other - number), other))
        alike = [epoch for epoch, other in known.items() if other == near]
        for epoch in alike:
            out[epoch] += 1.0 / len(alike) / (len(steps) - 1)
    return out


def measured(timeline: Timeline, shares: Mapping[int, float]) -> dict[str, Any]:
    """The values of `SIMULATED_COLUMNS` of one run; ``shares`` are those of its warm epochs in the
    mean that stands for every epoch but the first, see `weights`; empty if there is none."""
    epochs = report.epochs(timeline).set_index("epoch")
    of = dict(shares) or {1: 1.0}  # of a single epoch, the labels are all there is
    parts = report.book_as_papers(report.breakdown(timeline))
    seconds = {
        str(label): part.set_index("epoch")["seconds"] for label, part in parts.groupby("label")
    }

    def mean(values: pd.Series[float]) -> float:
        return sum(share * float(values[epoch]) for epoch, share in of.items())

    requests = epochs["read_requests"] + epochs["read_requests_object_store"]
    values = {
        "cold_epoch_s": float(epochs["epoch_s"][1]),
        "epoch_s": mean(epochs["epoch_s"]) if shares else math.nan,
        "staging_s": float(epochs["staging_s"][1]),
        **{
            column: mean(seconds[label]) if label in seconds else 0.0
            for label, column in LABELS.items()
        },
        **{name: mean(epochs[name]) for name in ("exchange_total_s", "exchange_exposed_s")},
        "peer_nbytes": mean(epochs["nbytes_peer"]),
        "cold_requests": float(requests[1]),
        "requests": mean(requests) if shares else math.nan,
        "staging_requests": float(timeline.sources["read_requests_staged"].sum()),
        "ssd_requests": mean(epochs["read_requests_ssd"]),
        **busiest_cable(timeline.links, of),
    }
    return {name: values[name] for name in SIMULATED_COLUMNS}


def busiest_cable(links: pd.DataFrame, shares: Mapping[int, float]) -> dict[str, Any]:
    """Tier and mean utilisation of the cable that is used most in the mean of some epochs (from 1),
    by their ``shares`` in it; of ``links``, columns `LINK_COLUMNS`, where a cable is 'a>b'."""
    cables = links[
        links["link"].astype(str).str.contains(">", regex=False) & links["epoch"].isin(list(shares))
    ]
    if not len(cables):
        return {"cable_tier": "", "cable_utilisation": 0.0}
    used = cables["mean_utilisation"] * cables["epoch"].astype(int).map(shares)
    total = used.groupby(cables["link"].astype(str)).sum()
    most = str(total.idxmax())
    return {
        "cable_tier": str(cables.loc[cables["link"] == most, "tier"].iloc[0]),
        "cable_utilisation": float(total[most]),
    }


def end_of_epoch(simulated: Mapping[str, Any], epoch: int) -> float:
    """s from the start of the staging to the end of an epoch (from 1), the first being cold."""
    return _until(simulated, epoch, "staging_s", "cold_epoch_s", "epoch_s")


def requests_until(simulated: Mapping[str, Any], epoch: int) -> float:
    """Requests to the parallel file system until then, in the same way."""
    return _until(simulated, epoch, "staging_requests", "cold_requests", "requests")


def _until(simulated: Mapping[str, Any], epoch: int, staging: str, cold: str, warm: str) -> float:
    after = (epoch - 1) * float(simulated[warm]) if epoch > 1 else 0.0
    return float(simulated[staging]) + float(simulated[cold]) + after
