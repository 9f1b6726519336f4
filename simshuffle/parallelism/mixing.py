"""What filter and channel parallelism have in common: only layers that mix channels are divided."""

from __future__ import annotations

import numpy as np

from simshuffle.layers import INPUT, Layer
from simshuffle.parallelism.division import Division, Traffic
from simshuffle.spec.arrays import Flags


def takes_samples(layer: Layer) -> bool:
    """Whether it takes the sample alone, whose gradient nobody needs."""
    return layer.after == (INPUT,)


def mixed_division(divided: Flags, ways: int, forward: Traffic, backward: Traffic) -> Division:
    """Members have 1/ways of the work and weights of the layers that are ``divided``, and all of
    what is kept for the backward pass, as all have whole outputs."""
    share = np.where(divided, 1 / ways, 1.0)
    return Division(
        work=share,
        held=share,
        kept=np.ones(len(divided)),
        forward=(forward,),
        backward=(backward,),
        buffers=float(max(forward.values.max(), backward.values.max())),
    )
