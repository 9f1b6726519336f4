"""Allreduce by recursive halving and doubling."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simshuffle.allreduce.steps import Sends, StepOfSends, Steps, among_power_of_two, with_folding
from simshuffle.allreduce.stepwise import Stepwise


class HalvingDoubling(Stepwise):
    """Reduce-scatter by recursive halving, all-gather by recursive doubling (Rabenseifner, ICCS
    2004; Thakur, Rabenseifner & Gropp, Int. J. High Perform. Comput. Appl. 19, 2005).

    Ranks exchange half of the buffer with their neighbour, then a quarter with the one at distance
    2, and so on, and the same back; so the most bytes stay inside hosts. Of 2^k + r ranks the first
    2r fold in pairs before and unfold after.
    """

    kind: Literal["halving_doubling"]

    def steps(self, host_of: NDArray[np.int32]) -> Steps:
        """What ranks on hosts ``host_of``, (M,), send: 2 floor(log2 M) steps, and two more if M is
        no power of two."""
        return halving_doubling_steps(len(host_of))


def halving_doubling_steps(count: int) -> Steps:
    """The steps among ``count`` ranks."""
    ranks, _, _ = among_power_of_two(count)
    here = np.arange(len(ranks))
    bits = range(len(ranks).bit_length() - 1)
    first, length = np.zeros(len(ranks), np.int64), len(ranks)  # of the parts that each sums
    halving: list[StepOfSends] = []
    doubling: list[StepOfSends] = []
    for bit in bits:
        other = ranks[here ^ (1 << bit)]
        length //= 2
        upper = (here >> bit & 1) * length
        given = first + length - upper
        first = first + upper
        halving.append((ranks, other, given, given + length, True))
        doubling.append((ranks, other, first, first + length, False))
    return with_folding(count, len(ranks), [*halving, *reversed(doubling)])


def halving_doubling_sends(count: int) -> Sends:
    """The same, each step by itself, on rail 0."""
    return Sends.of(halving_doubling_steps(count), np.zeros(count, np.int32))
