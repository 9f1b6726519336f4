"""What an allreduce does, step by step, and the flows of one whose steps wait for one another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Steps:
    """All sends of an allreduce. Those of a step go at once, and carry what was there before it.

    Attributes:
        parts: equal parts of the buffer; as many as are needed to cut it where the sends do.
        step: (sends,) from 0, not decreasing.
        src, dst: (sends,) ranks.
        first, end: (sends,) the parts from ``first`` to before ``end`` travel.
        adds: (sends,) whether the receiver adds them to its own, or else takes them in their place.
    """

    parts: int
    step: Ints
    src: Ints
    dst: Ints
    first: Ints
    end: Ints
    adds: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def share(self) -> NDArray[np.float64]:
        """(sends,) share of the buffer that travels."""
        return np.asarray((self.end - self.first) / self.parts)
