"""The simulations of a search: epochs in which samples are exchanged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from simshuffle.job.plan.hidden import (
    fraction_of,
    without_exchange,
)
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.report.report import WHOLE
from simshuffle.report.timeline import Timeline
from simshuffle.studies.mechanisms.border import (
    ExchangePoint,
)
from simshuffle.studies.mechanisms.variants import (
    ALL_IN_MEMORY,
    EPOCHS,
    HALF_WIDTH,
    HOST_WORK,
    READS,
    WIRE,
    coarse,
    measure_epoch,
    warm_epoch,
    with_variant,
    work,
    work_costs,
)
from simshuffle.studies.mechanisms.windows import (
    SimulatedWindow,
    added,
    simulate_window,
    window_of,
)
from simshuffle.study.cell import Tell

if TYPE_CHECKING:
    from simshuffle.studies.mechanisms.search import SearchCell

SMALL = 0.25
"""Host work of at most this share of the costliest, which saves more, is not removed
alone.
"""
ALONE = 0.1
"""Where the best removal saves less than this share of what is added, none ends it by
itself.
"""
TOGETHER = "none by itself"
"""In the place of a mechanism: none saves `ALONE` of what is added."""
TRIALS, EXACT_TRIALS, REMOVALS = 3, 9, 3
"""Simulations that a search takes, about: to find the number, and what ends the hiding."""
EXPLAINED = 0.5
"""Share of what is added that closed forms must explain; else removals that they do not
know are simulated first.
"""
PARTS = 2
"""Kinds of host work that a search with a limit removes alone: the costliest."""


@dataclass(frozen=True)
class SimulatedPoint:
    """A simulated epoch, or window of one, in which samples are exchanged."""

    point: ExchangePoint
    # tier, capacity (bytes/s) and nbytes of the cables in what was simulated, by link
    cables: pd.DataFrame
    reads: bool  # whether SSDs are read


class Points:
    """The simulations of a search, each once.

    Attributes:
        rows: the rows of table `points`, in the order of simulation.
        spent: s of one core that windows took so far, by their costs; 0 if exact.
        max_samples: the most samples that a rank can exchange.
    """

    def __init__(self, cell: SearchCell, tell: Tell) -> None:
        self._cell = cell
        self._tell = tell
        self._simulated: dict[tuple[int, str], SimulatedPoint] = {}
        self._expected = float(EXACT_TRIALS if cell.is_exact else TRIALS) + REMOVALS
        self._done = 0
        self._windows_without_exchange: dict[
            tuple[int, str], SimulatedWindow
        ] = {}  # by iterations, and READS or ''
        self.max_samples = cell.max_samples
        self.spent = 0.0  # s of one core, by the costs of the runs
        self.rows: list[dict[str, Any]] = []

    def added_share(self, samples: int) -> float:
        """Return the share that ``samples`` add to the epoch without exchange.

        They are simulated unless they were.
        """
        return self.simulate_point(samples).over / self._cell.baseline_s

    def simulate_point(self, samples: int) -> ExchangePoint:
        """Return what ``samples`` of each rank add; simulate them unless they were."""
        return self._simulate(samples).point

    def unremoved_points(self) -> dict[int, ExchangePoint]:
        """Return the points with all mechanisms, by number of samples, without 0."""
        return {
            samples: simulated.point
            for (samples, removed), simulated in self._simulated.items()
            if not removed
        }

    def seconds_to_simulate(self, samples: int) -> float:
        """Estimate the s of one core of a window with ``samples``; 0 if simulated
        before.

        A window without exchange, which may be needed too, is not in it.
        """
        if (samples, "") in self._simulated:
            return 0.0
        return self._cell.window(samples).cost

    def _simulate(
        self, samples: int, removed: str = "", changes: Mapping[str, Any] | None = None
    ) -> SimulatedPoint:
        """Simulate an exchange of ``samples`` of each rank, once; append its row.

        The values ``changes`` remove the mechanism ``removed``, '' for none. Results
        are kept by ``samples`` and ``removed``; ``changes`` do not count. The epoch is
        whole in an exact search, else a window, whose cost is added to ``spent``.
        """
        cell = self._cell
        key = (samples, removed)
        if key in self._simulated:
            return self._simulated[key]
        if cell.is_exact:
            timeline, point, epoch_s = self._simulate_epoch(
                samples, removed, changes or {}
            )
        else:
            timeline, point = self._simulate_part(samples, removed, changes or {})
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
        self._tell_progress(0.0)
        return self._simulated[key]

    def _simulate_epoch(
        self, samples: int, removed: str, changes: Mapping[str, Any]
    ) -> tuple[Timeline, ExchangePoint, float]:
        """Simulate the epoch; return it, what it adds to the one without exchange, and
        its s.

        Of all mechanisms only reads are also in the epoch without exchange: without
        `READS` that epoch is simulated again, with all in memory.
        """
        cell = self._cell
        scenario = with_variant(cell.scenario, cell.variant, samples, changes)
        timeline = warm_epoch(scenario, self._tell_progress)
        baseline_s = cell.baseline_s
        half_width = cell.baseline_half_width_s
        if removed == READS:
            baseline_measured = measure_epoch(
                warm_epoch(without_exchange(cell.scenario).with_values(ALL_IN_MEMORY))
            )
            baseline_s = baseline_measured[WHOLE]
            half_width = baseline_measured[HALF_WIDTH]
        epoch_measured = measure_epoch(timeline)
        half_width = math.hypot(epoch_measured[HALF_WIDTH], half_width)
        return (
            timeline,
            ExchangePoint(epoch_measured[WHOLE] - baseline_s, half_width),
            epoch_measured[WHOLE],
        )

    def _simulate_part(
        self, samples: int, removed: str, changes: Mapping[str, Any]
    ) -> tuple[Timeline, ExchangePoint]:
        """Simulate a window with exchange, and one without unless known; book their
        cost.

        Returned are the timeline with exchange, and by how much the whole epoch is
        longer than without (s). Without `READS`, both have all in memory.
        """
        cell = self._cell
        key = removed if removed == READS else ""
        window = cell.window(samples, changes)
        self.spent += window.cost
        if (window.iterations, key) not in self._windows_without_exchange:
            scenario_without = without_exchange(cell.scenario).with_values(
                ALL_IN_MEMORY if key else {}
            )
            window_without = window_of(scenario_without, window.iterations)
            self.spent += window_without.cost
            self._windows_without_exchange[window.iterations, key] = simulate_window(
                window_without
            )
        simulated = simulate_window(window, self._tell_progress)
        point = added(
            window,
            samples,
            simulated,
            self._windows_without_exchange[window.iterations, key],
        )
        return simulated.timeline, point

    def _tell_progress(self, share: float) -> None:
        """Tell how much of the search is done; ``share`` (0 to 1) of a simulation is."""
        simulations_done = self._done + share
        self._tell(min(simulations_done / max(self._expected, self._done + 1.5), 1.0))

    def find_bottleneck(self, samples: int | None) -> dict[str, Any]:
        """Find the mechanism that costs most of what ``samples`` add, by removing each.

        It is `TOGETHER` if the best removal saves less than `ALONE` of what is added.
        If host work costs most, its kinds are removed too, and it is such as 'host
        work: decode'. If the limit allowed too few removals, it is that of closed
        forms.

        Args:
            samples: of a rank; None where all are hidden.

        Returns:
            The columns over_s, bottleneck, saved_s and tier of table `limits`. For None
            they are NaN and ''. saved_s is 0 or more, and NaN for closed forms; tier is
            '' unless the wire costs most.
        """
        if samples is None:
            return {"over_s": np.nan, "bottleneck": "", "saved_s": np.nan, "tier": ""}
        scenario = with_variant(self._cell.scenario, self._cell.variant, samples, {})
        over = self.simulate_point(samples).over
        removals = self._removals(scenario, samples)
        saved = dict(self._seconds_saved(samples, removals))
        costliest = max(saved, key=lambda name: saved[name], default="")
        # where some were not simulated, another may save more
        if not costliest or (
            len(saved) < len(removals) and saved[costliest] < EXPLAINED * over
        ):
            costliest = self._costliest_by_forms(scenario, samples)
            return {
                "over_s": over,
                "bottleneck": costliest,
                "saved_s": np.nan,
                "tier": "",
            }
        if costliest == HOST_WORK and (
            parts := dict(
                self._seconds_saved(samples, self._host_work_removals(scenario))
            )
        ):
            costliest_part = max(parts, key=lambda name: parts[name])
            costliest = f"{HOST_WORK}: {costliest_part}"
            saved[costliest] = parts[costliest_part]
        name = (
            costliest
            if saved[costliest] >= ALONE * over and saved[costliest] > 0.0
            else TOGETHER
        )
        return {
            "over_s": over,
            "bottleneck": name,
            "saved_s": max(saved[costliest], 0.0),
            "tier": self._slowest_tier(samples) if name == WIRE else "",
        }

    def _removals(
        self, scenario: Scenario, samples: int
    ) -> dict[str, Mapping[str, Any]]:
        """Return the values that remove each mechanism, by its name, in order of
        trying.

        Storage reads are among them if SSDs were read with ``samples``, which were
        simulated before. An exact search has no order; else those that save most by
        closed forms come first, and before them those without effect there if closed
        forms explain less than `EXPLAINED` of what is added.
        """
        reads = self._simulated[samples, ""].reads
        removal_values = coarse(scenario) | ({READS: ALL_IN_MEMORY} if reads else {})
        if self._cell.is_exact:
            return dict(removal_values)
        added, saved = self._cell.saved_by_forms(samples, removal_values)
        # what closed forms do not know comes first where they do not explain what was simulated
        is_unexplained = added < EXPLAINED * self.simulate_point(samples).over
        order = sorted(
            removal_values,
            key=lambda name: (not (is_unexplained and saved[name] <= 0), -saved[name]),
        )
        return {name: removal_values[name] for name in order}

    def _host_work_removals(self, scenario: Scenario) -> dict[str, Mapping[str, Any]]:
        """Return kinds of host work that are removed alone, the costliest first.

        Kinds of at most `SMALL` of the costliest are left out; a search with a limit
        has the first `PARTS`.
        """
        removal_values = work(scenario, SMALL)
        removal_values.pop(HOST_WORK, None)
        costs = work_costs(scenario)
        names = sorted(removal_values, key=lambda name: -costs[name])
        if not self._cell.is_exact:
            names = names[:PARTS]
        return {name: removal_values[name] for name in names}

    def _costliest_by_forms(self, scenario: Scenario, samples: int) -> str:
        """Return the mechanism whose removal saves most by closed forms alone.

        The wire and storage reads are not among them, and host work is by kind ('host
        work: decode'). `TOGETHER` if it saves less than `ALONE` of what is added, or
        nothing is added.
        """
        removal_values: dict[str, Mapping[str, Any]] = {**coarse(scenario)}
        removal_values.pop(WIRE, None)
        removal_values.pop(HOST_WORK, None)
        removal_values |= {
            f"{HOST_WORK}: {name}": values
            for name, values in self._host_work_removals(scenario).items()
        }
        added, saved = self._cell.saved_by_forms(samples, removal_values)
        costliest = max(saved, key=lambda name: saved[name], default="")
        return (
            costliest
            if costliest and saved[costliest] >= ALONE * added > 0.0
            else TOGETHER
        )

    def _seconds_saved(
        self, samples: int, removals: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[str, float]]:
        """Simulate removals; yield name and saved s of each, until the limit is spent.

        Savings may be negative; they may be of a mechanism that was simulated before.
        """
        seconds_added = self.simulate_point(samples).over
        seconds_per_removal = (
            0.0 if self._cell.is_exact else self._cell.window(samples).cost
        )
        for name, changes in removals.items():
            cost = seconds_per_removal * (2 if name == READS else 1)
            if self.spent + cost > self._cell.limit_s:
                return
            yield (
                name,
                seconds_added - self._simulate(samples, name, changes).point.over,
            )

    def _slowest_tier(self, samples: int) -> str:
        """Return the tier of the cable that the exchange's bytes keep busy longest.

        ``samples`` must be simulated with all mechanisms and without `WIRE`, whose
        bytes are those of everything else.
        """
        exchange_cables, wire_free_cables = (
            self._simulated[samples, name].cables for name in ("", WIRE)
        )
        nbytes = exchange_cables["nbytes"] - wire_free_cables["nbytes"].reindex(
            exchange_cables.index, fill_value=0.0
        )
        needed = nbytes / exchange_cables["capacity"]
        return str(exchange_cables["tier"].iloc[int(needed.argmax())])
