"""The text of all commands that build a testbed of network namespaces. Nothing is run
here.

A cable is two veth pairs: ``d<cable>`` is shaped and carries data; ``a<cable>`` is not,
and carries packets without payload.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, permutations

import numpy as np

from simshuffle.extensions.calibration.validation.testbed import LeafSpine

PREFIX = "simshuffle"
MTU = 1500  # bytes of an IP packet; the default of Ethernet
# bytes that tbf lets pass at once: a timer that comes 5 ms late at 40 Mbit/s costs nothing
BURST = 24_000
# packets of one pair of hosts before a link; more than the window below, so nothing is ever dropped
QUEUE = 400
SMALL = 128  # bytes: an IP packet below this length is taken for a bare acknowledgement
CONGESTION_CONTROL = (
    "reno"  # in every kernel; where nothing is dropped they are all alike
)
WINDOW = 524_288  # bytes of a receiver's buffer, of which Linux advertises half
WIDE = "10gbit"  # a rate that no class of htb ever reaches: htb only takes turns here, tbf shapes
HOST_NET = "10.77.0"
SETTINGS = {
    # acknowledgements arrive on another device than the way back leads out of
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
}
OF_ROUTERS = {"net/ipv4/ip_forward": "1"}
OF_HOSTS = {
    "net/ipv4/tcp_congestion_control": CONGESTION_CONTROL,
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv4/tcp_no_metrics_save": "1",
    "net/ipv4/tcp_rmem": f"4096 {WINDOW} {WINDOW}",
}
"""Kernel settings of all nodes, of routers and of hosts, by path below /proc/sys."""
CABLE_NET = "10.78"


def namespace(run: str, node: str) -> str:
    """The name of a node's namespace in the run called ``run``."""
    return f"{PREFIX}-{run}-{node}"


def address(host: int) -> str:
    """The IPv4 address of a host, which exists only inside the namespaces."""
    return f"{HOST_NET}.{host + 1}"


def data_device(link: int) -> str:
    """The device by which data leaves over a link."""
    return f"d{link // 2}"


def _gateway(link: int) -> str:
    """The address that stands for the far end of a link."""
    return f"{CABLE_NET}.{link // 2}.{link % 2 + 1}"


def _mac(link: int) -> str:
    """The hardware address of the far end of a link."""
    return f"02:00:00:{link % 2:02x}:{link // 2 // 256:02x}:{link // 2 % 256:02x}"


class NamespaceNetwork(LeafSpine):
    """The network of a `NamespaceShape` with what its namespaces must know."""

    @cached_property
    def nodes(self) -> list[str]:
        """All nodes, hosts first."""
        return list(
            dict.fromkeys([*self.host_names, *chain.from_iterable(self.nodes_of_link)])
        )

    def leaving(self, node: str) -> list[int]:
        """The links out of a node."""
        return [
            link for link, (near, _) in enumerate(self.nodes_of_link) if near == node
        ]

    @cached_property
    def _pairs(self) -> list[tuple[int, int, list[int]]]:
        """Every ordered pair of different hosts, and the links between them."""
        pairs = list(permutations(range(self.shape.hosts), 2))
        routes = self.routes(*np.array(pairs, np.int32).T).tolist()
        return [
            (src, dst, [link for link in route if link >= 0])
            for (src, dst), route in zip(pairs, routes, strict=True)
        ]

    @cached_property
    def next_links(self) -> dict[str, dict[int, int]]:
        """For each node the link that leads on to each host (by number): its routing
        table, which looks at the destination alone.
        """
        out: dict[str, dict[int, int]] = {node: {} for node in self.nodes}
        for _, dst, route in self._pairs:
            for link in route:
                node = self.nodes_of_link[link][0]
                if out[node].setdefault(dst, link) != link:
                    raise AssertionError(f"{node} has two ways to host {dst}")
        return out

    @cached_property
    def crossing(self) -> list[list[tuple[int, int]]]:
        """(links,) the (source, destination) hosts whose route crosses each link."""
        return [
            [(src, dst) for src, dst, route in self._pairs if link in route]
            for link in range(len(self.links))
        ]


@dataclass(frozen=True)
class NodeCommands:
    """What makes a namespace a host or a router."""

    settings: dict[str, str]  # kernel settings, by path below /proc/sys
    ip: list[str]  # lines for ``ip -batch``
    tc: list[str]  # lines for ``tc -batch``


def cables(testbed: NamespaceNetwork, run: str) -> list[str]:
    """Lines for ``ip -batch`` that make all namespaces and lay all cables between them."""
    lines = [f"netns add {namespace(run, node)}" for node in testbed.nodes]
    for link in range(0, len(testbed.links), 2):
        near, far = (namespace(run, node) for node in testbed.nodes_of_link[link])
        for kind in "da":
            name = f"{kind}{link // 2}"
            one = f"{name} netns {near} address {_mac(link + 1)} mtu {MTU}"
            other = f"{name} netns {far} address {_mac(link)} mtu {MTU}"
            lines.append(f"link add {one} type veth peer name {other}")
    return lines


def node(testbed: NamespaceNetwork, name: str) -> NodeCommands:
    """The commands for one node."""
    leaving = testbed.leaving(name)
    is_host = name in testbed.host_names
    # its address makes the table of local addresses, without which the kernel takes no route
    ip = ["link set lo up"]
    for link in leaving:
        device = data_device(link)
        ip += [
            f"link set {device} gso_max_segs 1",  # tbf must see packets as they are on the wire
            f"link set {device} up",
            f"link set a{link // 2} up",
            f"neigh add {_gateway(link)} lladdr {_mac(link)} dev {device} nud permanent",
        ]
    source = ""
    if is_host:
        own = address(testbed.host_names.index(name))
        ip.append(f"addr add {own}/32 dev {data_device(leaving[0])}")
        source = f" src {own}"
    for host, link in sorted(testbed.next_links[name].items()):
        way = f"via {_gateway(link)} dev {data_device(link)} onlink{source}"
        ip.append(f"route add {address(host)}/32 {way}")
    tc = [line for link in leaving for line in shaping(testbed, link)]
    return NodeCommands(SETTINGS | (OF_HOSTS if is_host else OF_ROUTERS), ip, tc)


def shaping(testbed: NamespaceNetwork, link: int) -> list[str]:
    """Lines for ``tc -batch`` at the near end of a link: acknowledgements around the
    shaper, pairs of hosts in turn, then tbf.
    """
    device = data_device(link)
    pairs = testbed.crossing[link]
    rate = f"{round(testbed.shape.rate * 8)}bit"
    limit = QUEUE * MTU
    turn = f"htb rate {WIDE} quantum {MTU + 14}"
    match = "protocol ip prio 1 u32 match"
    lines = [
        f"qdisc add dev {device} root handle 1: tbf rate {rate} burst {BURST}b limit {limit}b",
        f"qdisc add dev {device} parent 1:1 handle 10: htb default 1",
        f"class add dev {device} parent 10: classid 10:1 {turn}",
    ]
    for number, (src, dst) in enumerate(pairs, start=2):
        ends = f"ip src {address(src)}/32 match ip dst {address(dst)}/32"
        lines += [
            f"class add dev {device} parent 10: classid 10:{number:x} {turn}",
            f"qdisc add dev {device} parent 10:{number:x} pfifo limit {QUEUE}",
            f"filter add dev {device} parent 10: {match} {ends} flowid 10:{number:x}",
        ]
    around = f"u16 0 {0x10000 - SMALL:#06x} at 2 action mirred egress redirect dev a{link // 2}"
    clsact = f"qdisc add dev {device} clsact"
    return [*lines, clsact, f"filter add dev {device} egress {match} {around}"]
