"""The cheapest strategy with one input moved, by closed forms.

Each input is moved alone. The closed forms of `simshuffle.job.plan.bounds` tell by how
much an epoch gets longer or shorter than the simulated one. A factor on the mechanism
that binds now stands for what they leave out, as in
`simshuffle.job.uncertainty.interval`; where another mechanism binds, the factor has no
effect. `simshuffle.extensions.planning.flips` compares the closed forms with
simulations, and corrects them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simshuffle.extensions.planning.costs import MachineNeeds, Prices, cheapest_strategy
from simshuffle.extensions.planning.moved import CAPACITY, CAPACITY_KEYS, MovedInput
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.holding import staging_seconds
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.uncertainty.inputs import scale_inputs
from simshuffle.job.uncertainty.interval import loop_of, mechanism, perturbed_epoch

MAX_FACTOR = 32.0
"""Times that an input is made smaller and larger."""
MAX_HALVINGS = 40
"""Halvings of the factor on a mechanism."""
BORDER_HALVINGS = 8
"""Halvings of the step between two factors in which the choice changes."""


@dataclass(frozen=True)
class StrategyOffer:
    """A strategy that may be chosen on hosts with room for it.

    ``scenario`` has room in any case: see `read_offer`.
    """

    name: str  # name of the strategy, such as 'partial-0.1'
    exchange: str | Mapping[str, Any]  # as ``--set workload.exchange`` has it
    scenario: Scenario  # scenario with the strategy, and capacity enlarged to hold it
    kept_nbytes: float  # bytes of samples that a host stores
    ssd_nbytes: float  # those of ``kept_nbytes`` that are on its SSD
    epochs: int  # epochs of the training
    mixing: float  # as of `simshuffle.extensions.planning.candidates.Candidate`
    seconds: float  # s of the training on the machine as it is, over the goodput
    goodput: float  # share of the time that is useful; above 0
    hosts: int  # number of hosts, spare ones included
    reads_pfs: bool  # true if every epoch reads the parallel file system
    # factor on the mechanism that binds now, by its name; {} if not simulated
    mechanism_factors: Mapping[str, float]
    is_simulated: bool  # true if ``seconds`` are simulated; else they are a closed form

    def cost(self, machine: Scenario, prices: Prices, seconds: float) -> float:
        """Return the cost of a training of ``seconds`` s: hosts, SSDs, and the file
        system of ``machine`` where every epoch reads it.
        """
        pfs = machine.cluster.parallel_file_system
        machine_needs = MachineNeeds(
            hosts=self.hosts,
            ssd_nbytes=self.ssd_nbytes,
            pfs_bytes_per_s=pfs.read_bandwidth if self.reads_pfs else 0.0,
            pfs_files_per_s=pfs.open_rate if self.reads_pfs else 0.0,
        )
        return machine_needs.cost(prices, seconds)

    def epoch_seconds(self, machine: Scenario) -> float:
        """Return the closed form (s) of a warm epoch on a machine, multiplied by the
        factor on its mechanism.
        """
        return perturbed_epoch(
            bounds(machine), self.mechanism_factors, loop_of(machine)
        )


def read_offer(base: Scenario, plain_offer: Mapping[str, Any]) -> StrategyOffer:
    """Build the offer of a strategy from plain values.

    The capacity of a host is enlarged to at least twice ``kept_nbytes``, so that a
    strategy without room has a scenario, too. Where the training was not simulated, its
    seconds are closed forms over the goodput, and no mechanism has a factor.

    Args:
        base: the scenario without a strategy.
        plain_offer: ``name``, ``exchange``, ``kept_nbytes``, ``epochs``, ``mixing``,
            ``hosts``, ``goodput`` and ``reads_pfs``; ``epoch_s`` of a warm epoch and
            ``seconds`` of the training, None where it was not simulated.
    """
    tier = base.workload.staging.target
    enlarged_capacity = max(base.cluster.capacity(tier), 2 * plain_offer["kept_nbytes"])
    enlarged_base = scale_inputs(
        base, {CAPACITY_KEYS[tier]: enlarged_capacity / base.cluster.capacity(tier)}
    )
    scenario = enlarged_base.with_values({"workload.exchange": plain_offer["exchange"]})
    mechanism_factors: dict[str, float] = {}
    seconds = plain_offer["seconds"]
    if seconds is None:
        useful_seconds = (
            staging_seconds(scenario) + plain_offer["epochs"] * bounds(scenario).epoch
        )
        seconds = useful_seconds / plain_offer["goodput"]
    else:
        mechanism_factors = _fit_mechanism_factor(scenario, plain_offer["epoch_s"])
    names = (
        "name",
        "exchange",
        "kept_nbytes",
        "epochs",
        "mixing",
        "goodput",
        "hosts",
        "reads_pfs",
    )
    return StrategyOffer(
        **{name: plain_offer[name] for name in names},
        scenario=scenario,
        ssd_nbytes=plain_offer["kept_nbytes"] if tier == "ssd" else 0.0,
        seconds=seconds,
        mechanism_factors=mechanism_factors,
        is_simulated=plain_offer["seconds"] is not None,
    )


def _fit_mechanism_factor(scenario: Scenario, simulated_s: float) -> dict[str, float]:
    """Fit the factor on the binding mechanism to a simulated epoch of ``simulated_s``
    s.

    Returns:
        The factor by the name of the mechanism, within `MAX_FACTOR` to either side; the
        end of this range where no factor within fits.
    """
    mechanism_name = mechanism(scenario)
    epoch_bounds = bounds(scenario)
    loop = loop_of(scenario)
    low = 1 / MAX_FACTOR
    high = MAX_FACTOR
    for _ in range(MAX_HALVINGS):
        middle = (low * high) ** 0.5
        if perturbed_epoch(epoch_bounds, {mechanism_name: middle}, loop) > simulated_s:
            high = middle
        else:
            low = middle
    return {mechanism_name: high}


@dataclass
class DecisionModel:
    """The cost of every strategy with one input moved, by closed forms.

    The closed forms are corrected at the factors at which a training was simulated.
    """

    base: Scenario  # scenario without a strategy
    offers: Sequence[StrategyOffer]  # strategies to choose from
    prices: Prices  # price of each of `PRICES`
    tie_share: float  # share by which two costs may differ and count as equal
    budget: float | None  # largest cost of the training; None without a limit
    moved_input: MovedInput  # the input that is multiplied by factors
    steps: int  # factors that are tried between 1 and `MAX_FACTOR`
    # by strategy: simulated less closed form of a training (s), by the logarithm of the factor
    corrections: dict[str, dict[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with nothing computed: epochs and constant inputs are remembered here."""
        self._epoch_seconds_by_factor: dict[tuple[str, float], float] = {}
        self._is_constant_by_strategy: dict[str, bool] = {}

    def choose_strategy(self, costs: Mapping[str, float]) -> str:
        """Return the strategy that is chosen by ``costs``; '' if none is within the
        budget.

        It is the cheapest; among those within ``tie_share`` the one that mixes most.
        """
        mixing = {offer.name: offer.mixing for offer in self.offers}
        return cheapest_strategy(costs, mixing, self.tie_share, self.budget)

    def fitting_offers(self, factor: float) -> list[StrategyOffer]:
        """Return the strategies that fit the hosts with the input multiplied by
        ``factor``.
        """
        capacity = self.base.cluster.capacity(self.base.workload.staging.target)
        capacity *= factor if self.moved_input.name == CAPACITY else 1.0
        return [offer for offer in self.offers if offer.kept_nbytes <= capacity]

    def moved_scenario(self, offer: StrategyOffer, factor: float) -> Scenario:
        """Return the scenario of a strategy with the input multiplied by ``factor``.

        The capacity moves nothing here: it decides only who fits.
        """
        if self.moved_input.name == CAPACITY or factor == 1.0:
            return offer.scenario
        return scale_inputs(
            offer.scenario, dict.fromkeys(self.moved_input.value_by_key, factor)
        )

    def costs_at(self, factor: float) -> dict[str, float]:
        """Return the corrected cost of each strategy that fits, by name, at a factor.

        The factor multiplies the input.
        """
        costs = {}
        for offer in self.fitting_offers(factor):
            seconds = self._closed_seconds(offer, factor) + self._correction(
                offer.name, factor
            )
            costs[offer.name] = offer.cost(
                self.moved_scenario(offer, factor), self.prices, seconds
            )
        return costs

    def choice_at(self, factor: float) -> str:
        """Return the strategy chosen with the input multiplied by ``factor``.

        It is '' if none fits the hosts and the budget.
        """
        return self.choose_strategy(self.costs_at(factor))

    def correct(self, offer: StrategyOffer, factor: float, seconds: float) -> None:
        """Store the correction of a strategy at ``factor``: ``seconds`` less the closed
        form.

        ``seconds`` are those of a simulated training, with failures. A strategy whose
        training was simulated has a correction of 0 at factor 1. ``corrections``
        changes, and with it all later costs and choices.
        """
        closed_seconds = self._closed_seconds(offer, factor)
        strategy_corrections = self.corrections.setdefault(
            offer.name, {0.0: 0.0} if offer.is_simulated else {}
        )
        strategy_corrections[math.log(factor)] = seconds - closed_seconds

    def find_border(self, near_factor: float, far_factor: float) -> float | None:
        """Return the first factor at which closed forms choose another strategy than at
        ``near_factor``.

        The factors of a grid from 1 on, between ``near_factor`` and ``far_factor``, are
        tried in this order, then ``far_factor``. Both lie on one side of 1, and
        ``near_factor`` nearer to it.

        Returns:
            The factor just beyond the change, bisected; None if closed forms choose one
            strategy at all factors that are tried.
        """
        current_choice = self.choice_at(near_factor)
        previous_factor = near_factor
        end_factors = sorted((near_factor, far_factor))
        direction = 1.0 if far_factor > near_factor else -1.0
        # the same factors whatever the ends are, so that closed forms are computed once
        grid = MAX_FACTOR ** (direction * np.arange(1, self.steps) / self.steps)
        inner_factors = [
            factor
            for factor in grid.tolist()
            if end_factors[0] < factor < end_factors[1]
        ]
        for factor in [*inner_factors, far_factor]:
            if self.choice_at(factor) != current_choice:
                return self._bisect_border(previous_factor, factor, current_choice)
            previous_factor = factor
        return None

    def _bisect_border(
        self, near_factor: float, far_factor: float, current_choice: str
    ) -> float:
        """Bisect between an unchanged choice and another one; return the changed end.

        Capacity is bisected `MAX_HALVINGS` times, other inputs `BORDER_HALVINGS` times.

        Args:
            near_factor: a factor at which the choice is ``current_choice``.
            far_factor: a factor at which it is another one.
            current_choice: the strategy chosen at ``near_factor``.
        """
        for _ in range(
            BORDER_HALVINGS if self.moved_input.name != CAPACITY else MAX_HALVINGS
        ):
            middle_factor = (near_factor * far_factor) ** 0.5
            if self.choice_at(middle_factor) == current_choice:
                near_factor = middle_factor
            else:
                far_factor = middle_factor
        return far_factor

    def _closed_seconds(self, offer: StrategyOffer, factor: float) -> float:
        """Return the closed form of a training (s) at ``factor``, without its
        correction.

        It is the training at factor 1 plus what closed forms add to each epoch, over
        the goodput.
        """
        if factor == 1.0 or self._is_constant(offer):
            return offer.seconds
        extra_seconds = self._epoch_seconds(offer, factor) - self._epoch_seconds(
            offer, 1.0
        )
        return offer.seconds + offer.epochs * extra_seconds / offer.goodput

    def _is_constant(self, offer: StrategyOffer) -> bool:
        """Return true if the input changes nothing of an epoch; remembered by strategy.

        An epoch grows or shrinks with every input, so the two ends decide it.
        """
        if offer.name not in self._is_constant_by_strategy:
            factors = (1 / MAX_FACTOR, MAX_FACTOR)
            end_seconds = {self._epoch_seconds(offer, factor) for factor in factors}
            is_constant = end_seconds == {self._epoch_seconds(offer, 1.0)}
            self._is_constant_by_strategy[offer.name] = is_constant
        return self._is_constant_by_strategy[offer.name]

    def _epoch_seconds(self, offer: StrategyOffer, factor: float) -> float:
        """Return the closed form of a warm epoch (s) at ``factor``, computed once."""
        key = offer.name, factor
        if key not in self._epoch_seconds_by_factor:
            scenario = self.moved_scenario(offer, factor)
            self._epoch_seconds_by_factor[key] = offer.epoch_seconds(scenario)
        return self._epoch_seconds_by_factor[key]

    def _correction(self, name: str, factor: float) -> float:
        """Return the correction (s) of a training at ``factor``; 0 without simulations.

        It is interpolated over the logarithm of the factor, and constant beyond the
        outermost simulated factors.
        """
        points = sorted(self.corrections.get(name, {}).items())
        if not points:
            return 0.0
        log_factors, differences = zip(*points, strict=True)
        return float(np.interp(math.log(factor), log_factors, differences))
