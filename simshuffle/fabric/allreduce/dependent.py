"""Allreduces whose steps wait for one another: by halving and doubling distances, of
all gradients or of the largest; and over a grid: inside hosts, along each column of
hosts, inside hosts again.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from simshuffle.fabric.allreduce.base import AllreduceFlows, Paced
from simshuffle.fabric.allreduce.layout import keep_layouts
from simshuffle.fabric.allreduce.nccl import ring_sends
from simshuffle.fabric.allreduce.steps import (
    Dependent,
    SendLayout,
    Sends,
    StepOfSends,
    Steps,
    add_folding_steps,
    fold_to_power_of_two,
    lay_out_sends,
    place_in_host,
    rail_of,
)
from simshuffle.spec.arrays import Floats, Ints, Ints32, Ints64
from simshuffle.spec.record import (
    Bandwidth,
    Count,
    OneEach,
    PositiveNBytes,
    whole_as_float,
)


class Stepwise(Dependent):
    """Each step by itself: no pipeline. The GPUs of a host share ``rails`` HCAs.

    Attributes:
        rails: HCAs that the GPUs of a host share; at most, and by default,
            ``cluster.host.hcas``.
    """

    one_for_each_hca: ClassVar[str] = "rails"
    rails: OneEach

    @abstractmethod
    def steps(self, host_of: Ints32) -> Steps:
        """Return the sends of ranks on hosts ``host_of`` (M,), step by step."""

    def sends(self, host_of: Ints32) -> Sends:
        """Return the sends of all steps, each on the rail of its sender; see
        `Dependent.sends`.
        """
        return Sends.from_steps(self.steps(host_of), rail_of(host_of, self.rails))


class HalvingDoubling(Stepwise):
    """Reduce-scatter by recursive halving, all-gather by recursive doubling
    (Rabenseifner, ICCS 2004; Thakur, Rabenseifner & Gropp, Int. J. High Perform.
    Comput. Appl. 19, 2005).

    Ranks exchange half of the buffer with their neighbour, then a quarter with the one
    at distance 2, and so on, and the same back; so the most bytes stay inside hosts. Of
    2^k + r ranks the first 2r fold in pairs before and unfold after.
    """

    kind: Literal["halving_doubling"]

    def steps(self, host_of: Ints32) -> Steps:
        """Return 2 floor(log2 M) steps, and two more if M is no power of two; see
        `Stepwise.steps`.
        """
        return halving_doubling_steps(len(host_of))


def halving_doubling_steps(count: int) -> Steps:
    """Return the steps of halving and doubling among ``count`` ranks; none for one.

    The buffer has as many parts as the largest power of two up to ``count``. Other
    ranks fold before and unfold after.
    """
    ranks, _, _ = fold_to_power_of_two(count)
    index = np.arange(len(ranks))
    # the first of the parts that each rank still sums
    kept_first = np.zeros(len(ranks), np.int64)
    length = len(ranks)
    halving: list[StepOfSends] = []
    doubling: list[StepOfSends] = []
    for bit in range(len(ranks).bit_length() - 1):
        # of two partners the one with the bit set keeps the upper half of their parts
        partner = ranks[index ^ (1 << bit)]
        length //= 2
        upper_offset = (index >> bit & 1) * length
        sent_first = kept_first + length - upper_offset
        kept_first = kept_first + upper_offset
        halving.append((ranks, partner, sent_first, sent_first + length, True))
        doubling.append((ranks, partner, kept_first, kept_first + length, False))
    return add_folding_steps(count, len(ranks), [*halving, *reversed(doubling)])


class RecursiveDoubling(Stepwise):
    """Ranks exchange the whole buffer with the one at distance 1, then 2, 4 and so on
    (Thakur, Rabenseifner & Gropp, Int. J. High Perform. Comput. Appl. 19, 2005): few
    steps, many bytes.

    Of 2^k + r ranks the first 2r fold in pairs before and unfold after.
    """

    kind: Literal["recursive_doubling"]

    def steps(self, host_of: Ints32) -> Steps:
        """Return floor(log2 M) steps, and two more if M is no power of two; see
        `Stepwise.steps`.
        """
        return recursive_doubling_steps(len(host_of))


def recursive_doubling_steps(count: int) -> Steps:
    """Return the steps of recursive doubling among ``count`` ranks; none for one.

    Each send carries the whole buffer. Ranks beyond the largest power of two fold
    before and unfold after.
    """
    ranks, _, _ = fold_to_power_of_two(count)
    index = np.arange(len(ranks))
    steps: list[StepOfSends] = [
        (ranks, ranks[index ^ (1 << bit)], 0, 1, True)
        for bit in range(len(ranks).bit_length() - 1)
    ]
    return add_folding_steps(count, 1, steps)


class Sparse(Paced):
    """Sparse allreduce: a rank sends the share ``density`` of its gradients that is
    largest, each with its index, and adds what it receives, by recursive doubling
    (SparCML: Renggli et al., SC 2019; over the hosts of a cluster: Nguyen, Wahib &
    Takano, IPCCC 2019).

    Positions are independent, so the gradients of c ranks fill 1 - (1 - density)^c of
    all: at every doubling almost twice as many, until indices cost more than they save.
    What is larger than the dense buffer is sent as that. Finding the largest takes the
    bytes over ``selection_bandwidth`` before anything is sent. What a rank does not
    send it adds to its next gradients; what that does to accuracy is not modelled.

    Attributes:
        rails: HCAs of a host that the bytes are spread over; at most, and by default,
            ``cluster.host.hcas``.
        density: share of the gradients that a rank sends: above 0, at most 1.
        selection_bandwidth: bytes of gradients a second from which the largest are
            found.
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
    def _check_density(self) -> Sparse:
        """Raise a PydanticCustomError unless ``density`` is above 0 and at most 1."""
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
        """(n,) bytes of the sum of ``contributions`` (n,) ranks' gradients, with their
        indices, as a share of the dense buffer; 1 at most.
        """
        filled = 1 - (1 - self.density) ** contributions.astype(np.float64)
        return np.minimum(filled * (1 + self.index_size / self.value_size), 1.0)

    def steps(self, host_of: Ints32) -> Steps:
        """Return the sends of ranks on hosts ``host_of`` (M,), step by step, as if the
        buffer were dense.
        """
        return recursive_doubling_steps(len(host_of))

    def flows_of_several(self, host_of: Ints32, nbytes: float) -> AllreduceFlows:
        """Return the flows of a sparse allreduce of ``nbytes`` bytes (dense size), as
        `dependent_flows` has them.

        Their latency is the time to find the largest gradients.
        """
        flows = self.lay_out(host_of).flows(nbytes, self)
        return replace(flows, latency=nbytes / self.selection_bandwidth)

    @keep_layouts
    def lay_out(self, host_of: Ints32) -> SendLayout:
        """Lay out the sends of the largest gradients over hosts ``host_of`` (M,)."""
        steps = self.steps(host_of)
        dense = Sends.from_steps(steps, rail_of(host_of, self.rails))
        share = self.share(count_contributions(steps, len(host_of)))
        return lay_out_sends(replace(dense, share=share), host_of)


def count_contributions(steps: Steps, world_size: int) -> Ints64:
    """(sends,) number of ranks whose gradients each send carries, where every send of
    ``steps`` carries the whole buffer.
    """
    num_held = np.ones(world_size, np.int64)
    num_sent = np.zeros(len(steps), np.int64)
    for step in range(steps.count):
        in_step = steps.step == step
        dst = steps.dst[in_step]
        adds = steps.adds[in_step]
        num_sent[in_step] = num_held[steps.src[in_step]]
        num_held[dst] = num_sent[in_step] + np.where(adds, num_held[dst], 0)
    return num_sent


class ColumnGrid:
    """A grid of hosts and columns, of which each column carries an equal share of the
    buffer. In every host one rank stands in a column, the one at place column * ranks /
    columns, rounded down; so in a host of fewer ranks than columns some stand in
    several.

    Inside a host the share of a column goes from rank to rank, around a ring that all
    columns have in common, until it ends where its column is, and back from there. With
    as many columns as ranks that is the ring's reduce-scatter and all-gather; with one
    it is a chain's reduce and broadcast.

    Hosts are numbered in the order of their first ranks. ``hosts`` and ``columns`` are
    their numbers, ``size`` (hosts,) the ranks of each host, ``leader`` the rank of each
    host in each column.

    Args:
        host_of: (M,) hosts.
        columns: how many; 0 for as many as the fullest host has ranks.
    """

    def __init__(self, host_of: Ints32, columns: int = 0) -> None:
        _, first_rank, host_index, size = np.unique(
            host_of, return_index=True, return_inverse=True, return_counts=True
        )
        host_order = np.argsort(first_rank)  # hosts in the order of their first ranks
        self.size = size[host_order]
        self.hosts = len(size)
        self.columns = columns or int(size.max())
        # rows: hosts in that order; columns: places in the host, -1 where it has no rank
        self._rank = np.full((self.hosts, int(size.max())), -1, np.int32)
        self._rank[np.argsort(host_order)[host_index], place_in_host(host_of)] = (
            np.arange(len(host_of))
        )
        self._place_of_column = (
            np.arange(self.columns) * self.size[:, None] // self.columns
        )
        self.leader: Ints32 = np.take_along_axis(
            self._rank, self._place_of_column, axis=1
        )
        """(hosts, columns) the rank in each column."""

    def chains(self, first: int) -> tuple[Ints, ...]:
        """The hops of the chains inside hosts, whose first sends are ``first`` places
        after their column's. Each chain has one hop less than its host has ranks.

        Returns:
            (hops,) each: host, column, index of the hop, rank that sends, rank that
            receives.
        """
        hops = np.arange(self._rank.shape[1] - 1)
        goes_on = hops < self.size[:, None, None] - 1
        shape = (self.hosts, self.columns, len(hops))
        host, column, hop = np.nonzero(np.broadcast_to(goes_on, shape))
        place = self._place_of_column[host, column] + first + hop
        src, dst = (
            self._rank[host, place_in_ring % self.size[host]]
            for place_in_ring in (place, place + 1)
        )
        return host, column, hop, src, dst

    def sends(self, among: Sends, rail: Ints32, rails: int = 1) -> Sends:
        """Return all sends: the chains inside hosts as pipelines, and between them the
        sends of each column.

        The chains to the columns are step 0, the sends ``among`` hosts the steps after
        it, and the chains back the last step; sends are not sorted by step.

        Args:
            among: sends among the hosts of one column, by index of the host.
            rail: (hosts, columns) the rail on which a host sends for a column.
            rails: rails over which columns are spread where a chain leaves a host, if a
                host of this grid is a row of hosts.
        """
        stages: list[tuple[ArrayLike, ...]] = []
        for first, step in ((1, 0), (0, int(among.step.max(initial=-1)) + 2)):
            host, column, _, src, dst = self.chains(first)
            hops = self.size[host] - 1
            head = self.leader[host, column]
            rail_of_send = column * rails // self.columns
            stages.append((step, src, dst, 1 / self.columns, rail_of_send, hops, head))
        share = among.share / self.columns
        for leader, rail_of_send in zip(self.leader.T, rail.T, strict=True):
            src, dst, head = (
                leader[host] for host in (among.src, among.dst, among.origin)
            )
            stages.append(
                (
                    among.step + 1,
                    src,
                    dst,
                    share,
                    rail_of_send[among.src],
                    among.hops,
                    head,
                )
            )
        return Sends.join(stages)


class Hierarchical(Dependent):
    """Reduce to the leaders of each host, allreduce among the leaders of all hosts,
    broadcast in the host (Ueno & Yokota, CCGrid 2019; leaders of hosts as in Nguyen,
    Wahib & Takano, "Topology-aware sparse allreduce for large-scale deep learning").

    ``leaders`` ranks of a host each lead an equal share of the bytes, on an HCA of
    their own; in a host of fewer ranks one leads several: see `ColumnGrid`. Leaders go
    around a ring, or by recursive halving and doubling. Inside hosts and around the
    ring bytes move as in a pipeline.

    Attributes:
        leaders: leaders of a host, each with an HCA of its own; at most, and by
            default, ``cluster.host.hcas``.
        among_hosts: how the leaders of all hosts sum.
    """

    one_for_each_hca: ClassVar[str] = "leaders"
    kind: Literal["hierarchical"]
    leaders: OneEach
    among_hosts: Literal["ring", "halving_doubling"]

    def sends(self, host_of: Ints32) -> Sends:
        """Return the sends inside hosts and among their leaders; see `Dependent.sends`."""
        grid = ColumnGrid(host_of, self.leaders)
        rail = np.broadcast_to(
            np.arange(self.leaders, dtype=np.int32), grid.leader.shape
        )
        if self.among_hosts == "ring":
            return grid.sends(ring_sends(grid.hosts), rail)
        steps = halving_doubling_steps(grid.hosts)
        return grid.sends(Sends.from_steps(steps, np.zeros(grid.hosts, np.int32)), rail)


class Torus(Dependent):
    """2D torus: reduce-scatter around the ring of a row, rings of the GPUs at equal
    places of all rows, each with its share, and all-gather in the row (Mikami et al.,
    arXiv:1811.05233). A row is ``hosts_per_row`` hosts; theirs had 8 hosts of 4 GPUs.

    In a row of fewer ranks than the fullest, ranks stand in the rings of several
    places: see `ColumnGrid`. The GPUs of a host share ``rails`` HCAs; of a row's ring
    that leaves a host, each carries an equal number of the places' shares. Rings are
    pipelines, one after the other.

    Attributes:
        rails: HCAs that the GPUs of a host share; at most, and by default,
            ``cluster.host.hcas``.
        hosts_per_row: hosts of a row.
    """

    one_for_each_hca: ClassVar[str] = "rails"
    kind: Literal["torus"]
    rails: OneEach
    hosts_per_row: Count = 1

    def grid(self, host_of: Ints32) -> ColumnGrid:
        """Return the grid of ranks, with rows in the place of hosts.

        A row is ``hosts_per_row`` hosts in the order of their first ranks; the last row
        may have fewer.
        """
        _, first, host = np.unique(host_of, return_index=True, return_inverse=True)
        host_order = np.argsort(
            np.argsort(first)
        )  # hosts in the order of their first ranks
        return ColumnGrid((host_order[host] // self.hosts_per_row).astype(np.int32))

    def sends(self, host_of: Ints32) -> Sends:
        """Return the sends inside rows and along columns; see `Dependent.sends`."""
        grid = self.grid(host_of)
        rail = rail_of(host_of, self.rails)[grid.leader]
        return grid.sends(ring_sends(grid.hosts), rail, self.rails)


class Sharp(Paced):
    """Switches sum what comes up from below, pass the sum on to the switch above them,
    and the topmost sends the result down (SHArP: Graham et al., COMHPC 2016; for large
    buffers, as bytes arrive: Graham et al., ISC 2020). So a host sends and receives
    each byte once, and not twice.

    Inside a host the ranks are a chain to the one at each HCA, which has an equal
    share, and back; all bytes move as in a pipeline, at once. A level of switches costs
    ``inter_host_latency`` up and once more down; as many are needed as trees with
    ``radix`` hosts or switches below each have. A host sends at most at the bus
    bandwidth; what nccl-tests call so is up to twice that.

    **Flows.** On the links of switches that form a tree, flows from each host to the
    next in sorted order, and from the last to the first, load every link as the
    reduction does. For the hosts below a link follow one another: one flow leaves them,
    and one enters, unless they are all. The reduction sends one sum up that link and
    one result down. Where switches have several ways up, both take one of them.

    Attributes:
        rails: HCAs of a host that the bytes are spread over; at most, and by default,
            ``cluster.host.hcas``.
        radix: hosts or switches below a switch; 'inter_host_latency' is that of a level
            of switches.
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
        """Number of levels of switches above ``hosts`` hosts; 0 above a single host."""
        levels = 0
        hosts_below = 1
        while hosts_below < hosts:
            levels += 1
            hosts_below *= self.radix
        return levels

    def flows_of_several(self, host_of: Ints32, nbytes: float) -> AllreduceFlows:
        """Return the flows that load every link as the reduction in the switches does:
        rings of hosts, and chains inside hosts.

        No flow waits for another: all run at once after the latency of all levels and
        of the longest chain.
        """
        flows = self.lay_out(host_of).flows(nbytes, self)
        _, ranks_of_host = np.unique(host_of, return_counts=True)
        host_latency = (int(ranks_of_host.max()) - 1) * self.intra_host_latency
        levels = self.levels(len(ranks_of_host))
        latency = 2 * (host_latency + levels * self.inter_host_latency)
        return replace(flows, delay=0.0, latency=latency)

    @keep_layouts
    def lay_out(self, host_of: Ints32) -> SendLayout:
        """Lay out the rings of hosts and the chains inside hosts as a single step."""
        grid = ColumnGrid(host_of, self.rails)
        host = np.arange(grid.hosts if grid.hosts > 1 else 0)
        ring_among_hosts = Sends.join([(0, host, np.roll(host, -1), 1.0, 0, 1, host)])
        rail = np.broadcast_to(np.arange(self.rails, dtype=np.int32), grid.leader.shape)
        sends = grid.sends(ring_among_hosts, rail)
        single_step = replace(sends, step=np.zeros_like(sends.step))
        return lay_out_sends(single_step, host_of)
