"""Turning points of a choice, each compared with simulations on both of its sides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from simshuffle.extensions.planning.costs import Prices
from simshuffle.extensions.planning.flip_search import (
    EXACT_STEPS,
    MAX_POINTS,
    STEPS,
    FlipSearch,
)
from simshuffle.extensions.planning.moved import (
    CAPACITY,
    keys_of_inputs,
    moved_inputs,
)
from simshuffle.extensions.planning.precision import (
    INPUT_SECONDS,
    seconds_of_run,
)
from simshuffle.extensions.planning.turns import (
    MAX_FACTOR,
    DecisionModel,
    read_offer,
)
from simshuffle.job.scenario.scenario import from_dict
from simshuffle.job.sim.cell import NetworkCell
from simshuffle.study.cell import Outcome, Tell

SEARCH_TITLE = "what would change it"
"""Label with which the cells that search turning points begin."""
FILE_SYSTEM_INPUTS = ("open rate", "PFS bandwidth")
"""Inputs that matter only to strategies that read the file system in every epoch."""


@dataclass(frozen=True)
class FlipCell(NetworkCell):
    """Cell that searches the turning points of one input: the nearest smaller and the
    nearest larger value at which another strategy is chosen.
    """

    document: Mapping[str, Any]  # scenario without sweep, as plain values
    # strategies in plain values, as of `read_offer`
    offers: Sequence[Mapping[str, Any]]
    prices: Prices  # price by name, some of `PRICES`; others are 0
    tie_share: float  # share by which two costs may differ and count as equal
    budget: float | None  # largest cost of the training; None without a limit
    input_name: str  # name of the input that is moved
    unit: str  # unit in which the user wrote the input; '' if unknown
    exact: bool  # true to simulate without a limit of time

    @property
    def key(self) -> Any:
        """Return what decides the outcome: all fields, without the scenario's name and
        description.
        """
        ignored_keys = {"name", "description"}
        document = {
            key: self.document[key] for key in self.document if key not in ignored_keys
        }
        offers = [dict(offer) for offer in self.offers]
        decision = [offers, dict(self.prices), self.tie_share, self.budget]
        return [document, decision, self.input_name, self.unit, self.exact]

    @property
    def label(self) -> str:
        """Return the name of the search for people."""
        return f"{SEARCH_TITLE}: {self.input_name}"

    @property
    def cost(self) -> float:
        """Estimate the seconds of one core: closed forms, and the runs of some values.

        `MAX_POINTS` values are simulated for an input that all strategies depend on:
        there are two turning points, or closed forms err. Two are for an input of the
        file system, none for the capacity. Without ``exact`` the runs count at most
        `INPUT_SECONDS`.
        """
        num_points = {CAPACITY: 0, **dict.fromkeys(FILE_SYSTEM_INPUTS, 2)}.get(
            self.input_name, MAX_POINTS
        )
        seconds = num_points * self._point_seconds
        return 1.0 + (seconds if self.exact else min(seconds, INPUT_SECONDS))

    @cached_property
    def _point_seconds(self) -> float:
        """Estimate the seconds of one core that simulating one value takes.

        At one value, the half of the strategies whose runs take least is compared.
        Strategies that were not simulated before are left out.
        """
        base = from_dict(self.document, "")
        scenarios = [
            base.with_values({"workload.exchange": offer["exchange"]})
            for offer in self.offers
            if offer["seconds"] is not None
        ]
        run_seconds = sorted(seconds_of_run(scenario) for scenario in scenarios)
        return sum(run_seconds[: (len(run_seconds) + 1) // 2])

    def run(self, tell: Tell) -> Outcome:
        """Search the turning points, and return their rows.

        The outcome has ``turns``, the rows of that table that runs confirm, and
        ``doubtful``, the rows that runs refute or that were not simulated. Together
        they are two at most, by rising factor; none where closed forms see no turning
        point. They have the fields of `FlipSearch.find_row`.
        """
        base = from_dict(self.document, "")
        units = {keys_of_inputs(base)[self.input_name][0]: self.unit}
        moved_input = moved_inputs(base, units)[self.input_name]
        model = DecisionModel(
            base,
            [read_offer(base, offer) for offer in self.offers],
            self.prices,
            self.tie_share,
            self.budget,
            moved_input,
            EXACT_STEPS if self.exact else STEPS,
        )
        searches = [
            FlipSearch(model, end, self.exact) for end in (1 / MAX_FACTOR, MAX_FACTOR)
        ]
        searches = [search for search in searches if search.claimed_factor is not None]
        seconds_left = math.inf if self.exact else INPUT_SECONDS
        rows: list[dict[str, Any]] = []
        # the nearest turning point, by closed forms, first: the other has what time is left
        for search_index, search in enumerate(
            sorted(searches, key=FlipSearch.distance)
        ):
            search.seconds_left = seconds_left
            search.tell = partial(_tell_part, tell, search_index, len(searches))
            row = search.find_row()
            seconds_left = search.seconds_left
            rows += [] if row is None else [row]
        rows.sort(key=lambda row: row["factor"])
        confirmed_rows = [row for row in rows if row["confirmed"]]
        return Outcome(
            {
                "turns": confirmed_rows,
                "doubtful": [row for row in rows if row not in confirmed_rows],
            }
        )


def _tell_part(tell: Tell, num_done: int, total: int, share: float) -> None:
    """Report the progress of ``total`` searches, of which ``num_done`` are done and the
    next one is at ``share``.
    """
    tell((num_done + share) / total)
