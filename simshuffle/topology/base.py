"""What every topology answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from simshuffle.errors import Problem, TopologyError
from simshuffle.spec.record import Spec
from simshuffle.topology.cabling import Cabling
from simshuffle.topology.graph import Graph, Sketch, new_graph
from simshuffle.topology.routing import ForwardingTable, stands_in_levels


class Interconnect(Spec, ABC):
    """A network between hosts, by a few numbers.

    Attributes:
        hcas_are_rails: whether every host must have as many HCAs as links, one for each rail.
    """

    hcas_are_rails: ClassVar[bool] = False

    @property
    @abstractmethod
    def num_hosts(self) -> int:
        """Hosts of the network, without building its graph.

        Raises:
            TopologyError: it is not a usable network.
        """

    @property
    @abstractmethod
    def links_per_host(self) -> int:
        """Links of a host to switches; of the host with the fewest, if they differ. Raises as
        `num_hosts`."""

    def structure(self) -> str:
        """What the network is made of, where its keys do not say it; else empty."""
        return ""

    @property
    def height(self) -> int | None:
        """The number of switch levels less one, if the network is a tree in which all routes go up
        and then down; else None."""
        return None

    @abstractmethod
    def build(self, graph: Graph) -> None:
        """Add all nodes and links of the network to ``graph``; see `simshuffle.topology.graph`.

        Raises:
            TopologyError: it is not a usable network.
        """

    def graph(self) -> Graph:
        """The network as a networkx multigraph; raises as `build`."""
        graph = new_graph(**self._attributes)
        self.build(graph)
        return graph

    def sketch(self) -> Sketch:
        """The network, to be made a `Cabling` of; raises as `build`."""
        sketch = Sketch(**self._attributes)
        self.build(sketch)
        return sketch

    @property
    def _attributes(self) -> dict[str, int]:
        return {} if self.height is None else {"height": self.height}

    @property
    def key(self) -> str:
        """The same text for the same network, and another for another one."""
        return f"{type(self).__qualname__} {self.model_dump_json(exclude={'source'})}"

    def routing(self, graph: Graph | Cabling) -> ForwardingTable:
        """The routes of ``graph``, which is this network, maybe with storage attached.

        D-mod-K, which is known only for switches that stand in levels. Other topologies bring their
        own: a ``ForwardingTable(graph, towards)``.

        Raises:
            TopologyError: the switches do not stand in levels.
        """
        if not stands_in_levels(graph):
            raise TopologyError(no_routing("cluster.topology"), type(self).__name__)
        return ForwardingTable(graph)


def no_routing(path: str) -> Problem:
    """The problem of a network for which no routing is known."""
    return Problem(
        path,
        "the switches must stand in levels, each link between them leading up or down, for D-mod-K",
        "a link between two switches of one level, and several ways around it",
        "Write a topology with a routing of its own, or for a file accept uneven loads with"
        " routes: shortest_path.",
    )
