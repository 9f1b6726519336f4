"""Equal-cost multipath: a hash of a flow's header chooses among the links of all
shortest ways.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simshuffle.errors import Problem
from simshuffle.fabric.routing.fabric import Fabric
from simshuffle.fabric.routing.router import (
    HopByHop,
    MessagePositions,
    Router,
    RoutingRule,
    hash_words,
)
from simshuffle.spec.arrays import Ints32, Ints64


class Ecmp(RoutingRule):
    """ECMP, as Ethernet switches do for RoCE.

    RoCE v2 uses the UDP source ports 49,152 to 65,535. Where all switches hash alike
    (``salt: none``), a switch repeats the choice of the one before it, and of its links
    only those are used that agree with that (polarisation).

    Attributes:
        queue_pairs: connections between two ports, which messages take in turn.
        ports: UDP source ports, of which each connection draws one.
        salt: whether every switch hashes in its own way, or all alike.
    """

    drawn: ClassVar[bool] = True

    kind: Literal["ecmp"] = "ecmp"
    queue_pairs: Annotated[int, Field(ge=1, le=4096)] = 1
    ports: Annotated[int, Field(ge=1, le=16384)] = 16384
    salt: Literal["per_switch", "none"] = "per_switch"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """Return a router that hashes headers; another seed gives other UDP ports and
        hashes.
        """
        return _EcmpRouter(fabric, seed, self)

    def warnings(self, fabric: Fabric) -> list[Problem]:
        """List the warning of polarisation, if all switches hash alike and a route has
        two choices or more; else none.
        """
        if self.salt != "none" or max_choices_on_route(fabric) < 2:
            return []
        rule = "lets switches on one route make the same choice, so that some links stay unused"
        path = "cluster.routing.salt"
        remedy = "Write per_switch, or leave it out."
        return [Problem(path, rule, self.salt, remedy)]


def max_choices_on_route(fabric: Fabric) -> int:
    """Return how often, at most, switches of a shortest route to a host choose among
    several links.

    One port of each switch is tried, in large networks of about 256 switches only, and
    on each way the first links alone: an estimate from below.
    """
    _, first_port = np.unique(fabric.switch_of_port, return_index=True)
    ports: Ints32 = first_port[:: -(-len(first_port) // 256)].astype(np.int32)
    is_host_port = fabric.switches.is_transit[fabric.switch_of_port[ports]]
    ends = ports[is_host_port]  # nothing is written to storage
    src = np.repeat(ports, len(ends))
    dst = np.tile(ends, len(ports))
    counter = _ChoiceCounter(fabric, len(src))
    counter.routes(src, dst)
    return int(counter.num_choices.max(initial=0))


class _ChoiceCounter(HopByHop):
    """A router that takes the first link of each choice, and counts in ``num_choices``
    (n,) how often each message had several links to choose from.

    Args:
        fabric: the network.
        count: messages that are routed in one call.
    """

    def __init__(self, fabric: Fabric, count: int) -> None:
        super().__init__(fabric)
        self.num_choices = np.zeros(count, np.int64)

    def choose(self, step: MessagePositions) -> Ints32:
        """(n,) first link of each choice; choices of several links are counted."""
        first_link = self.choices.first_link
        self.num_choices[step.message] += (
            first_link[step.choice + 1] - first_link[step.choice] > 1
        )
        return self.select_link(step, np.zeros(len(step.switch), np.int64))


class _EcmpRouter(HopByHop):
    """Routes by a hash of each message's header; constant with one queue pair."""

    def __init__(self, fabric: Fabric, seed: int, rule: Ecmp) -> None:
        super().__init__(fabric)
        self._seed = seed
        self._rule = rule
        self.constant = rule.queue_pairs == 1
        self._header: NDArray[np.uint64] = np.zeros(0, np.uint64)

    def routes(self, src: Ints32, dst: Ints32) -> Ints32:
        """(n, `diameter`) int32 links of each route; see `Router.routes`.

        Messages of one call between two ports take their queue pairs in turn; each call
        begins with the first queue pair again.
        """
        port_pair = src.astype(np.int64) * (len(self.fabric.switch_of_port) + 1) + dst
        queue_pair = _count_earlier_equals(port_pair) % self._rule.queue_pairs
        udp_port = hash_words(self._seed, port_pair, queue_pair) % np.uint64(
            self._rule.ports
        )
        self._header = hash_words(self._seed, src, dst, udp_port)
        return super().routes(src, dst)

    def choose(self, step: MessagePositions) -> Ints32:
        """(n,) next link of each message, by a hash of its header, which `routes` made,
        and the switch's salt.
        """
        salt = step.switch if self._rule.salt == "per_switch" else 0
        return self.select_link(step, hash_words(self._header[step.message], salt))


def _count_earlier_equals(keys: Ints64) -> Ints64:
    """(n,) how many equal keys stand before each of ``keys`` (n,)."""
    # equal keys, side by side in sorted order, are a run; a key's count is its index in its run
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first_of_run = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    num_earlier = np.empty(len(keys), np.int64)
    run_length = np.diff(np.append(first_of_run, len(keys)))
    num_earlier[order] = np.arange(len(keys)) - np.repeat(first_of_run, run_length)
    return num_earlier
