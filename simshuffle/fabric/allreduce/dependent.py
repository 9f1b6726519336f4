"""Allreduces whose steps wait for one another: by halving and doubling distances, of all gradients
or of the largest; and over a grid: inside hosts, along each column of hosts, inside hosts again."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from simshuffle.fabric.allreduce.base import AllreduceFlows, Paced
from simshuffle.fabric.allreduce.nccl import ring_sends
from simshuffle.fabric.allreduce.steps import (
    Dependent,
    Sends,
    StepOfSends,
    Steps,
    among_power_of_two,
    dependent_flows,
    place_in_host,
    rail_of,
    with_folding,
)
from simshuffle.spec.arrays import Floats, Ints, Ints32, Ints64
from simshuffle.spec.record import Bandwidth, Count, OneEach, PositiveNBytes, whole_as_float


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
        """See `Stepwise.steps`: 2 floor(log2 M) steps, and two more if M is no power of two."""
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


class RecursiveDoubling(Stepwise):
    """Ranks exchange the whole buffer with the one at distance 1, then 2, 4 and so on (Thakur,
    Rabenseifner & Gropp, Int. J. High Perform. Comput. Appl. 19, 2005): few steps, many bytes.

    Of 2^k + r ranks the first 2r fold in pairs before and unfold after.
    """

    kind: Literal["recursive_doubling"]

    def steps(self, host_of: Ints32) -> Steps:
        """See `Stepwise.steps`: floor(log2 M) steps, and two more if M is no power of two."""
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


class ColumnGrid:
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
        goes_on = hops < self.size[:, None, None] - 1
        shape = (self.hosts, self.columns, len(hops))
        host, column, hop = np.nonzero(np.broadcast_to(goes_on, shape))
        place = self._place[host, column] + first + hop
        src, dst = (self._rank[host, each % self.size[host]] for each in (place, place + 1))
        return host, column, hop, src, dst

    def sends(self, among: Sends, rail: Ints32, rails: int = 1) -> Sends:
        """All sends: the chains inside hosts as pipelines, and between them ``among``, those of the
        hosts of a column. A host sends on ``rail``, (hosts, columns); columns are spread over
        ``rails`` where a chain leaves a host, if what is called a host here is a row of them."""
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


class Hierarchical(Dependent):
    """Reduce to the leaders of each host, allreduce among the leaders of all hosts, broadcast in
    the host (Ueno & Yokota, CCGrid 2019; leaders of hosts as in Nguyen, Wahib & Takano,
    "Topology-aware sparse allreduce for large-scale deep learning").

    ``leaders`` ranks of a host each lead an equal share of the bytes, on an HCA of their own; in a
    host of fewer ranks one leads several: see `ColumnGrid`. Leaders go around a ring, or by
        recursive
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
        grid = ColumnGrid(host_of, self.leaders)
        rail = np.broadcast_to(np.arange(self.leaders, dtype=np.int32), grid.leader.shape)
        if self.among_hosts == "ring":
            return grid.sends(ring_sends(grid.hosts), rail)
        steps = halving_doubling_steps(grid.hosts)
        return grid.sends(Sends.of(steps, np.zeros(grid.hosts, np.int32)), rail)


class Torus(Dependent):
    """Reduce-scatter around the ring of a row, rings of the GPUs at the same place of all rows,
    each with its share, and all-gather in the row (the 2D-Torus of Mikami et al.,
    arXiv:1811.05233). A row is ``hosts_per_row`` hosts; theirs had 8 hosts of 4 GPUs.

    In a row of fewer ranks than the fullest, ranks stand in the rings of several places: see
    `ColumnGrid`. The GPUs of a host share ``rails`` HCAs; of a row's ring that leaves a host, each
    carries an equal number of the places' shares. Rings are pipelines, one after the other.

    Attributes:
        rails: HCAs that the GPUs of a host share; at most, and by default, ``cluster.host.hcas``.
        hosts_per_row: hosts of a row.
    """

    one_for_each_hca: ClassVar[str] = "rails"
    kind: Literal["torus"]
    rails: OneEach
    hosts_per_row: Count = 1

    def grid(self, host_of: Ints32) -> ColumnGrid:
        """Rows in the place of hosts."""
        _, first, host = np.unique(host_of, return_index=True, return_inverse=True)
        met = np.argsort(np.argsort(first))  # hosts in the order of their first ranks
        return ColumnGrid((met[host] // self.hosts_per_row).astype(np.int32))

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
        grid = ColumnGrid(host_of, self.rails)
        host = np.arange(grid.hosts if grid.hosts > 1 else 0)
        once = Sends.joined([(0, host, np.roll(host, -1), 1.0, 0, 1, host)])
        rail = np.broadcast_to(np.arange(self.rails, dtype=np.int32), grid.leader.shape)
        sends = grid.sends(once, rail)
        at_once = replace(sends, step=np.zeros_like(sends.step))
        flows = dependent_flows(at_once, host_of, nbytes, self)
        inside = (int(grid.size.max()) - 1) * self.intra_host_latency
        latency = 2 * (inside + self.levels(grid.hosts) * self.inter_host_latency)
        return replace(flows, delay=0.0, latency=latency)
