"""Equal-cost multipath: a hash of a flow's header chooses among the links of all shortest ways."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simshuffle.errors import Problem
from simshuffle.fabric.routing.fabric import Fabric
from simshuffle.fabric.routing.router import HopByHop, MessagePositions, Router, RoutingRule, mixed
from simshuffle.spec.arrays import Ints32, Ints64


class Ecmp(RoutingRule):
    """ECMP, as Ethernet switches do for RoCE.

    RoCE v2 uses the UDP source ports 49,152 to 65,535. Where all switches hash alike (``salt:
    none``), a switch repeats the choice of the one before it, and of its links only those are used
    that agree with that (polarisation).

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
        """See `RoutingRule.router`."""
        return _EcmpRouter(fabric, seed, self)

    def warnings(self, fabric: Fabric) -> list[Problem]:
        """See `RoutingRule.warnings`: polarisation, where a route has two choices or more."""
        if self.salt != "none" or most_choices(fabric) < 2:
            return []
        rule = "lets switches on one route make the same choice, so that some links stay unused"
        path, remedy = "cluster.routing.salt", "Write per_switch, or leave it out."
        return [Problem(path, rule, self.salt, remedy)]


def most_choices(fabric: Fabric) -> int:
    """How often, at most, switches of a shortest way to a host have several links to choose from;
    of many switches with ports 256 are looked at."""
    _, first = np.unique(fabric.at, return_index=True)
    ports: Ints32 = first[:: -(-len(first) // 256)].astype(np.int32)
    ends = ports[fabric.switches.is_transit[fabric.at[ports]]]  # nothing is written to storage
    src, dst = np.repeat(ports, len(ends)), np.tile(ends, len(ports))
    counter = _ChoiceCounter(fabric, len(src))
    counter.routes(src, dst)
    return int(counter.found.max(initial=0))


class _ChoiceCounter(HopByHop):
    """Takes the first link of each choice, and counts in ``found``, (n,), how often each message
    has others."""

    def __init__(self, fabric: Fabric, count: int) -> None:
        super().__init__(fabric)
        self.found = np.zeros(count, np.int64)

    def choose(self, step: MessagePositions) -> Ints32:
        first = self.choices.first
        self.found[step.message] += first[step.choice + 1] - first[step.choice] > 1
        return self.of_count(step, np.zeros(len(step.here), np.int64))


class _EcmpRouter(HopByHop):
    def __init__(self, fabric: Fabric, seed: int, rule: Ecmp) -> None:
        super().__init__(fabric)
        self._seed, self._rule = seed, rule
        self.constant = rule.queue_pairs == 1
        self._header: NDArray[np.uint64] = np.zeros(0, np.uint64)

    def routes(self, src: Ints32, dst: Ints32) -> Ints32:
        pair = src.astype(np.int64) * (len(self.fabric.at) + 1) + dst
        queue = _occurrence(pair) % self._rule.queue_pairs
        port = mixed(self._seed, pair, queue) % np.uint64(self._rule.ports)
        self._header = mixed(self._seed, src, dst, port)
        return super().routes(src, dst)

    def choose(self, step: MessagePositions) -> Ints32:
        salt = step.here if self._rule.salt == "per_switch" else 0
        return self.of_count(step, mixed(self._header[step.message], salt))


def _occurrence(keys: Ints64) -> Ints64:
    """(n,) how many equal keys stand before each."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    out = np.empty(len(keys), np.int64)
    sizes = np.diff(np.append(begins, len(keys)))
    out[order] = np.arange(len(keys)) - np.repeat(begins, sizes)
    return out
