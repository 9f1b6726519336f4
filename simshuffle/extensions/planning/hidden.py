"""Search cell of a plan for the largest exchange that stays hidden."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simshuffle.extensions.planning.cells import OVERSHOOT, SEARCH_PRECISION
from simshuffle.extensions.planning.precision import seconds_of_run
from simshuffle.job.plan.hidden import (
    bounds_without_exchange,
    fraction_of,
    hidden_samples,
    most_samples,
)
from simshuffle.job.sim.cell import NetworkCell, RunCell
from simshuffle.report.report import WHOLE
from simshuffle.studies.mechanisms.variants import (
    OWN,
    WarmCell,
    with_variant,
)
from simshuffle.study.cell import Outcome, Tell
from simshuffle.study.store import run_inner_cell

REMAINING_EPOCHS = 4.0
"""Mean number of epochs that a search has still to simulate: its share never reaches 1."""


@dataclass(frozen=True)
class HiddenExchangeCell(NetworkCell):
    """Cell that searches the largest exchange that adds at most a share to an epoch, to
    `SEARCH_PRECISION`.

    `simshuffle.studies.mechanisms.search.SearchCell` searches to a single sample, and
    also names the bottleneck that ends the search.
    """

    # resolved scenario with the exchange, of `prepare_scenario`
    document: Mapping[str, Any]
    tolerance: (
        float  # share of the epoch without exchange up to which an exchange is hidden
    )
    baseline_s: float  # s of the epoch without exchange

    label = "hidden exchange"

    @property
    def key(self) -> Any:
        """Return what decides the outcome: run, tolerance and baseline."""
        return [self._run.key, self.tolerance, self.baseline_s]

    @property
    def cost(self) -> float:
        """Estimate the seconds of one core.

        They are about six warm epochs with the largest exchange that closed forms hide.
        """
        return 3 * self._seconds_of_run

    @cached_property
    def _seconds_of_run(self) -> float:
        """Estimate the core seconds of a run with the largest exchange that closed
        forms hide.
        """
        return seconds_of_run(
            with_variant(self._run.scenario, OWN, max(self._guessed_samples, 1), {})
        )

    @cached_property
    def _guessed_samples(self) -> int:
        """Return the most samples of a rank whose exchange closed forms hide; 0 if none
        is hidden.
        """
        scenario = self._run.scenario
        allowed_seconds = self.tolerance * self.baseline_s
        return hidden_samples(
            bounds_without_exchange(scenario),
            scenario,
            allowed_seconds,
            most_samples(scenario),
        )

    @cached_property
    def _run(self) -> RunCell:
        """Return the run of the scenario, for its key and its scenario."""
        return RunCell(self.document, "")

    def run(self, tell: Tell) -> Outcome:
        """Search the largest hidden exchange, to `SEARCH_PRECISION`.

        The outcome has ``limit`` (samples of a rank, exchange_fraction, an empty
        bottleneck) and ``points``, a row for each simulated exchange in the order of
        the search: exchange_fraction, epoch_s, added (share of ``baseline_s``, below 0
        where the epoch is shorter) and an empty removed. Samples are 0 if one adds too
        much.
        """
        scenario = self._run.scenario
        rows: list[dict[str, Any]] = []

        def added_share(samples: int) -> float:
            """Simulate an exchange, append its row, and return the share it adds."""
            exchange = with_variant(scenario, OWN, samples, {})
            epoch = WarmCell(exchange.to_dict(), self.label)
            spent = float(run_inner_cell(epoch).values[WHOLE])
            share = (spent - self.baseline_s) / self.baseline_s
            fraction = fraction_of(scenario, samples)
            row = {
                "exchange_fraction": fraction,
                "epoch_s": spent,
                "added": share,
                "removed": "",
            }
            rows.append(row)
            tell(len(rows) / (len(rows) + REMAINING_EPOCHS))
            return share

        max_samples = most_samples(scenario)
        samples = find_largest_hidden(
            added_share, self.tolerance, self._guessed_samples, max_samples
        )
        fraction = fraction_of(scenario, samples)
        limit = {"samples": samples, "exchange_fraction": fraction, "bottleneck": ""}
        return Outcome({"limit": limit, "points": rows})


def find_largest_hidden(
    added_share_of: Callable[[int], float],
    tolerance: float,
    guess: int,
    max_samples: int,
) -> int:
    """Return the largest number of samples, to `SEARCH_PRECISION`, that adds at most
    ``tolerance`` to an epoch.

    What is added is about proportional to the samples. The search goes on where the
    line through the last simulated number reaches the tolerance.

    Args:
        added_share_of: the share of an epoch that an exchange of so many samples adds.
        tolerance: the largest share that counts as hidden.
        guess: the number of samples to try first, clipped to 1 to ``max_samples``.
        max_samples: the largest number to return; 0 is returned if 1 sample adds too
            much. Fewer than about 200 are searched to a single sample.
    """
    low = 0
    high = max_samples + 1
    added_by_samples = {0: 0.0}
    samples = max(1, min(guess, max_samples))
    while high - low > max(1, int((SEARCH_PRECISION - 1.0) * low)):
        added_by_samples[samples] = added_share_of(samples)
        low, high = (
            (samples, high)
            if added_by_samples[samples] <= tolerance
            else (low, samples)
        )
        added_per_sample = added_by_samples[samples] / samples
        predicted_samples = (
            int(tolerance / added_per_sample) if added_per_sample > 0 else 2 * samples
        )
        if high > max_samples:
            samples = min(
                max(int(predicted_samples / OVERSHOOT), low + 1, int(1.02 * low)),
                max_samples,
                16 * max(low, 1),
            )
        elif len(added_by_samples) % 3 == 0:
            samples = (low + high) // 2
        else:
            overshot_samples = (
                predicted_samples / OVERSHOOT
                if samples == high
                else predicted_samples * OVERSHOOT
            )
            samples = min(max(int(overshot_samples), low + 1), high - 1)
    return low
