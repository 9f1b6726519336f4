"""Read what ibnetdiscover prints of an InfiniBand fabric, and ibsim's net files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from simshuffle.errors import Problem, TopologyError, list_first
from simshuffle.extensions.interop.fabrics.imported import (
    Cable,
    FabricNode,
    FabricSupplement,
    ImportedFabric,
    NodePort,
    fabric_error,
    natural_key,
    opensm_order,
    unique_names,
)
from simshuffle.extensions.interop.fabrics.infiniband import (
    LANE_GBIT,
    adapter_name,
    adapter_of_device,
    bandwidth_of_rate,
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

MIN_ADAPTER_SHARE_OF_LEAF = 0.25
"""Of the cables of a switch without hosts, how many lead to adapters if hosts stand
there too, and not just a management node: an estimate.
"""


def begins(text: str) -> bool:
    """Return whether a text may be output of ibnetdiscover, by its first 2000 lines."""
    lines = (line.strip() for line in text.split("\n")[:2000])
    return any(RECORD.match(line) or REPORT.match(line) for line in lines)


def fabric_of(text: str, source: str, supplement: FabricSupplement) -> ImportedFabric:
    """Parse a fabric from the output of ibnetdiscover or a net file of ibsim.

    Adapters whose descriptions name the same host ('node7 mlx5_0', 'node7 mlx5_1') are
    one host; one with a word alone ('Hca7') is a host of its own. Hosts are those with
    the usual number of adapter ports: the number that holds most of all adapter ports.
    Hosts with another number, adapters that name no host, and the aggregation nodes of
    switches are of kind 'other', and stand in ``left_out``. If no adapter names a host,
    each adapter is one.

    Args:
        text: the file's text.
        source: name of the file.
        supplement: bandwidth of cables without a known width and speed, names of nodes,
            and the hosts that take part; other hosts are of kind 'other'.

    Raises:
        TopologyError: the file is none of ibnetdiscover, a switch is cut off, ports do
            not match at both ends, a cable has no bandwidth, no host has a switch,
            ``supplement`` names no node or host of the file, or the fabric is no usable
            network.
    """
    dump = read_dump(text)
    complete_cables(dump)
    if supplement.names:
        name_records(dump.records, supplement.names, source)
    fabric = _FabricBuilder(
        dump.records, source, supplement, dump.left_out, dump.warnings
    )
    return fabric.build().check_usable()


@dataclass
class _FabricBuilder:
    """Builds a fabric from the records of a file."""

    # switches and adapters by their identities; cables are complete at both ends
    records: dict[str, SubnetRecord]
    source: str  # the file
    supplement: FabricSupplement  # what the file may not say
    left_out: list[str]  # what takes no part, each as a text
    warnings: list[str] = field(default_factory=list)  # what is unusual, each as a text
    # node and port in the fabric, by identity and port in the file
    port_of_record: dict[tuple[str, int], NodePort] = field(default_factory=dict)

    def build(self) -> ImportedFabric:
        """Return the fabric, not yet checked.

        Raises:
            TopologyError: the file has no switch.
        """
        endpoints = self._list_endpoints()
        switches = self._list_switches({node.name for node in endpoints})
        adapter_keys = [
            key for key, record in self.records.items() if record.kind == "Ca"
        ]
        if not switches:
            rule = "a fabric needs a switch"
            remedy = "Run the tool where it reaches a switch."
            raise fabric_error(0, rule, "none", remedy)
        port_of_guid: dict[str, NodePort] = {}
        port_of_lid: dict[int, NodePort] = {}
        port_of_ibsim_guid: dict[str, NodePort] = {}
        for key in adapter_keys:
            record = self.records[key]
            for port_number, port in record.ports.items():
                node_port = self.port_of_record[key, port_number]
                port_of_guid[port.guid] = node_port
                port_of_lid[port.lid] = node_port
                if (
                    record.guid
                ):  # ibsim gives ports GUIDs: that of the node plus their number
                    ibsim_guid = f"{int(record.guid, 16) + port_number:x}"
                    port_of_ibsim_guid[ibsim_guid] = node_port
        port_of_guid = port_of_ibsim_guid | port_of_guid
        port_of_guid.pop("", None)  # of files without GUIDs
        port_of_lid.pop(0, None)  # of files in which no subnet manager has set any
        return ImportedFabric(
            source=self.source,
            nodes=[*endpoints, *switches],
            cables=self._list_cables(),
            adapters=len(adapter_keys),
            ports=port_of_guid,
            lids=port_of_lid,
            left_out=self.left_out,
            warnings=self.warnings,
        )

    def _list_switches(self, host_names: set[str]) -> list[FabricNode]:
        """Return the switches in the order of OpenSM, with names that are not in
        ``host_names``; note the node and port of each of their ports.
        """
        keys_and_records = [
            (key, record)
            for key, record in self.records.items()
            if record.kind == "Switch"
        ]
        keys_and_records.sort(
            key=lambda key_and_record: opensm_order(key_and_record[1].guid)
        )
        names = unique_names(
            (switch_name(record.label), record.guid or key)
            for key, record in keys_and_records
        )
        nodes = []
        for name, (key, record) in zip(names, keys_and_records, strict=True):
            if name in host_names:
                name = f"{name}.{record.guid or key}"  # noqa: PLW2901 - a name of its own
            for port_number in record.ports:
                self.port_of_record[key, port_number] = (name, port_number)
            nodes.append(FabricNode(name, "switch", record.guid))
        return nodes

    def _list_endpoints(self) -> list[FabricNode]:
        """Return the nodes of hosts, sorted by name, and then of adapters without a
        host; number their ports, and note hosts that take no part.
        """
        adapters_of_host, unnamed_adapters = self._group_adapters()
        ports_of_host = {
            host: sum(len(self.records[key].ports) for key in adapters_of_host[host])
            for host in adapters_of_host
        }
        requested_hosts = self._find_requested_hosts(adapters_of_host)
        hosts_of_size = Counter(ports_of_host[host] for host in requested_hosts)
        # the number of ports of a host that holds most of all ports, the larger of equal ones
        usual_size = max(
            hosts_of_size,
            key=lambda size: (size * hosts_of_size[size], size),
            default=0,
        )

        nodes = []
        for host in sorted(adapters_of_host, key=natural_key):
            self._number_ports(host, adapters_of_host[host])
            guid = self.records[adapters_of_host[host][0]].guid
            takes_part = ports_of_host[host] == usual_size and host in requested_hosts
            kind, tier = ("host", "host") if takes_part else ("other", "")
            nodes.append(FabricNode(host, kind, guid, tier))
        other_names = [node.name for node in nodes if node.kind == "other"]
        self._note_left_out(
            f"hosts that do not have {usual_size} adapter ports",
            [host for host in other_names if host in requested_hosts],
        )
        self._note_left_out(
            "hosts that Slurm does not list",
            [host for host in other_names if host not in requested_hosts],
        )
        for key in unnamed_adapters:
            record = self.records[key]
            name = f"{'aggregation' if record.aggregates else 'adapter'}.{record.guid or key}"
            self._number_ports(name, [key])
            nodes.append(FabricNode(name, "other", record.guid))
        return self._mark_host_tier(nodes)

    def _note_left_out(self, subject: str, hosts: list[str]) -> None:
        """Note hosts that take no part, with their number and three examples."""
        if hosts:
            examples = ", ".join(hosts[:3]) + (", ..." if hosts[3:] else "")
            self.left_out.append(f"{subject}: {len(hosts)} ({examples})")

    def _find_requested_hosts(self, host_names: Collection[str]) -> Collection[str]:
        """Return the hosts that may take part: all hosts, or the hosts of Slurm's
        topology.

        Hosts of Slurm that the file does not have are noted as a warning.

        Raises:
            TopologyError: Slurm's topology names none of them.
        """
        hosts = self.supplement.hosts
        if not hosts:
            return host_names
        requested_hosts = hosts & set(host_names)
        missing_hosts = sorted(hosts - set(host_names), key=natural_key)
        if not requested_hosts:
            rule = f"must list some of the {len(host_names)} hosts of {self.source}"
            remedy = "Give the Slurm topology of this cluster, or name the adapters by --names."
            problem = Problem("--slurm", rule, list_first(missing_hosts), remedy)
            raise TopologyError(problem, "command line")
        if missing_hosts:
            self.warnings.append(
                f"hosts of Slurm that are not in the dump: {list_first(missing_hosts)}"
            )
        return requested_hosts

    def _group_adapters(self) -> tuple[dict[str, list[str]], list[str]]:
        """Return the keys of each host's adapters, and the keys of adapters without a
        host, which are noted.

        Aggregation nodes of switches are without a host. If no adapter names a host,
        each is one, by its GUID, and a warning says so.
        """
        adapters_of_host: dict[str, list[str]] = {}
        nameless_adapters = []
        aggregation_nodes = []
        for key, record in self.records.items():
            if record.kind == "Ca":
                if record.aggregates:
                    aggregation_nodes.append(key)
                elif host := host_name(record.label):
                    adapters_of_host.setdefault(host, []).append(key)
                else:
                    nameless_adapters.append(key)
        if aggregation_nodes:
            self.left_out.append(
                f"aggregation nodes of switches: {len(aggregation_nodes)}"
            )
        if nameless_adapters and adapters_of_host:
            label = self.records[nameless_adapters[0]].label
            self.left_out.append(
                f"adapters whose description names no host: {len(nameless_adapters)},"
                f" such as {label!r}"
            )
        elif nameless_adapters:
            self.warnings.append(
                "no adapter's description names a host, so each adapter counts as a host"
            )
            adapters_of_host = {
                self.records[key].guid or key: [key] for key in nameless_adapters
            }
            nameless_adapters = []
        return adapters_of_host, [*nameless_adapters, *aggregation_nodes]

    def _number_ports(self, name: str, keys: list[str]) -> None:
        """Number the ports of the adapters of a host from 1 on, by the adapters' names.

        Adds them to ``port_of_record``.
        """
        sorted_keys = sorted(keys, key=lambda key: natural_key(self.records[key].label))
        record_ports = [
            (key, port)
            for key in sorted_keys
            for port in sorted(self.records[key].ports)
        ]
        for port_number, record_port in enumerate(record_ports, 1):
            self.port_of_record[record_port] = (name, port_number)

    def _mark_host_tier(self, nodes: list[FabricNode]) -> list[FabricNode]:
        """Return the nodes, with tier 'host' for those at switches where hosts could
        stand: at least `MIN_ADAPTER_SHARE_OF_LEAF` of their cables lead to adapters.

        Aggregation nodes count as no adapters, and keep their tier.
        """
        hosts = {node.name for node in nodes if node.kind == "host"}
        leaves = set()
        for key, record in self.records.items():
            if record.kind != "Switch" or not record.ports:
                continue
            peers = [self.records[port.peer[0]] for port in record.ports.values()]
            num_adapters = sum(
                peer.kind == "Ca" and not peer.aggregates for peer in peers
            )
            if num_adapters >= MIN_ADAPTER_SHARE_OF_LEAF * len(peers):
                leaves.add(key)
        names_at_leaves = {
            self.port_of_record[port.peer][0]
            for key in leaves
            for port in self.records[key].ports.values()
            if port.peer in self.port_of_record
            and not self.records[port.peer[0]].aggregates
        }
        return [
            replace(node, tier="host") if node.name in names_at_leaves - hosts else node
            for node in nodes
        ]

    def _list_cables(self) -> list[Cable]:
        """Return every cable once, sorted by the names of its ends.

        A cable of an adapter begins at the adapter. The adapter is said to limit the
        cable if its fastest speed is no higher than the cable's.

        Raises:
            TopologyError: a cable has no bandwidth.
        """
        cables = []
        for key, record in self.records.items():
            for port_number, port in record.ports.items():
                record_port = (key, port_number)
                peer_kind = self.records[port.peer[0]].kind
                if (record.kind, record_port) > (peer_kind, port.peer):
                    continue  # the cable is listed at its other end
                node, node_port = self.port_of_record[record_port]
                peer, peer_port = self.port_of_record[port.peer]
                bandwidth = self._bandwidth_of_port(port)
                adapter_model, adapter_bandwidth = adapter_of_device(record.device)
                cable = Cable(
                    ends=(node, peer),
                    ports=(node_port, peer_port),
                    bandwidth=bandwidth,
                    rate=port.rate,
                    adapter=adapter_name(record.label) if record.kind == "Ca" else "",
                    limiting_adapter=adapter_model
                    if adapter_bandwidth <= bandwidth
                    else "",
                )
                cables.append(cable)
        cables.sort(
            key=lambda cable: [(natural_key(end), cable.ports) for end in cable.ends]
        )
        return cables

    def _bandwidth_of_port(self, port: Port) -> float:
        """Return bytes/s each way of the cable at a port, from its rate, else from the
        supplement.

        Raises:
            TopologyError: the rate is unknown, and the supplement has no bandwidth.
        """
        bandwidth = bandwidth_of_rate(port.rate) or self.supplement.bandwidth
        if bandwidth is not None:
            return bandwidth
        if port.rate:
            speeds = ", ".join(LANE_GBIT)
            rule = f"a rate must be a width and one of {speeds}, such as 4xNDR"
        else:
            rule = "every cable needs a width and a speed"
        remedy = "Give the bandwidth of such cables, as --link-bandwidth '12.5 GB/s'."
        raise fabric_error(port.line, rule, repr(port.rate), remedy)
