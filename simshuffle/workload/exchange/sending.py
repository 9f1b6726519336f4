"""What all strategies have in common that exchange a fraction Q of every shard: how many samples,
when, and to whom."""

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
    checked_held,
    checked_importance,
    rank_importance,
    selected,
)
from simshuffle.workload.exchange.plan import ExchangePlan, empty_plan
from simshuffle.workload.exchange.schedule import (
    ExchangeSchedule,
    MessageSchedule,
    epoch_quota,
    spread_over_iterations,
)


class ShardHolding(Strategy):
    """Every rank holds a shard on its host's SSD, and a fraction of it is exchanged each epoch.

    Its schedule has no keys for partners: a strategy that finds them by a rule derives from
    `Paired`, one that has its own way from this class.

    Attributes:
        exchange_fraction: Q, from 0 to 1.
        schedule: how the samples are sent.
    """

    example: ClassVar[Mapping[str, Any]] = {"exchange_fraction": 0.3}
    exchange_fraction: Fraction
    schedule: MessageSchedule = MessageSchedule()

    @property
    def fraction(self) -> float | None:
        """Q."""
        return self.exchange_fraction

    @property
    def exchange_schedule(self) -> MessageSchedule | None:
        """The schedule."""
        return self.schedule

    def stored_share(self, world_size: int, ranks_on_host: int) -> float:
        """(1 + Q)/M for each of the host's ranks: sent samples are removed only at the end of the
        epoch."""
        return (1.0 + self.exchange_fraction) * ranks_on_host / world_size

    def quota(self, context: EpochContext) -> int:
        """Samples that each rank sends in the epoch: Q N/M, and never more than the smallest shard
        has."""
        sizes = context.shards.sizes
        return min(
            epoch_quota(
                self.exchange_fraction, len(context.shards.order), len(sizes), context.epoch
            ),
            int(sizes.min()),
        )

    def iteration_of_steps(self, context: EpochContext, quota: int) -> Ints:
        """The iteration after which each of ``quota`` samples is sent, (quota,): Q b an iteration
        (`spread_over_iterations`)."""
        return spread_over_iterations(
            quota, self.exchange_fraction * context.batch_size, context.iterations
        )


class Paired(ShardHolding):
    """Partners that serve for some time are found by a rule, as the schedule says."""

    schedule: ExchangeSchedule = ExchangeSchedule()

    @property
    def exchange_schedule(self) -> ExchangeSchedule | None:
        """The schedule."""
        return self.schedule

    def gathered(self, shard_size: float) -> float:
        """What the schedule's rule needs to know."""
        return self.schedule.gathered(shard_size)


class SendingStrategy(Paired):
    """Local shuffle, with Q N/M samples of every shard exchanged each epoch.

    All ranks send and receive equally many, so shards keep their sizes; received samples are
    trained on from the next epoch.

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
        """Q b samples an iteration by floor-with-carry, Q N/M an epoch, and never more than the
        smallest shard has. Partners are drawn before samples, so strategies that differ only in the
        selection have the same partners. Raises an InputError if an importance is needed, and the
        one given is not (N,) finite numbers from 0 on; or places are, or the epochs that samples
        were held."""
        shards, rng, schedule = context.shards, context.rng, self.schedule
        world_size = len(shards.sizes)
        if self.needs_places and context.places is None:
            remedy = "Say where the ranks are, or use partner_scope: all."
            rule = f"are needed for partners of the same {schedule.partner_scope}"
            refuse("places", rule, "None", remedy, "")
        known = (
            checked_importance(context.importance, shards, self.kind)
            if self.needs_importance
            else None
        )
        held = checked_held(context.held, shards, self.kind) if self.needs_held else None
        quota = self.quota(context)
        if quota == 0:
            return empty_plan(world_size)
        iteration = self.iteration_of_steps(context, quota)
        pairing = schedule.pairing_of(iteration)
        order = schedule.random_orders(pairing, world_size, rng)
        sample = selected(self.selection, shards, quota, known, rng, held)
        # the first step of each pairing: as many samples have been sent when it begins
        begins = np.unique(pairing, return_index=True)[1]
        of_ranks = None
        if known is not None and schedule.rule.needs_importance:
            of_ranks = rank_importance(schedule.rank_importance, known, shards, sample, begins)
        return ExchangePlan(
            sample=sample,
            target=schedule.targets(order, of_ranks, context.places)[pairing],
            iteration=iteration,
            message=schedule.messages(iteration),
            draws=one_each(begins, quota),
        )


def one_each(begins: Ints, steps: int) -> Ints:
    """`ExchangePlan.draws` of ``steps`` steps, where one permutation is drawn before each of the
    steps ``begins``."""
    draws = np.zeros(steps, np.int64)
    draws[begins] = 1
    return draws
