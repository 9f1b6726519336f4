"""The fabric that every reader of another tool's file returns, and its node-link JSON.

An `ImportedFabric` holds nodes, cables with their ports and rates, and texts about what
was left out. ``kind: custom`` reads the JSON.
"""

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
from simshuffle.spec.plain_text import clean_text, decode, without_commands
from simshuffle.spec.units import Dimension, format_quantity, readable

CABLE_LATENCY = 26e-9
"""s; an estimate: 5 m x 5.2 ns/m."""
SWITCH_LATENCY = 100e-9
"""s; an estimate: between the 90 ns of EDR switches and the 130 ns of HDR and NDR ones."""
MAX_BYTES = 64 << 20
"""Largest file that is read: ibnetdiscover writes some 300 bytes for an adapter."""


@dataclass(frozen=True)
class FabricSupplement:
    """Facts about a fabric that its file may leave out, as other options and files give
    them.
    """

    bandwidth: float | None = (
        None  # bytes/s of each link whose rate the file does not say
    )
    links_up: int | None = None  # links from each switch to the one above
    # names of nodes by GUID, or by what the file calls them
    names: Mapping[str, str] = field(default_factory=dict)
    hosts: frozenset[str] = frozenset()  # names of those that take part; none for all


@dataclass(frozen=True)
class FabricNode:
    """A host, a switch, or another device that is attached to the network."""

    name: str  # unique in the fabric
    kind: str  # 'host', 'switch', 'storage' or 'other', as in `simshuffle.fabric.topology.graph`
    guid: str = ""  # the number that the fabric knows it by, in hexadecimal; '' if none
    tier: str = ""  # the name of its level; '' to count levels from the hosts
    latency: float | None = None  # s, crossing it; None for an estimate


@dataclass(frozen=True)
class Cable:
    """A cable between two nodes of the fabric, with the bandwidth that it carries each
    way.
    """

    ends: tuple[str, str]  # the names of the nodes at both ends
    # the numbers of the ports there; None if they are not known
    ports: tuple[int, int] | None
    bandwidth: float  # bytes/s in each direction
    rate: str = ""  # as the fabric says it, such as '4xNDR'
    adapter: str = ""  # the name of the host's adapter, if it has several
    latency: float = CABLE_LATENCY  # s
    # what the adapter at one end is, if it can do no more than this cable
    limiting_adapter: str = ""

    @property
    def rate_text(self) -> str:
        """The rate of the cable for people: as the fabric says it, or else its
        bandwidth.
        """
        return self.rate or readable(self.bandwidth, Dimension.BANDWIDTH)


NodePort = tuple[str, int]
"""A port: its node, and its number there."""


@dataclass(frozen=True)
class SlowCable:
    """A cable that is slower than most cables between its two tiers."""

    cable: Cable
    usual_rate: str  # rate of most cables between its tiers, for people
    factor: float  # how many times as long uniform traffic over it takes

    @property
    def is_of_older_adapter(self) -> bool:
        """True if the adapter at one end limits the rate, so that another cable would
        not help.
        """
        return bool(self.cable.limiting_adapter)

    def __str__(self) -> str:
        ends = self.cable.ends
        port_texts = [f" port {port}" for port in self.cable.ports or ()] or ["", ""]
        reason = ""
        if self.is_of_older_adapter:
            reason = f", since its adapter is older ({self.cable.limiting_adapter})"
        rates = f"{self.cable.rate_text} instead of {self.usual_rate}{reason}"
        return (
            f"{ends[0]}{port_texts[0]} to {ends[1]}{port_texts[1]}: {rates};"
            f" uniform traffic over this cable takes {self.factor:.3g} times as long"
        )


@dataclass(frozen=True)
class ImportedFabric:
    """A fabric as a file of another tool describes it."""

    source: str  # the file
    # all nodes; switches in the order in which OpenSM takes them (`opensm_order`)
    nodes: list[FabricNode]
    cables: list[Cable]  # all cables
    adapters: int = 0  # how many adapters the file has
    # adapter ports by their GUIDs, and by their local identifiers
    ports: Mapping[str, NodePort] = field(default_factory=dict)
    lids: Mapping[int, NodePort] = field(default_factory=dict)
    # what is in the file and takes no part, each as a text
    left_out: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # what is unusual, each as a text

    def nodes_of_kind(self, kind: str) -> list[FabricNode]:
        """Return the nodes of a kind, such as 'switch', in the order of ``nodes``."""
        return [node for node in self.nodes if node.kind == kind]

    def sketch(self) -> Sketch:
        """Return the network as a sketch, from which a `Cabling` can be made.

        A node without a tier has its kind as tier. A switch without a latency has
        `SWITCH_LATENCY`, another node 0.
        """
        sketch = Sketch()
        for node in self.nodes:
            tier = node.tier or node.kind
            sketch.add_node(
                node.name, kind=node.kind, tier=tier, latency=_crossing_latency(node)
            )
        for cable in self.cables:
            ports: dict[str, Any] = (
                {} if cable.ports is None else {"ports": cable.ports}
            )
            sketch.add_edge(
                *cable.ends, bandwidth=cable.bandwidth, latency=cable.latency, **ports
            )
        return sketch

    def check_usable(self) -> ImportedFabric:
        """Return this fabric if it is a usable network.

        Raises:
            TopologyError: it is no usable network.
        """
        if problems := graph_problems(self.sketch(), "fabric"):
            raise TopologyError(problems, self.source)
        return self

    @cached_property
    def tiers(self) -> dict[str, str]:
        """The tier of each node by its name.

        A node without a tier of its own gets one: a switch 'leaf', 'level2' and so on
        by its distance from the nearest host; every other node, and a switch that no
        host reaches, its kind.
        """
        cabling = Cabling.from_graph(self.sketch())
        depth_of_node = dict(zip(cabling.names, cabling.depth.tolist(), strict=True))
        return {
            node.name: node.tier or _tier_name(node.kind, depth_of_node[node.name])
            for node in self.nodes
        }

    @cached_property
    def slow_cables(self) -> list[SlowCable]:
        """The cables that are slower than most cables between their two tiers, in the
        order of ``cables``.

        Of equally common bandwidths the highest counts as that of most.
        """
        tiers_of_cables = [
            tuple(sorted(self.tiers[end] for end in cable.ends))
            for cable in self.cables
        ]
        pairs = dict.fromkeys(tiers_of_cables)
        index_of_tiers = {pair: index for index, pair in enumerate(pairs)}
        # (cables,) index of the two tiers, own bandwidth, and the most common one of these tiers
        tiers_index = np.array([index_of_tiers[pair] for pair in tiers_of_cables])
        bandwidths = np.array([cable.bandwidth for cable in self.cables])
        usual_bandwidths = most_common_bandwidth(tiers_index, bandwidths).tolist()
        rate_text_of = {
            (pair, cable.bandwidth): cable.rate_text
            for pair, cable in zip(tiers_of_cables, self.cables, strict=True)
        }
        rows = zip(self.cables, tiers_of_cables, usual_bandwidths, strict=True)
        return [
            SlowCable(cable, rate_text_of[pair, usual], factor=usual / cable.bandwidth)
            for cable, pair, usual in rows
            if cable.bandwidth < usual
        ]

    def with_usual_bandwidths(self) -> ImportedFabric:
        """Return the fabric with the usual bandwidth and rate for every slow cable.

        Two runs, with and without it, say what `slow_cables` cost.
        """
        mended_cables = {
            id(slow.cable): replace(
                slow.cable,
                bandwidth=slow.cable.bandwidth * slow.factor,
                rate=slow.usual_rate,
            )
            for slow in self.slow_cables
        }
        return replace(
            self, cables=[mended_cables.get(id(cable), cable) for cable in self.cables]
        )

    @property
    def hcas(self) -> int:
        """Number of cables of the host that has the fewest; there must be a host."""
        count = Counter(end for cable in self.cables for end in cable.ends)
        return min(count[node.name] for node in self.nodes_of_kind("host"))

    def counts(self) -> dict[str, str]:
        """Return how many adapters, switches, cables, hosts, levels and rates there
        are.

        Each value is a text for people, by the name of what is counted: 'adapters',
        'switches', 'cables', 'hosts', 'levels' and 'rates', in this order. Hosts have
        the adapter ports of the host that has the fewest.
        """
        count_of_rate = Counter(cable.rate_text for cable in self.cables)
        count_of_tier = Counter(
            self.tiers[node.name] for node in self.nodes_of_kind("switch")
        )
        return {
            "adapters": str(self.adapters),
            "switches": str(len(self.nodes_of_kind("switch"))),
            "cables": str(len(self.cables)),
            "hosts": f"{len(self.nodes_of_kind('host'))}, with {self.hcas} adapter ports each",
            "levels": _format_counts(count_of_tier),
            "rates": _format_counts(count_of_rate),
        }

    def to_json(self) -> str:
        """Return the fabric as networkx node-link JSON, which ``kind: custom`` reads.

        Quantities are texts with units, latencies with their estimates. Names of rates,
        notes and warnings are left out.
        """
        nodes = [
            {
                "id": node.name,
                "kind": node.kind,
                "tier": self.tiers[node.name],
                **({"guid": node.guid} if node.guid else {}),
                "latency": format_quantity(_crossing_latency(node), Dimension.SECONDS),
            }
            for node in self.nodes
        ]
        links = [
            {
                "source": cable.ends[0],
                "target": cable.ends[1],
                **(
                    {}
                    if cable.ports is None
                    else {"ports": "-".join(map(str, cable.ports))}
                ),
                **({"adapter": cable.adapter} if cable.adapter else {}),
                "bandwidth": format_quantity(cable.bandwidth, Dimension.BANDWIDTH),
                "latency": format_quantity(cable.latency, Dimension.SECONDS),
            }
            for cable in self.cables
        ]
        head = '{"directed": false, "multigraph": true, "graph": {},\n"nodes": [\n'
        json_blocks = [
            ",\n".join(json.dumps(record, ensure_ascii=False) for record in records)
            for records in (nodes, links)
        ]
        return f'{head}{json_blocks[0]}\n],\n"links": [\n{json_blocks[1]}\n]}}\n'


def _crossing_latency(node: FabricNode) -> float:
    """Return s of crossing a node: its own latency, else an estimate for a switch, or
    0.
    """
    if node.latency is not None:
        return node.latency
    return SWITCH_LATENCY if node.kind == "switch" else 0.0


def _tier_name(kind: str, depth: int) -> str:
    """Return the tier of a switch by its distance ``depth`` from the hosts; the kind of
    another node, or of a switch with a depth below 0.
    """
    if kind != "switch" or depth < 0:
        return kind
    return "leaf" if depth == 0 else f"level{depth + 1}"


def _format_counts(counts: Mapping[str, int]) -> str:
    """Return counts as text, 'leaf' first, then the others by name: '4 leaf, 2 level2';
    '' of none.
    """
    return ", ".join(
        f"{counts[name]} {name}"
        for name in sorted(counts, key=lambda tier: (tier != "leaf", tier))
    )


def read_text(path: Path) -> str:
    """Return the text of a file, without what terminals, launchers and trackers put
    around it.

    Raises:
        TopologyError: the file cannot be read, is no text, or is larger than
            `MAX_BYTES`.
    """
    try:
        content = read_limited_file(
            str(path), MAX_BYTES, "Leave out what other tools printed."
        )
        return without_commands(clean_text(decode(content)))
    except UnicodeDecodeError:
        rule = "must be text in UTF-8 or UTF-16. Name the file that the tool wrote."
    except TopologyError:
        raise
    except (OSError, ValueError) as error:
        rule = f"cannot be read: {getattr(error, 'strerror', None) or error}. Correct the path."
    raise TopologyError(rule, str(path))


def fabric_error(
    location: int | str, rule: str, value: str, remedy: str
) -> TopologyError:
    """Return the error of one place in a file; `attribute_errors` adds the file's name.

    Args:
        location: line of the file, from 1; 0 for the file itself; or a path of keys in
            it.
        rule: the rule that is broken.
        value: the offending text.
        remedy: how to repair the file.
    """
    path = (
        location if isinstance(location, str) else f"line {location}" * (location > 0)
    )
    return TopologyError(Problem(path, rule, value, remedy))


@contextmanager
def attribute_errors(source: str | Path) -> Iterator[None]:
    """Raise every input error of the block as a TopologyError that names a file.

    Args:
        source: the file that is named, unless the error names another one.
    """
    try:
        yield
    except InputError as error:
        raise TopologyError(error.problems, error.source or str(source)) from None


def normalize_guid(text: str) -> str:
    """Return a GUID in lower-case hexadecimal without leading zeros; '' if ``text`` is
    no GUID.
    """
    return f"{int(text, 16):x}" if re.fullmatch(r"[0-9a-fA-F]+", text) else ""


def opensm_order(guid: str) -> int:
    """Return the key by which OpenSM sorts switches with equally many adapters.

    The key is the GUID in network byte order, read as a number of a little-endian
    machine. A GUID of '' counts as 0.
    """
    return int.from_bytes((int(guid or "0", 16) % 2**64).to_bytes(8, "big"), "little")


def natural_key(name: str) -> list[tuple[int, int | str]]:
    """Return a sort key by which 'node9' comes before 'node10'."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts if part]


def unique_names(labels_and_identities: Iterable[tuple[str, str]]) -> list[str]:
    """Return a unique name for each node: its label, or 'label.identity' where labels
    are equal, or its identity without a label.

    Whitespace and the marks ``>`` and ``#``, of which names of links are made, become
    underscores.

    Args:
        labels_and_identities: for each node its label, which may be empty, and its
            unique identity.
    """
    names_and_identities = [
        (re.sub(r"[\s>#]+", "_", name.strip()) or identity, identity)
        for name, identity in labels_and_identities
    ]
    count = Counter(name for name, _ in names_and_identities)
    return [
        name if count[name] == 1 else f"{name}.{identity}"
        for name, identity in names_and_identities
    ]
