"""A setting of a training as a cell: the simulation of its exchange, and its
measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.extensions.learning.time_to_accuracy.tables import (
    LABELS,
    SIMULATED_COLUMNS,
)
from simshuffle.job.sim.cell import RunCell
from simshuffle.report import report
from simshuffle.report.timeline import Timeline
from simshuffle.study.cell import Outcome, Tell
from simshuffle.workload.exchange import Recorded
from simshuffle.workload.exchange.recording import read_plans

MAX_EPOCHS = 8
"""Most epochs of a simulation with exchange or a loader. With a recorded exchange there
are only as many as bring a warm epoch with every number of samples exchanged.
"""


@dataclass(frozen=True)
class ReplayCell(RunCell):
    """The simulation of a setting: values of `SIMULATED_COLUMNS`, and
    ``storage_nbytes``.
    """

    # epochs of the training, over which what loaders keep is counted; 1 without loaders
    trained_epochs: int = 1

    @property
    def key(self) -> Any:
        """The key of the simulation, and the epochs of the training."""
        return {"run": super().key, "trained_epochs": self.trained_epochs}

    @property
    def parts(self) -> frozenset[str]:
        """No parts: the outcome is values alone."""
        return frozenset()

    def run(self, tell: Tell) -> Outcome:
        """Simulate the setting and measure its timeline.

        Values are those of `SIMULATED_COLUMNS`, and storage_nbytes: bytes of samples
        that a host keeps at most, staged ones or those that its loaders fetch.

        Raises:
            InputError: the recorded plans are missing.
        """
        scenario = self.scenario
        exchange = scenario.workload.exchange
        steps = [0] * scenario.epochs
        if isinstance(exchange, Recorded):
            steps = read_steps(exchange.path)
        elif (
            exchange.fetches
        ):  # caches fill: what comes later is like the last that is simulated
            steps = [
                min(epoch, scenario.epochs)
                for epoch in range(1, self.trained_epochs + 1)
            ]
        values = measure_timeline(
            self.simulate_timeline(tell), weigh_epochs(steps, scenario.epochs)
        )
        held_nbytes = self.max_held_nbytes(self.trained_epochs)
        return Outcome(
            {**values, "storage_nbytes": scenario.storage_per_host + held_nbytes}
        )


def read_steps(plans: str) -> list[int]:
    """Return the samples that a rank sent in each epoch of a recorded training:
    (epochs,).

    Raises:
        InputError: there are no such plans.
    """
    return [len(plan.iteration) for plan in read_plans(Path(plans)).plans]


def epochs_to_simulate(steps: Sequence[int]) -> int:
    """Return the epochs until every number in ``steps`` (epochs,) has come in a warm
    epoch.

    ``steps`` are the samples that a rank sends in each epoch; the first epoch is cold.
    The least is 2, or 1 of a training of one epoch, and the most `MAX_EPOCHS`: Q N/M
    need not be whole, and then the second epoch is not like all others.
    """
    distinct_steps = set(steps[1:])
    visited_steps = set()
    for epoch, num_sent in enumerate(steps[1:MAX_EPOCHS], 2):
        visited_steps.add(num_sent)
        if visited_steps == distinct_steps:
            return epoch
    return min(len(steps), MAX_EPOCHS)


def weigh_epochs(steps: Sequence[int], simulated: int) -> dict[int, float]:
    """Return the share of the training that each warm epoch of a simulation stands for.

    Keys are the simulated epochs from 2 to ``simulated``; {} if only one is simulated.
    Each stands for those of the training that exchange as many samples, or nearly;
    equal ones share evenly, and all shares add up to 1. ``steps`` (epochs,) are the
    samples that a rank sends in each epoch of the training. Any numbers will do that
    are equal where epochs are alike.
    """
    steps_by_epoch = {epoch: steps[epoch - 1] for epoch in range(2, simulated + 1)}
    share_by_epoch = dict.fromkeys(steps_by_epoch, 0.0)
    for num_sent in steps[1:]:
        # of two that are as near, the one with fewer samples
        nearest = min(
            steps_by_epoch.values(),
            key=lambda simulated_steps: (
                abs(simulated_steps - num_sent),
                simulated_steps,
            ),
        )
        equal_epochs = [
            epoch
            for epoch, simulated_steps in steps_by_epoch.items()
            if simulated_steps == nearest
        ]
        for epoch in equal_epochs:
            share_by_epoch[epoch] += 1.0 / len(equal_epochs) / (len(steps) - 1)
    return share_by_epoch


def measure_timeline(timeline: Timeline, shares: Mapping[int, float]) -> dict[str, Any]:
    """Return the values of `SIMULATED_COLUMNS` of one run, by column.

    ``shares`` are those of its warm epochs in the mean that stands for every epoch but
    the first, by epoch; they add up to 1 (`weigh_epochs`). They are empty if only one
    epoch was simulated: then epoch_s and requests are NaN, and all other means are of
    the only epoch. Labels without any time are 0.
    """
    epochs = report.epochs(timeline).set_index("epoch")
    epoch_shares = dict(shares) or {
        1: 1.0
    }  # of a single epoch, the labels are all there is
    breakdown = report.book_as_papers(report.breakdown(timeline))
    seconds = {
        str(label): label_rows.set_index("epoch")["seconds"]
        for label, label_rows in breakdown.groupby("label")
    }

    def mean(values: pd.Series[float]) -> float:
        """Return the mean over epochs, by their shares, of values by epoch."""
        return sum(
            share * float(values[epoch]) for epoch, share in epoch_shares.items()
        )

    requests = epochs["read_requests"] + epochs["read_requests_object_store"]
    values = {
        "cold_epoch_s": float(epochs["epoch_s"][1]),
        "epoch_s": mean(epochs["epoch_s"]) if shares else math.nan,
        "staging_s": float(epochs["staging_s"][1]),
        **{
            column: mean(seconds[label]) if label in seconds else 0.0
            for label, column in LABELS.items()
        },
        **{
            name: mean(epochs[name])
            for name in ("exchange_total_s", "exchange_exposed_s")
        },
        "peer_nbytes": mean(epochs["nbytes_peer"]),
        "cold_requests": float(requests[1]),
        "requests": mean(requests) if shares else math.nan,
        "staging_requests": float(timeline.sources["read_requests_staged"].sum()),
        "ssd_requests": mean(epochs["read_requests_ssd"]),
        **busiest_cable(timeline.links, epoch_shares),
    }
    return {name: values[name] for name in SIMULATED_COLUMNS}


def busiest_cable(links: pd.DataFrame, shares: Mapping[int, float]) -> dict[str, Any]:
    """Return tier and mean utilisation of the cable that is used most.

    Keys are 'cable_tier' and 'cable_utilisation' (share); '' and 0 where there is no
    cable. The mean is over epochs, from 1, by their ``shares``; other epochs are left
    out. ``links`` has the columns `LINK_COLUMNS`. A link counts as a cable, in one
    direction, if its name is 'a>b'.
    """
    cables = links[
        links["link"].astype(str).str.contains(">", regex=False)
        & links["epoch"].isin(list(shares))
    ]
    if not len(cables):
        return {"cable_tier": "", "cable_utilisation": 0.0}
    # a row is a cable in an epoch: its share of the mean, then summed by cable
    weighted_utilisation = cables["mean_utilisation"] * cables["epoch"].astype(int).map(
        shares
    )
    mean_by_link = weighted_utilisation.groupby(cables["link"].astype(str)).sum()
    busiest_link = str(mean_by_link.idxmax())
    return {
        "cable_tier": str(cables.loc[cables["link"] == busiest_link, "tier"].iloc[0]),
        "cable_utilisation": float(mean_by_link[busiest_link]),
    }


def end_of_epoch(simulated: Mapping[str, Any], epoch: int) -> float:
    """Return the s from the start of the staging to the end of an epoch.

    ``simulated`` has values of `SIMULATED_COLUMNS`. Epochs count from 1; the first is
    cold, and all others take the same time.
    """
    return _total_until(simulated, epoch, "staging_s", "cold_epoch_s", "epoch_s")


def requests_after_epoch(simulated: Mapping[str, Any], epoch: int) -> float:
    """Return the requests to the parallel file system or the object store until an
    epoch ends.

    They begin with the staging. Epochs count from 1; the first is cold.
    """
    return _total_until(
        simulated, epoch, "staging_requests", "cold_requests", "requests"
    )


def _total_until(
    simulated: Mapping[str, Any], epoch: int, staging: str, cold: str, warm: str
) -> float:
    """Return the sum of staging, the cold epoch and the warm epochs up to ``epoch``.

    ``staging``, ``cold`` and ``warm`` are keys of ``simulated``. Up to epoch 1,
    ``warm`` is not used: it may be NaN.
    """
    warm_total = (epoch - 1) * float(simulated[warm]) if epoch > 1 else 0.0
    return float(simulated[staging]) + float(simulated[cold]) + warm_total
