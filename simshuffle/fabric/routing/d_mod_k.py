"""Static destination routing of trees: linear forwarding tables filled by D-mod-K.

On the way up, a switch at height l sends traffic for endpoint j through its up-link
number ``(j // (w_1 ... w_l)) mod K``, where ``w`` are the numbers of parents at the
levels below and K counts its up-links, numbered round robin over the parents (Zahavi,
JPDC 2012: D-Mod-K). On the way down the parallel links are chosen by the same digits,
so that every endpoint has one chain of links of its own and links of a level carry
equal shares of uniform traffic. Endpoints are the HCAs, numbered leaf switch by leaf
switch.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np

from simshuffle.fabric.routing.fabric import Fabric
from simshuffle.fabric.routing.router import (
    HopByHop,
    MessagePositions,
    Router,
    RoutingRule,
    unsuited,
)
from simshuffle.spec.arrays import Ints32


class DModK(RoutingRule):
    """D-mod-K: up-links by the digits of the destination; for trees."""

    kind: Literal["d_mod_k"] = "d_mod_k"

    def router(self, fabric: Fabric, seed: int) -> ForwardingTable:
        """Return the forwarding tables of the network; ``seed`` is not used.

        Raises:
            TopologyError: the switches do not stand in levels.
        """
        check_levels(fabric, self.kind)
        return ForwardingTable(fabric)


def check_levels(fabric: Fabric, kind: str) -> None:
    """Raise a TopologyError where the switches do not stand in levels, which routing
    ``kind`` needs.
    """
    if not fabric.switches.stand_in_levels():
        raise unsuited(
            f"{kind} is for switches that stand in levels, each link between them leading up or"
            " down",
            "a link between two switches of one level, and several ways around it",
            "Use another routing, such as min_hop or up_down.",
        )


class LevelRouter(HopByHop):
    """A router of trees that chooses up and down links by the digits of a port index."""

    @cached_property
    def _strides(self) -> list[int]:
        """(heights + 1) the stride of the digit of each height l, w_1 ... w_l: the
        product of the largest numbers of parents (at least 1) at all heights below.
        The switches of storage systems are no parents.
        """
        switches = self.fabric.switches
        depth = switches.depth
        is_upward = depth[switches.arc_dst] == depth[switches.arc_src] + 1
        leads_up = is_upward & switches.is_transit[switches.arc_dst]
        parents = np.bincount(switches.arc_src[leads_up], minlength=len(switches.nodes))
        strides = [1]
        for height in range(int(depth.max()) + 1):
            max_parents = int(parents[depth == height].max(initial=1))
            strides.append(strides[-1] * max_parents)
        return strides

    def links_by_digits(self, step: MessagePositions, endpoints: Ints32) -> Ints32:
        """(n,) next link of each message, by the digits of the port indices
        ``endpoints`` (n,): its destinations, or its sources.

        A neighbour or parallel link is picked modulo their number, so that switches may
        have fewer than their height's most.
        """
        choices = self.choices
        height = self.fabric.switches.depth[step.switch]
        # (n,) index of the neighbour among those of the choice, and of the link to that neighbour
        neighbour = np.empty_like(endpoints)
        parallel_link = np.empty_like(endpoints)
        leads_down = choices.leads_down[step.choice]
        for level in np.unique(height).tolist():
            for down in (False, True):
                messages = np.flatnonzero((height == level) & (leads_down == down))
                if not len(messages):
                    continue
                ports = endpoints[messages]
                num_neighbours = choices.num_neighbours[step.choice[messages]]
                num_parallel = choices.num_parallel[step.choice[messages]]
                if down:  # by the digits that lead up on the port's own route
                    stride = self._strides[level - 1]
                    width = self._strides[level] // stride
                    neighbour[messages] = self._descent_neighbour(
                        level, num_neighbours, ports
                    )
                    parallel_link[messages] = (ports // stride // width) % num_parallel
                else:  # round robin over the parents, then over parallel links
                    uplink = (ports // self._strides[level]) % (
                        num_neighbours * num_parallel
                    )
                    parallel_link[messages], neighbour[messages] = np.divmod(
                        uplink, num_neighbours
                    )
        row = choices.first_neighbour[step.choice] + neighbour
        return np.asarray(
            choices.links[choices.first_link_of_neighbour[row] + parallel_link]
        )

    def _descent_neighbour(
        self, height: int, count: Ints32, endpoints: Ints32
    ) -> Ints32:
        """(n,) index, among ``count`` lower neighbours, of the one that leads down to
        each endpoint: the parents that D-mod-K takes on the endpoint's own route up.
        """
        # sum over the levels below of digit * stride, the digits being those of the route up; an
        # endpoint's routes up reach no more switches than all these digits tell apart
        neighbour = np.zeros_like(endpoints)
        stride = 1
        for level in range(height - 1, 0, -1):
            parents = self._strides[level] // self._strides[level - 1]
            digit = (endpoints // self._strides[level - 1]) % parents
            neighbour += np.where(stride < count, digit * stride, 0).astype(np.int32)
            stride *= parents
        return neighbour % count


class ForwardingTable(LevelRouter):
    """Routes by D-mod-K, constant and computed when they are asked for.

    Args:
        graph: the network: a `Fabric`, or the graph or cabling to make one of. Its
            switches must stand in levels: `check_levels` is the caller's.
    """

    by_destination = True

    def __init__(self, graph: Any) -> None:
        super().__init__(graph if isinstance(graph, Fabric) else Fabric(graph))

    def choose(self, step: MessagePositions) -> Ints32:
        """(n,) next link of each message, by the digits of its destination; see
        `HopByHop.choose`.
        """
        return self.links_by_digits(step, step.dst)


class SModK(RoutingRule):
    """S-mod-K: up-links by the digits of the source, so that every source has one chain
    of links up (Rodriguez et al., Oblivious Routing Schemes in Extended Generalized Fat
    Tree Networks, CLUSTER 2009); for trees. What a storage system sends goes by the
    digits of the destination. It needs switches that look at the source, as those of
    InfiniBand do not.
    """

    kind: Literal["s_mod_k"] = "s_mod_k"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """Return a router by the digits of the source; ``seed`` is not used.

        Raises:
            TopologyError: the switches do not stand in levels.
        """
        check_levels(fabric, self.kind)
        return _SModKRouter(fabric)


class _SModKRouter(LevelRouter):
    """Routes by S-mod-K."""

    def choose(self, step: MessagePositions) -> Ints32:
        """(n,) next link of each message, by the digits of its source, or of its
        destination if a storage system sends; see `HopByHop.choose`.
        """
        # a storage system stands for many servers, which are not all on one chain
        is_served = self.fabric.is_storage_port[step.src]
        return self.links_by_digits(step, np.where(is_served, step.dst, step.src))
