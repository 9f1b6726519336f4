"""Fat trees of one or more levels, full-bisection or tapered."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from simshuffle.spec.record import MOST_HOSTS, Bandwidth, Count, Seconds, Sourced, whole_as_float
from simshuffle.topology.base import Interconnect
from simshuffle.topology.graph import Graph, add_host, add_switch, connect, new_graph

Taper = Annotated[float, BeforeValidator(whole_as_float), Field(ge=1)]


class FatTree(Sourced, Interconnect):
    """A k-ary n-tree (Petrini & Vanneschi 1997): ``arity`` hosts a leaf switch, and as many links
    down at every level.

    ``taper`` is the ratio of the links below a leaf switch to those above it: 1 is full bisection,
    3 leaves a third of it. Above the leaf switches the tree is full. ``hosts`` cuts the tree down
    to that many hosts; the default is ``arity ** levels``.
    """

    kind: Literal["fat_tree"]
    levels: Annotated[int, Field(ge=1, le=4)]
    arity: Annotated[int, Field(ge=2, le=1024)]
    taper: Taper = 1.0
    hosts: Count | None = None
    link_bandwidth: Bandwidth
    cable_latency: Seconds
    switch_latency: Seconds

    @model_validator(mode="after")
    def _whole_uplinks(self) -> FatTree:
        if self.levels > 1 and not math.isclose(self.uplinks * self.taper, self.arity):
            raise PydanticCustomError(
                "taper", "taper must divide the arity into a whole number of links up"
            )
        if self.num_hosts > min(MOST_HOSTS, self.arity ** (self.levels - 1) * 4096):
            raise PydanticCustomError(
                "hosts",
                "a tree of this arity and these levels has too many hosts; give fewer as hosts",
            )
        return self

    @property
    def uplinks(self) -> int:
        """Links from a leaf switch up."""
        return max(round(self.arity / self.taper), 1)

    @property
    def num_hosts(self) -> int:
        """Hosts of the tree."""
        return self.hosts or self.arity**self.levels

    @property
    def links_per_host(self) -> int:
        """1."""
        return 1

    def _children(self) -> list[int]:
        below = self.arity ** (self.levels - 1)
        return [self.arity] * (self.levels - 1) + [-(-self.num_hosts // below)]

    def graph(self) -> Graph:
        """The network: hosts ``h0000``, switches named by level and digits, such as ``leaf.3`` and
        ``spine.0``.

        A switch of level l is a digit for each level above it (which subtree) and one for each
        level below (which parent was taken); two switches of neighbouring levels are linked where
        their other digits agree.
        """
        graph = new_graph(height=self.levels - 1)
        occupied = -(-self.num_hosts // self.arity)  # leaf switches with hosts
        children = self._children()
        parents = [1, self.uplinks, *[self.arity] * (self.levels - 2)][: self.levels]
        cable: dict[str, Any] = {"bandwidth": self.link_bandwidth, "latency": self.cable_latency}
        if self.levels == 1:
            parents = [1]
        for level in range(1, self.levels + 1):
            for below in itertools.product(*(range(p) for p in parents[1:level])):
                for above in itertools.product(*(range(c) for c in reversed(children[level:]))):
                    if self._first_leaf(above, children) >= occupied:
                        continue  # no host below: not built
                    name = self._name(level, above, below)
                    add_switch(graph, name, self._tier(level), self.switch_latency)
                    if level == 1:
                        continue
                    for child in range(children[level - 1]):
                        lower = self._name(level - 1, (*above, child), below[:-1])
                        if lower in graph:
                            connect(graph, lower, name, **cable)
        self._add_hosts(graph, children, cable)
        return graph

    @staticmethod
    def _first_leaf(above: tuple[int, ...], children: list[int]) -> int:
        """Number of the first leaf switch below the switches with the digits ``above``."""
        level = len(children) - len(above)
        number = 0
        for digit, count in zip(above, reversed(children[level:]), strict=True):
            number = number * count + digit
        return number * math.prod(children[1:level])

    def _add_hosts(self, graph: Graph, children: list[int], cable: dict[str, Any]) -> None:
        leaves = list(itertools.product(*(range(c) for c in reversed(children[1:]))))
        for host in range(self.num_hosts):
            name = f"h{host:04d}"
            add_host(graph, name)
            connect(
                graph,
                name,
                self._name(1, leaves[host // children[0]] if self.levels > 1 else (), ()),
                **cable,
            )

    def _tier(self, level: int) -> str:
        if level == 1:
            return "leaf"
        return "spine" if level == self.levels else f"level{level}"

    def _name(self, level: int, above: tuple[int, ...], below: tuple[int, ...]) -> str:
        digits = ".".join(str(d) for d in (*above, *below))
        return f"{self._tier(level)}.{digits}" if digits else self._tier(level)
