"""What the choice hangs on, by closed forms: which strategy is the cheapest with an input moved.

Every input is moved alone. The closed forms of `simshuffle.job.plan.bounds` say by how much an
epoch gets longer or shorter than the one that was simulated. What they leave out is a factor on the
mechanism that binds now, as in `simshuffle.job.uncertainty.interval`: if another one binds then,
it is gone. `simshuffle.extensions.planning.flips` holds what they say against simulations, and
corrects it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simshuffle.extensions.planning.costs import Needs, Prices, cheapest
from simshuffle.extensions.planning.moved import CAPACITY_KEYS, SPACE, MovedInput
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.holding import staging_seconds
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.uncertainty.inputs import scale_inputs
from simshuffle.job.uncertainty.interval import loop_of, mechanism, perturbed_epoch

REACH = 32.0
"""Times that an input is made smaller and larger."""
ROUNDS = 40
"""Halvings of the factor on a mechanism."""
FINE = 8
"""Halvings of the step between two factors in which the choice changes."""


@dataclass(frozen=True)
class StrategyOffer:
    """A strategy that may be chosen, on hosts with room for it."""

    name: str
    exchange: str | Mapping[str, Any]  # as ``--set workload.exchange`` has it
    scenario: Scenario
    kept_nbytes: float  # by a host
    ssd_nbytes: float  # those of ``kept_nbytes`` that are on its SSD
    epochs: int  # of the training
    mixing: float  # as of `simshuffle.extensions.planning.asked.Candidate`
    seconds: float  # of the training on the machine as it is
    goodput: float  # share of the time that is useful
    hosts: int  # with spare ones
    reads_pfs: bool  # in every epoch
    model: Mapping[str, float]  # the factor on the mechanism that binds now
    simulated: bool  # whether ``seconds`` are simulated; else they are a closed form

    def cost(self, machine: Scenario, prices: Prices, seconds: float) -> float:
        """Return the cost of a training of ``seconds`` s on a machine."""
        pfs = machine.cluster.parallel_file_system
        of_pfs = (pfs.read_bandwidth, pfs.open_rate) if self.reads_pfs else (0.0, 0.0)
        return Needs(self.hosts, self.ssd_nbytes, *of_pfs).cost(prices, seconds)

    def epoch_seconds(self, machine: Scenario) -> float:
        """Return the closed form (s) of a warm epoch on a machine, with what it leaves out."""
        return perturbed_epoch(bounds(machine), self.model, loop_of(machine))


def read_offer(base: Scenario, plain: Mapping[str, Any]) -> StrategyOffer:
    """Return the offer of plain values: name, exchange, kept_nbytes, epochs, mixing, hosts,
    goodput, reads_pfs; epoch_s of a warm epoch and seconds of the training, None where it was not
    simulated."""
    tier = base.workload.staging.target
    room = max(base.cluster.capacity(tier), 2 * plain["kept_nbytes"])
    raised = scale_inputs(base, {CAPACITY_KEYS[tier]: room / base.cluster.capacity(tier)})
    scenario = raised.with_values({"workload.exchange": plain["exchange"]})
    model, seconds = {}, plain["seconds"]
    if seconds is None:
        useful = staging_seconds(scenario) + plain["epochs"] * bounds(scenario).epoch
        seconds = useful / plain["goodput"]
    else:
        model = _left_out(scenario, plain["epoch_s"])
    names = ("name", "exchange", "kept_nbytes", "epochs", "mixing", "goodput", "hosts", "reads_pfs")
    return StrategyOffer(
        **{name: plain[name] for name in names},
        scenario=scenario,
        ssd_nbytes=plain["kept_nbytes"] if tier == "ssd" else 0.0,
        seconds=seconds,
        model=model,
        simulated=plain["seconds"] is not None,
    )


def _left_out(scenario: Scenario, simulated: float) -> dict[str, float]:
    """Return the factor on the mechanism that binds, with which the closed form of an epoch is as
    long as the simulated one (s)."""
    name, bounded, loop = mechanism(scenario), bounds(scenario), loop_of(scenario)
    low, high = 1 / REACH, REACH
    for _ in range(ROUNDS):
        middle = (low * high) ** 0.5
        longer = perturbed_epoch(bounded, {name: middle}, loop) > simulated
        low, high = (low, middle) if longer else (middle, high)
    return {name: high}


@dataclass
class DecisionModel:
    """The cost of every strategy with one input moved, by closed forms that are corrected at the
    factors at which a training was simulated."""

    base: Scenario
    offers: Sequence[StrategyOffer]
    prices: Prices
    close: float  # share of a cost that is no difference
    budget: float | None  # the most that the training may cost
    moved: MovedInput
    steps: int  # factors that are tried between 1 and `REACH`
    # by strategy: simulated less closed form of a training (s), by the logarithm of the factor
    corrections: dict[str, dict[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._closed: dict[tuple[str, float], float] = {}
        self._constant: dict[str, bool] = {}

    def cheapest(self, costs: Mapping[str, float]) -> str:
        """Return the strategy that is chosen of such costs; '' if none is within the budget."""
        most = math.inf if self.budget is None else self.budget
        within = {name: cost for name, cost in costs.items() if cost <= most}
        mixing = {offer.name: offer.mixing for offer in self.offers}
        return cheapest(within, mixing, self.close)

    def fitting(self, factor: float) -> list[StrategyOffer]:
        """Return the strategies that hosts have room for."""
        room = self.base.cluster.capacity(self.base.workload.staging.target)
        room *= factor if self.moved.name == SPACE else 1.0
        return [offer for offer in self.offers if offer.kept_nbytes <= room]

    def machine(self, offer: StrategyOffer, factor: float) -> Scenario:
        """Return the scenario of a strategy with the input moved."""
        if self.moved.name == SPACE or factor == 1.0:
            return offer.scenario
        return scale_inputs(offer.scenario, dict.fromkeys(self.moved.plain, factor))

    def costs(self, factor: float) -> dict[str, float]:
        """Return the cost of each strategy that fits."""
        costs = {}
        for offer in self.fitting(factor):
            seconds = self._closed_seconds(offer, factor) + self._correction(offer.name, factor)
            costs[offer.name] = offer.cost(self.machine(offer, factor), self.prices, seconds)
        return costs

    def choice(self, factor: float) -> str:
        """Return the strategy that is chosen; '' if none fits."""
        return self.cheapest(self.costs(factor))

    def correct(self, offer: StrategyOffer, factor: float, seconds: float) -> None:
        """Hold the closed form against a simulated training of ``seconds`` s."""
        closed = self._closed_seconds(offer, factor)
        known = self.corrections.setdefault(offer.name, {0.0: 0.0} if offer.simulated else {})
        known[math.log(factor)] = seconds - closed

    def border(self, near: float, far: float) -> float | None:
        """Return the factor between ``near`` and ``far`` at which the choice is no longer that of
        ``near``, the first one; None if the closed forms see none."""
        now, before = self.choice(near), near
        ends = sorted((near, far))
        sign = 1.0 if far > near else -1.0
        # the same factors whatever the ends are, so that closed forms are computed once
        grid = REACH ** (sign * np.arange(1, self.steps) / self.steps)
        for factor in [*(each for each in grid.tolist() if ends[0] < each < ends[1]), far]:
            if self.choice(factor) != now:
                return self._halved(before, factor, now)
            before = factor
        return None

    def _halved(self, near: float, far: float, now: str) -> float:
        for _ in range(FINE if self.moved.name != SPACE else ROUNDS):
            middle = (near * far) ** 0.5
            near, far = (middle, far) if self.choice(middle) == now else (near, middle)
        return far

    def _closed_seconds(self, offer: StrategyOffer, factor: float) -> float:
        """Return the closed form of a training (s), not corrected."""
        if factor == 1.0 or self._is_constant(offer):
            return offer.seconds
        longer = self._epoch_seconds(offer, factor) - self._epoch_seconds(offer, 1.0)
        return offer.seconds + offer.epochs * longer / offer.goodput

    def _is_constant(self, offer: StrategyOffer) -> bool:
        """Return whether the input changes nothing of an epoch. An epoch grows or shrinks with
        every input, so the two ends tell."""
        if offer.name not in self._constant:
            ends = {self._epoch_seconds(offer, end) for end in (1 / REACH, REACH)}
            self._constant[offer.name] = ends == {self._epoch_seconds(offer, 1.0)}
        return self._constant[offer.name]

    def _epoch_seconds(self, offer: StrategyOffer, factor: float) -> float:
        key = offer.name, factor
        if key not in self._closed:
            self._closed[key] = offer.epoch_seconds(self.machine(offer, factor))
        return self._closed[key]

    def _correction(self, name: str, factor: float) -> float:
        known = sorted(self.corrections.get(name, {}).items())
        if not known:
            return 0.0
        logs, differences = zip(*known, strict=True)
        return float(np.interp(math.log(factor), logs, differences))
