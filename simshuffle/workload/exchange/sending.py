"""Strategies that exchange a fraction Q of every shard: how many samples, when, and to
whom.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints
from simshuffle.spec.record import Fraction
from simshuffle.workload.exchange.base import EpochContext, Strategy
from simshuffle.workload.exchange.importance import (
    BY_IMPORTANCE,
    Selection,
    check_epochs_held,
    check_importance,
    rank_importance,
    select_samples,
)
from simshuffle.workload.exchange.plan import ExchangePlan, empty_plan
from simshuffle.workload.exchange.schedule import (
    ExchangeSchedule,
    MessageSchedule,
    epoch_quota,
    spread_over_iterations,
)


class ShardHolding(Strategy):
    """A strategy that keeps a shard on every host's SSD, and exchanges a fraction Q
    each epoch.

    Its schedule has no keys for partners. A strategy that finds partners by a rule
    derives from `Paired`; one that finds them in another way derives from this class.

    Attributes:
        exchange_fraction: Q, from 0 to 1.
        schedule: how the samples are sent.
    """

    example: ClassVar[Mapping[str, Any]] = {"exchange_fraction": 0.3}
    exchange_fraction: Fraction
    schedule: MessageSchedule = MessageSchedule()

    @property
    def fraction(self) -> float | None:
        """Q, the exchange fraction."""
        return self.exchange_fraction

    @property
    def exchange_schedule(self) -> MessageSchedule | None:
        """The schedule of messages."""
        return self.schedule

    def stored_share(self, world_size: int, ranks_on_host: int) -> float:
        """Return (1 + Q)/M for each of the host's ranks: sent samples are removed only
        after the epoch.

        More than 1 where one host has nearly all ranks.
        """
        return (1.0 + self.exchange_fraction) * ranks_on_host / world_size

    def quota(self, context: EpochContext) -> int:
        """Return how many samples each rank sends in this epoch: Q N/M, at most the
        smallest shard.

        Rounded by `epoch_quota`, so that epochs may differ by one.
        """
        sizes = context.shards.sizes
        num_samples = len(context.shards.order)
        quota = epoch_quota(
            self.exchange_fraction, num_samples, len(sizes), context.epoch
        )
        return min(quota, int(sizes.min()))

    def iteration_of_steps(self, context: EpochContext, quota: int) -> Ints:
        """Return the iteration, from 0, after which each of ``quota`` samples is sent:
        (quota,).

        Q b samples an iteration, by floor-with-carry; the last iteration takes all that
        are left.
        """
        return spread_over_iterations(
            quota, self.exchange_fraction * context.batch_size, context.iterations
        )


class Paired(ShardHolding):
    """A strategy that finds partners by a rule of its schedule, each pairing serving
    for some time.
    """

    schedule: ExchangeSchedule = ExchangeSchedule()

    @property
    def exchange_schedule(self) -> ExchangeSchedule | None:
        """The schedule of messages and partners."""
        return self.schedule

    def gathered(self, shard_size: float) -> float:
        """Return how many importances each rank makes known before an epoch, as the
        schedule's rule needs (`Pairing.gathered`).

        0 if partners do not depend on importance, 1 if partners serve for the whole
        epoch, else ``shard_size``.
        """
        return self.schedule.gathered(shard_size)


class SendingStrategy(Paired):
    """Local shuffle, with Q N/M samples of every shard exchanged each epoch.

    All ranks send and receive equally many, so shards keep their sizes; received
    samples are trained on from the next epoch.

    Attributes:
        selection: which samples are sent; see `Selection`.
    """

    selection: Selection = "random"

    @property
    def needs_importance(self) -> bool:
        """True if samples are selected, or ranks paired, by importance."""
        return self.selection in BY_IMPORTANCE or self.schedule.rule.needs_importance

    @property
    def needs_held(self) -> bool:
        """True if the oldest samples are selected."""
        return self.selection == "oldest"

    @property
    def needs_places(self) -> bool:
        """True for partners of a scope of less than all ranks."""
        return self.schedule.partner_scope != "all"

    def plan(self, context: EpochContext) -> ExchangePlan:
        """Plan an exchange of Q b samples an iteration by floor-with-carry, and Q N/M
        an epoch.

        A rank never sends more than the smallest shard has; the plan is empty where
        that is nothing. Partners are drawn from ``context.rng`` before samples, so
        strategies that differ only in the selection have the same partners.

        Raises:
            InputError: if an importance is needed, and the one given is not (N,) finite
                numbers from 0 on; or if places, or the epochs that samples were held,
                are needed and not given.
        """
        shards = context.shards
        rng = context.rng
        schedule = self.schedule
        world_size = len(shards.sizes)
        if self.needs_places and context.places is None:
            remedy = "Say where the ranks are, or use partner_scope: all."
            rule = f"are needed for partners of the same {schedule.partner_scope}"
            refuse("places", rule, "None", remedy, "")
        importance = (
            check_importance(context.importance, shards, self.kind)
            if self.needs_importance
            else None
        )
        epochs_held = (
            check_epochs_held(context.held, shards, self.kind)
            if self.needs_held
            else None
        )

        quota = self.quota(context)
        if quota == 0:
            return empty_plan(world_size)
        iteration = self.iteration_of_steps(context, quota)
        pairing = schedule.pairing_of(iteration)
        order = schedule.random_orders(pairing, world_size, rng)
        sample = select_samples(
            self.selection, shards, quota, importance, rng, epochs_held=epochs_held
        )

        # the first step of each pairing: as many samples have been sent when it begins
        first_steps = np.unique(pairing, return_index=True)[1]
        importance_of_rank = None
        if importance is not None and schedule.rule.needs_importance:
            importance_of_rank = rank_importance(
                schedule.rank_importance, importance, shards, sample, first_steps
            )
        # (pairings, M); each step takes the row of its pairing
        target = schedule.targets(order, importance_of_rank, context.places)
        return ExchangePlan(
            sample=sample,
            target=target[pairing],
            iteration=iteration,
            message=schedule.messages(iteration),
            draws=draw_at_first_steps(first_steps, quota),
        )


def draw_at_first_steps(first_steps: Ints, num_steps: int) -> Ints:
    """Return `ExchangePlan.draws` (num_steps,) if one permutation is drawn before each
    first step.

    Args:
        first_steps: (pairings,) the first step of each pairing.
        num_steps: steps of the epoch.
    """
    draws = np.zeros(num_steps, np.int64)
    draws[first_steps] = 1
    return draws
