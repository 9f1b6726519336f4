"""Allreduce over a torus of hosts and their GPUs."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from simshuffle.allreduce.base import Paced
from simshuffle.allreduce.flows import AllreduceFlows
from simshuffle.allreduce.grid import Grid
from simshuffle.allreduce.ring import ring_sends, ring_steps
from simshuffle.allreduce.steps import Steps, dependent_flows, rail_of
from simshuffle.spec.record import Count


class Torus(Paced):
    """Reduce-scatter around the ring of a host's GPUs, rings of the GPUs at the same place of all
    hosts, each with its share, and all-gather in the host (the 2D-Torus of Mikami et al.,
    arXiv:1811.05233, whose rows may be longer than a host).

    In a host of fewer ranks than the fullest, ranks stand in the rings of several places: see
    `Grid`. The GPUs of a host share ``rails`` HCAs. Rings are pipelines, one after the other.
    """

    one_for_each_hca: ClassVar[str] = "rails"
    kind: Literal["torus"]
    rails: Count

    def steps(self, host_of: NDArray[np.int32]) -> Steps:
        """What ranks on hosts ``host_of``, (M,), send: 2 (G-1) + 2 (H-1) steps on H hosts of up to
        G ranks."""
        grid = Grid(host_of)
        return grid.steps(ring_steps(grid.hosts))

    def flows(self, host_of: NDArray[np.int32], nbytes: float) -> AllreduceFlows | None:
        """The flows of an allreduce of ``nbytes`` bytes over ranks on hosts ``host_of``, (M,); None
        for a single rank. See `dependent_flows`."""
        if len(host_of) == 1:
            return None
        grid = Grid(host_of)
        rail = rail_of(host_of, self.rails)[grid.leader]
        return dependent_flows(grid.sends(ring_sends(grid.hosts), rail), host_of, nbytes, self)
