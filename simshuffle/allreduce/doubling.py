"""Allreduce by halving and doubling distances, step by step."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from simshuffle.allreduce.steps import (
    Dependent,
    Sends,
    StepOfSends,
    Steps,
    among_power_of_two,
    rail_of,
    with_folding,
)
from simshuffle.spec.record import OneEach


class Stepwise(Dependent):
    """Each step by itself: no pipeline. The GPUs of a host share ``rails`` HCAs.

    Attributes:
        rails: HCAs that the GPUs of a host share; at most, and by default, ``cluster.host.hcas``.
    """

    one_for_each_hca: ClassVar[str] = "rails"
    rails: OneEach

    @abstractmethod
    def steps(self, host_of: NDArray[np.int32]) -> Steps:
        """What ranks on hosts ``host_of``, (M,), send."""

    def sends(self, host_of: NDArray[np.int32]) -> Sends:
        """See `Dependent.sends`."""
        return Sends.of(self.steps(host_of), rail_of(host_of, self.rails))


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
