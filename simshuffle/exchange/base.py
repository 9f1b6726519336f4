"""What every exchange strategy answers."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from simshuffle.exchange.plan import ExchangePlan, Places, Shards
from simshuffle.exchange.schedule import ExchangeSchedule

Source = Literal["pfs", "ssd"]


class Strategy(Protocol):
    """A shuffling strategy. Its samples are held by the 'pfs', or by the 'ssd' after staging."""

    @property
    def kind(self) -> str:
        """Its name."""

    @property
    def source(self) -> Source:
        """The tier that holds the samples."""

    @property
    def fraction(self) -> float | None:
        """Q; None where samples are not exchanged but drawn anew."""

    @property
    def carried_out(self) -> ExchangeSchedule | None:
        """How samples are exchanged; None if they are not."""

    @property
    def needs_importance(self) -> bool:
        """Whether `plan` needs the importance (N,) of the samples."""

    @property
    def lagging(self) -> bool:
        """Whether that importance is the loss of last epoch's training, and not of an inference
        pass before the epoch."""

    @property
    def measures_importance(self) -> bool:
        """Whether an epoch begins with such a pass."""

    def first_owner(
        self, num_samples: int, world_size: int, rng: np.random.Generator
    ) -> NDArray[np.integer]:
        """The rank of each sample before the first epoch: (N,)."""

    def stored_share(self, world_size: int, ranks_on_host: int) -> float:
        """Largest part of the data set that a host with that many ranks keeps on its SSD, from 0 to
        1."""

    def shards(
        self, owner: NDArray[np.integer], world_size: int, rng: np.random.Generator
    ) -> Shards:
        """Who trains on what in an epoch, given the owner (N,) of each sample."""

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
        """The exchange of an epoch.

        Args:
            shards: who trains on what in the epoch.
            batch_size: b, samples of a rank in an iteration.
            iterations: of the epoch, at least 1.
            epoch: from 1.
            importance: (N,) losses (nats), not negative; None will do for strategies that need
                none. Its scale does not matter.
            rng: yields the same on every rank.
            places: where the ranks are; None will do for partners of scope 'all'.

        Raises:
            InputError: places are needed and not given; or an importance is needed, and the one
                given is none, has another shape, or is not finite or negative somewhere.
        """
