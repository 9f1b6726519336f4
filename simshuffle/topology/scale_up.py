"""Scale-up domains: hosts that a switch fabric of their own joins, beside the network."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.spec.record import Bandwidth, Seconds, Sourced


class ScaleUp(Sourced):
    """Every ``hosts`` consecutive hosts form a domain, the last one maybe fewer: their GPUs are
    joined by switches of their own, as by NVLink in an NVL72.

    Attributes:
        hosts: of a domain.
        bandwidth: of each GPU in each direction, to all other hosts of the domain together.
        latency: from GPU to GPU.
    """

    hosts: Annotated[int, Field(ge=2, le=4096)]
    bandwidth: Bandwidth
    latency: Seconds
