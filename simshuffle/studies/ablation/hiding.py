"""How much can be exchanged while the epoch takes no longer: for several ways of carrying it out,
and why no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import InputError, Problem, ScenarioError
from simshuffle.exchange import MessageSchedule
from simshuffle.exchange.sending import SendingStrategy
from simshuffle.plan.host_work import host_work
from simshuffle.results.timeline import Timeline
from simshuffle.scenario.scenario import Scenario
from simshuffle.spec.library import nearest
from simshuffle.studies.ablation import measure
from simshuffle.studies.ablation.pool import Progress, outcomes
from simshuffle.studies.ablation.tables import COLUMNS

NOTHING = "0 s"
WORK = ("read", "decode", "pickle", "zero_buffer", "draw", "write", "remove")
"""Keys of a schedule that are host work of sending, and of receiving (write)."""
FIRST, STRIDE = 4, 16
"""Samples of a rank that are tried first, and how many times as many may be tried next as are known
to be hidden."""
SMALL = 0.25
"""Host work of less than this share of the costliest is not removed by itself, for the costliest
saves more."""
INSTANT = 1e18
"""Bytes/s from which on writing is instant."""
INSTANT_WRITES = {"cluster.ssd.write_bandwidth": "1000000 PB/s"}
ALL_IN_MEMORY = dict.fromkeys(
    ("cluster.memory.capacity", "cluster.memory.page_cache"), "1000000 PB"
)
ALONE = 0.1
"""Where the best removal saves less than this share of what is added, no mechanism ends the hiding
by itself."""
FRESH = {"partner_lifetime": "iteration", "samples_per_message": "iteration", "barriers": "none"}
WAYS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "authors": ("partial_local_shuffle", {}, {}),
    "pair": ("importance_pair", {}, {}),
    "encoded": ("importance_pair", {"payload": "encoded", "barriers": "none"}, {}),
    "wire": ("partial_local_shuffle", {**FRESH, **dict.fromkeys(WORK, NOTHING)}, INSTANT_WRITES),
}
"""Ways of carrying an exchange out: the strategy, the keys of its schedule that are set, and keys
of the scenario.

authors: partial local shuffle as its authors' code does it: a random permutation, a message and a
barrier for every sample; pair: one partner an epoch, one message and one barrier an iteration;
encoded: the same without barriers, and files are sent as they are;
wire: nothing but the network: no host work, no barriers, instant writes; decoded samples, a random
permutation for every iteration.

Importance is always lagging, for its measurement is no exchange.
"""
OWN = "own"
"""The way of the scenario itself."""
SIZES = tuple(64 << power for power in range(7))
"""World sizes by default: 64 to 4096."""
BARRIERS, HOST_WORK, WRITES, WIRE, WAITING = (
    "barriers",
    "host work",
    "storage writes",
    "wire",
    "no overlap",
)
READS = "storage reads"
"""Not of the exchange alone: what was received is read like all else, and may drive other samples
out of the page cache."""
TOGETHER = "none by itself"


@dataclass(frozen=True)
class _Job:
    """A way of carrying out at a world size; ``baseline_s`` is the epoch without exchange."""

    way: str
    scenario: Scenario = field(repr=False)
    tolerance: float
    baseline_s: float = 0.0


def scenarios(scenario: Scenario, world_sizes: Sequence[int]) -> list[Scenario]:
    """The scenario for each world size, smallest first.

    These are those given, or all of `SIZES` that fit the machine and the data set, or where none
    does, the scenario's own.

    Raises:
        ScenarioError: a world size does not fit, or is 1.
    """
    wanted = sorted(set(world_sizes))
    if not wanted:
        most = min(
            scenario.cluster.num_gpus,
            scenario.workload.dataset.num_samples // scenario.workload.local_batch_size,
        )
        wanted = [size for size in SIZES if size <= most] or [scenario.world_size]
    if wanted[0] < 2:
        raise ScenarioError(
            Problem("--world-size", "must be 2 ranks or more", str(wanted[0]), "Name one."),
            scenario.name,
        )
    return [measure.prepared(scenario).with_values({"world_size": size}) for size in wanted]


def ways(scenario: Scenario, names: Sequence[str]) -> list[str]:
    """The names of ways, in the order of `WAYS`; all of these if none is given.

    Raises:
        InputError: a name is not known, or it is `OWN` and the scenario exchanges no fraction of
            the shards.
    """
    known = [*WAYS, OWN]
    problems = [
        Problem("--way", "no such way of carrying out", repr(name), nearest(name, known))
        for name in names
        if name not in known
    ]
    if OWN in names and not isinstance(scenario.workload.exchange, SendingStrategy):
        remedy = "Set workload.exchange to one that does."
        problems.append(
            Problem(
                "--way",
                "the scenario must exchange a fraction of the samples",
                scenario.workload.exchange.kind,
                remedy,
            )
        )
    if problems:
        raise InputError(problems, "command line")
    return [name for name in known if name in (names or WAYS)]


def hiding(
    of: Sequence[Scenario],
    names: Sequence[str],
    tolerance: float,
    processes: int | None = None,
    progress: Progress | None = None,
) -> dict[str, pd.DataFrame]:
    """Find Q* for every scenario and way, by simulation.

    Args:
        of: from `scenarios`.
        names: from `ways`.
        tolerance: share of the epoch without exchange that counts as nothing.
        processes: at once; None for one on each usable core.
        progress: told of the progress, if given.

    Returns:
        The tables by name, with the columns of ``COLUMNS["hiding"]``; the same for the same
        arguments.
    """
    split = 1 / (1 + 4 * len(names))  # a search takes several simulations
    tell = progress or (lambda share: None)
    alone = outcomes(
        measure.labels,
        [_without(scenario) for scenario in of],
        processes,
        lambda share: tell(split * share),
    )
    baselines = {
        scenario.world_size: seconds[measure.WHOLE]
        for scenario, seconds in zip(of, alone, strict=True)
    }
    jobs = [
        _Job(name, scenario, tolerance, baselines[scenario.world_size])
        for scenario in of
        for name in names
    ]
    costly_first = outcomes(
        _searched, jobs[::-1], processes, lambda share: tell(split + (1 - split) * share)
    )
    found = costly_first[::-1]
    rows = {
        "limits": [limit for limit, _ in found],
        "points": [point for _, points in found for point in points],
    }
    return {
        name: pd.DataFrame(rows[name], columns=list(columns))
        for name, columns in COLUMNS["hiding"].items()
    }


def _without(scenario: Scenario) -> Scenario:
    return scenario.with_values({"workload.exchange": "local_shuffle"})


# --------------------------------------------------------------------------------------- the search


def largest(added: Callable[[int], float], tolerance: float, most: int) -> tuple[int, bool]:
    """The largest number up to ``most`` that adds no more than ``tolerance`` while no smaller one
    that was tried adds more.

    What is added is about in proportion to the number, so the search goes on where the line through
    what is known reaches the tolerance; every third step halves what is left, so that it ends soon
    whatever is added. In the end the number is known to be hidden and the next one not to be, and
    twice that one is tried too. Were hiding not monotone, a border is found all the same, below
    everything that is known not to be hidden.

    Args:
        added: what a number from 1 on adds, of which 0 adds nothing.
        tolerance: what counts as nothing.
        most: at least 1.

    Returns:
        The number, and whether all that was tried agrees: less is hidden, and more is not.
    """
    known = {0: 0.0}
    low, high, number = 0, most + 1, min(FIRST, most)
    while high - low > 1:
        known[number] = added(number)
        low, high = (number, high) if known[number] <= tolerance else (low, number)
        number = _next(known, tolerance, low, high, most)
    if 2 * high <= most and 2 * high not in known:
        known[2 * high] = added(2 * high)
    return low, all((value <= tolerance) == (number <= low) for number, value in known.items())


def _next(known: Mapping[int, float], tolerance: float, low: int, high: int, most: int) -> int:
    """The number to try next, between ``low``, which is hidden, and ``high``, which is not, or is
    one more than the most."""
    if high > most:
        reached = low * tolerance / known[low] if low and known[low] > 0 else STRIDE * low
        return min(max(2 * low, min(int(reached), STRIDE * low), 1), most)
    if len(known) % 3 == 0:
        return (low + high) // 2
    slope = (known[high] - known[low]) / (high - low)
    return min(max(int(low + (tolerance - known[low]) / slope), low + 1), high - 1)


def _searched(job: _Job) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of `limits`, and those of `points`."""
    scenario, points = job.scenario, _Points(job)
    most = _most(job)
    samples, steady = largest(points.added, job.tolerance, most)
    limit = {
        "way": job.way,
        "world_size": scenario.world_size,
        "iterations": scenario.workload.iterations(scenario.world_size, measure.EPOCHS),
        "samples_of_rank": most,
        "baseline_s": job.baseline_s,
        "samples": samples,
        "exchange_fraction": _fraction(scenario, samples),
        "added": points.added(samples) if samples else 0.0,
        "steady": steady,
    }
    return limit | points.bottleneck(samples + 1 if samples < most else None), points.rows


def _most(job: _Job) -> int:
    """The most samples that a rank can exchange: all of the smallest shard, or as many as the SSD
    has room for."""
    low, high = 1, job.scenario.workload.dataset.num_samples // job.scenario.world_size
    middle = high  # try all first
    while low < high:
        try:
            _exchanging(job.scenario, job.way, middle, {})
            low = middle
        except ScenarioError:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


def _fraction(scenario: Scenario, samples: int) -> float:
    """Q for so many samples of each rank and epoch; 1 for as many as the smallest shard has."""
    shard = scenario.workload.dataset.num_samples / scenario.world_size
    return 1.0 if samples == int(shard) else samples / shard


class _Points:
    """The simulations of a job, each once; ``rows`` are those of the table `points`."""

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._cables: dict[tuple[int, str], pd.DataFrame] = {}
        self._over: dict[tuple[int, str], float] = {}
        self._reads: dict[int, bool] = {}
        self.rows: list[dict[str, Any]] = []

    def added(self, samples: int) -> float:
        """Share of the epoch without exchange that ``samples`` of each rank add."""
        return self._added_s(samples) / self._job.baseline_s

    def _added_s(
        self, samples: int, removed: str = "", changes: Mapping[str, Any] | None = None
    ) -> float:
        """The same in s, without the mechanism that is ``removed`` by the values ``changes``."""
        job, key = self._job, (samples, removed)
        if key not in self._over:
            timeline = measure.warm_epoch(
                _exchanging(job.scenario, job.way, samples, changes or {})
            )
            self._cables[key] = _cables(timeline)
            if not removed:
                self._reads[samples] = bool(timeline.sources["nbytes_ssd"].iloc[0] > 0)
            spent = measure.seconds(timeline)[measure.WHOLE]
            over = self._over[key] = spent - self._baseline(removed)
            row = {
                "way": job.way,
                "world_size": job.scenario.world_size,
                "samples": samples,
                "removed": removed,
            }
            row |= {
                "exchange_fraction": _fraction(job.scenario, samples),
                "epoch_s": spent,
                "added": over / job.baseline_s,
            }
            self.rows.append(row)
        return self._over[key]

    def _baseline(self, removed: str) -> float:
        """The epoch without exchange (s). Only reads are also its own."""
        if removed != READS:
            return self._job.baseline_s
        return measure.labels(_without(self._job.scenario).with_values(ALL_IN_MEMORY))[
            measure.WHOLE
        ]

    def bottleneck(self, samples: int | None) -> dict[str, Any]:
        """What costs most of what ``samples`` add: the columns of `limits` that say so; all empty
        for None."""
        if samples is None:
            return {"over_s": np.nan, "bottleneck": "", "saved_s": np.nan, "tier": ""}
        scenario = _exchanging(self._job.scenario, self._job.way, samples, {})
        before = self._added_s(samples)
        saved = self._saved(
            samples, coarse(scenario) | ({READS: ALL_IN_MEMORY} if self._reads[samples] else {})
        )
        worst = max(saved, key=lambda name: saved[name])
        if worst == HOST_WORK:
            parts = self._saved(
                samples,
                {
                    name: changes
                    for name, changes in work(scenario, SMALL).items()
                    if name != HOST_WORK
                },
            )
            best = max(parts, key=lambda name: parts[name])
            worst, saved = f"{HOST_WORK}: {best}", {f"{HOST_WORK}: {best}": parts[best]}
        name = worst if saved[worst] >= ALONE * before else TOGETHER
        return {
            "over_s": before,
            "bottleneck": name,
            "saved_s": saved[worst],
            "tier": self._tier(samples) if name == WIRE else "",
        }

    def _saved(self, samples: int, removals: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        before = self._added_s(samples)
        return {
            name: before - self._added_s(samples, name, changes)
            for name, changes in removals.items()
        }

    def _tier(self, samples: int) -> str:
        """The tier of the cable that needs longest for the bytes of the exchange."""
        own, without = (self._cables[samples, name] for name in ("", WIRE))
        needed = (own["nbytes"] - without["nbytes"].reindex(own.index, fill_value=0.0)) / own[
            "capacity"
        ]
        return str(own["tier"].iloc[int(needed.argmax())])


def _cables(timeline: Timeline) -> pd.DataFrame:
    """Tier, capacity and bytes of the cables in the epoch that is measured, by link."""
    links = timeline.links[timeline.links["epoch"] == measure.EPOCHS]
    cables = links[links["tier"].astype(str).str.contains(">")]
    return cables.set_index(cables["link"].astype(str))[["tier", "capacity", "nbytes"]]


# ------------------------------------------------------------------- what is simulated, and removed


def _exchanging(scenario: Scenario, way: str, samples: int, changes: Mapping[str, Any]) -> Scenario:
    """``scenario`` exchanging so many samples of each rank in that way, with further values."""
    more: dict[str, Any] = {}
    if way == OWN:
        exchange = scenario.workload.exchange.model_dump(mode="json", exclude_none=True)
    else:
        kind, schedule, more = WAYS[way]
        exchange = {"kind": kind, "schedule": schedule}
    if exchange["kind"] != "partial_local_shuffle":
        exchange["lagging"] = True
    exchange["exchange_fraction"] = _fraction(scenario, samples)
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
    none.

    With ``small``, what costs less than that share of the costliest is left out.
    """
    charged = _costs(scenario)
    costs = {key: value for key, value in charged.items() if value > small * max(charged.values())}
    parts: dict[str, dict[str, Any]] = {key: {f"{_KEY}.{key}": NOTHING} for key in costs}
    whole: dict[str, Any] = {key: value for part in parts.values() for key, value in part.items()}
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
    """Values that send next to nothing, with all other costs as they are: decoded samples of one
    byte. Latencies stay."""
    costs = _costs(scenario)
    kept = {f"{_KEY}.{key}": f"{costs[key]!r} s" for key in ("decode", "pickle", "write")}
    return {f"{_KEY}.payload": "decoded", **kept, "workload.dataset.decoded_size.mean": "1 B"}
