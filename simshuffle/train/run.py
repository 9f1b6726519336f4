"""Run: one training, complete; the same run gives the same weights."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from simshuffle.errors import InputError, refuse
from simshuffle.job.plan.machine_places import places_on
from simshuffle.spec.record import Count, Spec
from simshuffle.spec.rng import stream
from simshuffle.train.data import Data
from simshuffle.train.iterations import Shuffled
from simshuffle.train.models import Model
from simshuffle.train.partition import Partition, RandomPartition
from simshuffle.train.training import Training
from simshuffle.workload.exchange import (
    GlobalShuffle,
    LoaderShuffle,
    RankPlaces,
    TrainedExchange,
)


class Run(Spec):
    """One training run.

    Attributes:
        data: what is learnt.
        model: the network.
        partition: who holds which sample before the first epoch.
        exchange: the strategy.
        world_size: M, ranks.
        training: how.
        cluster: machine, by its file or name, whose hosts, leaf switches and racks the ranks fill
            one after the other. Needed only where partners are drawn within one of them
            (``partner_scope``).
        seed: of all that is drawn. Runs of the same seed begin with the same weights, and with the
            same shards where M is the same.
    """

    data: Data
    model: Model
    partition: Partition = RandomPartition(kind="random")
    exchange: TrainedExchange
    world_size: Count
    training: Training = Training()
    cluster: str | None = None
    seed: Annotated[int, Field(ge=0)] = 0

    @classmethod
    def alone(cls, data: Data, model: Model, training: Training, seed: int) -> Run:
        """A run of one rank, whose batch norm goes over the whole batch."""
        exchange = GlobalShuffle(kind="global_shuffle")
        return cls(
            data=data, model=model, exchange=exchange, world_size=1, training=training, seed=seed
        )

    def rng(self, name: str, *numbers: int) -> np.random.Generator:
        """The random stream of that name: 'weights', ('shuffle', epoch), ('exchange', epoch),
        ..."""
        return stream(self.seed, name, *numbers)

    def shuffled(self, num_samples: int) -> Shuffled:
        """Who has which of so many samples, as far as no places are needed."""
        training, seed = self.training, self.seed
        return Shuffled(self.exchange, training, num_samples, self.world_size, seed, None)

    def places(self) -> RankPlaces | None:
        """Where the ranks are on the cluster; None if none is named. Raises InputError if it cannot
        be read, has fewer GPUs than ranks, or is not named where partners are drawn within a part
        of it."""
        if self.cluster is None:
            if self.exchange.needs_places:
                scope = getattr(self.exchange.exchange_schedule, "partner_scope", "place")
                rule = f"is needed for partners of the same {scope}"
                refuse("cluster", rule, "none", "Name a machine, such as abci.", "run")
            return None
        return places_on(self.cluster, self.world_size)


def check_order(run: Run, num_samples: int) -> None:
    """See that places are known where they are needed, and a loader's order; or raise
    InputError."""
    places = run.places()
    if not isinstance(run.exchange, LoaderShuffle):
        return
    shuffled = run.shuffled(num_samples)
    shuffled.owner, shuffled.places = np.broadcast_to(np.int32(0), num_samples), places
    try:
        run.exchange.check(shuffled.shards_context())
    except InputError as error:
        raise InputError([of.below("exchange") for of in error.problems], "run") from None
