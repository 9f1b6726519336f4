"""On how many samples a rank's statistics rest after an exchange that was recorded."""

import numpy as np

from simshuffle.studies.training.running_statistics import effective_number
from simshuffle.train.iterations import TrainingEpochs
from simshuffle.train.training import Training
from simshuffle.workload.exchange.recording import RecordedPlans


def plan_exchanges(strategy, *, num_samples, world_size, batch_size, epochs, seed=0):
    """The owners before the first epoch of a training with random shards, and a plan for each of
    ``epochs``, without the training."""
    training = Training(local_batch_size=batch_size)
    run = TrainingEpochs(strategy, training, num_samples, world_size, seed=seed, places=None)
    run.owner = first_owner = strategy.first_owner(num_samples, world_size, run.rng("partition"))
    plans = []
    for _ in range(epochs):
        plans.append(run.next_plan(run.next_shards(), None))
        run.finish_epoch(plans[-1])
    return RecordedPlans(first_owner, plans)


def owners(recorded):
    """The rank of each sample in every epoch, and after the last one: (N,) each."""
    out = [np.asarray(recorded.owner)]
    for plan in recorded.plans:
        out.append(plan.apply(out[-1]))
    return out


def effective_samples(recorded, kept):
    """`effective_number` after the last epoch of a training."""
    return effective_number(owners(recorded)[:-1], recorded.plans[0].world_size, kept)
