"""Allreduce over a torus of hosts and their GPUs."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from simshuffle.allreduce.grid import Grid
from simshuffle.allreduce.ring import ring_sends, ring_steps
from simshuffle.allreduce.steps import Dependent, Sends, Steps, rail_of
from simshuffle.spec.record import Count, OneEach


class Torus(Dependent):
    """Reduce-scatter around the ring of a row, rings of the GPUs at the same place of all rows,
    each with its share, and all-gather in the row (the 2D-Torus of Mikami et al.,
    arXiv:1811.05233). A row is ``hosts_per_row`` hosts; theirs had 8 hosts of 4 GPUs.

    In a row of fewer ranks than the fullest, ranks stand in the rings of several places: see
    `Grid`. The GPUs of a host share ``rails`` HCAs; of a row's ring that leaves a host, each
    carries an equal number of the places' shares. Rings are pipelines, one after the other.

    Attributes:
        rails: HCAs that the GPUs of a host share; at most, and by default, ``cluster.host.hcas``.
        hosts_per_row: hosts of a row.
    """

    one_for_each_hca: ClassVar[str] = "rails"
    kind: Literal["torus"]
    rails: OneEach
    hosts_per_row: Count = 1

    def _grid(self, host_of: NDArray[np.int32]) -> Grid:
        _, first, host = np.unique(host_of, return_index=True, return_inverse=True)
        met = np.argsort(np.argsort(first))  # hosts in the order of their first ranks
        return Grid((met[host] // self.hosts_per_row).astype(np.int32))

    def steps(self, host_of: NDArray[np.int32]) -> Steps:
        """What ranks on hosts ``host_of``, (M,), send: 2 (G-1) + 2 (R-1) steps in R rows of up to
        G ranks."""
        grid = self._grid(host_of)
        return grid.steps(ring_steps(grid.hosts))

    def sends(self, host_of: NDArray[np.int32]) -> Sends:
        """See `Dependent.sends`."""
        grid = self._grid(host_of)
        rail = rail_of(host_of, self.rails)[grid.leader]
        return grid.sends(ring_sends(grid.hosts), rail, self.rails)
