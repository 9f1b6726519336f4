"""Allreduce by recursive doubling."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simshuffle.allreduce.steps import StepOfSends, Steps, among_power_of_two, with_folding
from simshuffle.allreduce.stepwise import Stepwise


class RecursiveDoubling(Stepwise):
    """Ranks exchange the whole buffer with the one at distance 1, then 2, 4 and so on (Thakur,
    Rabenseifner & Gropp, Int. J. High Perform. Comput. Appl. 19, 2005): few steps, many bytes.

    Of 2^k + r ranks the first 2r fold in pairs before and unfold after.
    """

    kind: Literal["recursive_doubling"]

    def steps(self, host_of: NDArray[np.int32]) -> Steps:
        """What ranks on hosts ``host_of``, (M,), send: floor(log2 M) steps, and two more if M is no
        power of two."""
        return recursive_doubling_steps(len(host_of))


def recursive_doubling_steps(count: int) -> Steps:
    """The steps among ``count`` ranks."""
    ranks, _, _ = among_power_of_two(count)
    here = np.arange(len(ranks))
    steps: list[StepOfSends] = [
        (ranks, ranks[here ^ (1 << bit)], 0, 1, True) for bit in range(len(ranks).bit_length() - 1)
    ]
    return with_folding(count, 1, steps)
