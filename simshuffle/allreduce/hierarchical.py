"""Hierarchical allreduce: by leaders of hosts."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from simshuffle.allreduce.doubling import halving_doubling_sends, halving_doubling_steps
from simshuffle.allreduce.grid import Grid
from simshuffle.allreduce.ring import ring_sends, ring_steps
from simshuffle.allreduce.steps import Dependent, Sends, Steps
from simshuffle.spec.record import OneEach

STEPS = {"ring": ring_steps, "halving_doubling": halving_doubling_steps}
SENDS = {"ring": ring_sends, "halving_doubling": halving_doubling_sends}


class Hierarchical(Dependent):
    """Reduce to the leaders of each host, allreduce among the leaders of all hosts, broadcast in
    the host (Ueno & Yokota, CCGrid 2019; leaders of hosts as in Nguyen, Wahib & Takano,
    "Topology-aware sparse allreduce for large-scale deep learning").

    ``leaders`` ranks of a host each lead an equal share of the bytes, on an HCA of their own; in a
    host of fewer ranks one leads several: see `Grid`. Leaders go around a ring, or by recursive
    halving and doubling. Inside hosts and around the ring bytes move as in a pipeline.

    Attributes:
        leaders: leaders of a host, each with an HCA of its own; at most, and by default,
            ``cluster.host.hcas``.
        among_hosts: how the leaders of all hosts sum.
    """

    one_for_each_hca: ClassVar[str] = "leaders"
    kind: Literal["hierarchical"]
    leaders: OneEach
    among_hosts: Literal["ring", "halving_doubling"]

    def steps(self, host_of: NDArray[np.int32]) -> Steps:
        """What ranks on hosts ``host_of``, (M,), send: 2 (G-1) steps inside hosts of up to G ranks,
        and those of the leaders."""
        grid = Grid(host_of, self.leaders)
        return grid.steps(STEPS[self.among_hosts](grid.hosts))

    def sends(self, host_of: NDArray[np.int32]) -> Sends:
        """See `Dependent.sends`."""
        grid = Grid(host_of, self.leaders)
        rail = np.broadcast_to(np.arange(self.leaders, dtype=np.int32), grid.leader.shape)
        return grid.sends(SENDS[self.among_hosts](grid.hosts), rail)
