"""The search of one number of ranks and one way to exchange: how many samples are hidden, and what
ends it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.job.plan.bounds import Bounds
from simshuffle.job.plan.effort import effort
from simshuffle.job.plan.hidden import (
    added_seconds,
    fraction_of,
    hidden_samples,
    most_samples,
    unexchanged,
    without_exchange,
)
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.cell import NetworkCell, RunCell
from simshuffle.report.report import WHOLE
from simshuffle.report.timeline import Timeline
from simshuffle.studies.mechanisms.border import (
    FIRST,
    Border,
    ExchangePoint,
    approach,
    largest,
    spread,
)
from simshuffle.studies.mechanisms.variants import (
    ALL_IN_MEMORY,
    EPOCHS,
    HALF_WIDTH,
    HOST_WORK,
    READS,
    WIRE,
    coarse,
    exchanging,
    measured,
    warm_epoch,
    work,
)
from simshuffle.studies.mechanisms.windows import (
    SimulatedWindow,
    Window,
    added,
    simulate_window,
    window_of,
    window_size,
)
from simshuffle.study.cell import Outcome, Tell

SMALL = 0.25
"""Host work of less than this share of the costliest, which saves more, is not removed alone."""
ALONE = 0.1
"""Where the best removal saves less than this share of what is added, none ends it by itself."""
TOGETHER = "none by itself"
SEARCHING = 0.6
"""Share of a search's limit that finds the number; the rest finds what ends the hiding."""
TRIALS, EXACT_TRIALS, REMOVALS = 3, 9, 3
"""Simulations that a search takes, about: to find the number, and what ends the hiding."""
APART = 2
"""Iterations after which samples are sent once, from which on sendings do not meet."""
EXPLAINED = 0.5
"""Share of what is added that closed forms must explain; else removals that they do not know are
simulated first."""
PARTS = 2
"""Kinds of host work that a search with a limit removes alone: those that cost most."""


@dataclass(frozen=True)
class SearchCell(NetworkCell):
    """A search."""

    document: Mapping[str, Any]  # the resolved scenario as plain values, from `prepared`
    variant: str  # of the exchange
    tolerance: float  # share of the epoch without exchange that counts as nothing
    baseline_s: float  # s of that epoch
    baseline_half_width_s: float = 0.0  # s, half of its 95 % interval
    # s of one core, by the costs of runs, that the simulations may take; infinite: the search goes
    # on until the number of samples is known exactly
    limit_s: float = math.inf

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        limit = None if self.is_exact else self.limit_s
        search = [self.tolerance, self.baseline_s, self.baseline_half_width_s, limit]
        return [self._run.key, self.variant, *search]

    @property
    def label(self) -> str:
        """As for `Cell`."""
        return f"{self.variant} @{self.document['world_size']}"

    @property
    def is_exact(self) -> bool:
        """Whether the search has no limit."""
        return math.isinf(self.limit_s)

    @cached_property
    def cost(self) -> float:
        """As for `Cell`: simulations at the number of samples that closed forms say; an exact
        search begins with few samples, for which many iterations are simulated."""
        most = self.most
        hidden = self.hidden_by_forms(most)
        if not self.is_exact:
            return max(self.limit_s, self.window(hidden).cost)
        seconds, few = (
            effort(exchanging(self.scenario, self.variant, samples, {})).seconds
            for samples in (hidden, min(FIRST, most))
        )
        return few + (EXACT_TRIALS - 1 + REMOVALS) * seconds

    def hidden_by_forms(self, most: int) -> int:
        """Samples of a rank that are hidden by closed forms, at least 1."""
        allowed = self.tolerance * self.baseline_s
        scenario = exchanging(self.scenario, self.variant, 1, {})
        return max(hidden_samples(self._alone, scenario, allowed, most), 1)

    @cached_property
    def _alone(self) -> Bounds:
        return unexchanged(self.scenario)

    @property
    def most(self) -> int:
        """The most samples that a rank can exchange."""
        return most_samples(exchanging(self.scenario, self.variant, 1, {}))

    def saved_by_forms(
        self, samples: int, removals: Mapping[str, Mapping[str, Any]]
    ) -> tuple[float, dict[str, float]]:
        """Return the s that ``samples`` of each rank add by closed forms, and what of it each
        removal saves."""

        def added(changes: Mapping[str, Any]) -> float:
            scenario = exchanging(self.scenario, self.variant, samples, changes)
            return added_seconds(self._alone, scenario)

        whole = added({})
        return whole, {name: whole - added(changes) for name, changes in removals.items()}

    def window(self, samples: int, changes: Mapping[str, Any] | None = None) -> Window:
        """The iterations that stand for an epoch in which each rank sends ``samples`` samples."""
        scenario = exchanging(self.scenario, self.variant, samples, changes or {})
        size = window_size(scenario, self.limit_s / (TRIALS + REMOVALS))
        return window_of(scenario, size)

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return self._run.memory

    @property
    def _run(self) -> RunCell:
        return RunCell(self.document, "")

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario."""
        return self._run.scenario

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: the row of `limits`, and those of `points`."""
        scenario, points = self.scenario, Points(self, tell)
        border = self._exact_border(points) if self.is_exact else self._border(points)
        limit = {
            "way": self.variant,
            "world_size": scenario.world_size,
            "iterations": scenario.workload.iterations(scenario.world_size, EPOCHS),
            "samples_of_rank": points.most,
            "baseline_s": self.baseline_s,
            "samples": border.samples,
            "samples_low": border.low,
            "samples_high": border.high,
            "exchange_fraction": fraction_of(scenario, border.samples),
            "added": border.added / self.baseline_s,
            "steady": border.steady,
        }
        limit |= points.bottleneck(border.tried)
        return Outcome({"limit": limit, "points": points.rows})

    def _exact_border(self, points: Points) -> Border:
        samples, steady = largest(points.added, self.tolerance, points.most)
        tried = samples + 1 if samples < points.most else None
        known = points.known()
        allowed = self.tolerance * self.baseline_s
        low, high = spread(samples, known, allowed, points.most, beyond=0.0)
        added = known[samples].over if samples else 0.0
        return Border(samples, low, high, added, steady, tried)

    def _border(self, points: Points) -> Border:
        iterations = self.scenario.workload.iterations(self.scenario.world_size, EPOCHS)
        linear = min(iterations // APART, points.most)
        limit = SEARCHING * self.limit_s
        return approach(
            points.point,
            self.tolerance * self.baseline_s,
            points.most,
            max(self.hidden_by_forms(points.most), linear),
            lambda samples: points.spent + points.seconds(samples) <= limit,
            linear,
        )


@dataclass(frozen=True)
class SimulatedPoint:
    """An epoch in which samples are exchanged."""

    point: ExchangePoint
    cables: pd.DataFrame  # tier, capacity and bytes of the cables in that epoch, by link
    reads: bool  # whether SSDs are read


class Points:
    """The simulations of a search, each once; ``rows`` are those of the table `points`."""

    def __init__(self, cell: SearchCell, tell: Tell) -> None:
        self._cell, self._tell = cell, tell
        self._simulated: dict[tuple[int, str], SimulatedPoint] = {}
        self._expected = float(EXACT_TRIALS if cell.is_exact else TRIALS) + REMOVALS
        self._done = 0
        self._alone: dict[tuple[int, str], SimulatedWindow] = {}  # by iterations, and READS or ''
        self.most = cell.most
        self.spent = 0.0  # s of one core, by the costs of the runs
        self.rows: list[dict[str, Any]] = []

    def added(self, samples: int) -> float:
        """Share of the epoch without exchange that ``samples`` of each rank add."""
        return self.point(samples).over / self._cell.baseline_s

    def point(self, samples: int) -> ExchangePoint:
        """What ``samples`` of each rank add, simulated."""
        return self._simulate(samples).point

    def known(self) -> dict[int, ExchangePoint]:
        """What was simulated with all mechanisms, by number of samples."""
        return {
            samples: simulated.point
            for (samples, removed), simulated in self._simulated.items()
            if not removed
        }

    def seconds(self, samples: int) -> float:
        """s of one core that one more simulation takes; 0 if it is there."""
        if (samples, "") in self._simulated:
            return 0.0
        return self._cell.window(samples).cost

    def _simulate(
        self, samples: int, removed: str = "", changes: Mapping[str, Any] | None = None
    ) -> SimulatedPoint:
        """The simulation of so many; the values ``changes`` remove the mechanism ``removed``."""
        cell, key = self._cell, (samples, removed)
        if key in self._simulated:
            return self._simulated[key]
        if cell.is_exact:
            timeline, point, epoch_s = self._whole(samples, removed, changes or {})
        else:
            timeline, point = self._window(samples, removed, changes or {})
            epoch_s = cell.baseline_s + point.over
        links = timeline.links[timeline.links["epoch"] == EPOCHS]
        cables = links[links["tier"].astype(str).str.contains(">")]
        cables = cables.set_index(cables["link"].astype(str))
        self._simulated[key] = SimulatedPoint(
            point,
            cables[["tier", "capacity", "nbytes"]],
            bool(timeline.sources["nbytes_ssd"].iloc[0] > 0),
        )
        row = {
            "way": cell.variant,
            "world_size": cell.scenario.world_size,
            "samples": samples,
            "removed": removed,
            "exchange_fraction": fraction_of(cell.scenario, samples),
            "epoch_s": epoch_s,
            "added": point.over / cell.baseline_s,
        }
        self.rows.append(row)
        self._done += 1
        self._tell_within(0.0)
        return self._simulated[key]

    def _whole(
        self, samples: int, removed: str, changes: Mapping[str, Any]
    ) -> tuple[Timeline, ExchangePoint, float]:
        """The epoch, what it is longer than without exchange, and its seconds. Only reads are also
        in the epoch without."""
        cell = self._cell
        scenario = exchanging(cell.scenario, cell.variant, samples, changes)
        timeline = warm_epoch(scenario, self._tell_within)
        baseline_s, half_width = cell.baseline_s, cell.baseline_half_width_s
        if removed == READS:
            alone = measured(warm_epoch(without_exchange(cell.scenario).with_values(ALL_IN_MEMORY)))
            baseline_s, half_width = alone[WHOLE], alone[HALF_WIDTH]
        found = measured(timeline)
        half_width = math.hypot(found[HALF_WIDTH], half_width)
        return timeline, ExchangePoint(found[WHOLE] - baseline_s, half_width), found[WHOLE]

    def _window(
        self, samples: int, removed: str, changes: Mapping[str, Any]
    ) -> tuple[Timeline, ExchangePoint]:
        """A part of the epoch, and what the whole is longer than without exchange."""
        cell, key = self._cell, removed if removed == READS else ""
        window = cell.window(samples, changes)
        self.spent += window.cost
        if (window.iterations, key) not in self._alone:
            alone = without_exchange(cell.scenario).with_values(ALL_IN_MEMORY if key else {})
            of_alone = window_of(alone, window.iterations)
            self.spent += of_alone.cost
            self._alone[window.iterations, key] = simulate_window(of_alone)
        simulated = simulate_window(window, self._tell_within)
        point = added(window, samples, simulated, self._alone[window.iterations, key])
        return simulated.timeline, point

    def _tell_within(self, share: float) -> None:
        """Tell how much of the search is done, while ``share`` of a simulation is."""
        done = self._done + share
        self._tell(min(done / max(self._expected, self._done + 1.5), 1.0))

    def bottleneck(self, samples: int | None) -> dict[str, Any]:
        """What costs most of what ``samples`` add, in columns of `limits`; empty for None."""
        if samples is None:
            return {"over_s": np.nan, "bottleneck": "", "saved_s": np.nan, "tier": ""}
        scenario = exchanging(self._cell.scenario, self._cell.variant, samples, {})
        over = self.point(samples).over
        removals = self._removals(scenario, samples)
        saved = dict(self._saved(samples, removals))
        worst = max(saved, key=lambda name: saved[name], default="")
        # where some were not simulated, another may save more
        if not worst or (len(saved) < len(removals) and saved[worst] < EXPLAINED * over):
            worst = self._costliest(scenario, samples)
            return {"over_s": over, "bottleneck": worst, "saved_s": np.nan, "tier": ""}
        if worst == HOST_WORK and (parts := dict(self._saved(samples, self._parts(scenario)))):
            best = max(parts, key=lambda name: parts[name])
            worst = f"{HOST_WORK}: {best}"
            saved[worst] = parts[best]
        name = worst if saved[worst] >= ALONE * over and saved[worst] > 0.0 else TOGETHER
        return {
            "over_s": over,
            "bottleneck": name,
            "saved_s": max(saved[worst], 0.0),
            "tier": self._tier(samples) if name == WIRE else "",
        }

    def _removals(self, scenario: Scenario, samples: int) -> dict[str, Mapping[str, Any]]:
        """Mechanisms that can be removed, those that save most by closed forms first."""
        reads = self._simulated[samples, ""].reads
        found = coarse(scenario) | ({READS: ALL_IN_MEMORY} if reads else {})
        if self._cell.is_exact:
            return dict(found)
        added, saved = self._cell.saved_by_forms(samples, found)
        # what closed forms do not know comes first where they do not explain what was simulated
        unknown = added < EXPLAINED * self.point(samples).over
        order = sorted(found, key=lambda name: (not (unknown and saved[name] <= 0), -saved[name]))
        return {name: found[name] for name in order}

    def _parts(self, scenario: Scenario) -> dict[str, Mapping[str, Any]]:
        """Kinds of host work that are removed alone, the costliest first."""
        found = work(scenario, SMALL)
        found.pop(HOST_WORK, None)
        return dict(list(found.items())[: None if self._cell.is_exact else PARTS])

    def _costliest(self, scenario: Scenario, samples: int) -> str:
        """The mechanism whose removal saves most by closed forms alone."""
        found: dict[str, Mapping[str, Any]] = {**coarse(scenario)}
        found.pop(WIRE, None)
        found.pop(HOST_WORK, None)
        found |= {f"{HOST_WORK}: {name}": of for name, of in self._parts(scenario).items()}
        added, saved = self._cell.saved_by_forms(samples, found)
        worst = max(saved, key=lambda name: saved[name], default="")
        return worst if worst and saved[worst] >= ALONE * added > 0.0 else TOGETHER

    def _saved(
        self, samples: int, removals: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[str, float]]:
        """s that each removal saves, as far as the limit of the search allows."""
        before = self.point(samples).over
        each = 0.0 if self._cell.is_exact else self._cell.window(samples).cost
        for name, changes in removals.items():
            cost = each * (2 if name == READS else 1)
            if self.spent + cost > self._cell.limit_s:
                return
            yield name, before - self._simulate(samples, name, changes).point.over

    def _tier(self, samples: int) -> str:
        """The tier of the cable that needs longest for the bytes of the exchange."""
        own, idle = (self._simulated[samples, name].cables for name in ("", WIRE))
        nbytes = own["nbytes"] - idle["nbytes"].reindex(own.index, fill_value=0.0)
        needed = nbytes / own["capacity"]
        return str(own["tier"].iloc[int(needed.argmax())])
