"""Any network as a file: networkx node-link JSON or GraphML."""

from __future__ import annotations

import hashlib
import io
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from xml.parsers import expat
from xml.parsers.expat import ExpatError

import numpy as np

from simshuffle.errors import Problem, TopologyError
from simshuffle.fabric.topology.base import Interconnect
from simshuffle.fabric.topology.cabling import Cabling
from simshuffle.fabric.topology.graph import Graph, graph_problems
from simshuffle.spec.late import networkx as nx
from simshuffle.spec.units import Dimension, UnitError, parse_quantity

MAX_BYTES = 32 << 20
"""Largest file: a node or link has some 150 bytes, and 100,000 of them take seconds to
read.
"""
MAX_LINKS = 1_000_000
"""Most links, parallel ones counted: each takes some 500 bytes of memory."""
MAX_KEYS = 100
"""Most declarations of attributes in GraphML: each default is copied to every node or
link.
"""

# the parsers of the two formats raise many types; each means the same to the user
_UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    SyntaxError,
    RecursionError,
    ExpatError,
)


class Custom(Interconnect):
    """A graph read from ``path``: node-link JSON (``.json``) or GraphML (``.graphml``,
    ``.xml``).

    Nodes need ``kind`` ('host', 'switch', 'storage', 'other'); a node may have ``tier``
    (text) and ``latency``. Edges need ``bandwidth`` and ``latency``, as text with a
    unit; ``links`` (default 1) makes parallel links. ``sha256``, if given, must be that
    of the file. Switches may have ``coordinates`` ('0.3.1'), links ``ports`` ('12-5',
    in JSON at source and target, in GraphML at the node that comes first and at the
    other).

    Attributes:
        path: of the file, from the folder of the scenario or from the working
            directory.
        sha256: of that file, in hexadecimal; if given, another file is refused.
    """

    kind: Literal["custom"]
    path: str
    sha256: str | None = None

    @property
    def num_hosts(self) -> int:
        """Number of hosts in the file.

        Raises:
            TopologyError: as `build`; or it is no usable network.
        """
        return self._host_counts()[0]

    @property
    def links_per_host(self) -> int:
        """Links of the host that has the fewest; raises as `num_hosts`."""
        return self._host_counts()[1]

    @property
    def uneven(self) -> bool:
        """True: in a file every link has a bandwidth of its own."""
        return True

    def _host_counts(self) -> tuple[int, int]:
        """Return the number of hosts, and the links of the host that has the fewest.

        The counts are cached; the file is read again when its time of change or its
        size differs. Raises as `num_hosts`.
        """
        try:
            state = Path(self.path).stat()
        except (OSError, ValueError):
            return _count_hosts(self, 0, 0)
        return _count_hosts(self, state.st_mtime_ns, state.st_size)

    def digest(self) -> str:
        """SHA-256 of the file as it is now, in hexadecimal; not compared with
        ``sha256``.

        Raises:
            TopologyError: it is not a file, or too large.
            OSError, ValueError: it cannot be read.
        """
        return hashlib.sha256(self._read_content()).hexdigest()

    @property
    def key(self) -> str:
        """The key of `Interconnect`, followed by the SHA-256 of the file as it is now;
        raises as `digest`.
        """
        return f"{super().key} {self.digest()}"

    def build(self, graph: Graph) -> None:
        """Add all nodes and links of the file to ``graph``.

        A node without ``tier`` gets its kind as tier, a node without ``latency`` 0 s.
        Kinds are not checked here; see `graph_problems`.

        Raises:
            TopologyError: the file cannot be read, is of another format, differs from
                ``sha256``, is too large, or has directed links, names that differ in
                type only, or a wrong value. Wrong values are named all at once.
        """
        file_graph = self._read_graph()
        problems: list[Problem] = []
        if len({str(node) for node in file_graph}) < len(file_graph):
            rule = "every node needs a name of its own"
            problems.append(
                Problem("nodes", rule, "some differ in type only", "Rename them.")
            )
        added = 0
        for node, data in file_graph.nodes(data=True):
            kind = data.get("kind")
            latency = _parse_quantity(
                data.get("latency", "0 s"),
                Dimension.SECONDS,
                f"nodes.{node}.latency",
                problems,
            )
            coordinates = _parse_numbers(
                data, "coordinates", ".", f"nodes.{node}", problems
            )
            tier = str(data.get("tier", kind))
            graph.add_node(
                str(node), kind=kind, tier=tier, latency=latency, **coordinates
            )
        for a, b, data in file_graph.edges(data=True):
            path = f"links.{a}-{b}"
            bandwidth = _parse_quantity(
                data.get("bandwidth"),
                Dimension.BANDWIDTH,
                f"{path}.bandwidth",
                problems,
            )
            latency = _parse_quantity(
                data.get("latency"), Dimension.SECONDS, f"{path}.latency", problems
            )
            links = _parse_link_count(
                data.get("links", 1), MAX_LINKS - added, path, problems
            )
            added += links
            ports = _parse_numbers(data, "ports", "-", path, problems)
            for _ in range(links):
                graph.add_edge(
                    str(a), str(b), bandwidth=bandwidth, latency=latency, **ports
                )
        if problems:
            raise TopologyError(problems, self.path)

    def _read_graph(self) -> Any:
        """Read the file as an undirected networkx graph, whose attributes have the
        types that the file gives them.

        Raises:
            TopologyError: the file cannot be read, is of another format or too large,
                its SHA-256 is not ``sha256``, or its links are directed.
        """
        try:
            content = self._read_content()
            if self.sha256 not in (None, hashlib.sha256(content).hexdigest()):
                raise TopologyError(
                    "the file is no longer the one that sha256 names. Remove sha256 to use the new"
                    " one.",
                    self.path,
                )
            suffix = Path(self.path).suffix.lower()
            graph = _parse(content, graphml=suffix in {".graphml", ".xml"})
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
        if graph.is_directed():
            raise TopologyError(
                "links must be undirected, as each stands for both directions. Write a Graph or"
                " MultiGraph.",
                self.path,
            )
        return graph

    def _read_content(self) -> bytes:
        """Read the bytes of the file, at most `MAX_BYTES`, unchecked; raises as
        `digest`.
        """
        remedy = "Write parallel links as 'links', and leave other attributes out."
        return read_limited_file(self.path, MAX_BYTES, remedy)


def read_limited_file(name: str, max_nbytes: int, remedy: str) -> bytes:
    """Read a regular file of at most ``max_nbytes`` bytes; a device or a pipe, which
    may have no end, is not opened.

    Args:
        name: path of the file.
        max_nbytes: bytes that the file may have.
        remedy: sentence for the error of a file that is too large.

    Raises:
        TopologyError: it is not a file, or too large.
        OSError, ValueError: it cannot be read.
    """
    path = Path(name)
    if path.exists() and not path.is_file():
        raise TopologyError("is not a file. Give the path of one.", name)
    with path.open("rb") as file:
        content = file.read(max_nbytes + 1)
    if len(content) > max_nbytes:
        raise TopologyError(f"must have at most {max_nbytes >> 20} MiB. {remedy}", name)
    return content


def _parse(content: bytes, *, graphml: bool) -> Any:
    """Parse the bytes of a file as a networkx graph: GraphML, or node-link JSON.

    Raises:
        NetworkXException, or one of `_UNREADABLE`: it is neither, or XML that
            `_check_xml` refuses.
    """
    if graphml:
        _check_xml(content)
        return nx.read_graphml(io.BytesIO(content))
    data = json.loads(content.decode("utf-8"))
    _turn_ported_links(data)
    return nx.node_link_graph(data, edges="links" if "links" in data else "edges")


def _turn_ported_links(data: Any) -> None:
    """Turn links with ports, in place, so that their source is the node that comes
    first in the file.

    networkx gives both ends of an undirected link in the order of the nodes, whatever
    the file calls source.
    """
    links = [
        link for link in data.get("links", data.get("edges", [])) if "ports" in link
    ]
    index_of_node = (
        {node["id"]: index for index, node in enumerate(data["nodes"])} if links else {}
    )
    for link in links:
        if index_of_node[link["target"]] < index_of_node[link["source"]]:
            link["source"], link["target"] = link["target"], link["source"]
            link["ports"] = "-".join(reversed(str(link["ports"]).split("-")))


def _check_xml(content: bytes) -> None:
    """Refuse XML with a DOCTYPE, or with more than `MAX_KEYS` declared attributes.

    A DOCTYPE can declare entities, which stand for other files, or for more text than
    memory holds.

    Raises:
        ValueError: it has a DOCTYPE, or declares too many attributes.
        ExpatError, LookupError: it is not XML.
    """
    keys = 0

    def refuse(*_: object) -> None:
        """Refuse the DOCTYPE at which the parser has come."""
        raise ValueError(
            "it has a <!DOCTYPE>, which may stand for anything; remove that line"
        )

    def count(name: str, _: object) -> None:
        """Count an element that declares an attribute; refuse one too many."""
        nonlocal keys
        keys += name.rpartition("}")[2] == "key"
        if keys > MAX_KEYS:
            raise ValueError(f"it declares more than {MAX_KEYS} attributes")

    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = count
    parser.Parse(content, True)


def _parse_numbers(
    data: dict[str, Any], key: str, separator: str, path: str, problems: list[Problem]
) -> dict[str, tuple[int, ...]]:
    """Parse the whole numbers of a text such as '0.3.1' under ``key`` of the attributes
    ``data``.

    Returns:
        ``{key: numbers}``, two of them for 'ports'; empty if the key is left out or its
        text is wrong, which is added to ``problems``.
    """
    if key not in data:
        return {}
    parts = str(data[key]).split(separator)
    if all(part.isdecimal() and len(part) < 10 for part in parts) and (
        key != "ports" or len(parts) == 2
    ):
        return {key: tuple(map(int, parts))}
    example = "'12-5'" if key == "ports" else "'0.3.1'"
    rule = f"must be whole numbers with {separator!r} between them"
    problems.append(
        Problem(f"{path}.{key}", rule, repr(data[key]), f"Write for example {example}.")
    )
    return {}


def _parse_link_count(
    value: object, max_links: int, path: str, problems: list[Problem]
) -> int:
    """Return the number of parallel links that ``value`` says; 1 if it is no whole
    number from 1 to ``max_links``, which is added to ``problems``.
    """
    if type(value) is not int or value < 1:
        rule = "must be a whole number of at least 1"
        remedy = "Leave it out for 1."
    elif value > max_links:
        rule = f"all links together must be at most {MAX_LINKS}"
        remedy = "Use fewer."
    else:
        return value
    problems.append(Problem(f"{path}.links", rule, repr(value), remedy))
    return 1


@lru_cache(maxsize=64)
def _count_hosts(topology: Custom, changed_ns: int, nbytes: int) -> tuple[int, int]:
    """Return the number of hosts of a file, and the links of the host that has the
    fewest, cached for its time of change and size.

    Args:
        topology: the network that names the file.
        changed_ns: ns at which the file was changed last; only tells states apart.
        nbytes: size of the file; only tells states apart.

    Raises:
        TopologyError: the file cannot be read, or it is no usable network.
    """
    sketch = topology.sketch()
    problems = graph_problems(sketch, "cluster.topology")
    if problems:
        raise TopologyError(problems, topology.path)
    cabling = Cabling.from_graph(sketch)
    hosts = cabling.nodes_of_kind("host")
    return len(hosts), int(np.diff(cabling.neighbours[0])[hosts].min())


def _parse_quantity(
    value: object, dimension: Dimension, path: str, problems: list[Problem]
) -> float:
    """Parse a text with a unit, in bytes/s or s; 0.0 if it is wrong, which is added to
    ``problems``.
    """
    try:
        return parse_quantity(value, dimension)
    except UnitError as error:
        problems.append(
            Problem(
                path, str(error), repr(value), "Write the value as text with its unit."
            )
        )
        return 0.0
