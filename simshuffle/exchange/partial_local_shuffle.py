"""Partial local shuffle (PLS): local shuffle, with a fraction Q of every shard exchanged at random each epoch."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simshuffle.exchange.base import Source
from simshuffle.exchange.plan import ExchangePlan, Shards, shuffled_shards
from simshuffle.exchange.schedule import ExchangeSchedule, epoch_quota, paced_steps
from simshuffle.spec import Fraction, Spec


class PartialLocalShuffle(Spec):
    """Nguyen et al., IPDPS 2022. The first Q N/M samples of a rank's new local order are sent, spread over the iterations.

    All ranks send and receive equally many, so shards keep their sizes; received samples are trained on from the next epoch.
    """

    kind: Literal["partial_local_shuffle"]
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
        """(1 + Q)/M for each of the host's ranks: sent samples are removed only at the end of the epoch."""
        return (1.0 + self.exchange_fraction) * ranks_on_host / world_size

    def shards(self, owner: NDArray[np.integer], world_size: int, rng: np.random.Generator) -> Shards:
        """Each rank's own samples in a new order."""
        return shuffled_shards(owner, world_size, rng)

    def plan(
        self,
        shards: Shards,
        *,
        batch_size: int,
        iterations: int,
        epoch: int,
        importance: NDArray[np.float64] | None,
        rng: np.random.Generator,
    ) -> ExchangePlan:
        """Q b samples an iteration by floor-with-carry, Q N/M an epoch."""
        world_size = len(shards.sizes)
        quota = epoch_quota(self.exchange_fraction, len(shards.order), world_size, epoch)
        iteration = paced_steps(quota, self.exchange_fraction * batch_size, iterations)
        return ExchangePlan(
            sample=shards.first(quota),
            target=self.schedule.targets(iteration, world_size, rng),
            iteration=iteration,
            message=self.schedule.messages(iteration),
        )
