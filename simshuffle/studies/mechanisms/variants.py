"""Variants of an exchange, the mechanisms of each that can be removed, and the warm
epoch.
"""

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
# a random permutation and a message of decoded samples for every iteration
FRESH = {
    "partner_lifetime": "iteration",
    "samples_per_message": "iteration",
    "payload": "decoded",
}
VARIANTS: dict[str, tuple[str, str | dict[str, Any], dict[str, Any]]] = {
    "authors": ("partial_local_shuffle", AUTHORS, {}),
    "pair": ("importance_pair", AUTHORS, {}),
    "encoded": ("importance_pair", f"{AUTHORS}:payload=encoded,barriers=none", {}),
    "wire": (
        "partial_local_shuffle",
        {**FRESH, **dict.fromkeys(WORK, NOTHING)},
        INSTANT_WRITES,
    ),
}
"""Variants of an exchange: the strategy, its schedule, and keys of the scenario.
authors: partial local shuffle as its authors' code does it, a random permutation, a
message and a barrier for every sample; pair: one partner an epoch, one message and one
barrier an iteration; encoded: the same without barriers, and files are sent as they
are; wire: no host work, no barriers, instant writes; decoded samples, a random
permutation for every iteration. Importance is always lagging, for its measurement is no
exchange.
"""
OWN = "own"  # the variant of the scenario itself
BARRIERS, HOST_WORK, WRITES = "barriers", "host work", "storage writes"
WIRE, WAITING = "wire", "no overlap"
READS = "storage reads"
"""Reads from storage. The exchange changes them: received samples may evict others from
the page cache.
"""


def with_variant(
    scenario: Scenario, variant: str, samples: int, changes: Mapping[str, Any]
) -> Scenario:
    """Return ``scenario`` with an exchange of that variant.

    Each rank sends ``samples`` samples an epoch. Importance is always lagging.

    Args:
        scenario: for `OWN`, with an exchange that has a fraction.
        variant: of `VARIANTS`, or `OWN`, which keeps the exchange of the scenario.
        samples: of a rank.
        changes: further values, by dotted key; they override those of the variant.

    Raises:
        ScenarioError: a value is not valid, or so many samples do not fit on a host.
    """
    variant_values: dict[str, Any] = {}
    if variant == OWN:
        exchange = scenario.workload.exchange.model_dump(mode="json", exclude_none=True)
    else:
        kind, schedule, variant_values = VARIANTS[variant]
        exchange = {"kind": kind, "schedule": schedule}
    if exchange["kind"] != "partial_local_shuffle":
        exchange["lagging"] = True
    exchange["exchange_fraction"] = fraction_of(scenario, samples)
    return scenario.with_values(
        {"workload.exchange": exchange, **variant_values, **changes}
    )


def coarse(scenario: Scenario) -> dict[str, dict[str, Any]]:
    """Return the values that remove each mechanism that costs anything, by its name.

    Values are by dotted key of the scenario. The wire is always among them, and the
    last; storage reads never are.
    """
    schedule = _schedule(scenario)
    removals: dict[str, dict[str, Any]] = {}
    if schedule.barriers != "none":
        removals[BARRIERS] = {f"{_KEY}.barriers": "none"}
    costly = work(scenario)
    if HOST_WORK in costly:
        removals[HOST_WORK] = costly[HOST_WORK]
    if (
        scenario.workload.source == "ssd"
        and scenario.cluster.ssd.write_bandwidth < INSTANT
    ):
        removals[WRITES] = dict(INSTANT_WRITES)
    if not schedule.overlap:
        removals[WAITING] = {f"{_KEY}.overlap": True}
    return {**removals, WIRE: _weightless(scenario)}


def work(scenario: Scenario, small: float = 0.0) -> dict[str, dict[str, Any]]:
    """Return the values that remove each kind of host work, by its key, as in `WORK`.

    Kinds without cost are left out, and those that cost no more than a share ``small``
    of the costliest. Before them, under `HOST_WORK`, are the values that remove all
    kinds returned. {} if none costs anything.
    """
    charged_seconds = work_costs(scenario)
    costs = {
        key: value
        for key, value in charged_seconds.items()
        if value > small * max(charged_seconds.values())
    }
    removals: dict[str, dict[str, Any]] = {
        key: {f"{_KEY}.{key}": NOTHING} for key in costs
    }
    all_removed = {f"{_KEY}.{key}": NOTHING for key in costs}
    return {HOST_WORK: all_removed, **removals} if removals else {}


_KEY = "workload.exchange.schedule"


def _schedule(scenario: Scenario) -> MessageSchedule:
    """Return the schedule of a scenario's exchange.

    Raises:
        TypeError: it exchanges nothing.
    """
    schedule = scenario.workload.exchange.exchange_schedule
    if schedule is None:
        raise TypeError(f"{scenario.workload.exchange.kind} exchanges nothing")
    return schedule


def work_costs(scenario: Scenario) -> dict[str, float]:
    """Return the seconds a sample of each key of `WORK`, in that order.

    Drawing is counted for all ranks of a permutation, which is the most that it can
    cost.
    """
    costs = asdict(host_work(_schedule(scenario), scenario.workload.dataset))
    return {
        **{key: costs[key] for key in WORK},
        "draw": costs["draw"] * scenario.world_size,
    }


def _weightless(scenario: Scenario) -> dict[str, Any]:
    """Return values that send decoded samples of one byte, at unchanged host work.

    Latencies of messages stay.
    """
    costs = work_costs(scenario)
    host_work_values = {
        f"{_KEY}.{key}": f"{costs[key]!r} s" for key in ("decode", "pickle", "write")
    }
    return {
        f"{_KEY}.payload": "decoded",
        **host_work_values,
        "workload.dataset.decoded_size.mean": "1 B",
    }


EPOCHS = WARM
"""Epochs of every run: the first, cold, is only planned; the second is like all that
follow.
"""


HALF_WIDTH = "half_width"  # a key of outcomes, see `measure_epoch`


class WarmCell(RunCell):
    """The second epoch of a scenario from `prepare_scenario`, alone; its outcome is
    from `measure_epoch`.
    """

    @property
    def parts(self) -> frozenset[str]:
        """Return the files of the outcome beside its values: none."""
        return frozenset()

    def run(self, tell: Tell) -> Outcome:
        """Simulate the second epoch, and return its `measure_epoch` as the values."""
        return Outcome(measure_epoch(warm_epoch(self.scenario, tell)))


def warm_epoch(scenario: Scenario, tell: Tell | None = None) -> Timeline:
    """Simulate the second epoch alone, of a scenario from `prepare_scenario`."""
    return simulate(scenario, progress=tell, first_epoch=EPOCHS)


def seconds(timeline: Timeline) -> dict[str, float]:
    """Return the seconds of the second epoch, and of each of the papers' labels in it.

    The epoch, under `report.WHOLE`, is from the first start to the last end of all
    ranks, or the sum of its labels if iterations were left out. Labels are means over
    ranks, and add up to the epoch; one that does not occur has 0 s.
    """
    epochs = report.epochs(timeline)
    parts = report.book_as_papers(report.breakdown(timeline))
    parts = parts[parts["epoch"] == EPOCHS]
    of_label = zip(parts["label"].astype(str), parts["seconds"].tolist(), strict=True)
    epoch_s = float(epochs.loc[epochs["epoch"] == EPOCHS, "epoch_s"].iloc[0])
    return {
        report.WHOLE: epoch_s,
        **dict.fromkeys(report.LABELS, 0.0),
        **dict(of_label),
    }


def measure_epoch(timeline: Timeline) -> dict[str, float]:
    """Return `seconds` of the warm epoch, and half of its 95 % interval (s).

    The latter is under `HALF_WIDTH`, and 0 where all iterations were simulated.
    """
    sources = timeline.sources
    half_width = sources.loc[sources["epoch"] == EPOCHS, "half_width_s"].iloc[0]
    return {**seconds(timeline), HALF_WIDTH: float(half_width)}


def prepare_scenario(scenario: Scenario) -> Scenario:
    """Return ``scenario`` without sweep and of two epochs; nothing is checked again."""
    return scenario.model_copy(update={"sweep": {}, "epochs": EPOCHS})
