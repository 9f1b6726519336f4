"""What every allreduce algorithm answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class AllreduceFlows:
    """The flows of one allreduce, which all run at once after its latency.

    Attributes:
        src, dst: (flows,) ranks.
        nbytes: (flows,) bytes.
        rail: (flows,) the HCA that a flow between hosts uses; means nothing inside a host.
        cap: (flows,) bytes/s at most.
        latency: s, of the whole allreduce.
    """

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    nbytes: NDArray[np.float64]
    rail: NDArray[np.int32]
    cap: NDArray[np.float64]
    latency: float

    @property
    def seconds_uncontended(self) -> float:
        """Time (s) if nothing but the caps limits: latency plus bytes over bandwidth."""
        return self.latency + float((self.nbytes / self.cap).max())
