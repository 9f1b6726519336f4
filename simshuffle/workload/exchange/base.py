"""The interface of exchange strategies, and the records that strategies decide from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from simshuffle.spec.arrays import Floats, Ints
from simshuffle.spec.record import Spec
from simshuffle.workload.exchange.plan import (
    ExchangePlan,
    RankPlaces,
    Shards,
    empty_plan,
    initial_owner,
    shuffled_shards,
)
from simshuffle.workload.exchange.schedule import MessageSchedule

Source = Literal["pfs", "ssd", "object_store"]


@dataclass(frozen=True)
class EpochContext:
    """The facts that a strategy plans the exchange of one epoch from."""

    shards: Shards  # who trains on what in the epoch
    batch_size: int  # b, samples of a rank in an iteration
    iterations: int  # of the epoch, at least 1
    epoch: int  # from 1
    rng: np.random.Generator  # yields the same on every rank
    # (N,) losses (nats), not negative; None will do for strategies that need none. Its scale does
    # not matter.
    importance: Floats | None = None
    # where the ranks are; None will do for strategies that do not need them
    places: RankPlaces | None = None
    # (N,) epochs that each sample was with its rank before this one, as `ExchangePlan.held_after`
    # counts them; None will do for strategies that need none
    held: Ints | None = None


@dataclass(frozen=True)
class ShardsContext:
    """The facts that decide which rank trains on which samples in one epoch."""

    owner: Ints  # (N,) the rank of each sample
    world_size: int  # M
    epoch: int  # from 1
    rng: np.random.Generator  # yields the same on every rank
    seed: int  # of the run, for orders that draw as a library does
    batch_size: int  # b, samples of a rank in an iteration
    ranks_per_host: int | None = None  # of the machine; None where none is known
    workers: int | None = None  # of a rank's loader; None where none is known
    # mean bytes of a sample in storage; None where they are not known
    sample_nbytes: float | None = None


class Style(NamedTuple):
    """The colour (#RRGGBB) and the matplotlib marker by which figures draw a strategy."""

    colour: str
    marker: str


class Strategy(Spec):
    """A shuffling strategy. The defaults are those of local shuffle: every rank keeps
    its shard, and shuffles it anew in each epoch.

    Attributes:
        kind: its name.
        redraws: whether every epoch draws a new partition of the whole set, so that
            nobody owns samples, and a host may read, or must hold, any of them.
        fetches: whether a host fetches samples when it first reads them and keeps them,
            rather than to have them staged before the first epoch.
        whole_because: why the exchange of an epoch cannot be planned for fewer
            iterations, in the same proportion; '' if it can.
        styles: how figures draw it, by each `short_name` that it may have, in the order
            of tables. Figures draw a strategy without a style in a colour that is still
            free.
        example: the keys of a small one, without ``kind``, for the tests that all
            strategies get.
    """

    kind: str
    redraws: ClassVar[bool] = False
    fetches: ClassVar[bool] = False
    whole_because: ClassVar[str] = ""
    styles: ClassVar[Mapping[str, Style]] = {}
    example: ClassVar[Mapping[str, Any]] = {}

    @property
    def short_name(self) -> str:
        """The strategy's name in labels, tables and figures."""
        return self.kind.removesuffix("_shuffle")

    @property
    def in_name(self) -> dict[str, Any]:
        """The keys that `short_name` already tells, as pydantic's ``exclude`` takes
        them.
        """
        return {"kind": True, "lagging": True}

    @property
    def tier(self) -> Source:
        """The tier that samples are read from: 'pfs', 'object_store', or 'ssd' after
        staging.
        """
        return "ssd"

    @property
    def fraction(self) -> float | None:
        """Q, the share of a shard that is exchanged in an epoch, 0 to 1; None where
        samples are not exchanged but drawn anew (`redraws`).
        """
        return None if self.redraws else 0.0

    @property
    def exchange_schedule(self) -> MessageSchedule | None:
        """The schedule of messages; None if no samples are exchanged."""
        return None

    @property
    def needs_importance(self) -> bool:
        """True if `plan` needs the importance (N,) of the samples."""
        return False

    @property
    def inference_pass(self) -> bool:
        """True if every epoch begins with an inference pass over the shards, which
        measures importance.

        If False, importance is the loss of the last epoch's training.
        """
        return self.needs_importance

    @property
    def needs_places(self) -> bool:
        """True if `plan` needs to know on which host, leaf switch and rack each rank
        is.
        """
        return False

    @property
    def needs_held(self) -> bool:
        """True if `plan` needs to know how many epochs each sample has been with its
        rank.
        """
        return False

    def gathered(self, shard_size: float) -> float:
        """Return how many importances each rank makes known to all others before an
        epoch; by default 0.

        Args:
            shard_size: samples of a rank.
        """
        return 0.0

    def stored_share(self, world_size: int, ranks_on_host: int) -> float:
        """Return the largest share of the data set, 0 to 1, that a host keeps on its
        SSD.

        By default the shards of its ranks, or 0 where samples are not staged (`tier`).

        Args:
            world_size: M.
            ranks_on_host: ranks of that host.
        """
        return ranks_on_host / world_size if self.tier == "ssd" else 0.0

    def first_owner(
        self, num_samples: int, world_size: int, rng: np.random.Generator
    ) -> Ints:
        """Return the rank of each sample before the first epoch, (N,). By default a
        random partition.
        """
        return initial_owner(num_samples, world_size, rng)

    def first_held(self, num_samples: int) -> Ints | None:
        """Return `EpochContext.held` of the first epoch: (N,) zeros; None if `plan`
        does not need it.
        """
        return np.zeros(num_samples, np.int32) if self.needs_held else None

    def shards(self, owner: Ints, world_size: int, rng: np.random.Generator) -> Shards:
        """Divide the samples of an epoch among the ranks, in the order of training.

        By default each rank trains on its own samples, in a new random order.

        Args:
            owner: (N,) the rank of each sample.
            world_size: M.
            rng: yields the same on every rank.
        """
        return shuffled_shards(owner, world_size, rng)

    def epoch_shards(self, context: ShardsContext) -> Shards:
        """Divide the samples of an epoch among the ranks, given all of ``context``.

        By default this is `shards`; strategies that need more than the owners override
        it.

        Raises:
            InputError: if the strategy cannot work with this context.
        """
        return self.shards(context.owner, context.world_size, context.rng)

    def plan(self, context: EpochContext) -> ExchangePlan:
        """Plan the exchange of an epoch. By default nothing moves.

        Raises:
            InputError: if places, or the epochs that samples were held, are needed and
                not given; or an importance is needed, and the one given is None, has
                another shape than (N,), or is somewhere negative or not finite.
        """
        return empty_plan(len(context.shards.sizes))
