"""Run: one training, complete. The same run gives the same weights, wherever and beside whatever it is made."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from simshuffle.exchange import TrainedExchange
from simshuffle.rng import stream
from simshuffle.spec import Count, Spec
from simshuffle.train.data import Data
from simshuffle.train.models import Model
from simshuffle.train.partition import Partition, RandomPartition
from simshuffle.train.training import Training


class Run(Spec):
    """One training run.

    Attributes:
        data: what is learnt.
        model: the network.
        partition: who holds which sample before the first epoch.
        exchange: the strategy.
        world_size: M, ranks.
        training: how.
        seed: of all that is drawn. Runs of the same seed begin with the same weights, and with the same shards where M is the same.
    """

    data: Data
    model: Model
    partition: Partition = RandomPartition(kind="random")
    exchange: TrainedExchange
    world_size: Count
    training: Training = Training()
    seed: Annotated[int, Field(ge=0)] = 0

    def rng(self, name: str, *numbers: int) -> np.random.Generator:
        """The random stream of that name: 'weights', 'partition', ('shuffle', epoch), ('exchange', epoch), ..."""
        return stream(self.seed, name, *numbers)
