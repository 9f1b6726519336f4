"""Search how many samples are hidden on one number of ranks in one way to exchange, and
what ends the hiding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simshuffle.job.plan.bounds import Bounds
from simshuffle.job.plan.effort import effort
from simshuffle.job.plan.hidden import (
    added_seconds,
    bounds_without_exchange,
    fraction_of,
    hidden_samples,
    most_samples,
)
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.cell import NetworkCell, RunCell
from simshuffle.studies.mechanisms.border import (
    FIRST,
    Border,
    approach_border,
    number_interval,
    search_exactly,
)
from simshuffle.studies.mechanisms.points import EXACT_TRIALS, REMOVALS, TRIALS, Points
from simshuffle.studies.mechanisms.variants import (
    EPOCHS,
    with_variant,
)
from simshuffle.studies.mechanisms.windows import (
    Window,
    window_of,
    window_size,
)
from simshuffle.study.cell import Outcome, Tell

SEARCHING = 0.6
"""Share of a search's limit that finds the number; the rest finds what ends the hiding."""
APART = 2
"""Iterations after which samples are sent once, from which on sendings do not meet."""


@dataclass(frozen=True)
class SearchCell(NetworkCell):
    """A search for the number of hidden samples, of one world size and one way to
    exchange.
    """

    # the resolved scenario as plain values, from `variants.prepare_scenario`
    document: Mapping[str, Any]
    variant: str  # of `VARIANTS`, or `OWN` for the exchange of the scenario
    tolerance: float  # share of the epoch without exchange that counts as nothing
    baseline_s: float  # s of the epoch without exchange
    baseline_half_width_s: float = 0.0  # s, half of its 95 % interval
    # s of one core, by the costs of runs, that the simulations may take; infinite: the search goes
    # on until the number of samples is known exactly
    limit_s: float = math.inf

    @property
    def key(self) -> Any:
        """Return what decides the outcome: scenario, variant, tolerance, baseline and
        limit.
        """
        limit = None if self.is_exact else self.limit_s
        search = [self.tolerance, self.baseline_s, self.baseline_half_width_s, limit]
        return [self._run.key, self.variant, *search]

    @property
    def label(self) -> str:
        """Return the name of the cell for people."""
        return f"{self.variant} @{self.document['world_size']}"

    @property
    def is_exact(self) -> bool:
        """Return whether the search has no limit."""
        return math.isinf(self.limit_s)

    @cached_property
    def cost(self) -> float:
        """Estimate the s of one core that the search takes.

        That is the limit, or the cost of one window if that is more. Without a limit,
        it is that of simulations at the number of samples that closed forms say; the
        first one has few samples, for which many iterations are simulated.
        """
        max_samples = self.max_samples
        hidden = self.hidden_by_forms(max_samples)
        if not self.is_exact:
            return max(self.limit_s, self.window(hidden).cost)
        seconds, seconds_of_few = (
            effort(with_variant(self.scenario, self.variant, samples, {})).seconds
            for samples in (hidden, min(FIRST, max_samples))
        )
        return seconds_of_few + (EXACT_TRIALS - 1 + REMOVALS) * seconds

    def hidden_by_forms(self, max_samples: int) -> int:
        """Return the samples of a rank that closed forms hide, 1 to ``max_samples``.

        1 is returned also where none is hidden.
        """
        allowed = self.tolerance * self.baseline_s
        scenario = with_variant(self.scenario, self.variant, 1, {})
        return max(
            hidden_samples(
                self._bounds_without_exchange, scenario, allowed, max_samples
            ),
            1,
        )

    @cached_property
    def _bounds_without_exchange(self) -> Bounds:
        """Return the lower bounds of the epoch without exchange."""
        return bounds_without_exchange(self.scenario)

    @property
    def max_samples(self) -> int:
        """Return the most samples that a rank can exchange in an epoch, at least 1.

        They are its shard, or what its host has room for.
        """
        return most_samples(with_variant(self.scenario, self.variant, 1, {}))

    def saved_by_forms(
        self, samples: int, removals: Mapping[str, Mapping[str, Any]]
    ) -> tuple[float, dict[str, float]]:
        """Return what ``samples`` add by closed forms, and what each removal saves.

        Both are s, and may be 0 or below. ``removals`` are values of the scenario by
        name; the savings have the same names.
        """

        def added(changes: Mapping[str, Any]) -> float:
            """Return the s that ``samples`` add with ``changes``."""
            scenario = with_variant(self.scenario, self.variant, samples, changes)
            return added_seconds(self._bounds_without_exchange, scenario)

        total_added = added({})
        return total_added, {
            name: total_added - added(changes) for name, changes in removals.items()
        }

    def window(self, samples: int, changes: Mapping[str, Any] | None = None) -> Window:
        """Return the iterations that stand for an epoch with ``samples`` of a rank.

        ``changes`` are further values of the scenario. A search without a limit has no
        use for a window.
        """
        scenario = with_variant(self.scenario, self.variant, samples, changes or {})
        size = window_size(scenario, self.limit_s / (TRIALS + REMOVALS))
        return window_of(scenario, size)

    @property
    def memory(self) -> float:
        """Return the bytes of memory of the process, roughly."""
        return self._run.memory

    @property
    def _run(self) -> RunCell:
        """Return the run of the scenario, for its key, memory and scenario."""
        return RunCell(self.document, "")

    @cached_property
    def scenario(self) -> Scenario:
        """Return the scenario of the search, with its own exchange, read once."""
        return self._run.scenario

    def run(self, tell: Tell) -> Outcome:
        """Search the hidden samples, then what ends the hiding.

        The values of the outcome are ``limit``, a row of `limits`, and ``points``, the
        rows of `points`. Both have the variant as their way: `OWN` for all ways of the
        scenario.
        """
        scenario = self.scenario
        points = Points(self, tell)
        border = self._exact_border(points) if self.is_exact else self._border(points)
        limit = {
            "way": self.variant,
            "world_size": scenario.world_size,
            "iterations": scenario.workload.iterations(scenario.world_size, EPOCHS),
            "samples_of_rank": points.max_samples,
            "baseline_s": self.baseline_s,
            "samples": border.samples,
            "samples_low": border.low,
            "samples_high": border.high,
            "exchange_fraction": fraction_of(scenario, border.samples),
            "added": border.added / self.baseline_s,
            "steady": border.steady,
        }
        limit |= points.find_bottleneck(border.tried)
        return Outcome({"limit": limit, "points": points.rows})

    def _exact_border(self, points: Points) -> Border:
        """Search the border to a single sample.

        ``tried`` is the next sample, None where all samples are hidden.
        """
        samples, steady = search_exactly(
            points.added_share, self.tolerance, points.max_samples
        )
        exceeding_samples = samples + 1 if samples < points.max_samples else None
        simulated_points = points.unremoved_points()
        allowed = self.tolerance * self.baseline_s
        low, high = number_interval(
            samples, simulated_points, allowed, points.max_samples, beyond=0.0
        )
        added = simulated_points[samples].over if samples else 0.0
        return Border(samples, low, high, added, steady, exceeding_samples)

    def _border(self, points: Points) -> Border:
        """Search the border approximately, within `SEARCHING` of the limit.

        The first number is simulated whatever it costs.
        """
        iterations = self.scenario.workload.iterations(self.scenario.world_size, EPOCHS)
        linear_samples = min(iterations // APART, points.max_samples)
        limit = SEARCHING * self.limit_s
        return approach_border(
            points.simulate_point,
            self.tolerance * self.baseline_s,
            points.max_samples,
            max(self.hidden_by_forms(points.max_samples), linear_samples),
            affordable=lambda samples: (
                points.spent + points.seconds_to_simulate(samples) <= limit
            ),
            linear=linear_samples,
        )
