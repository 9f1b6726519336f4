"""Allreduce over a grid: inside hosts, along each column of hosts, and inside hosts again."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from simshuffle.allreduce.base import AllreduceFlows, Paced
from simshuffle.allreduce.doubling import halving_doubling_sends
from simshuffle.allreduce.nccl import ring_sends
from simshuffle.allreduce.steps import (
    Dependent,
    Sends,
    dependent_flows,
    place_in_host,
    rail_of,
)
from simshuffle.spec.arrays import Ints, Ints32
from simshuffle.spec.record import Count, OneEach


class Grid:
    """Each column carries an equal share of the buffer. In every host one rank stands in it, the
    one at place column * ranks / columns, rounded down; so in a host of fewer ranks than columns
    some stand in several.

    Inside a host the share of a column goes from rank to rank, around a ring that all columns have
    in common, until it ends where its column is, and back from there. With as many columns as ranks
    that is the ring's reduce-scatter and all-gather; with one it is a chain's reduce and broadcast.

    Args:
        host_of: (M,) hosts.
        columns: how many; 0 for as many as the fullest host has ranks.
    """

    def __init__(self, host_of: Ints32, columns: int = 0) -> None:
        _, first, number, size = np.unique(
            host_of, return_index=True, return_inverse=True, return_counts=True
        )
        met = np.argsort(first)  # hosts in the order of their first ranks
        self.size = size[met]
        self.hosts, self.columns = len(size), columns or int(size.max())
        self._rank = np.full((self.hosts, int(size.max())), -1, np.int32)
        self._rank[np.argsort(met)[number], place_in_host(host_of)] = np.arange(len(host_of))
        self._place = np.arange(self.columns) * self.size[:, None] // self.columns
        self.leader: Ints32 = np.take_along_axis(self._rank, self._place, axis=1)
        """(hosts, columns) the rank in each column."""

    def chains(self, first: int) -> tuple[Ints, ...]:
        """Host, column, hop, and ranks that send and receive on the chains inside hosts, whose
        first sends are ``first`` places after their column's."""
        hops = np.arange(self._rank.shape[1] - 1)
        host, column, hop = np.nonzero(
            np.broadcast_to(
                hops < self.size[:, None, None] - 1, (self.hosts, self.columns, len(hops))
            )
        )
        place = self._place[host, column] + first + hop
        src, dst = (self._rank[host, each % self.size[host]] for each in (place, place + 1))
        return host, column, hop, src, dst

    def sends(self, among: Sends, rail: Ints32, rails: int = 1) -> Sends:
        """All sends: the chains inside hosts as pipelines, and between them ``among``, those of the
        hosts of a column.

        Args:
            rail: (hosts, columns) what a host sends on, in each column.
            rails: over how many the columns are spread where a chain leaves a host, if what is
                called a host here is a row of them.
        """
        stages: list[tuple[ArrayLike, ...]] = []
        for first, step in ((1, 0), (0, int(among.step.max(initial=-1)) + 2)):
            host, column, _, src, dst = self.chains(first)
            hops, head = self.size[host] - 1, self.leader[host, column]
            on = column * rails // self.columns
            stages.append((step, src, dst, 1 / self.columns, on, hops, head))
        share = among.share / self.columns
        for leader, on in zip(self.leader.T, rail.T, strict=True):
            src, dst, head = (leader[each] for each in (among.src, among.dst, among.origin))
            stages.append((among.step + 1, src, dst, share, on[among.src], among.hops, head))
        return Sends.joined(stages)


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

    def sends(self, host_of: Ints32) -> Sends:
        """See `Dependent.sends`."""
        grid = Grid(host_of, self.leaders)
        rail = np.broadcast_to(np.arange(self.leaders, dtype=np.int32), grid.leader.shape)
        return grid.sends(SENDS[self.among_hosts](grid.hosts), rail)


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

    def grid(self, host_of: Ints32) -> Grid:
        """Rows in the place of hosts."""
        _, first, host = np.unique(host_of, return_index=True, return_inverse=True)
        met = np.argsort(np.argsort(first))  # hosts in the order of their first ranks
        return Grid((met[host] // self.hosts_per_row).astype(np.int32))

    def sends(self, host_of: Ints32) -> Sends:
        """See `Dependent.sends`."""
        grid = self.grid(host_of)
        rail = rail_of(host_of, self.rails)[grid.leader]
        return grid.sends(ring_sends(grid.hosts), rail, self.rails)


class Sharp(Paced):
    """Switches sum what comes up from below, pass the sum on to the switch above them, and the
    topmost sends the result down (SHArP: Graham et al., COMHPC 2016; for large buffers, as bytes
    arrive: Graham et al., ISC 2020). So a host sends and receives each byte once, and not twice.

    Inside a host the ranks are a chain to the one at each HCA, which has an equal share, and back;
    all bytes move as in a pipeline, at once. A level of switches costs ``inter_host_latency`` up
    and once more down; as many are needed as trees with ``radix`` hosts or switches below each
    have. A host sends at most at the bus bandwidth; what nccl-tests call so is up to twice that.

    **Flows.** On the links of switches that form a tree, flows from each host to the next in sorted
    order, and from the last to the first, load every link as the reduction does. For the hosts
    below a link follow one another: one flow leaves them, and one enters, unless they are all. The
    reduction sends one sum up that link and one result down. Where switches have several ways up,
    both take one of them.

    Attributes:
        rails: HCAs of a host that the bytes are spread over; at most, and by default,
            ``cluster.host.hcas``.
        radix: hosts or switches below a switch; 'inter_host_latency' is that of a level of
            switches.
    """

    default_sources: ClassVar[dict[str, str]] = {
        "radix": "default: half of the 36 ports of Switch-IB 2, with which Graham et al. (2016)"
        " measured"
    }

    one_for_each_hca: ClassVar[str] = "rails"
    kind: Literal["sharp"]
    rails: OneEach
    radix: Annotated[int, Field(ge=2, le=4096)] = 18

    def levels(self, hosts: int) -> int:
        """Levels of switches above so many hosts; 0 above a single one."""
        levels, below = 0, 1
        while below < hosts:
            levels, below = levels + 1, below * self.radix
        return levels

    def flows_of_several(self, host_of: Ints32, nbytes: float) -> AllreduceFlows:
        """See above."""
        grid = Grid(host_of, self.rails)
        host = np.arange(grid.hosts if grid.hosts > 1 else 0)
        once = Sends.joined([(0, host, np.roll(host, -1), 1.0, 0, 1, host)])
        rail = np.broadcast_to(np.arange(self.rails, dtype=np.int32), grid.leader.shape)
        sends = grid.sends(once, rail)
        flows = dependent_flows(
            replace(sends, step=np.zeros_like(sends.step)), host_of, nbytes, self
        )
        hops = int(grid.size.max()) - 1
        latency = 2 * (
            hops * self.intra_host_latency + self.levels(grid.hosts) * self.inter_host_latency
        )
        return replace(flows, delay=0.0, latency=latency)
