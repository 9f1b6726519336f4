"""What all strategies have in common that exchange a fraction Q of every shard: how many samples,
when, and to whom."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simshuffle.errors import InputError, Problem
from simshuffle.exchange.base import Source
from simshuffle.exchange.importance import Selection, checked_importance, rank_importance, selected
from simshuffle.exchange.plan import (
    ExchangePlan,
    Places,
    Shards,
    empty_plan,
    initial_owner,
    shuffled_shards,
)
from simshuffle.exchange.schedule import ExchangeSchedule, epoch_quota, paced_steps
from simshuffle.spec.record import Fraction, Spec


class ShardHolding(Spec):
    """Every rank holds a shard on its host's SSD, and a fraction of it is exchanged each epoch.

    Attributes:
        kind: name of the strategy.
        exchange_fraction: Q, from 0 to 1.
        schedule: how the exchange is carried out.
    """

    kind: str
    exchange_fraction: Fraction
    schedule: ExchangeSchedule = ExchangeSchedule()

    @property
    def source(self) -> Source:
        """'ssd'."""
        return "ssd"

    @property
    def fraction(self) -> float | None:
        """Q."""
        return self.exchange_fraction

    @property
    def carried_out(self) -> ExchangeSchedule | None:
        """The schedule."""
        return self.schedule

    def stored_share(self, world_size: int, ranks_on_host: int) -> float:
        """(1 + Q)/M for each of the host's ranks: sent samples are removed only at the end of the
        epoch."""
        return (1.0 + self.exchange_fraction) * ranks_on_host / world_size

    def shards(
        self, owner: NDArray[np.integer], world_size: int, rng: np.random.Generator
    ) -> Shards:
        """Each rank's own samples in a new order."""
        return shuffled_shards(owner, world_size, rng)


class SendingStrategy(ShardHolding):
    """Local shuffle, with Q N/M samples of every shard exchanged each epoch. Which ones, a strategy
    says by its ``selection``.

    All ranks send and receive equally many, so shards keep their sizes; received samples are
    trained on from the next epoch.
    """

    def first_owner(
        self, num_samples: int, world_size: int, rng: np.random.Generator
    ) -> NDArray[np.integer]:
        """A random partition."""
        return initial_owner(num_samples, world_size, rng)

    @property
    def selected_by(self) -> Selection:
        """Which samples are sent."""
        return "random"

    @property
    def needs_importance(self) -> bool:
        """True if samples are selected, or ranks paired, by importance."""
        return self.selected_by != "random" or self.schedule.partner_rule == "importance_sorted"

    def plan(
        self,
        shards: Shards,
        *,
        batch_size: int,
        iterations: int,
        epoch: int,
        importance: NDArray[np.float64] | None,
        rng: np.random.Generator,
        places: Places | None = None,
    ) -> ExchangePlan:
        """Q b samples an iteration by floor-with-carry, Q N/M an epoch, and never more than the
        smallest shard has.

        Partners are drawn before samples, so strategies that differ only in the selection have the
        same partners.

        Raises:
            InputError: an importance is needed, and ``importance`` is not (N,) finite numbers from
                0 on; or ``places`` are.
        """
        world_size = len(shards.sizes)
        if self.schedule.partner_scope != "all" and places is None:
            remedy = "Say where the ranks are, or use partner_scope: all."
            raise InputError(
                Problem(
                    "places",
                    f"are needed for partners of the same {self.schedule.partner_scope}",
                    "None",
                    remedy,
                )
            )
        known = checked_importance(importance, shards, self.kind) if self.needs_importance else None
        quota = min(
            epoch_quota(self.exchange_fraction, len(shards.order), world_size, epoch),
            int(shards.sizes.min()),
        )
        if quota == 0:
            return empty_plan(world_size)
        iteration = paced_steps(quota, self.exchange_fraction * batch_size, iterations)
        life = self.schedule.lives(iteration)
        drawn = self.schedule.drawn(life, world_size, rng)
        sample = selected(self.selected_by, shards, quota, known, rng)
        of_ranks = None
        if known is not None and self.schedule.partner_rule == "importance_sorted":
            of_ranks = rank_importance(
                self.schedule.rank_importance,
                known,
                shards,
                sample,
                np.unique(life, return_index=True)[1],
            )
        return ExchangePlan(
            sample=sample,
            target=self.schedule.targets(drawn, of_ranks, places)[life],
            iteration=iteration,
            message=self.schedule.messages(iteration),
        )
