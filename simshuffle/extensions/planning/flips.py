"""Turning points of a choice, each held against simulations on both of its sides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from simshuffle.errors import InputError
from simshuffle.extensions.planning.costs import Prices, training_seconds
from simshuffle.extensions.planning.moved import CAPACITY_KEYS, SPACE, keys_of_inputs, moved_inputs
from simshuffle.extensions.planning.precision import (
    INPUT_SECONDS,
    POINT_SECONDS,
    coarse_values,
    seconds_of_run,
)
from simshuffle.extensions.planning.turns import REACH, DecisionModel, StrategyOffer, read_offer
from simshuffle.job.scenario.scenario import Scenario, from_dict
from simshuffle.job.sim.cell import NetworkCell, RunCell
from simshuffle.study.cell import Outcome, Tell
from simshuffle.study.store import run_inner_cell

CHANGES = "what would change it"
"""What the searches of turning points are called."""
SIDE = math.log(1.015)
"""How far on either side of a turning point it is simulated, as a logarithm of its factor."""
SIDE_OF_SPACE = math.log(1.001)
"""The same of the room for samples, whose border needs no clock."""
CLOSEST = 0.05
"""Share of the cheapest cost, beyond a tie, up to which a strategy is compared by runs."""
STEPS, MOST_POINTS = 20, 7
"""Factors that closed forms try on each side, and values that are simulated for one turn."""
EXACT_STEPS, EXACT_POINTS = 40, 12
"""The same with ``--exact``."""
OF_FILE_SYSTEM = ("open rate", "PFS bandwidth")
"""Inputs of which only strategies hang that read the file system in every epoch."""
NOT_SIMULATED = "not simulated"
WIDE = 4.0
"""Sides from which on what is left between both is said as a range, and no turning point."""


@dataclass(frozen=True)
class FlipCell(NetworkCell):
    """The turning points of one input: the nearest smaller and larger value at which another
    strategy is chosen."""

    document: Mapping[str, Any]  # the scenario, without sweep
    offers: Sequence[Mapping[str, Any]]  # as of `read_offer`
    prices: Prices
    close: float  # share of a cost that is no difference
    budget: float | None  # the most that the training may cost
    moved: str  # name of the input
    unit: str  # in which its user wrote it
    exact: bool

    @property
    def key(self) -> Any:
        """Return what decides the outcome."""
        plain = {k: v for k, v in self.document.items() if k not in {"name", "description"}}
        offers = [dict(offer) for offer in self.offers]
        decision = [offers, dict(self.prices), self.close, self.budget]
        return [plain, decision, self.moved, self.unit, self.exact]

    @property
    def label(self) -> str:
        """Return what the cell searches, for people."""
        return f"{CHANGES}: {self.moved}"

    @property
    def cost(self) -> float:
        """Return s of one core: closed forms, and the runs of some values. What all strategies hang
        on turns twice, or closed forms err there."""
        points = {SPACE: 0, **dict.fromkeys(OF_FILE_SYSTEM, 2)}.get(self.moved, MOST_POINTS)
        seconds = points * self._seconds_of_point
        return 1.0 + (seconds if self.exact else min(seconds, INPUT_SECONDS))

    @cached_property
    def _seconds_of_point(self) -> float:
        """Return s of one core that simulating one value takes, by estimate: the cheap half of the
        strategies is compared."""
        base = from_dict(self.document, "")
        scenarios = [
            base.with_values({"workload.exchange": offer["exchange"]})
            for offer in self.offers
            if offer["seconds"] is not None
        ]
        each = sorted(seconds_of_run(scenario) for scenario in scenarios)
        return sum(each[: (len(each) + 1) // 2])

    def run(self, tell: Tell) -> Outcome:
        """Return the rows of table ``turns``, and those that simulations did not confirm."""
        base = from_dict(self.document, "")
        units = {keys_of_inputs(base)[self.moved][0]: self.unit}
        moved = moved_inputs(base, units)[self.moved]
        model = DecisionModel(
            base,
            [read_offer(base, offer) for offer in self.offers],
            self.prices,
            self.close,
            self.budget,
            moved,
            EXACT_STEPS if self.exact else STEPS,
        )
        searches = [FlipSearch(model, end, self.exact) for end in (1 / REACH, REACH)]
        searches = [search for search in searches if search.claimed is not None]
        seconds_left = math.inf if self.exact else INPUT_SECONDS
        found: list[dict[str, Any]] = []
        # the nearest turning point, by closed forms, first: the other has what time is left
        for number, search in enumerate(sorted(searches, key=FlipSearch.distance)):
            search.seconds_left = seconds_left
            search.tell = partial(_tell_part, tell, number, len(searches))
            row = search.result()
            seconds_left = search.seconds_left
            found += [] if row is None else [row]
        found.sort(key=lambda row: row["factor"])
        turns = [row for row in found if row["confirmed"]]
        return Outcome({"turns": turns, "doubtful": [row for row in found if row not in turns]})


def _tell_part(tell: Tell, number: int, total: int, share: float) -> None:
    """Tell the share of ``total`` searches, of which ``number`` are done."""
    tell((number + share) / total)


@dataclass
class FlipSearch:
    """The search of the nearest turning point between an input as it is and ``end`` times that:
    closed forms say where, simulations there correct the closed forms, until the choice is known
    just before and just behind."""

    model: DecisionModel
    end: float
    exact: bool
    tell: Tell = lambda share: None
    # s of one core, by estimate, that runs may still take
    seconds_left: float = math.inf
    simulated: dict[tuple[str, float], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now = self.model.choice(1.0)
        self.sign = 1.0 if self.end > 1.0 else -1.0
        self.side = SIDE_OF_SPACE if self.model.moved.name == SPACE else SIDE
        # the room of an SSD decides who fits, and nothing else
        self.only_room = self.model.moved.key == CAPACITY_KEYS["ssd"]
        self.points = EXACT_POINTS if self.exact else MOST_POINTS
        self.claimed = self.model.border(1.0, self.end) if self.now else None

    def distance(self) -> float:
        """Return how far the turning point is by closed forms, as a logarithm of its factor."""
        return math.inf if self.claimed is None else abs(math.log(self.claimed))

    def result(self) -> dict[str, Any] | None:
        """Return the row of a turning point; None where closed forms see none."""
        claimed = self.claimed
        if claimed is None:
            return None
        claim = {"after": self.model.choice(claimed), "factor": claimed}
        if not self._is_affordable(claimed):
            return self._row(claim, confirmed=False, why=NOT_SIMULATED)
        near, far, after, was_near = 0.0, math.inf, "", True
        for number in range(self.points):
            if far - near <= 2.1 * self.side:
                break
            distance = self._next(near, far, was_near, halve=number % 3 == 2)
            if distance is None or not self._is_affordable(self._factor(distance)):
                break
            choice = self._simulated_choice(self._factor(distance))
            was_near = choice == self.now
            if was_near:
                near = distance
            else:
                far, after = distance, choice
            self.tell(min(0.95, (number + 1) / self.points))
        if math.isinf(far):
            return self._row(claim, confirmed=False, why=self._refuted(claim))
        if far - near > WIDE * self.side:
            ends = sorted((self._factor(near), self._factor(far)))
            where = " and ".join(self.model.moved.shown(end, 3) for end in ends)
            claim = {"after": after, "factor": self._factor(far)}
            return self._row(claim, confirmed=False, why=f"runs see it between {where}")
        middle = self._factor((near + far) / 2)
        return self._row(
            {
                "after": after,
                "factor": middle,
                "still_factor": self._factor(near),
                "changed_factor": self._factor(far),
            },
            confirmed=True,
        )

    def _factor(self, distance: float) -> float:
        return math.exp(self.sign * distance)

    def _next(self, near: float, far: float, was_near: bool, *, halve: bool) -> float | None:
        """Return the distance (a logarithm of the factor) to simulate next, between one where the
        choice is as now and one where it is another: where closed forms see the border, on the
        other side of it than the last one, or to ``halve`` what is left; None if they see no other
        choice any more."""
        if halve and not math.isinf(far):
            return (near + far) / 2
        most = min(far, math.log(REACH))
        border = self.model.border(self._factor(near), self._factor(most))
        if border is None:
            return None if math.isinf(far) else (near + far) / 2
        distance = abs(math.log(border))
        least = 0.3 * self.side
        if near > 0.0 and math.isinf(far):
            # closed forms came too early before: much further, so that both sides are known soon
            distance += 3 * (distance - near)
        side = self.side if was_near else -self.side
        for tried in (distance + side, distance - side):
            if near + least < tried < most - least:
                return tried
        if math.isinf(far):
            return most if near < most - least else None
        return (near + far) / 2

    def _contenders(self, factor: float) -> list[StrategyOffer]:
        """Return the strategies that are simulated: the one that is chosen now, the one that closed
        forms choose then, and those that may be the cheapest by them, as many as fit in time."""
        costs = self.model.costs(factor)
        limit = min(costs.values(), default=0.0) * (1 + self.model.close) * (1 + CLOSEST)
        always = {self.now, self.model.choice(factor)}
        offers = [each for each in self.model.fitting(factor) if costs[each.name] <= limit]
        offers += [
            each
            for each in self.model.fitting(factor)
            if each.name in always and each not in offers
        ]
        if self.exact:
            return offers
        seconds = {offer.name: self._seconds_of(offer, factor) for offer in offers}
        left = POINT_SECONDS - sum(seconds[name] for name in always if name in seconds)
        chosen = []
        for offer in sorted(offers, key=lambda each: seconds[each.name]):
            if offer.name not in always:
                left -= seconds[offer.name]
            if offer.name in always or left >= 0:
                chosen.append(offer)
        return chosen

    def _seconds_of(self, offer: StrategyOffer, factor: float) -> float:
        """Return s of one core that simulating a strategy takes, by estimate."""
        scenario = self._scenario(offer, factor)
        is_known = scenario is None or (self.only_room and offer.simulated)
        return 0.0 if is_known or scenario is None else seconds_of_run(scenario)

    def _is_affordable(self, factor: float) -> bool:
        contenders = self._contenders(factor)
        seconds = sum(self._seconds_of(offer, factor) for offer in contenders)
        return self.exact or seconds <= min(POINT_SECONDS, self.seconds_left)

    def _scenario(self, offer: StrategyOffer, factor: float) -> Scenario | None:
        """Return the scenario as it is simulated; None where hosts have no room."""
        values = self.model.moved.values(factor)
        try:
            scenario = self.model.base.with_values({**values, "workload.exchange": offer.exchange})
        except InputError:
            return None
        more = coarse_values(scenario, self.exact)
        return scenario.with_values(more) if more else scenario

    def _simulated_choice(self, factor: float) -> str:
        """Return the strategy that is chosen with the input moved, of simulated trainings."""
        costs = {}
        for offer in self._contenders(factor):
            seconds = self._training_seconds(offer, factor)
            if seconds is not None:
                self.model.correct(offer, factor, seconds)
                machine = self.model.machine(offer, factor)
                costs[offer.name] = offer.cost(machine, self.model.prices, seconds)
        return self.model.cheapest(costs)

    def _training_seconds(self, offer: StrategyOffer, factor: float) -> float | None:
        """Return s of a training with the input moved, simulated; None where hosts lack room. Room
        on an SSD decides nothing else, so one run does for all its sizes."""
        scenario = self._scenario(offer, factor)
        if scenario is None:
            return None
        if self.only_room and offer.simulated:
            return offer.seconds
        key = offer.name, 1.0 if self.only_room else factor
        if key not in self.simulated:
            self.seconds_left -= self._seconds_of(offer, factor)
            run = RunCell(scenario.to_dict(), offer.name, with_tables=False)
            epochs = run_inner_cell(run).values["epochs"]
            staging = sum(epochs["staging_s"])
            useful = training_seconds(staging, epochs["epoch_s"], offer.epochs)
            self.simulated[key] = useful / offer.goodput
        return self.simulated[key]

    def _refuted(self, claim: Mapping[str, Any]) -> str:
        """Return by how much the strategy that closed forms claim costs more where simulated."""
        name = claim["after"]
        tried = [factor for (offer, factor) in self.simulated if offer == name]
        if not tried:
            return "simulations do not confirm it"
        factor = max(tried, key=lambda each: abs(math.log(each)))
        costs = self.model.costs(factor)
        more = costs[name] / costs[self.now] - 1.0
        where = self.model.moved.shown(factor, 3)
        return f"simulated at {where}, {name} costs {100 * more:+.2g} % beside {self.now}"

    def _row(self, found: Mapping[str, Any], *, confirmed: bool, why: str = "") -> dict[str, Any]:
        moved, factor = self.model.moved, found["factor"]
        still = found.get("still_factor", 1.0)
        changed = found.get("changed_factor", factor)
        return {
            "confirmed": confirmed,
            "why": why,
            "input": moved.name,
            "key": moved.key,
            "now": moved.value(),
            "value": moved.value(factor),
            "factor": factor,
            "before": self.now,
            "after": found["after"],
            "still": moved.value(still),
            "changed": moved.value(changed),
            "shown": moved.shown(factor, 3 if self.side == SIDE else 4),
            "values": moved.values(changed),
        }
