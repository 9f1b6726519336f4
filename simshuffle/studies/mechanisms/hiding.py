"""The study behind ``simshuffle study hiding``: how much can be exchanged while the epoch takes no
longer, for several variants of the exchange, and why no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from simshuffle.errors import Problem, ScenarioError, refuse
from simshuffle.exchange.sending import SendingStrategy
from simshuffle.results.report import WHOLE
from simshuffle.scenario.options import scenario_of
from simshuffle.scenario.scenario import Scenario, stored
from simshuffle.sim.cell import NetworkCell, RunCell
from simshuffle.studies.mechanisms import text
from simshuffle.studies.mechanisms.figures import hiding_chart
from simshuffle.studies.mechanisms.tables import HIDING
from simshuffle.studies.mechanisms.variants import (
    ALL_IN_MEMORY,
    EPOCHS,
    HOST_WORK,
    OWN,
    READS,
    VARIANTS,
    WIRE,
    WarmCell,
    coarse,
    exchanging,
    fraction_of,
    prepared,
    seconds,
    warm_epoch,
    without,
    work,
)
from simshuffle.study.cell import Cell, Outcome, Tell
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.schema import misfits
from simshuffle.study.study import Outcomes, Request, Result, Study, Tables

if TYPE_CHECKING:
    from simshuffle.studies.mechanisms.verb import HidingOptions


FIRST, STRIDE = 4, 16
"""Samples of a rank that are tried first, and how many times as many as are hidden next."""
SMALL = 0.25
"""Host work of less than this share of the costliest, which saves more, is not removed alone."""
ALONE = 0.1
"""Where the best removal saves less than this share of what is added, none ends it by itself."""
TOGETHER = "none by itself"


@dataclass(frozen=True)
class SearchCell(NetworkCell):
    """A search."""

    document: Mapping[str, Any]  # the resolved scenario as plain values, from `prepared`
    variant: str  # of the exchange
    tolerance: float  # share of the epoch without exchange that counts as nothing
    baseline_s: float  # s of that epoch

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [self._run.key, self.variant, self.tolerance, self.baseline_s]

    @property
    def label(self) -> str:
        """As for `Cell`."""
        return f"{self.variant} @{self.document['world_size']}"

    @property
    def cost(self) -> float:
        """As for `Cell`: a search takes about ten simulations."""
        return 10 * self._run.cost

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return self._run.memory

    @cached_property
    def _run(self) -> RunCell:
        return RunCell(self.document, "")

    @property
    def scenario(self) -> Scenario:
        """The scenario."""
        return self._run.scenario

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: the row of `limits`, and those of `points`."""
        scenario, points = self.scenario, _Points(self)
        most = _most(self)
        samples, steady = largest(points.added, self.tolerance, most)
        limit = {
            "way": self.variant,
            "world_size": scenario.world_size,
            "iterations": scenario.workload.iterations(scenario.world_size, EPOCHS),
            "samples_of_rank": most,
            "baseline_s": self.baseline_s,
            "samples": samples,
            "exchange_fraction": fraction_of(scenario, samples),
            "added": points.added(samples) if samples else 0.0,
            "steady": steady,
        }
        limit |= points.bottleneck(samples + 1 if samples < most else None)
        return Outcome({"limit": limit, "points": points.rows})


def largest(added: Callable[[int], float], tolerance: float, most: int) -> tuple[int, bool]:
    """The largest number up to ``most`` (at least 1) that adds no more than ``tolerance`` while no
    smaller one that was tried adds more, and whether all that was tried agrees: less is hidden, and
    more is not. What is added is about in proportion to the number, so the search goes on where the
    line through what is known reaches the tolerance; every third step halves what is left, so that
    it ends soon whatever is added. In the end the number is known to be hidden and the next one not
    to be, and twice that one is tried too. Were hiding not monotone, a border is found all the
    same, below everything that is known not to be hidden."""
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
    """The number to try next, between one that is hidden and one that is not, or too many."""
    if high > most:
        reached = low * tolerance / known[low] if low and known[low] > 0 else STRIDE * low
        return min(max(2 * low, min(int(reached), STRIDE * low), 1), most)
    if len(known) % 3 == 0:
        return (low + high) // 2
    slope = (known[high] - known[low]) / (high - low)
    return min(max(int(low + (tolerance - known[low]) / slope), low + 1), high - 1)


def _most(cell: SearchCell) -> int:
    """The most samples that a rank can exchange: all of the smallest shard, or what fits an SSD."""
    low, high = 1, cell.scenario.workload.dataset.num_samples // cell.scenario.world_size
    middle = high  # try all first
    while low < high:
        try:
            exchanging(cell.scenario, cell.variant, middle, {})
            low = middle
        except ScenarioError:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


class _Point(NamedTuple):
    over_s: float  # that it takes longer than the epoch without exchange
    cables: pd.DataFrame  # tier, capacity and bytes of the cables in that epoch, by link
    reads: bool  # whether SSDs are read


class _Points:
    """The simulations of a search, each once; ``rows`` are those of the table `points`."""

    def __init__(self, cell: SearchCell) -> None:
        self._cell = cell
        self._known: dict[tuple[int, str], _Point] = {}
        self.rows: list[dict[str, Any]] = []

    def added(self, samples: int) -> float:
        """Share of the epoch without exchange that ``samples`` of each rank add."""
        return self._at(samples).over_s / self._cell.baseline_s

    def _at(
        self, samples: int, removed: str = "", changes: Mapping[str, Any] | None = None
    ) -> _Point:
        """The simulation of so many; the values ``changes`` remove the mechanism ``removed``."""
        cell, key = self._cell, (samples, removed)
        if key not in self._known:
            timeline = warm_epoch(exchanging(cell.scenario, cell.variant, samples, changes or {}))
            spent = seconds(timeline)[WHOLE]
            over = spent - self._baseline(removed)
            reads = bool(timeline.sources["nbytes_ssd"].iloc[0] > 0)
            links = timeline.links[timeline.links["epoch"] == EPOCHS]
            cables = links[links["tier"].astype(str).str.contains(">")]
            cables = cables.set_index(cables["link"].astype(str))
            self._known[key] = _Point(over, cables[["tier", "capacity", "nbytes"]], reads)
            row = {
                "way": cell.variant,
                "world_size": cell.scenario.world_size,
                "samples": samples,
                "removed": removed,
                "exchange_fraction": fraction_of(cell.scenario, samples),
                "epoch_s": spent,
                "added": over / cell.baseline_s,
            }
            self.rows.append(row)
        return self._known[key]

    def _baseline(self, removed: str) -> float:
        """The epoch without exchange (s). Only reads are also its own."""
        if removed != READS:
            return self._cell.baseline_s
        alone = without(self._cell.scenario).with_values(ALL_IN_MEMORY)
        return seconds(warm_epoch(alone))[WHOLE]

    def bottleneck(self, samples: int | None) -> dict[str, Any]:
        """What costs most of what ``samples`` add, in columns of `limits`; empty for None."""
        if samples is None:
            return {"over_s": np.nan, "bottleneck": "", "saved_s": np.nan, "tier": ""}
        scenario = exchanging(self._cell.scenario, self._cell.variant, samples, {})
        before = self._at(samples)
        removals = coarse(scenario) | ({READS: ALL_IN_MEMORY} if before.reads else {})
        saved = self._saved(samples, removals)
        worst = max(saved, key=lambda name: saved[name])
        if worst == HOST_WORK:
            costly = work(scenario, SMALL)
            costly.pop(HOST_WORK, None)
            parts = self._saved(samples, costly)
            best = max(parts, key=lambda name: parts[name])
            worst = f"{HOST_WORK}: {best}"
            saved[worst] = parts[best]
        name = worst if saved[worst] >= ALONE * before.over_s else TOGETHER
        return {
            "over_s": before.over_s,
            "bottleneck": name,
            "saved_s": saved[worst],
            "tier": self._tier(samples) if name == WIRE else "",
        }

    def _saved(self, samples: int, removals: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        before = self._at(samples).over_s
        return {
            name: before - self._at(samples, name, changes).over_s
            for name, changes in removals.items()
        }

    def _tier(self, samples: int) -> str:
        """The tier of the cable that needs longest for the bytes of the exchange."""
        own, idle = (self._known[samples, name].cables for name in ("", WIRE))
        nbytes = own["nbytes"] - idle["nbytes"].reindex(own.index, fill_value=0.0)
        needed = nbytes / own["capacity"]
        return str(own["tier"].iloc[int(needed.argmax())])


SIZES = tuple(64 << power for power in range(7))  # world sizes by default: 64 to 4096


@dataclass(frozen=True)
class Hiding:
    """What is searched for."""

    scenarios: Sequence[Scenario]  # for each world size, smallest first
    variants: Sequence[str]  # their names, in the order of `VARIANTS`
    tolerance: float  # share of the epoch without exchange that counts as nothing


def request(options: HidingOptions) -> Request[Hiding]:
    """What is asked for: Q* for every world size and variant, without the scenario's sweep; an
    InputError if a world size does not fit, or `OWN` has nothing to exchange."""
    scenario = scenario_of(options.scenario, options.set)
    variants, sized = _variants(scenario, options.variant), _sized(scenario, options.world_size)
    document, files = stored(sized)
    asked = {"asked": {"ways": variants, "tolerance": options.tolerance}}
    of = Hiding(sized, variants, options.tolerance)
    return Request(scenario.name, of, {"scenario.yaml": document}, asked, files)


def _sized(scenario: Scenario, world_sizes: Sequence[int]) -> list[Scenario]:
    """The scenario for each world size, smallest first: those given, or all of `SIZES` that fit the
    machine and the data set, or where none does, its own. A ScenarioError if one does not fit, or
    is 1."""
    wanted = sorted(set(world_sizes))
    if not wanted:
        most = min(
            scenario.cluster.num_gpus,
            scenario.workload.dataset.num_samples // scenario.workload.local_batch_size,
        )
        wanted = [size for size in SIZES if size <= most] or [scenario.world_size]
    if wanted[0] < 2:
        problem = Problem("--world-size", "must be 2 ranks or more", str(wanted[0]), "Name one.")
        raise ScenarioError(problem, scenario.name)
    return [prepared(scenario).with_values({"world_size": size}) for size in wanted]


def _variants(scenario: Scenario, names: Sequence[str]) -> list[str]:
    """The names of variants, in the order of `VARIANTS`; all of these if none is given. An
    InputError if it is `OWN` and the scenario exchanges no fraction of the shards."""
    exchange = scenario.workload.exchange
    if OWN in names and not isinstance(exchange, SendingStrategy):
        rule = "the scenario must exchange a fraction of the samples"
        remedy = "Set workload.exchange to one that does."
        refuse("--variant", rule, exchange.kind, remedy, COMMAND_LINE)
    return [name for name in (*VARIANTS, OWN) if name in (names or VARIANTS)]


def _baselines(of: Hiding, outcomes: Outcomes) -> dict[str, Cell]:
    return {
        _baseline(single): WarmCell(without(single).to_dict(), _baseline(single))
        for single in of.scenarios
    }


def _baseline(scenario: Scenario) -> str:
    return f"no exchange @{scenario.world_size}"


def _searches(of: Hiding, outcomes: Outcomes) -> dict[str, Cell]:
    """A search for every scenario and variant, in the order of the tables."""
    cells = [
        SearchCell(
            single.to_dict(), variant, of.tolerance, outcomes[_baseline(single)].values[WHOLE]
        )
        for single in of.scenarios
        for variant in of.variants
    ]
    return {cell.label: cell for cell in cells}


def _collect(of: Hiding, outcomes: Outcomes) -> Tables:
    found = [outcomes[name].values for name in _searches(of, outcomes)]
    points = [point for values in found for point in values["points"]]
    limits = HIDING["limits"].framed([values["limit"] for values in found])
    return {"limits": limits, "points": HIDING["points"].framed(points)}


def _faults(result: Result) -> Iterator[Problem]:
    limits, points = result.tables["limits"], result.tables["points"]
    size = limits["way"].nunique() * limits["world_size"].nunique()
    # a tier of cables is named where the wire is the bottleneck, and nowhere else
    named = ((limits["bottleneck"] == WIRE) == (limits["tier"] != "")).all()
    keys = ["way", "world_size", "samples"]
    whole = points[points["removed"] == ""].set_index(keys).index
    ended = limits[limits["over_s"].notna()]
    one_more = ended.assign(samples=ended["samples"] + 1).set_index(keys).index
    return misfits(
        {
            "limits.csv": len(limits) == size > 0 and bool(named),
            "points.csv": bool(one_more.isin(whole).all()),
        }
    )


STUDY: Study[Hiding] = Study(
    kind="hiding",
    verb="study hiding",
    stages=(_baselines, _searches),
    collect=_collect,
    stored=HIDING,
    documents=("scenario.yaml",),
    figures=lambda result: {"hiding": hiding_chart(result.tables)},
    verdict=lambda result: text.hidden(result.tables),
    parts=lambda result: text.of_hiding(result.tables),
    faults=_faults,
    again="simshuffle.studies.mechanisms.verb:hiding_again",
)
