"""Run: one training, complete; equal runs give equal weights."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from simshuffle.errors import InputError, refuse
from simshuffle.job.plan.machine_places import places_on
from simshuffle.spec.record import Count, Spec
from simshuffle.spec.rng import stream
from simshuffle.train.data import Data
from simshuffle.train.iterations import TrainingEpochs
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
    """A training run: its data, network, ranks, strategy and training."""

    data: Data
    model: Model
    partition: Partition = RandomPartition(kind="random")  # who holds what at first
    exchange: TrainedExchange  # the strategy
    world_size: Count  # M, ranks
    training: Training = Training()
    cluster: str | None = None  # file or name of the ranks' machine; None if unknown
    seed: Annotated[int, Field(ge=0)] = 0  # of all that is drawn

    @classmethod
    def of_one_rank(
        cls, data: Data, model: Model, training: Training, seed: int
    ) -> Run:
        """Return a run of one rank, whose batch norm goes over the whole batch."""
        exchange = GlobalShuffle(kind="global_shuffle")
        return cls(
            data=data,
            model=model,
            exchange=exchange,
            world_size=1,
            training=training,
            seed=seed,
        )

    def rng(self, name: str, *numbers: int) -> np.random.Generator:
        """Return the random stream of a name and numbers: 'weights', ('shuffle',
        epoch), ('exchange', epoch).

        Every call returns a new generator, which begins at the start of the stream.
        """
        return stream(self.seed, name, *numbers)

    def new_epochs(self, num_samples: int) -> TrainingEpochs:
        """Return the epochs of ``num_samples`` samples, without places of ranks.

        ``owner`` is to be set before the first epoch.

        Raises:
            InputError: there are fewer samples than ranks, or too few for a batch.
        """
        return TrainingEpochs(
            self.exchange,
            self.training,
            num_samples,
            self.world_size,
            seed=self.seed,
            places=None,
        )

    def places(self) -> RankPlaces | None:
        """Return the host, leaf switch and rack of each rank on the cluster; None if no
        cluster is named.

        Raises:
            InputError: if the cluster cannot be read, has fewer GPUs than ranks, or is
                not named where partners are drawn within a part of it.
        """
        if self.cluster is None:
            if self.exchange.needs_places:
                scope = getattr(
                    self.exchange.exchange_schedule, "partner_scope", "place"
                )
                rule = f"is needed to find partners on the same {scope}"
                refuse("cluster", rule, "none", "Name a machine, such as abci.", "run")
            return None
        return places_on(self.cluster, self.world_size)


def check_order(run: Run, num_samples: int) -> None:
    """Raise an InputError unless a loader's order can be drawn for ``num_samples``
    samples, and the ranks' places are known where they are needed.

    Its paths are keys of ``run``.
    """
    places = run.places()
    if not isinstance(run.exchange, LoaderShuffle):
        return
    epochs = run.new_epochs(num_samples)
    # a loader's order asks only how many samples there are
    epochs.owner = np.broadcast_to(np.int32(0), num_samples)
    epochs.places = places
    try:
        run.exchange.check(epochs.shards_context())
    except InputError as error:
        problems = [problem.below("exchange") for problem in error.problems]
        raise InputError(problems, "run") from None
