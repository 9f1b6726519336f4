"""Search of one turning point of a choice, by closed forms that simulations correct."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simshuffle.errors import InputError
from simshuffle.extensions.planning.costs import training_seconds
from simshuffle.extensions.planning.moved import (
    CAPACITY,
    CAPACITY_KEYS,
)
from simshuffle.extensions.planning.precision import (
    POINT_SECONDS,
    coarse_settings,
    seconds_of_run,
)
from simshuffle.extensions.planning.turns import (
    MAX_FACTOR,
    DecisionModel,
    StrategyOffer,
)
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.cell import RunCell
from simshuffle.study.cell import Tell
from simshuffle.study.store import run_inner_cell

SIDE_STEP = math.log(1.015)
"""Distance to either side of a turning point at which runs are simulated, as a
logarithm of the factor.
"""
CAPACITY_SIDE_STEP = math.log(1.001)
"""`SIDE_STEP` of the capacity for samples, whose border needs no simulated time."""
CONTENDER_SHARE = 0.05
"""Share of the cheapest cost, beyond a tie, up to which a strategy is compared by runs."""
STEPS, MAX_POINTS = 20, 7
"""Factors that closed forms try on each side, and values that are simulated for one
turn.
"""
EXACT_STEPS, EXACT_MAX_POINTS = 40, 12
"""`STEPS` and `MAX_POINTS` with ``--exact``."""
NOT_SIMULATED = "not simulated"
WIDE_SIDES = 4.0
"""Side steps between the two sides, above which they are reported as a range: no
turning point.
"""


@dataclass
class FlipSearch:
    """Search of the nearest turning point between an input as it is and ``end_factor``
    times that.

    Closed forms predict the turning point, and simulations there correct the closed
    forms: ``model`` is changed. The search ends when the choice is known just before
    and just beyond the turning point, or after so many values, or when time is up.
    """

    model: DecisionModel  # closed forms of the costs
    end_factor: float  # largest or smallest factor on the input
    exact: bool  # true to simulate without a limit of time
    tell: Tell = lambda share: None  # called with the share of the search that is done
    # s of one core, by estimate, that runs may still take
    seconds_left: float = math.inf
    # s of simulated trainings, by strategy and factor; factor 1 for any SSD capacity
    simulated: dict[tuple[str, float], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the current choice, and where closed forms claim the turning point.

        ``claimed_factor`` is None where they see none, or nothing fits now.
        """
        self.current_choice = self.model.choice_at(1.0)
        self.direction = 1.0 if self.end_factor > 1.0 else -1.0
        self.side_step = (
            CAPACITY_SIDE_STEP if self.model.moved_input.name == CAPACITY else SIDE_STEP
        )
        # the room of an SSD decides who fits, and nothing else
        self.moves_ssd_capacity = self.model.moved_input.key == CAPACITY_KEYS["ssd"]
        self.max_points = EXACT_MAX_POINTS if self.exact else MAX_POINTS
        self.claimed_factor = (
            self.model.find_border(1.0, self.end_factor)
            if self.current_choice
            else None
        )

    def distance(self) -> float:
        """Return how far the turning point of closed forms is: the absolute logarithm
        of its factor.

        It is infinite where they see none.
        """
        return (
            math.inf
            if self.claimed_factor is None
            else abs(math.log(self.claimed_factor))
        )

    def find_row(self) -> dict[str, Any] | None:
        """Search the turning point and return its row; None where closed forms see
        none.

        A row is confirmed if runs see both choices within `WIDE_SIDES` side steps; else
        ``why`` has the reason, which is `NOT_SIMULATED` where `POINT_SECONDS` or
        ``seconds_left`` do not suffice for a single value. Runs are taken off
        ``seconds_left``.
        """
        claimed_factor = self.claimed_factor
        if claimed_factor is None:
            return None
        claimed_row = {
            "after": self.model.choice_at(claimed_factor),
            "factor": claimed_factor,
        }
        if not self._is_affordable(claimed_factor):
            return self._row(claimed_row, confirmed=False, why=NOT_SIMULATED)

        # the choice is unchanged up to near_distance, and another one from far_distance on
        near_distance = 0.0
        far_distance = math.inf
        next_choice = ""
        is_unchanged = True
        for step in range(self.max_points):
            if far_distance - near_distance <= 2.1 * self.side_step:
                break
            distance = self._next_distance(
                near_distance, far_distance, is_unchanged, halve=step % 3 == 2
            )
            if distance is None or not self._is_affordable(self._factor(distance)):
                break
            choice = self._simulated_choice(self._factor(distance))
            is_unchanged = choice == self.current_choice
            if is_unchanged:
                near_distance = distance
            else:
                far_distance = distance
                next_choice = choice
            self.tell(min(0.95, (step + 1) / self.max_points))

        if math.isinf(far_distance):
            return self._row(
                claimed_row, confirmed=False, why=self._describe_refutation(claimed_row)
            )
        if far_distance - near_distance > WIDE_SIDES * self.side_step:
            end_factors = sorted(
                (self._factor(near_distance), self._factor(far_distance))
            )
            value_range = " and ".join(
                self.model.moved_input.format_value(factor, 3) for factor in end_factors
            )
            claimed_row = {"after": next_choice, "factor": self._factor(far_distance)}
            return self._row(
                claimed_row,
                confirmed=False,
                why=f"simulations place it between {value_range}",
            )
        middle_factor = self._factor((near_distance + far_distance) / 2)
        return self._row(
            {
                "after": next_choice,
                "factor": middle_factor,
                "still_factor": self._factor(near_distance),
                "changed_factor": self._factor(far_distance),
            },
            confirmed=True,
        )

    def _factor(self, distance: float) -> float:
        """Return the factor on the input at a distance, which is the logarithm of the
        factor.
        """
        return math.exp(self.direction * distance)

    def _next_distance(
        self,
        near_distance: float,
        far_distance: float,
        is_unchanged: bool,
        *,
        halve: bool,
    ) -> float | None:
        """Return the distance to simulate next, as a logarithm of the factor.

        It is where closed forms see the border, but on the other side of the border
        than the last distance. It is at most the logarithm of `MAX_FACTOR`.

        Args:
            near_distance: the largest distance at which the choice is the current one.
            far_distance: the smallest distance at which the choice is another one;
                infinite while unknown.
            is_unchanged: true if the last simulated choice was the current one.
            halve: true to halve the interval between the two; without effect while
                ``far_distance`` is infinite.

        Returns:
            The middle of the interval if closed forms see no border in it. None while
            ``far_distance`` is infinite, if closed forms see no border or if
            ``near_distance`` has reached the logarithm of `MAX_FACTOR`.
        """
        if halve and not math.isinf(far_distance):
            return (near_distance + far_distance) / 2
        max_distance = min(far_distance, math.log(MAX_FACTOR))
        border_factor = self.model.find_border(
            self._factor(near_distance), self._factor(max_distance)
        )
        if border_factor is None:
            return (
                None if math.isinf(far_distance) else (near_distance + far_distance) / 2
            )
        distance = abs(math.log(border_factor))
        min_gap = 0.3 * self.side_step
        if near_distance > 0.0 and math.isinf(far_distance):
            # closed forms came too early before: much further, so that both sides are known soon
            distance += 3 * (distance - near_distance)
        signed_side_step = self.side_step if is_unchanged else -self.side_step
        for candidate_distance in (
            distance + signed_side_step,
            distance - signed_side_step,
        ):
            if near_distance + min_gap < candidate_distance < max_distance - min_gap:
                return candidate_distance
        if math.isinf(far_distance):
            return max_distance if near_distance < max_distance - min_gap else None
        return (near_distance + far_distance) / 2

    def _contenders(self, factor: float) -> list[StrategyOffer]:
        """Return the strategies to simulate with the input multiplied by ``factor``.

        They are the current choice, the choice of closed forms at ``factor``, and those
        that may be the cheapest by closed forms. Of the last, without ``exact``, there
        are as many as fit into `POINT_SECONDS`, shortest runs first. Strategies for
        which hosts have no room there are left out.
        """
        costs = self.model.costs_at(factor)
        max_cost = (
            min(costs.values(), default=0.0)
            * (1 + self.model.tie_share)
            * (1 + CONTENDER_SHARE)
        )
        required_names = {self.current_choice, self.model.choice_at(factor)}
        offers = [
            offer
            for offer in self.model.fitting_offers(factor)
            if costs[offer.name] <= max_cost
        ]
        offers += [
            offer
            for offer in self.model.fitting_offers(factor)
            if offer.name in required_names and offer not in offers
        ]
        if self.exact:
            return offers
        seconds = {
            offer.name: self._estimate_seconds(offer, factor) for offer in offers
        }
        seconds_left = POINT_SECONDS - sum(
            seconds[name] for name in required_names if name in seconds
        )
        contenders = []
        for offer in sorted(offers, key=lambda offer: seconds[offer.name]):
            if offer.name not in required_names:
                seconds_left -= seconds[offer.name]
            if offer.name in required_names or seconds_left >= 0:
                contenders.append(offer)
        return contenders

    def _estimate_seconds(self, offer: StrategyOffer, factor: float) -> float:
        """Estimate the seconds of one core that simulating a strategy takes.

        They are 0 where hosts have no room, and where the SSD's capacity is moved and
        the strategy's run as it is was simulated. Runs of this search count again.
        """
        scenario = self._scenario(offer, factor)
        is_known = scenario is None or (self.moves_ssd_capacity and offer.is_simulated)
        return 0.0 if is_known or scenario is None else seconds_of_run(scenario)

    def _is_affordable(self, factor: float) -> bool:
        """Return true if simulating the contenders at ``factor`` takes at most
        ``seconds_left``, and at most `POINT_SECONDS`.

        With ``exact`` it is always true.
        """
        contenders = self._contenders(factor)
        seconds = sum(self._estimate_seconds(offer, factor) for offer in contenders)
        return self.exact or seconds <= min(POINT_SECONDS, self.seconds_left)

    def _scenario(self, offer: StrategyOffer, factor: float) -> Scenario | None:
        """Return the scenario of a strategy as it is simulated; None where hosts have
        no room.
        """
        moved_settings = self.model.moved_input.settings(factor)
        try:
            scenario = self.model.base.with_values(
                {**moved_settings, "workload.exchange": offer.exchange}
            )
        except InputError:
            return None
        run_settings = coarse_settings(scenario, self.exact)
        return scenario.with_values(run_settings) if run_settings else scenario

    def _simulated_choice(self, factor: float) -> str:
        """Simulate the contenders at ``factor``, and return the one that is chosen.

        Each simulation corrects the closed forms of the model. '' is returned if none
        has room on the hosts and is within the budget.
        """
        costs = {}
        for offer in self._contenders(factor):
            seconds = self._training_seconds(offer, factor)
            if seconds is not None:
                self.model.correct(offer, factor, seconds)
                machine = self.model.moved_scenario(offer, factor)
                costs[offer.name] = offer.cost(machine, self.model.prices, seconds)
        return self.model.choose_strategy(costs)

    def _training_seconds(self, offer: StrategyOffer, factor: float) -> float | None:
        """Return the simulated s of a training with the input moved; None where hosts
        lack room.

        The s are over the goodput of the strategy. The capacity of an SSD changes no
        time, so one run is enough for all its sizes. A run is remembered, and its
        estimate taken off ``seconds_left``.
        """
        scenario = self._scenario(offer, factor)
        if scenario is None:
            return None
        if self.moves_ssd_capacity and offer.is_simulated:
            return offer.seconds
        key = offer.name, 1.0 if self.moves_ssd_capacity else factor
        if key not in self.simulated:
            self.seconds_left -= self._estimate_seconds(offer, factor)
            run = RunCell(scenario.to_dict(), offer.name, with_tables=False)
            epochs = run_inner_cell(run).values["epochs"]
            staging = sum(epochs["staging_s"])
            useful_seconds = training_seconds(staging, epochs["epoch_s"], offer.epochs)
            self.simulated[key] = useful_seconds / offer.goodput
        return self.simulated[key]

    def _describe_refutation(self, claimed_row: Mapping[str, Any]) -> str:
        """Return a sentence on how much more the strategy that closed forms claim costs
        where it was simulated farthest from the input as it is; another sentence where
        it was not simulated.
        """
        name = claimed_row["after"]
        simulated_factors = [
            factor for (offer, factor) in self.simulated if offer == name
        ]
        if not simulated_factors:
            return "simulations do not confirm it"
        factor = max(simulated_factors, key=lambda factor: abs(math.log(factor)))
        costs = self.model.costs_at(factor)
        if name not in costs:  # hosts have room for it only where the input is moved
            factor = claimed_row["factor"]
            costs = self.model.costs_at(factor)
        extra_cost = costs[name] / costs[self.current_choice] - 1.0
        value_text = self.model.moved_input.format_value(factor, 3)
        return (
            f"in a simulation at {value_text}, {name} costs {100 * extra_cost:+.2g} % against"
            f" {self.current_choice}"
        )

    def _row(
        self, turning_point: Mapping[str, Any], *, confirmed: bool, why: str = ""
    ) -> dict[str, Any]:
        """Return the row of table ``turns`` for a turning point.

        It has no command. Beside the columns it has ``confirmed``, ``why`` and
        ``values``, the settings with which the choice is another one. Of one that is
        not confirmed, ``still`` is the value now and ``changed`` the turning point.

        Args:
            turning_point: ``after`` and ``factor``, and for a confirmed one
                ``still_factor`` and ``changed_factor``, the factors on its two sides.
            confirmed: true if simulations confirm the turning point.
            why: the reason why they do not.
        """
        moved_input = self.model.moved_input
        factor = turning_point["factor"]
        unchanged_factor = turning_point.get("still_factor", 1.0)
        changed_factor = turning_point.get("changed_factor", factor)
        return {
            "confirmed": confirmed,
            "why": why,
            "input": moved_input.name,
            "key": moved_input.key,
            "now": moved_input.value(),
            "value": moved_input.value(factor),
            "factor": factor,
            "before": self.current_choice,
            "after": turning_point["after"],
            "still": moved_input.value(unchanged_factor),
            "changed": moved_input.value(changed_factor),
            "shown": moved_input.format_value(
                factor, 3 if self.side_step == SIDE_STEP else 4
            ),
            "values": moved_input.settings(changed_factor),
        }
