"""Allreduce of the largest gradients alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, model_validator
from pydantic_core import PydanticCustomError

from simshuffle.allreduce.base import Paced
from simshuffle.allreduce.doubling import recursive_doubling_steps
from simshuffle.allreduce.flows import AllreduceFlows
from simshuffle.allreduce.steps import Sends, Steps, dependent_flows, rail_of
from simshuffle.spec.record import Bandwidth, OneEach, PositiveNBytes, whole_as_float

Floats = NDArray[np.float64]


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

    def share(self, contributions: NDArray[np.integer]) -> Floats:
        """Bytes of the sum of so many ranks' gradients, as a share of the dense buffer."""
        filled = 1 - (1 - self.density) ** contributions.astype(np.float64)
        return np.minimum(filled * (1 + self.index_size / self.value_size), 1.0)

    def steps(self, host_of: NDArray[np.int32]) -> Steps:
        """What ranks on hosts ``host_of``, (M,), send, were it dense."""
        return recursive_doubling_steps(len(host_of))

    def flows(self, host_of: NDArray[np.int32], nbytes: float) -> AllreduceFlows | None:
        """The flows of an allreduce of ``nbytes`` bytes (dense) over ranks on hosts ``host_of``,
        (M,); None for a single rank. See `dependent_flows`."""
        if len(host_of) == 1:
            return None
        steps = self.steps(host_of)
        dense = Sends.of(steps, rail_of(host_of, self.rails))
        sends = replace(dense, share=self.share(contributions(steps, len(host_of))))
        flows = dependent_flows(sends, host_of, nbytes, self)
        return replace(flows, latency=nbytes / self.selection_bandwidth)


def contributions(steps: Steps, world_size: int) -> NDArray[np.int64]:
    """(sends,) of how many ranks each send carries the gradients; all send the whole buffer."""
    held, sent = np.ones(world_size, np.int64), np.zeros(len(steps), np.int64)
    for step in range(steps.count):
        now = steps.step == step
        dst, adds = steps.dst[now], steps.adds[now]
        sent[now] = held[steps.src[now]]
        held[dst] = sent[now] + np.where(adds, held[dst], 0)
    return sent
