"""On how many samples a rank's statistics rest after an exchange that was recorded."""

import numpy as np

from simshuffle.studies.training.running_statistics import effective_number


def owners(recorded):
    """The rank of each sample in every epoch, and after the last one: (N,) each."""
    out = [np.asarray(recorded.owner)]
    for plan in recorded.plans:
        out.append(plan.apply(out[-1]))
    return out


def effective_samples(recorded, kept):
    """`effective_number` after the last epoch of a training."""
    return effective_number(owners(recorded)[:-1], recorded.plans[0].world_size, kept)
