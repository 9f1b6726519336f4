"""What every exchange strategy answers."""

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
    """What the exchange of an epoch is planned from."""

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
    """What decides who trains on what in an epoch."""

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
    """How figures draw a strategy: a colour as #RRGGBB, and a marker of matplotlib."""

    colour: str
    marker: str


class Strategy(Spec):
    """A shuffling strategy. What one does not say is as in local shuffle: every rank keeps its
    shard, and shuffles it anew in each epoch.

    Attributes:
        kind: its name.
        redraws: whether every epoch draws a new partition of the whole set, so that nobody owns
            samples, and a host may read, or must hold, any of them.
        fetches: whether a host fetches samples when it first reads them and keeps them, rather than
            to have them staged before the first epoch.
        whole_because: why the exchange of an epoch cannot be planned for fewer iterations, in the
            same proportion; '' if it can.
        styles: how figures draw it, by each `short_name` that it may have, in the order of tables.
            Figures draw a strategy without a style in a colour that is still free.
        example: the keys of a small one, without ``kind``, for the tests that all strategies get.
    """

    kind: str
    redraws: ClassVar[bool] = False
    fetches: ClassVar[bool] = False
    whole_because: ClassVar[str] = ""
    styles: ClassVar[Mapping[str, Style]] = {}
    example: ClassVar[Mapping[str, Any]] = {}

    @property
    def short_name(self) -> str:
        """Its name in labels, tables and figures."""
        return self.kind.removesuffix("_shuffle")

    @property
    def in_name(self) -> dict[str, Any]:
        """Keys that the name tells, as pydantic excludes them."""
        return {"kind": True, "lagging": True}

    @property
    def tier(self) -> Source:
        """What holds the samples: the 'pfs', the 'object_store', or the 'ssd' after staging."""
        return "ssd"

    @property
    def fraction(self) -> float | None:
        """Q; None where samples are not exchanged but drawn anew (`redraws`)."""
        return None if self.redraws else 0.0

    @property
    def exchange_schedule(self) -> MessageSchedule | None:
        """How samples are exchanged; None if they are not."""
        return None

    @property
    def needs_importance(self) -> bool:
        """Whether `plan` needs the importance (N,) of the samples."""
        return False

    @property
    def inference_pass(self) -> bool:
        """Whether an epoch begins with an inference pass over the shards, which measures
        importance. If not, it is the loss of last epoch's training."""
        return self.needs_importance

    @property
    def needs_places(self) -> bool:
        """Whether `plan` needs to know where the ranks are."""
        return False

    @property
    def needs_held(self) -> bool:
        """Whether `plan` needs to know how long each sample has been with its rank."""
        return False

    def gathered(self, shard_size: float) -> float:
        """Importances that each rank, with ``shard_size`` samples, makes known to all others before
        an epoch."""
        return 0.0

    def stored_share(self, world_size: int, ranks_on_host: int) -> float:
        """Largest part of the data set that a host with that many ranks keeps on its SSD, from 0 to
        1."""
        return ranks_on_host / world_size if self.tier == "ssd" else 0.0

    def first_owner(self, num_samples: int, world_size: int, rng: np.random.Generator) -> Ints:
        """The rank of each sample before the first epoch: (N,). By default a random partition."""
        return initial_owner(num_samples, world_size, rng)

    def first_held(self, num_samples: int) -> Ints | None:
        """`EpochContext.held` of the first epoch, in which all samples are alike: (N,) zeros; None
        if `plan` does not need it."""
        return np.zeros(num_samples, np.int32) if self.needs_held else None

    def shards(self, owner: Ints, world_size: int, rng: np.random.Generator) -> Shards:
        """Who trains on what in an epoch, given the owner (N,) of each sample. By default each rank
        on its own samples, in a new order."""
        return shuffled_shards(owner, world_size, rng)

    def epoch_shards(self, context: ShardsContext) -> Shards:
        """The same, for strategies that need to know more: `shards` unless they say otherwise.
        Raises an InputError if the strategy cannot do with what there is."""
        return self.shards(context.owner, context.world_size, context.rng)

    def plan(self, context: EpochContext) -> ExchangePlan:
        """The exchange of an epoch. By default nothing moves. Raises an InputError if places or the
        epochs that samples were held are needed and not given; or an importance is needed, and the
        one given is none, has another shape, or is not finite or negative somewhere."""
        return empty_plan(len(context.shards.sizes))
