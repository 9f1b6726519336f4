"""Allreduce by halving and doubling distances, of all gradients or of the largest."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, model_validator
from pydantic_core import PydanticCustomError

from simshuffle.allreduce.base import AllreduceFlows, Paced
from simshuffle.allreduce.steps import (
    Dependent,
    Sends,
    StepOfSends,
    Steps,
    among_power_of_two,
    dependent_flows,
    rail_of,
    with_folding,
)
from simshuffle.spec.arrays import Floats, Ints, Ints32, Ints64
from simshuffle.spec.record import Bandwidth, OneEach, PositiveNBytes, whole_as_float


class Stepwise(Dependent):
    """Each step by itself: no pipeline. The GPUs of a host share ``rails`` HCAs.

    Attributes:
        rails: HCAs that the GPUs of a host share; at most, and by default, ``cluster.host.hcas``.
    """

    one_for_each_hca: ClassVar[str] = "rails"
    rails: OneEach

    @abstractmethod
    def steps(self, host_of: Ints32) -> Steps:
        """What ranks on hosts ``host_of``, (M,), send."""

    def sends(self, host_of: Ints32) -> Sends:
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

    def steps(self, host_of: Ints32) -> Steps:
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

    def steps(self, host_of: Ints32) -> Steps:
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


class Sparse(Paced):
    """Every rank sends the share ``density`` of its gradients that is largest, each with its index,
    and adds what it receives, by recursive doubling (SparCML: Renggli et al., SC 2019; over the
    hosts of a cluster: Nguyen, Wahib & Takano, IPCCC 2019).

    Positions are independent, so the gradients of c ranks fill 1 - (1 - density)^c of all: at every
    doubling almost twice as many, until indices cost more than they save. What is larger than the
    dense buffer is sent as that. Finding the largest takes the bytes over ``selection_bandwidth``
    before anything is sent. What a rank does not send it adds to its next gradients; what that does
    to accuracy is not modelled.

    Attributes:
        rails: HCAs of a host that the bytes are spread over; at most, and by default,
            ``cluster.host.hcas``.
        density: share of the gradients that a rank sends: above 0, at most 1.
        selection_bandwidth: bytes of gradients a second from which the largest are found.
        value_size: of a gradient.
        index_size: of its place.
    """

    default_sources: ClassVar[dict[str, str]] = {
        "density": "default: one in a thousand, as in deep gradient compression (Lin et al.,"
        " ICLR 2018)",
        "value_size": "default: single precision",
        "index_size": "default: 32 bits",
    }

    one_for_each_hca: ClassVar[str] = "rails"
    kind: Literal["sparse"]
    rails: OneEach
    density: Annotated[float, BeforeValidator(whole_as_float)] = 0.001
    selection_bandwidth: Bandwidth
    value_size: PositiveNBytes = 4.0
    index_size: PositiveNBytes = 4.0

    @model_validator(mode="after")
    def _some_are_sent(self) -> Sparse:
        if not 0 < self.density <= 1:
            problem = {
                "key": "density",
                "rule": "must be above 0 and at most 1, the share of gradients that is sent",
                "value": f"{self.density:g}",
                "remedy": "Write for example 0.001; without selection use recursive_doubling.",
            }
            raise PydanticCustomError("density", "{key} {rule}", problem)
        return self

    def share(self, contributions: Ints) -> Floats:
        """Bytes of the sum of so many ranks' gradients, as a share of the dense buffer."""
        filled = 1 - (1 - self.density) ** contributions.astype(np.float64)
        return np.minimum(filled * (1 + self.index_size / self.value_size), 1.0)

    def steps(self, host_of: Ints32) -> Steps:
        """What ranks on hosts ``host_of``, (M,), send, were it dense."""
        return recursive_doubling_steps(len(host_of))

    def flows_of_several(self, host_of: Ints32, nbytes: float) -> AllreduceFlows:
        """Of ``nbytes`` bytes (dense), see `dependent_flows`."""
        steps = self.steps(host_of)
        dense = Sends.of(steps, rail_of(host_of, self.rails))
        sends = replace(dense, share=self.share(contributions(steps, len(host_of))))
        flows = dependent_flows(sends, host_of, nbytes, self)
        return replace(flows, latency=nbytes / self.selection_bandwidth)


def contributions(steps: Steps, world_size: int) -> Ints64:
    """(sends,) of how many ranks each send carries the gradients; all send the whole buffer."""
    held, sent = np.ones(world_size, np.int64), np.zeros(len(steps), np.int64)
    for step in range(steps.count):
        now = steps.step == step
        dst, adds = steps.dst[now], steps.adds[now]
        sent[now] = held[steps.src[now]]
        held[dst] = sent[now] + np.where(adds, held[dst], 0)
    return sent
