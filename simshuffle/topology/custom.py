"""Any network as a file: networkx node-link JSON or GraphML."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from simshuffle.errors import Problem, TopologyError
from simshuffle.spec.late import networkx as nx
from simshuffle.spec.units import Dimension, UnitError, parse_quantity
from simshuffle.topology.base import Interconnect, no_routing
from simshuffle.topology.graph import Graph, graph_problems, new_graph
from simshuffle.topology.routing import ForwardingTable, stands_in_levels

# the parsers of the two formats raise many types; each means the same to the user
_UNREADABLE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    SyntaxError,
    RecursionError,
)


class Custom(Interconnect):
    """A graph read from ``path``: node-link JSON (``.json``) or GraphML (``.graphml``, ``.xml``).

    Nodes need ``kind`` ('host', 'switch', 'storage'); a node may have ``tier`` (text) and
    ``latency``. Edges need ``bandwidth`` and ``latency``, as text with a unit; ``links`` (default
    1) makes parallel links. ``sha256``, if given, must be that of the file. ``routes`` says which
    routes are taken: those of D-mod-K by default, which is known only for switches that stand in
    levels; 'shortest_path' takes the first of the shortest paths for any network, and does not load
    links evenly.
    """

    kind: Literal["custom"]
    path: str
    sha256: str | None = None
    routes: Literal["shortest_path"] | None = None

    @property
    def num_hosts(self) -> int:
        """Hosts of the file.

        Raises:
            TopologyError: as `graph`; or it is no usable network; or no routing is known for it.
        """
        return self._size()[0]

    @property
    def links_per_host(self) -> int:
        """Links of the host with the fewest; raises as `num_hosts`."""
        return self._size()[1]

    def _size(self) -> tuple[int, int]:
        """Hosts, and links of the host with the fewest; read again when the file was changed."""
        try:
            state = Path(self.path).stat()
        except (OSError, ValueError):
            return _size(self, 0, 0)
        return _size(self, state.st_mtime_ns, state.st_size)

    def routing(self, graph: Graph) -> ForwardingTable:
        """The routes of ``graph``, as ``routes`` says; raises as `Interconnect.routing`."""
        return super().routing(graph) if self.routes is None else ForwardingTable(graph)

    def digest(self) -> str:
        """SHA-256 of the file, in hexadecimal."""
        return hashlib.sha256(Path(self.path).read_bytes()).hexdigest()

    def graph(self) -> Graph:
        """The network of the file.

        Raises:
            TopologyError: the file cannot be read, is of another format, changed, or holds a
                quantity without a unit.
        """
        raw = self._read()
        problems: list[Problem] = []
        graph = new_graph()
        for node, data in raw.nodes(data=True):
            kind = data.get("kind")
            latency = _quantity(
                data.get("latency", "0 s"), Dimension.SECONDS, f"nodes.{node}.latency", problems
            )
            graph.add_node(str(node), kind=kind, tier=str(data.get("tier", kind)), latency=latency)
        for a, b, data in raw.edges(data=True):
            where = f"links.{a}-{b}"
            bandwidth = _quantity(
                data.get("bandwidth"), Dimension.BANDWIDTH, f"{where}.bandwidth", problems
            )
            latency = _quantity(
                data.get("latency"), Dimension.SECONDS, f"{where}.latency", problems
            )
            links = data.get("links", 1)
            if type(links) is not int or links < 1:
                problems.append(
                    Problem(
                        f"{where}.links",
                        "must be a whole number of at least 1",
                        repr(links),
                        "Leave it out for 1.",
                    )
                )
                links = 1
            for _ in range(links):
                graph.add_edge(str(a), str(b), bandwidth=bandwidth, latency=latency)
        if problems:
            raise TopologyError(problems, self.path)
        return graph

    def _read(self) -> Any:
        path = Path(self.path)
        try:
            if self.sha256 not in (None, self.digest()):
                raise TopologyError(
                    "the file is no longer the one that sha256 names. Remove sha256 to use the new"
                    " one.",
                    self.path,
                )
            if path.suffix in {".graphml", ".xml"}:
                return nx.read_graphml(path)
            data = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(data, dict) and data.get("directed"):
                raise TopologyError(
                    "links must be undirected, as each stands for both directions. Write a Graph or"
                    " MultiGraph.",
                    self.path,
                )
            return nx.node_link_graph(data, edges="links" if "links" in data else "edges")
        except TopologyError:
            raise
        except OSError as error:
            raise TopologyError(
                f"cannot be read: {error.strerror}. Give the path relative to the scenario's"
                " folder.",
                self.path,
            ) from None
        except (*_UNREADABLE, nx.NetworkXException) as error:
            raise TopologyError(
                f"is not networkx node-link JSON or GraphML ({type(error).__name__}: {error})."
                " Write it with networkx.node_link_data.",
                self.path,
            ) from None


@lru_cache(maxsize=64)
def _size(topology: Custom, changed_ns: int, nbytes: int) -> tuple[int, int]:
    """Hosts of a file in that state, and links of the host with the fewest."""
    graph = topology.graph()
    problems = graph_problems(graph, "cluster.topology")
    if not problems and topology.routes is None and not stands_in_levels(graph):
        problems = [no_routing("cluster.topology.routes")]
    if problems:
        raise TopologyError(problems, topology.path)
    hosts = [node for node, kind in graph.nodes(data="kind") if kind == "host"]
    return len(hosts), min(degree for _, degree in graph.degree(hosts))


def _quantity(value: object, dimension: Dimension, path: str, problems: list[Problem]) -> float:
    try:
        return parse_quantity(value, dimension)
    except UnitError as error:
        problems.append(
            Problem(path, str(error), repr(value), "Write the value as text with its unit.")
        )
        return 0.0
