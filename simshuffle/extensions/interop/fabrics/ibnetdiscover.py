"""What ibnetdiscover prints of an InfiniBand fabric; ibsim's net files are written alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from simshuffle.errors import Problem, TopologyError, list_first
from simshuffle.extensions.interop.fabrics.imported import (
    Cable,
    FabricNode,
    ImportedFabric,
    Missing,
    Place,
    natural,
    opensm_order,
    refuse,
    unique_names,
)
from simshuffle.extensions.interop.fabrics.infiniband import (
    LANE_GBIT,
    adapter_name,
    adapter_of,
    bandwidth_of,
    host_name,
    switch_name,
)
from simshuffle.extensions.interop.fabrics.subnet_cables import complete_cables
from simshuffle.extensions.interop.fabrics.subnet_records import (
    RECORD,
    REPORT,
    Port,
    SubnetRecord,
    name_records,
    read_dump,
)

SHARE_OF_A_LEAF = 0.25
"""Of the cables of a switch without hosts, how many lead to adapters if hosts stand there too, and
not just a management node: an estimate."""


def begins(text: str) -> bool:
    """Whether a text may be of ibnetdiscover."""
    lines = (line.strip() for line in text.split("\n")[:2000])
    return any(RECORD.match(line) or REPORT.match(line) for line in lines)


def fabric_of(text: str, source: str, missing: Missing) -> ImportedFabric:
    """The fabric of a file's text; ``source`` is the file, ``missing`` is for
    cables without width and speed, and names nodes.

    Adapters whose descriptions name the same host ('node7 mlx5_0', 'node7 mlx5_1') are one host;
    one with a word alone ('Hca7') is a host of its own. Hosts have the number of adapter ports that
    most adapter ports are shared with; what has another number, what names no host, and the
    aggregation nodes of switches are of kind 'other'.

    Raises:
        TopologyError: the file is none of ibnetdiscover, a switch is cut off, ports do not match at
            both ends, no host has a switch, or it is no usable network.
    """
    dump = read_dump(text)
    complete_cables(dump)
    if missing.names:
        name_records(dump.records, missing.names, source)
    fabric = _Fabric(dump.records, source, missing, dump.left_out, dump.warnings)
    return fabric.imported().checked()


@dataclass
class _Fabric:
    """The records of a file on their way to a fabric."""

    records: dict[
        str, SubnetRecord
    ]  # switches and adapters by their identities; matched at both ends
    source: str  # the file
    missing: Missing
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
            raise refuse(0, rule, "none", remedy)
        ports: dict[str, Place] = {}
        lids: dict[int, Place] = {}
        simulated: dict[str, Place] = {}
        for key in adapters:
            record = self.records[key]
            for number, port in record.ports.items():
                ports[port.guid] = lids[port.lid] = self.places[key, number]
                if record.guid:  # ibsim gives ports GUIDs: that of the node plus their number
                    simulated[f"{int(record.guid, 16) + number:x}"] = self.places[key, number]
        ports = simulated | ports
        ports.pop("", None)  # of files without GUIDs
        lids.pop(0, None)  # of files in which no subnet manager has set any
        nodes, cables = [*ends, *switches], self._cables()
        return ImportedFabric(
            self.source, nodes, cables, len(adapters), ports, lids, self.left_out, self.warnings
        )

    def _switches(self, taken: set[str]) -> list[FabricNode]:
        """Switches, called otherwise than the names ``taken``."""
        found = [(key, record) for key, record in self.records.items() if record.kind == "Switch"]
        found.sort(key=lambda each: opensm_order(each[1].guid))
        names = unique_names(
            (switch_name(record.label), record.guid or key) for key, record in found
        )
        nodes = []
        for wanted, (key, record) in zip(names, found, strict=True):
            name = f"{wanted}.{record.guid or key}" if wanted in taken else wanted
            self.places |= {(key, number): (name, number) for number in record.ports}
            nodes.append(FabricNode(name, "switch", record.guid))
        return nodes

    def _ends(self) -> list[FabricNode]:
        """Hosts and what else is attached, by name."""
        named, single = self._grouped()
        ports = {host: sum(len(self.records[key].ports) for key in named[host]) for host in named}
        asked = self._asked(named)
        sizes = Counter(ports[host] for host in asked)
        usual = max(sizes, key=lambda size: (size * sizes[size], size), default=0)
        nodes = []
        for host in sorted(named, key=natural):
            self._place(host, named[host])
            kind = "host" if ports[host] == usual and host in asked else "other"
            guid = self.records[named[host][0]].guid
            nodes.append(FabricNode(host, kind, guid, "host" if kind == "host" else ""))
        others = [node.name for node in nodes if node.kind == "other"]
        self._leave_out(
            f"hosts with another number of adapter ports than {usual}",
            [host for host in others if host in asked],
        )
        self._leave_out("hosts that Slurm does not have", [h for h in others if h not in asked])
        for key in single:
            record = self.records[key]
            name = f"{'aggregation' if record.aggregates else 'adapter'}.{record.guid or key}"
            self._place(name, [key])
            nodes.append(FabricNode(name, "other", record.guid))
        return self._with_tiers(nodes)

    def _leave_out(self, what: str, hosts: list[str]) -> None:
        if hosts:
            few = ", ".join(hosts[:3]) + (", ..." if hosts[3:] else "")
            self.left_out.append(f"{what}: {len(hosts)} ({few})")

    def _asked(self, named: Collection[str]) -> Collection[str]:
        """The hosts that may take part: those that Slurm has, if it was read.

        Raises:
            TopologyError: it has none of them.
        """
        hosts = self.missing.hosts
        if not hosts:
            return named
        asked, lost = hosts & set(named), sorted(hosts - set(named), key=natural)
        if not asked:
            rule = f"must have some of the {len(named)} hosts of {self.source}"
            remedy = "Take the topology of this cluster, or name the adapters by --names."
            raise TopologyError(Problem("--slurm", rule, list_first(lost), remedy), "command line")
        if lost:
            self.warnings.append(f"hosts of Slurm that are not in the dump: {list_first(lost)}")
        return asked

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
            named = {self.records[key].guid or key: [key] for key in nameless}
            nameless = []
        return named, [*nameless, *aggregation]

    def _place(self, name: str, keys: list[str]) -> None:
        """Number the ports of the adapters of a host from 1 on, by the adapters' names."""
        ordered = sorted(keys, key=lambda key: natural(self.records[key].label))
        ports = [(key, number) for key in ordered for number in sorted(self.records[key].ports)]
        self.places |= {port: (name, number) for number, port in enumerate(ports, 1)}

    def _with_tiers(self, nodes: list[FabricNode]) -> list[FabricNode]:
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

    def _bandwidth(self, port: Port) -> float:
        found = bandwidth_of(port.rate) or self.missing.bandwidth
        if found is not None:
            return found
        if port.rate:
            known = ", ".join(LANE_GBIT)
            rule = f"a rate must be a width and one of {known}, such as 4xNDR"
        else:
            rule = "every cable needs a width and a speed"
        remedy = "Say what such cables carry with --link-bandwidth, as in '12.5 GB/s'."
        raise refuse(port.line, rule, repr(port.rate), remedy)
