"""What ibnetdiscover prints of an InfiniBand fabric; ibsim's net files are written alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simshuffle.errors import Problem, TopologyError
from simshuffle.fabrics.imported import (
    Cable,
    ImportedFabric,
    Missing,
    Node,
    Place,
    natural,
    opensm_order,
    plain_guid,
    refuse,
    unique_names,
)
from simshuffle.fabrics.names import adapter_name, host_name, name_of, switch_name
from simshuffle.fabrics.rates import LANE_GBIT, adapter_of, bandwidth_of

TOOL = "ibnetdiscover"
SHARE_OF_A_LEAF = 0.25
"""Of the cables of a switch without hosts, how many lead to adapters if hosts stand there too, and
not just a management node: an estimate."""
_RECORD = re.compile(r'(Switch|Ca|Rt)\s+(\d+)\s+"([^"]+)"\s*(?:#\s*(.*))?$')
_PORT = re.compile(
    r"\[(\d+)\](?:\[ext \d+\])?(?:\(([0-9a-fA-F]+)\))?\s*"
    r'"([^"]+)"\[(\d+)\](?:\[ext \d+\])?(?:\(([0-9a-fA-F]+)\))?\s*(?:#\s*(.*))?$'
)
_GUID = re.compile(r"(switch|ca|rt)guid=(?:0x)?([0-9a-fA-F]+)")
_DEVICE = re.compile(r"devid=0x([0-9a-fA-F]+)")
_MODEL = re.compile(r"MT(\d{4,5})\b")
_PASSED = ("vendid=", "devid=", "sysimgguid=", "Chassis ", "Non-Chassis ", "#")
_AGGREGATION = re.compile(r"Aggregation Node|SHARP", re.IGNORECASE)


@dataclass
class _Port:
    """The end of a cable as the record of its node says it."""

    line: int
    peer: tuple[str, int]
    rate: str
    guid: str
    lid: int


@dataclass
class _Record:
    """A switch, adapter (Ca) or router (Rt)."""

    line: int
    kind: str
    size: int
    label: str
    guid: str
    device: int = 0  # of the maker; 0 if the file does not say it
    ports: dict[int, _Port] = field(default_factory=dict)

    @property
    def aggregates(self) -> bool:
        """Whether it stands for the reductions that a switch does itself."""
        return self.kind == "Ca" and bool(_AGGREGATION.search(self.label))


def begins(text: str) -> bool:
    """Whether a text may be of ibnetdiscover."""
    return any(_RECORD.match(line) for line in text.splitlines()[:2000])


def fabric_of(text: str, source: str, missing: Missing) -> ImportedFabric:
    """The fabric of a file's text; ``source`` is what errors call the file, ``missing`` is for
    cables without width and speed, and names nodes.

    Adapters whose descriptions name the same host ('node7 mlx5_0', 'node7 mlx5_1') are one host;
    one with a word alone ('Hca7') is a host of its own. Hosts have the number of adapter ports that
    most adapter ports are shared with; what has another number, what names no host, and the
    aggregation nodes of switches are of kind 'other'.

    Raises:
        TopologyError: the file is none of ibnetdiscover, is cut off, its ports do not match at both
            ends, a host has no switch, or it is no usable network.
    """
    records = _records(text, source)
    routers = {key for key, record in records.items() if record.kind == "Rt"}
    _check(records, source)
    for key in routers:
        del records[key]
    for record in records.values():
        record.ports = {
            number: port for number, port in record.ports.items() if port.peer[0] not in routers
        }
    left_out = [f"routers: {len(routers)}"] if routers else []
    if missing.names:
        _name(records, missing.names, source)
    return _Fabric(records, source, missing.bandwidth, left_out).imported().checked()


def _name(records: dict[str, _Record], names: Mapping[str, str], source: str) -> None:
    """Describe nodes as a node-name map does.

    Raises:
        TopologyError: the map names none of them.
    """
    named = 0
    for record in records.values():
        guids = [record.guid, *(port.guid for port in record.ports.values())]
        label = name_of(names, record.label, guids, switch=record.kind == "Switch")
        if label is not None and not record.aggregates:
            record.label, named = label, named + 1
    if not named:
        rule = f"must name some of the {len(records)} nodes of {source}"
        found, remedy = (
            f"{len(names)} other names",
            "Take the map of this fabric, with GUIDs of nodes.",
        )
        raise TopologyError(Problem("--names", rule, found, remedy), "command line")


def _records(text: str, source: str) -> dict[str, _Record]:
    """The records of a file by their identities."""
    records: dict[str, _Record] = {}
    current: _Record | None = None
    guid, device = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if found := _DEVICE.match(line):
            device = int(found[1], 16)
        if not line or line.startswith(_PASSED):
            continue
        if found := _GUID.match(line):
            guid = plain_guid(found[2])
        elif found := _RECORD.match(line):
            key = found[3]
            if key in records:
                rule, remedy = "must have every node once", "Leave one of the two out."
                raise refuse(source, number, rule, f"{key} again", remedy)
            label, _ = _comment(found[4])
            guid = guid or plain_guid(key.partition("-")[2])
            if model := _MODEL.search(label):  # as in 'MT4123 ConnectX6'
                device = device or int(model[1])
            current = records[key] = _Record(number, found[1], int(found[2]), label, guid, device)
            guid, device = "", 0
        elif (found := _PORT.match(line)) and current is not None:
            _add_port(current, number, found, source)
        else:
            raise refuse(
                source,
                number,
                f"must be a line of {TOOL}: a node, or one of its ports",
                repr(line[:60]),
                f"Run {TOOL} again, and keep all that it prints: the file may be cut off.",
            )
    if not records:
        rule, remedy = f"must hold what {TOOL} prints", "Name the file that it wrote."
        raise refuse(source, 0, rule, "no switch and no adapter", remedy)
    return records


def _comment(text: str | None) -> tuple[str, str]:
    """What stands in quotes in a comment, and what stands behind that."""
    comment = text or ""
    if '"' not in comment:
        return comment.strip(), comment
    before, _, rest = comment.partition('"')
    label, _, behind = rest.rpartition('"')
    return label.strip(), f"{before} {behind}"


def _add_port(record: _Record, number: int, found: re.Match[str], source: str) -> None:
    port = int(found[1])
    if port in record.ports or not 1 <= port <= record.size:
        rule = f"must be a port from 1 to {record.size}, each once"
        remedy = "Run the tool again: the file was changed."
        raise refuse(source, number, rule, f"port {port} of {record.label!r}", remedy)
    _, told = _comment(found[6])
    words = told.split()
    rate = next((word for word in words if re.fullmatch(r"\d+x\S+", word)), "")
    own = re.search(r"\blid (\d+) lmc", told)
    record.ports[port] = _Port(
        number,
        (found[3], int(found[4])),
        rate,
        plain_guid(found[2] or record.guid),
        int(own[1]) if own else 0,
    )


def _check(records: dict[str, _Record], source: str) -> None:
    """Raises a TopologyError where a port does not match the one at its other end, or an adapter
    has no switch."""
    for key, record in records.items():
        if record.kind == "Ca" and not record.ports:
            raise _without_switch(record, "no cable", source)
        for number, port in record.ports.items():
            peer, other = port.peer
            if peer not in records:
                raise refuse(
                    source,
                    port.line,
                    "a cable must end at a node of the file",
                    f"{peer}, which it does not have",
                    "Run the tool again, and keep all that it prints: the file may be cut off.",
                )
            if record.kind == records[peer].kind == "Ca":
                raise _without_switch(record, f"a cable to {records[peer].label!r}", source)
            back = records[peer].ports.get(other)
            if back is None or back.peer != (key, number):
                raise refuse(
                    source,
                    port.line,
                    "both ends of a cable must name each other",
                    f"port {number} of {record.label!r} names port {other} of"
                    f" {records[peer].label!r}, which names "
                    + (f"port {back.peer[1]} of {back.peer[0]}" if back else "nothing"),
                    "Run the tool again: the fabric changed, or the file is cut off.",
                )
            if port.rate and back.rate and port.rate != back.rate:
                rule, remedy = "both ends of a cable must have one rate", "Correct one of them."
                raise refuse(source, port.line, rule, f"{port.rate} and {back.rate}", remedy)


def _without_switch(record: _Record, found: str, source: str) -> TopologyError:
    return refuse(
        source,
        record.line,
        "every host must have a cable to a switch",
        f"{record.label!r} has {found}",
        "Cable it, or leave its record out.",
    )


@dataclass
class _Fabric:
    """The records of a file on their way to a fabric."""

    records: dict[str, _Record]  # switches and adapters by their identities; matched at both ends
    source: str  # what errors call the file
    link_bandwidth: float | None  # bytes/s of cables without width and speed
    # left_out, warnings: texts
    left_out: list[str]
    warnings: list[str] = field(default_factory=list)
    # the place of every port of the file in the fabric
    places: dict[tuple[str, int], Place] = field(default_factory=dict)

    def imported(self) -> ImportedFabric:
        """The fabric, not yet checked."""
        ends = self._ends()
        switches = self._switches({node.name for node in ends})
        adapters = [key for key, record in self.records.items() if record.kind == "Ca"]
        if not switches:
            rule, remedy = "a fabric needs a switch", "Run the tool where it reaches one."
            raise refuse(self.source, 0, rule, "none", remedy)
        ports: dict[str, Place] = {}
        lids: dict[int, Place] = {}
        simulated: dict[str, Place] = {}
        for key in adapters:
            record = self.records[key]
            for number, port in record.ports.items():
                ports[port.guid] = lids[port.lid] = self.places[key, number]
                # ibsim gives ports GUIDs of its own: that of the node plus their number
                simulated[f"{int(record.guid or '0', 16) + number:x}"] = self.places[key, number]
        ports = simulated | ports
        lids.pop(0, None)  # of files in which no subnet manager has set any
        nodes, cables = [*ends, *switches], self._cables()
        return ImportedFabric(
            self.source, nodes, cables, len(adapters), ports, lids, self.left_out, self.warnings
        )

    def _switches(self, taken: set[str]) -> list[Node]:
        """Switches, called otherwise than the names ``taken``."""
        found = [(key, record) for key, record in self.records.items() if record.kind == "Switch"]
        found.sort(key=lambda each: opensm_order(each[1].guid))
        names = unique_names((switch_name(record.label), record.guid) for _, record in found)
        nodes = []
        for wanted, (key, record) in zip(names, found, strict=True):
            name = f"{wanted}.{record.guid}" if wanted in taken else wanted
            self.places |= {(key, number): (name, number) for number in record.ports}
            nodes.append(Node(name, "switch", record.guid))
        return nodes

    def _ends(self) -> list[Node]:
        """Hosts and what else is attached, by name."""
        named, single = self._grouped()
        sizes = Counter(
            sum(len(self.records[key].ports) for key in keys) for keys in named.values()
        )
        usual = max(sizes, key=lambda size: (size * sizes[size], size), default=0)
        nodes = []
        for host in sorted(named, key=natural):
            keys = named[host]
            self._place(host, keys)
            ports = sum(len(self.records[key].ports) for key in keys)
            kind = "host" if ports == usual else "other"
            guid = self.records[keys[0]].guid
            nodes.append(Node(host, kind, guid, "host" if kind == "host" else ""))
        fewer = [node.name for node in nodes if node.kind == "other"]
        if fewer:
            few = ", ".join(fewer[:3]) + (", ..." if fewer[3:] else "")
            self.left_out.append(
                f"hosts with another number of adapter ports than {usual}: {len(fewer)} ({few})"
            )
        for key in single:
            record = self.records[key]
            name = f"{'aggregation' if record.aggregates else 'adapter'}.{record.guid}"
            self._place(name, [key])
            nodes.append(Node(name, "other", record.guid))
        return self._with_tiers(nodes)

    def _grouped(self) -> tuple[dict[str, list[str]], list[str]]:
        """The adapters of each host by its name; and those that are no host's."""
        named: dict[str, list[str]] = {}
        nameless, aggregation = [], []
        for key, record in self.records.items():
            if record.kind == "Ca":
                if record.aggregates:
                    aggregation.append(key)
                elif host := host_name(record.label):
                    named.setdefault(host, []).append(key)
                else:
                    nameless.append(key)
        if aggregation:
            self.left_out.append(f"aggregation nodes of switches: {len(aggregation)}")
        if nameless and named:
            label = self.records[nameless[0]].label
            self.left_out.append(
                f"adapters whose description names no host: {len(nameless)}, such as {label!r}"
            )
        elif nameless:
            self.warnings.append("no adapter's description names a host: each is taken for one")
            named = {self.records[key].guid: [key] for key in nameless}
            nameless = []
        return named, [*nameless, *aggregation]

    def _place(self, name: str, keys: list[str]) -> None:
        """Number the ports of the adapters of a host from 1 on, by the adapters' names."""
        ordered = sorted(keys, key=lambda key: natural(self.records[key].label))
        ports = [(key, number) for key in ordered for number in sorted(self.records[key].ports)]
        self.places |= {port: (name, number) for number, port in enumerate(ports, 1)}

    def _with_tiers(self, nodes: list[Node]) -> list[Node]:
        """The same; what stands at a switch where hosts could stand is of their level."""
        hosts = {node.name for node in nodes if node.kind == "host"}
        leaves = set()
        for key, record in self.records.items():
            if record.kind != "Switch" or not record.ports:
                continue
            peers = [self.records[port.peer[0]] for port in record.ports.values()]
            ends = sum(peer.kind == "Ca" and not peer.aggregates for peer in peers)
            if ends >= SHARE_OF_A_LEAF * len(peers):
                leaves.add(key)
        beside = {
            self.places[port.peer][0]
            for key in leaves
            for port in self.records[key].ports.values()
            if port.peer in self.places and not self.records[port.peer[0]].aggregates
        }
        return [
            replace(node, tier="host") if node.name in beside - hosts else node for node in nodes
        ]

    def _cables(self) -> list[Cable]:
        cables = []
        for key, record in self.records.items():
            for number, port in record.ports.items():
                here, there = (key, number), port.peer
                if (record.kind, here) > (self.records[there[0]].kind, there):
                    continue
                a, b = self.places[here], self.places[there]
                adapter = adapter_name(record.label) if record.kind == "Ca" else ""
                rate, (model, most) = self._bandwidth(port), adapter_of(record.device)
                cable = Cable((a[0], b[0]), (a[1], b[1]), rate, port.rate, adapter)
                cables.append(replace(cable, limited_by=model if most <= rate else ""))
        cables.sort(key=lambda cable: [(natural(end), cable.ports) for end in cable.ends])
        return cables

    def _bandwidth(self, port: _Port) -> float:
        found = bandwidth_of(port.rate) or self.link_bandwidth
        if found is not None:
            return found
        if port.rate:
            known = ", ".join(LANE_GBIT)
            rule = f"a rate must be a width and one of {known}, such as 4xNDR"
        else:
            rule = "every cable needs a width and a speed"
        remedy = "Say what such cables carry with --link-bandwidth, as in '12.5 GB/s'."
        raise refuse(self.source, port.line, rule, repr(port.rate), remedy)
