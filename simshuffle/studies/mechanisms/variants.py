"""Variants of an exchange, the mechanisms of each that can be removed, and the warm epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from simshuffle.job.plan.hidden import WARM, fraction_of
from simshuffle.job.scenario.host_work import host_work
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.cell import RunCell
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from simshuffle.report.timeline import Timeline
from simshuffle.study.cell import Outcome, Tell
from simshuffle.workload.exchange import MessageSchedule
from simshuffle.workload.exchange.schedule import AUTHORS

NOTHING = "0 s"
WORK = ("read", "decode", "pickle", "zero_buffer", "draw", "write", "remove")
"""Keys of a schedule that are host work of sending, and of receiving (write)."""
INSTANT = 1e18  # bytes/s from which on writing is instant
INSTANT_WRITES = {"cluster.ssd.write_bandwidth": "1000000 PB/s"}
ALL_IN_MEMORY = dict.fromkeys(
    ("cluster.memory.capacity", "cluster.memory.page_cache"), "1000000 PB"
)
FRESH = {"partner_lifetime": "iteration", "samples_per_message": "iteration", "payload": "decoded"}
VARIANTS: dict[str, tuple[str, str | dict[str, Any], dict[str, Any]]] = {
    "authors": ("partial_local_shuffle", AUTHORS, {}),
    "pair": ("importance_pair", AUTHORS, {}),
    "encoded": ("importance_pair", f"{AUTHORS}:payload=encoded,barriers=none", {}),
    "wire": ("partial_local_shuffle", {**FRESH, **dict.fromkeys(WORK, NOTHING)}, INSTANT_WRITES),
}
"""Variants of an exchange: the strategy, its schedule, and keys of the scenario. authors: partial
local shuffle as its authors' code does it, a random permutation, a message and a barrier for every
sample; pair: one partner an epoch, one message and one barrier an iteration; encoded: the same
without barriers, and files are sent as they are; wire: no host work, no barriers, instant writes;
decoded samples, a random permutation for every iteration. Importance is always lagging, for its
measurement is no exchange."""
OWN = "own"  # that of the scenario itself
BARRIERS, HOST_WORK, WRITES = "barriers", "host work", "storage writes"
WIRE, WAITING = "wire", "no overlap"
READS = "storage reads"
"""Not of the exchange alone: what was received may drive other samples out of the page cache."""


def exchanging(
    scenario: Scenario, variant: str, samples: int, changes: Mapping[str, Any]
) -> Scenario:
    """``scenario`` with that variant, of so many samples of each rank, and further values."""
    more: dict[str, Any] = {}
    if variant == OWN:
        exchange = scenario.workload.exchange.model_dump(mode="json", exclude_none=True)
    else:
        kind, schedule, more = VARIANTS[variant]
        exchange = {"kind": kind, "schedule": schedule}
    if exchange["kind"] != "partial_local_shuffle":
        exchange["lagging"] = True
    exchange["exchange_fraction"] = fraction_of(scenario, samples)
    return scenario.with_values({"workload.exchange": exchange, **more, **changes})


def coarse(scenario: Scenario) -> dict[str, dict[str, Any]]:
    """The mechanisms that cost anything in ``scenario``, and the values that remove each."""
    schedule = _schedule(scenario)
    out: dict[str, dict[str, Any]] = {}
    if schedule.barriers != "none":
        out[BARRIERS] = {f"{_KEY}.barriers": "none"}
    costly = work(scenario)
    if HOST_WORK in costly:
        out[HOST_WORK] = costly[HOST_WORK]
    if scenario.workload.source == "ssd" and scenario.cluster.ssd.write_bandwidth < INSTANT:
        out[WRITES] = dict(INSTANT_WRITES)
    if not schedule.overlap:
        out[WAITING] = {f"{_KEY}.overlap": True}
    return {**out, WIRE: _weightless(scenario)}


def work(scenario: Scenario, small: float = 0.0) -> dict[str, dict[str, Any]]:
    """The host work that costs anything, by key, and `HOST_WORK` for all of it; empty if there is
    none. What costs less than a share ``small`` of the costliest is left out."""
    charged = _costs(scenario)
    costs = {key: value for key, value in charged.items() if value > small * max(charged.values())}
    parts: dict[str, dict[str, Any]] = {key: {f"{_KEY}.{key}": NOTHING} for key in costs}
    whole = {f"{_KEY}.{key}": NOTHING for key in costs}
    return {HOST_WORK: whole, **parts} if parts else {}


_KEY = "workload.exchange.schedule"


def _schedule(scenario: Scenario) -> MessageSchedule:
    schedule = scenario.workload.exchange.exchange_schedule
    if schedule is None:
        raise TypeError(f"{scenario.workload.exchange.kind} exchanges nothing")
    return schedule


def _costs(scenario: Scenario) -> dict[str, float]:
    """Seconds a sample of each key of `WORK`, as they are charged at most."""
    costs = asdict(host_work(_schedule(scenario), scenario.workload.dataset))
    return {**{key: costs[key] for key in WORK}, "draw": costs["draw"] * scenario.world_size}


def _weightless(scenario: Scenario) -> dict[str, Any]:
    """Values that send decoded samples of one byte, with all other costs; latencies stay."""
    costs = _costs(scenario)
    kept = {f"{_KEY}.{key}": f"{costs[key]!r} s" for key in ("decode", "pickle", "write")}
    return {f"{_KEY}.payload": "decoded", **kept, "workload.dataset.decoded_size.mean": "1 B"}


EPOCHS = WARM
"""Epochs of every run: the first, cold, is only planned; the second is like all that follow."""


HALF_WIDTH = "half_width"


class WarmCell(RunCell):
    """The second epoch of a scenario from `prepared`, alone: what `measured` says of it."""

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`: none."""
        return frozenset()

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`."""
        return Outcome(measured(warm_epoch(self.scenario, tell)))


def warm_epoch(scenario: Scenario, tell: Tell | None = None) -> Timeline:
    """The second epoch alone, of a scenario from `prepared`."""
    return simulate(scenario, progress=tell, first_epoch=EPOCHS)


def seconds(timeline: Timeline) -> dict[str, float]:
    """Seconds of the second epoch: the whole, and each of the papers' labels, mean over ranks."""
    epochs = report.epochs(timeline)
    parts = report.book_as_papers(report.breakdown(timeline))
    parts = parts[parts["epoch"] == EPOCHS]
    of_label = zip(parts["label"].astype(str), parts["seconds"].tolist(), strict=True)
    whole = float(epochs.loc[epochs["epoch"] == EPOCHS, "epoch_s"].iloc[0])
    return {report.WHOLE: whole, **dict.fromkeys(report.LABELS, 0.0), **dict(of_label)}


def measured(timeline: Timeline) -> dict[str, float]:
    """`seconds`, and half of the 95 % interval of the epoch (s) as `HALF_WIDTH`; 0 where all
    iterations were simulated."""
    sources = timeline.sources
    half_width = sources.loc[sources["epoch"] == EPOCHS, "half_width_s"].iloc[0]
    return {**seconds(timeline), HALF_WIDTH: float(half_width)}


def prepared(scenario: Scenario) -> Scenario:
    """``scenario`` without sweep and of two epochs."""
    return scenario.model_copy(update={"sweep": {}, "epochs": EPOCHS})
