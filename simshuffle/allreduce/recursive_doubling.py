"""Allreduce by recursive doubling."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from simshuffle.allreduce.base import Paced
from simshuffle.allreduce.flows import AllreduceFlows
from simshuffle.allreduce.steps import (
    Sends,
    StepOfSends,
    Steps,
    among_power_of_two,
    dependent_flows,
    rail_of,
    with_folding,
)
from simshuffle.spec.record import Count


class RecursiveDoubling(Paced):
    """Ranks exchange the whole buffer with the one at distance 1, then 2, 4 and so on (Thakur,
    Rabenseifner & Gropp, Int. J. High Perform. Comput. Appl. 19, 2005): few steps, many bytes.

    Of 2^k + r ranks the first 2r fold in pairs before and unfold after. The GPUs of a host share
    ``rails`` HCAs.
    """

    one_for_each_hca: ClassVar[str] = "rails"
    kind: Literal["recursive_doubling"]
    rails: Count

    def steps(self, host_of: NDArray[np.int32]) -> Steps:
        """What ranks on hosts ``host_of``, (M,), send: floor(log2 M) steps, and two more if M is no
        power of two."""
        return recursive_doubling_steps(len(host_of))

    def flows(self, host_of: NDArray[np.int32], nbytes: float) -> AllreduceFlows | None:
        """The flows of an allreduce of ``nbytes`` bytes over ranks on hosts ``host_of``, (M,); None
        for a single rank. See `dependent_flows`."""
        if len(host_of) == 1:
            return None
        sends = Sends.of(self.steps(host_of), rail_of(host_of, self.rails))
        return dependent_flows(sends, host_of, nbytes, self)


def recursive_doubling_steps(count: int) -> Steps:
    """The steps among ``count`` ranks."""
    ranks, _, _ = among_power_of_two(count)
    here = np.arange(len(ranks))
    steps: list[StepOfSends] = [
        (ranks, ranks[here ^ (1 << bit)], 0, 1, True) for bit in range(len(ranks).bit_length() - 1)
    ]
    return with_folding(count, 1, steps)
