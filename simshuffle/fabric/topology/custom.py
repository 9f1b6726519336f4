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
"""Largest file: a node or link has some 150 bytes, and 100,000 of them take seconds to read."""
MAX_LINKS = 1_000_000
"""Most links, parallel ones counted: each takes some 500 bytes of memory."""
MAX_KEYS = 100
"""Most declarations of attributes in GraphML: each default is copied to every node or link."""

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
    """A graph read from ``path``: node-link JSON (``.json``) or GraphML (``.graphml``, ``.xml``).

    Nodes need ``kind`` ('host', 'switch', 'storage', 'other'); a node may have ``tier`` (text) and
    ``latency``. Edges need ``bandwidth`` and ``latency``, as text with a unit; ``links`` (default
    1) makes parallel links. ``sha256``, if given, must be that of the file. Switches may have
    ``coordinates`` ('0.3.1'), links ``ports`` ('12-5', in JSON at source and target, in GraphML at
    the node that comes first and at the other).

    Attributes:
        path: of the file, from the folder of the scenario or from the working directory.
        sha256: of that file, in hexadecimal; if given, another file is refused.
    """

    kind: Literal["custom"]
    path: str
    sha256: str | None = None

    @property
    def num_hosts(self) -> int:
        """Hosts of the file.

        Raises:
            TopologyError: as `graph`; or it is no usable network.
        """
        return self._size()[0]

    @property
    def links_per_host(self) -> int:
        """Links of the host with the fewest; raises as `num_hosts`."""
        return self._size()[1]

    @property
    def uneven(self) -> bool:
        """It may, as in a file every link has a bandwidth of its own."""
        return True

    def _size(self) -> tuple[int, int]:
        """Hosts, and links of the host with the fewest; read again when the file was changed."""
        try:
            state = Path(self.path).stat()
        except (OSError, ValueError):
            return _size(self, 0, 0)
        return _size(self, state.st_mtime_ns, state.st_size)

    def digest(self) -> str:
        """SHA-256 of the file, in hexadecimal."""
        return hashlib.sha256(self._content()).hexdigest()

    @property
    def key(self) -> str:
        """As `Interconnect.key`, and the SHA-256 of the file."""
        return f"{super().key} {self.digest()}"

    def build(self, graph: Graph) -> None:
        """Add all that is in the file.

        Raises:
            TopologyError: the file cannot be read, is of another format, changed or too large, or
                holds a quantity without a unit.
        """
        raw = self._read()
        problems: list[Problem] = []
        if len({str(node) for node in raw}) < len(raw):
            rule = "every node needs a name of its own"
            problems.append(Problem("nodes", rule, "some differ in type only", "Rename them."))
        added = 0
        for node, data in raw.nodes(data=True):
            kind = data.get("kind")
            latency = _quantity(
                data.get("latency", "0 s"), Dimension.SECONDS, f"nodes.{node}.latency", problems
            )
            place = _numbers(data, "coordinates", ".", f"nodes.{node}", problems)
            tier = str(data.get("tier", kind))
            graph.add_node(str(node), kind=kind, tier=tier, latency=latency, **place)
        for a, b, data in raw.edges(data=True):
            where = f"links.{a}-{b}"
            bandwidth = _quantity(
                data.get("bandwidth"), Dimension.BANDWIDTH, f"{where}.bandwidth", problems
            )
            latency = _quantity(
                data.get("latency"), Dimension.SECONDS, f"{where}.latency", problems
            )
            links = _links(data.get("links", 1), MAX_LINKS - added, where, problems)
            added += links
            ports = _numbers(data, "ports", "-", where, problems)
            for _ in range(links):
                graph.add_edge(str(a), str(b), bandwidth=bandwidth, latency=latency, **ports)
        if problems:
            raise TopologyError(problems, self.path)

    def _read(self) -> Any:
        try:
            content = self._content()
            if self.sha256 not in (None, hashlib.sha256(content).hexdigest()):
                raise TopologyError(
                    "the file is no longer the one that sha256 names. Remove sha256 to use the new"
                    " one.",
                    self.path,
                )
            found = _parsed(content, graphml=Path(self.path).suffix in {".graphml", ".xml"})
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
        if found.is_directed():
            raise TopologyError(
                "links must be undirected, as each stands for both directions. Write a Graph or"
                " MultiGraph.",
                self.path,
            )
        return found

    def _content(self) -> bytes:
        remedy = "Write parallel links as 'links', and leave other attributes out."
        return content_of(self.path, MAX_BYTES, remedy)


def content_of(name: str, most: int, remedy: str) -> bytes:
    """What a file of at most so many bytes holds; a device or a pipe, which may have no end, is not
    opened.

    Raises:
        TopologyError: it is not a file, or too large; then ``remedy`` is told.
        OSError, ValueError: it cannot be read.
    """
    path = Path(name)
    if path.exists() and not path.is_file():
        raise TopologyError("is not a file. Give the path of one.", name)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise TopologyError(f"must have at most {most >> 20} MiB. {remedy}", name)
    return content


def _parsed(content: bytes, *, graphml: bool) -> Any:
    if graphml:
        _check_xml(content)
        return nx.read_graphml(io.BytesIO(content))
    data = json.loads(content.decode("utf-8"))
    _turn(data)
    return nx.node_link_graph(data, edges="links" if "links" in data else "edges")


def _turn(data: Any) -> None:
    """Turn links with ports so that their source is the node that comes first: networkx gives both
    ends of an undirected link in the order of the nodes, whatever the file calls source."""
    links = [each for each in data.get("links", data.get("edges", [])) if "ports" in each]
    order = {node["id"]: place for place, node in enumerate(data["nodes"])} if links else {}
    for link in links:
        if order[link["target"]] < order[link["source"]]:
            link["source"], link["target"] = link["target"], link["source"]
            link["ports"] = "-".join(reversed(str(link["ports"]).split("-")))


def _check_xml(content: bytes) -> None:
    """See that XML declares no entities and few attributes.

    An entity can stand for other files, or for more text than memory holds.

    Raises:
        ValueError: it does.
        ExpatError, LookupError: it is not XML.
    """
    keys = 0

    def refuse(*_: object) -> None:
        raise ValueError("it has a <!DOCTYPE>, which may stand for anything; remove that line")

    def count(name: str, _: object) -> None:
        nonlocal keys
        keys += name.rpartition("}")[2] == "key"
        if keys > MAX_KEYS:
            raise ValueError(f"it declares more than {MAX_KEYS} attributes")

    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = count
    parser.Parse(content, True)


def _numbers(
    data: dict[str, Any], key: str, mark: str, where: str, problems: list[Problem]
) -> dict[str, tuple[int, ...]]:
    """The whole numbers of a text such as '0.3.1', by ``key``; empty if it is left out, or with a
    problem, that is noted."""
    if key not in data:
        return {}
    parts = str(data[key]).split(mark)
    if all(part.isdecimal() and len(part) < 10 for part in parts) and (
        key != "ports" or len(parts) == 2
    ):
        return {key: tuple(map(int, parts))}
    example = "'12-5'" if key == "ports" else "'0.3.1'"
    rule = f"must be whole numbers with {mark!r} between them"
    problems.append(
        Problem(f"{where}.{key}", rule, repr(data[key]), f"Write for example {example}.")
    )
    return {}


def _links(value: object, most: int, where: str, problems: list[Problem]) -> int:
    """How many parallel links there are; with a problem, that is noted, one."""
    if type(value) is not int or value < 1:
        rule, remedy = "must be a whole number of at least 1", "Leave it out for 1."
    elif value > most:
        rule, remedy = f"all links together must be at most {MAX_LINKS}", "Use fewer."
    else:
        return value
    problems.append(Problem(f"{where}.links", rule, repr(value), remedy))
    return 1


@lru_cache(maxsize=64)
def _size(topology: Custom, changed_ns: int, nbytes: int) -> tuple[int, int]:
    """Hosts of a file in that state, and links of the host with the fewest."""
    sketch = topology.sketch()
    problems = graph_problems(sketch, "cluster.topology")
    if problems:
        raise TopologyError(problems, topology.path)
    cabling = Cabling.of(sketch)
    hosts = cabling.of_kind("host")
    return len(hosts), int(np.diff(cabling.neighbours[0])[hosts].min())


def _quantity(value: object, dimension: Dimension, path: str, problems: list[Problem]) -> float:
    try:
        return parse_quantity(value, dimension)
    except UnitError as error:
        problems.append(
            Problem(path, str(error), repr(value), "Write the value as text with its unit.")
        )
        return 0.0
