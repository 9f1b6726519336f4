"""What every reader of a fabric gives: nodes, cables with their ports and rates, what was left out;
and the node-link JSON of it, which `kind: custom` reads."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from simshuffle.errors import InputError, Problem, TopologyError
from simshuffle.fabric.topology.cabling import Cabling, most_common_bandwidth
from simshuffle.fabric.topology.custom import read_limited_file
from simshuffle.fabric.topology.graph import Sketch, graph_problems
from simshuffle.spec.late import networkx as nx
from simshuffle.spec.plain_text import clean_text, decode, without_commands
from simshuffle.spec.units import Dimension, format_quantity, readable

CABLE_LATENCY = 26e-9
"""s; an estimate: 5 m x 5.2 ns/m."""
SWITCH_LATENCY = 100e-9
"""s; an estimate: between the 90 ns of EDR switches and the 130 ns of HDR and NDR ones."""
MAX_BYTES = 64 << 20
"""Largest file that is read: ibnetdiscover writes some 300 bytes for an adapter."""


@dataclass(frozen=True)
class Missing:
    """What a file may not say."""

    bandwidth: float | None = None  # bytes/s of each
    links_up: int | None = None  # from each switch to the one above
    # names of nodes by GUID, or by what the file calls them
    names: Mapping[str, str] = field(default_factory=dict)
    hosts: frozenset[str] = frozenset()  # names of those that take part; none for all


@dataclass(frozen=True)
class FabricNode:
    """A host, a switch, or something else that is attached."""

    name: str  # of its own
    kind: str  # 'host', 'switch', 'storage' or 'other', as in `simshuffle.fabric.topology.graph`
    guid: str = ""  # the number that the fabric knows it by, in hexadecimal; '' if none
    tier: str = ""  # the name of its level; '' to count levels from the hosts
    latency: float | None = None  # s, crossing it; None for an estimate


@dataclass(frozen=True)
class Cable:
    """A cable."""

    ends: tuple[str, str]  # the names of the nodes at both ends
    ports: tuple[int, int] | None  # the numbers of the ports there; None if they are not known
    bandwidth: float  # bytes/s in each direction
    rate: str = ""  # as the fabric says it, such as '4xNDR'
    adapter: str = ""  # the name of the host's adapter, if it has several
    latency: float = CABLE_LATENCY  # s
    # what the adapter at one end is, if it can do no more than this cable
    limited_by: str = ""

    @property
    def rate_text(self) -> str:
        """What it carries, for people."""
        return self.rate or readable(self.bandwidth, Dimension.BANDWIDTH)


Place = tuple[str, int]
"""A port: its node, and its number there."""


@dataclass(frozen=True)
class SlowCable:
    """A cable that is slower than most of those between the same two levels; ``factor`` says how
    many times as long uniform traffic over it takes."""

    cable: Cable
    usual: str
    factor: float

    @property
    def is_of_older_adapter(self) -> bool:
        """Whether its adapter can do no more, and another cable would not help."""
        return bool(self.cable.limited_by)

    def __str__(self) -> str:
        ends = self.cable.ends
        at = [f" port {port}" for port in self.cable.ports or ()] or ["", ""]
        by = f", as its adapter is older ({self.cable.limited_by})" * self.is_of_older_adapter
        have = f"{self.cable.rate_text} in place of {self.usual}{by}"
        return (
            f"{ends[0]}{at[0]} to {ends[1]}{at[1]}: {have};"
            f" uniform traffic over it takes {self.factor:.3g} times as long"
        )


@dataclass(frozen=True)
class ImportedFabric:
    """A fabric as a file tells it."""

    source: str  # the file
    # all nodes; switches in the order in which OpenSM takes them (`opensm_order`)
    nodes: list[FabricNode]
    cables: list[Cable]  # all cables
    adapters: int = 0  # how many adapters the file has
    # the place of each adapter port by its GUID
    ports: Mapping[str, Place] = field(default_factory=dict)
    lids: Mapping[int, Place] = field(default_factory=dict)  # the same by local identifier
    # what is in the file and takes no part, each as a text
    left_out: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # what is unusual, each as a text

    def of_kind(self, kind: str) -> list[FabricNode]:
        """The nodes of a kind."""
        return [node for node in self.nodes if node.kind == kind]

    def sketch(self) -> Sketch:
        """The network, to be made a `Cabling` of."""
        sketch = Sketch()
        for node in self.nodes:
            tier = node.tier or node.kind
            sketch.add_node(node.name, kind=node.kind, tier=tier, latency=_crossing(node))
        for cable in self.cables:
            ports: dict[str, Any] = {} if cable.ports is None else {"ports": cable.ports}
            sketch.add_edge(*cable.ends, bandwidth=cable.bandwidth, latency=cable.latency, **ports)
        return sketch

    def checked(self) -> ImportedFabric:
        """The same.

        Raises:
            TopologyError: it is no usable network.
        """
        if problems := graph_problems(self.sketch(), "fabric"):
            raise TopologyError(problems, self.source)
        return self

    @cached_property
    def tiers(self) -> dict[str, str]:
        """The level of each node: its own, or 'leaf' and 'level2' and so on by the way to the
        nearest host; other nodes by their kind."""
        cabling = Cabling.from_graph(self.sketch())
        depth = dict(zip(cabling.names, cabling.depth.tolist(), strict=True))
        return {node.name: node.tier or _level(node.kind, depth[node.name]) for node in self.nodes}

    @cached_property
    def slow_cables(self) -> list[SlowCable]:
        """Cables slower than most of those between the same two levels."""
        between = [tuple(sorted(self.tiers[end] for end in cable.ends)) for cable in self.cables]
        number = {pair: i for i, pair in enumerate(dict.fromkeys(between))}
        rates = np.array([cable.bandwidth for cable in self.cables])
        most = most_common_bandwidth(np.array([number[pair] for pair in between]), rates).tolist()
        called = {
            (pair, cable.bandwidth): cable.rate_text
            for pair, cable in zip(between, self.cables, strict=True)
        }
        return [
            SlowCable(cable, called[pair, rate], rate / cable.bandwidth)
            for cable, pair, rate in zip(self.cables, between, most, strict=True)
            if cable.bandwidth < rate
        ]

    def mended(self) -> ImportedFabric:
        """The same with the usual bandwidth for `slow_cables`; two runs say what they cost."""
        mended = {
            id(slow.cable): replace(
                slow.cable, bandwidth=slow.cable.bandwidth * slow.factor, rate=slow.usual
            )
            for slow in self.slow_cables
        }
        return replace(self, cables=[mended.get(id(cable), cable) for cable in self.cables])

    @property
    def hcas(self) -> int:
        """Cables of the host with the fewest."""
        count = Counter(end for cable in self.cables for end in cable.ends)
        return min(count[node.name] for node in self.of_kind("host"))

    def counts(self) -> dict[str, str]:
        """What there is, for people: texts by what they are about."""
        rates = Counter(cable.rate_text for cable in self.cables)
        levels = Counter(self.tiers[node.name] for node in self.of_kind("switch"))
        return {
            "adapters": str(self.adapters),
            "switches": str(len(self.of_kind("switch"))),
            "cables": str(len(self.cables)),
            "hosts": f"{len(self.of_kind('host'))}, of {self.hcas} adapter ports each",
            "levels": _counted(levels),
            "rates": _counted(rates),
        }

    def to_json(self) -> str:
        """As networkx node-link JSON, which ``kind: custom`` reads."""
        nodes = [
            {
                "id": node.name,
                "kind": node.kind,
                "tier": self.tiers[node.name],
                **({"guid": node.guid} if node.guid else {}),
                "latency": format_quantity(_crossing(node), Dimension.SECONDS),
            }
            for node in self.nodes
        ]
        links = [
            {
                "source": cable.ends[0],
                "target": cable.ends[1],
                **({} if cable.ports is None else {"ports": "-".join(map(str, cable.ports))}),
                **({"adapter": cable.adapter} if cable.adapter else {}),
                "bandwidth": format_quantity(cable.bandwidth, Dimension.BANDWIDTH),
                "latency": format_quantity(cable.latency, Dimension.SECONDS),
            }
            for cable in self.cables
        ]
        head = '{"directed": false, "multigraph": true, "graph": {},\n"nodes": [\n'
        rows = [
            ",\n".join(json.dumps(record, ensure_ascii=False) for record in each)
            for each in (nodes, links)
        ]
        return f'{head}{rows[0]}\n],\n"links": [\n{rows[1]}\n]}}\n'


def _crossing(node: FabricNode) -> float:
    if node.latency is not None:
        return node.latency
    return SWITCH_LATENCY if node.kind == "switch" else 0.0


def _level(kind: str, depth: int) -> str:
    if kind != "switch" or depth < 0:
        return kind
    return "leaf" if depth == 0 else f"level{depth + 1}"


def _counted(count: Mapping[str, int]) -> str:
    return ", ".join(
        f"{count[name]} {name}" for name in sorted(count, key=lambda of: (of != "leaf", of))
    )


def read_text(path: Path) -> str:
    """The text of a file, without what terminals, launchers and issue trackers put around it.

    Raises:
        TopologyError: it cannot be read, is no text, or too large.
    """
    try:
        content = read_limited_file(str(path), MAX_BYTES, "Leave other reports out.")
        return without_commands(clean_text(decode(content)))
    except UnicodeDecodeError:
        rule = "must be text in UTF-8 or UTF-16. Name the file that the tool wrote."
    except TopologyError:
        raise
    except (OSError, ValueError) as error:
        rule = f"cannot be read: {getattr(error, 'strerror', None) or error}. Correct the path."
    raise TopologyError(rule, str(path))


def refuse(where: int | str, rule: str, found: str, remedy: str) -> TopologyError:
    """The error of a line of a file, counted from 1, or of a path in it; 0 for the file itself.
    `errors_of` adds which file."""
    path = where if isinstance(where, str) else f"line {where}" * (where > 0)
    return TopologyError(Problem(path, rule, found, remedy))


@contextmanager
def errors_of(source: str | Path) -> Iterator[None]:
    """What is refused meanwhile is a TopologyError of this file, if it does not name another."""
    try:
        yield
    except InputError as error:
        raise TopologyError(error.problems, error.source or str(source)) from None


def plain_guid(text: str) -> str:
    """A GUID in hexadecimal without leading zeros; '' for what is none."""
    return f"{int(text, 16):x}" if re.fullmatch(r"[0-9a-fA-F]+", text) else ""


def opensm_order(guid: str) -> int:
    """A key by which OpenSM takes switches with equally many adapters: their GUIDs in network byte
    order, read as numbers of a little-endian machine."""
    return int.from_bytes((int(guid or "0", 16) % 2**64).to_bytes(8, "big"), "little")


def natural(name: str) -> list[tuple[int, int | str]]:
    """A key by which 'node9' comes before 'node10'."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts if part]


def unique_names(wanted: Iterable[tuple[str, str]]) -> list[str]:
    """A name for each pair of what something would be called and what is its own: the former where
    nothing else is called so, else both. Marks that names of links are made with are replaced."""
    pairs = [(re.sub(r"[\s>#]+", "_", name.strip()) or own, own) for name, own in wanted]
    count = Counter(name for name, _ in pairs)
    return [name if count[name] == 1 else f"{name}.{own}" for name, own in pairs]


# ------------------------------------------------------------------- a network of our own


def of_network(graph: Any, source: str) -> ImportedFabric:
    """The fabric of a sketch, a graph or a cabling; ``source`` is what errors call it.

    Nodes have GUIDs that keep their order where OpenSM sorts them. Where some port has no number,
    all get new ones, in the order of the cables.
    """
    cabling = Cabling.from_graph(graph)
    nodes = [
        FabricNode(name, kind, made_guid(number, kind), tier, crossing)
        for number, (name, kind, tier, crossing) in enumerate(
            zip(
                cabling.names,
                cabling.kinds,
                cabling.tiers,
                cabling.crossing_latency.tolist(),
                strict=True,
            )
        )
    ]
    ports = cabling.ports
    known = ports is not None and bool((ports > 0).all())
    numbers = ports.tolist() if ports is not None and known else _new_ports(cabling)
    cables = [
        Cable((cabling.names[a], cabling.names[b]), (p, q), bandwidth, latency=latency)
        for (a, b), (p, q), bandwidth, latency in zip(
            cabling.ends.tolist(),
            numbers,
            cabling.bandwidth.tolist(),
            cabling.latency.tolist(),
            strict=True,
        )
    ]
    ends = Counter(end for cable in cables for end in cable.ends)
    adapters = sum(ends[node.name] for node in nodes if node.kind != "switch")
    return ImportedFabric(source, nodes, cables, adapters)


def made_guid(number: int, kind: str) -> str:
    """A GUID for the node with that number from 0: those of switches ascend as `opensm_order`
    does, and the lowest byte is left for numbers of ports."""
    tag = 1 if kind == "switch" else 2
    return f"{opensm_order(f'{tag << 48 | number + 1:x}'):x}"


def _new_ports(cabling: Cabling) -> list[tuple[int, int]]:
    """Numbers from 1 at every node: first of the cables to what is no switch, then of the others,
    each in their order."""
    switch = np.zeros(len(cabling.names), bool)
    switch[cabling.nodes_of_kind("switch")] = True
    between = np.asarray(switch[cabling.ends].all(axis=1))
    given: Counter[int] = Counter()
    numbers = [(0, 0)] * len(between)
    for cable in np.argsort(between, kind="stable").tolist():
        a, b = cabling.ends[cable].tolist()
        given[a] += 1
        given[b] += 1
        numbers[cable] = (given[a], given[b])
    return numbers


def with_ports(fabric: ImportedFabric) -> ImportedFabric:
    """The same with a GUID for every node and a number for every port; the same object where all
    have one."""
    if all(cable.ports for cable in fabric.cables) and all(node.guid for node in fabric.nodes):
        return fabric
    made = of_network(fabric.sketch(), fabric.source)
    return replace(made, left_out=fabric.left_out, warnings=fabric.warnings)


def graphml(fabric: ImportedFabric) -> str:
    """As GraphML, which ``kind: custom`` reads."""
    graph = nx.node_link_graph(json.loads(fabric.to_json()), edges="links")
    return "\n".join(nx.generate_graphml(graph)) + "\n"
