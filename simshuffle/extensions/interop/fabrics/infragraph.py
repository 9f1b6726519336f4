"""Read and write InfraGraph 3.1, the model of github.com/Keysight/infragraph (MIT).

A file, YAML or JSON, has devices with components, links with bandwidths, instances of
devices, and edges between the instances.

Read are devices, instances and the edges between instances. What is inside of a device,
such as PCIe, is not: a machine's file says it. A device with an ``xpu``, in itself or
in a device that it is composed of, is a host; another one with a ``nic`` is attached
and takes no part; the rest are switches.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import Any

from simshuffle.errors import InputError
from simshuffle.extensions.interop.fabrics.imported import (
    CABLE_LATENCY,
    Cable,
    FabricNode,
    FabricSupplement,
    ImportedFabric,
    fabric_error,
)
from simshuffle.extensions.interop.fabrics.network_fabric import number_nodes_and_ports
from simshuffle.spec.library import parse_documents

_BEGIN = re.compile(r'^\s*"?(instances|devices)"?\s*:', re.MULTILINE)
_BYTES_PER_S_OF_UNIT = {"gigabits_per_second": 1e9 / 8, "gigabytes_per_second": 1e9}
_UNITS_PER_SECOND = {"ms": 1e3, "us": 1e6, "ns": 1e9}
MAX_EDGES = 1_000_000
"""Largest number of pairs of endpoints that one edge may stand for."""
_COMPONENTS_OF_KIND = {
    "switch": (("asic", "switch"), "port"),
    "host": (("xpu", "xpu"), "nic"),
}
"""Of a written device by the kind of its nodes: name and kind of what is inside, and
its ports.
"""


def begins(text: str) -> bool:
    """Return whether a text may be of InfraGraph: it has instances and devices."""
    return len(set(_BEGIN.findall(text))) == 2


@dataclass
class _Infrastructure:
    """Devices, instances, links and edges of a file, by their names."""

    # of each the components: count and kind by name
    devices: dict[str, dict[str, tuple[int, str]]]
    instances: dict[str, tuple[str, int]]  # of each the device and the count
    # of each bandwidth (bytes/s, None if left out) and latency (s)
    links: dict[str, tuple[float | None, float]]
    edges: list[dict[str, Any]]  # as they are written


def fabric_of(text: str, source: str, supplement: FabricSupplement) -> ImportedFabric:
    """Parse a fabric from InfraGraph, YAML or JSON.

    Node 'name.index' is one of an instance. Nodes without an edge are left out, and
    counted in ``left_out``. Ports are numbered from 1 at each node, in the order of the
    edges.

    Args:
        text: the file's text.
        source: name of the file.
        supplement: the bandwidth of links that have none, or that the file lacks.

    Raises:
        TopologyError: the file is none of InfraGraph, names what it does not have, or
            is no usable network.
    """
    try:
        return _build_fabric(
            _parse_infrastructure(text), source, supplement
        ).check_usable()
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        rule = "must be a valid InfraGraph 3.1 file"
        remedy = "See InfraGraph's schema, docs/openapi.yaml."
        raise fabric_error(
            0, rule, f"{type(error).__name__}: {error}", remedy
        ) from None


def _parse_infrastructure(text: str) -> _Infrastructure:
    """Parse the devices, instances, links and edges of a file.

    Raises KeyError, TypeError, AttributeError or ValueError if the file is none of
    InfraGraph.
    """
    document = (
        json.loads(text)
        if text.lstrip().startswith("{")
        else parse_documents(text, "")[0]
    )
    document = document.get("infrastructure", document)
    devices = {
        device["name"]: {
            component["name"]: (
                int(component["count"]),
                component.get("choice", "custom"),
            )
            for component in device["components"]
        }
        for device in document["devices"]
    }
    instances = {
        instance["name"]: (instance["device"], int(instance["count"]))
        for instance in document["instances"]
    }
    links = {
        link["name"]: _parse_physical(link.get("physical") or {})
        for link in document.get("links") or []
    }
    return _Infrastructure(devices, instances, links, list(document["edges"]))


def _parse_physical(physical: dict[str, Any]) -> tuple[float | None, float]:
    """Return bandwidth (bytes/s, None if left out) and latency (s) of a link, that of a
    cable if left out.

    A bandwidth of 0, and values in units other than Gbit/s, GB/s, ms, us and ns, count
    as left out.
    """
    bandwidth_by_unit = physical.get("bandwidth") or {}
    latency_by_unit = physical.get("latency") or {}
    bandwidths = (
        bandwidth_by_unit[unit] * bytes_per_s
        for unit, bytes_per_s in _BYTES_PER_S_OF_UNIT.items()
        if bandwidth_by_unit.get(unit)
    )
    latencies = (
        latency_by_unit[unit] / units_per_s
        for unit, units_per_s in _UNITS_PER_SECOND.items()
        if unit in latency_by_unit
    )
    return next(bandwidths, None), float(next(latencies, CABLE_LATENCY))


def _build_fabric(
    infrastructure: _Infrastructure, source: str, supplement: FabricSupplement
) -> ImportedFabric:
    """Build the fabric: a cable for every pair of endpoints of the edges between
    instances.

    In scheme one2one the endpoints that the longer end has in addition stay without a
    cable. Pairs within one node have no cable. The fabric is not yet checked.

    Raises:
        TopologyError: an edge has no bandwidth, stands for too many links, has another
            scheme, or names what is not there.
    """
    cables: list[Cable] = []
    # number of each port of a node, by the component that the file has for it
    port_numbers: dict[str, dict[tuple[int, ...], int]] = {}

    def number_port(node: str, component: tuple[int, ...]) -> int:
        """Return the number of a port, from 1 at each node in the order of the edges."""
        numbers = port_numbers.setdefault(node, {})
        return numbers.setdefault(component, len(numbers) + 1)

    for edge_index, edge in enumerate(infrastructure.edges):
        path = f"edges[{edge_index}]"
        bandwidth, latency = infrastructure.links.get(
            edge["link"], (None, CABLE_LATENCY)
        )
        bandwidth = bandwidth or supplement.bandwidth
        if bandwidth is None:
            rule = "every link needs a bandwidth"
            remedy = "Add --link-bandwidth '50 GB/s'."
            raise fabric_error(f"{path}.link", rule, repr(edge["link"]), remedy)
        ends = [
            _list_endpoints(infrastructure, edge[end], f"{path}.{end}")
            for end in ("ep1", "ep2")
        ]
        if len(ends[0]) * len(ends[1]) > MAX_EDGES:
            rule = f"an edge must stand for at most {MAX_EDGES} links"
            raise fabric_error(path, rule, "more", "Split the edge.")
        scheme = edge.get("scheme", "one2one")
        if scheme not in {"one2one", "many2many"}:
            remedy = "Write each link as an edge with scheme one2one."
            rule = "scheme must be one2one or many2many"
            raise fabric_error(f"{path}.scheme", rule, repr(scheme), remedy)
        pairs = zip(*ends, strict=False) if scheme == "one2one" else product(*ends)
        for (first, first_component), (second, second_component) in pairs:
            if first != second:
                ports = (
                    number_port(first, first_component),
                    number_port(second, second_component),
                )
                cables.append(Cable((first, second), ports, bandwidth, latency=latency))

    linked_names = {end for cable in cables for end in cable.ends}
    nodes = []
    left_out = Counter[str]()
    for instance, (device, count) in infrastructure.instances.items():
        kind = _kind_of_device(infrastructure, device)
        for index in range(count):
            name = f"{instance}.{index}"
            if name in linked_names:
                nodes.append(FabricNode(name, kind))
            else:
                left_out[instance] += 1
    adapters = sum(
        len(port_numbers[node.name]) for node in nodes if node.kind != "switch"
    )
    without = [f"{name} without an edge: {count}" for name, count in left_out.items()]
    return ImportedFabric(source, nodes, cables, adapters, left_out=without)


def _kind_of_device(infrastructure: _Infrastructure, device: str) -> str:
    """Return the kind of the nodes that a device stands for: 'host' with an xpu,
    'other' with a nic and no xpu, or 'switch'.

    An xpu may be in a device that the device is composed of, a nic may not.
    """
    if _has_xpu(infrastructure, device, {device}):
        return "host"
    has_nic = any(
        choice == "nic" for _, choice in infrastructure.devices[device].values()
    )
    return "other" if has_nic else "switch"


def _has_xpu(infrastructure: _Infrastructure, device: str, visited: set[str]) -> bool:
    """Return whether a device has at least one xpu, in itself or in a device that it is
    composed of.

    Args:
        infrastructure: the file.
        device: name of the device.
        visited: names of devices that need no look.
    """
    for name, (count, choice) in infrastructure.devices[device].items():
        if choice == "xpu" and count:
            return True
        is_unvisited_device = choice == "device" and name not in visited
        if is_unvisited_device and _has_xpu(infrastructure, name, visited | {name}):
            return True
    return False


def _list_endpoints(
    infrastructure: _Infrastructure, end: dict[str, str], path: str
) -> list[tuple[str, tuple[int, ...]]]:
    """Return the node and the port of every endpoint that one end of an edge stands
    for, node after node.

    A port is a tuple: at each level of composition the index of the component in its
    device, and the index among its copies.

    Args:
        infrastructure: the file.
        end: ``instance`` and ``component`` of the edge's end.
        path: path of the end in the file, for errors.

    Raises:
        TopologyError: the end names an instance, component or index that is not there.
    """
    name, slice_text = _split_slice(end["instance"])
    if name not in infrastructure.instances:
        rule = "must be an instance of the file"
        remedy = f"Known: {', '.join(infrastructure.instances)}."
        raise fabric_error(f"{path}.instance", rule, repr(name), remedy)
    device, count = infrastructure.instances[name]
    nodes = [
        f"{name}.{index}"
        for index in _select_indices(slice_text, count, f"{path}.instance")
    ]
    ports: list[tuple[int, ...]] = [()]
    for component_text in end["component"].split("."):
        component, slice_text = _split_slice(component_text)
        components = infrastructure.devices.get(device, {})
        if component not in components:
            rule = f"must be a component of {device}"
            remedy = f"Known: {', '.join(components)}."
            raise fabric_error(f"{path}.component", rule, repr(component), remedy)
        indices = _select_indices(
            slice_text, components[component][0], f"{path}.component"
        )
        component_index = list(components).index(component)
        ports = [(*port, component_index, index) for port in ports for index in indices]
        device = component
    return list(product(nodes, ports))


def _split_slice(text: str) -> tuple[str, str]:
    """Split text such as 'name[0:2]' into the name and the text in brackets, '' without
    brackets.
    """
    name, _, slice_and_bracket = text.partition("[")
    return name, slice_and_bracket.removesuffix("]")


def _select_indices(text: str, count: int, path: str) -> list[int]:
    """Return the indices below ``count`` that an index or slice of Python selects; all
    for ''.

    Raises:
        TopologyError: the index is out of range.
        ValueError: the text is no index or slice.
    """
    parts = [int(part) if part.strip() else None for part in text.split(":")]
    if len(parts) > 3:
        raise ValueError(f"slice [{text}]")
    if len(parts) > 1:
        return list(range(*slice(*parts).indices(count)))
    if parts[0] is None:
        return list(range(count))
    index = parts[0] + count if parts[0] < 0 else parts[0]
    if not 0 <= index < count:
        rule = f"must be an index below {count}"
        remedy = "Correct the index, or the count."
        raise fabric_error(path, rule, repr(text), remedy)
    return [index]


def format_infrastructure(fabric: ImportedFabric) -> str:
    """Return the fabric as JSON of InfraGraph.

    The file has a device and an instance for each kind and number of ports, a link for
    each bandwidth and latency, and an edge for each cable. Hosts have one xpu. Names
    and GUIDs of nodes, tiers, latencies of switches and names of adapters are left out.
    """
    fabric = number_nodes_and_ports(fabric)
    num_ports: Counter[str] = Counter()
    for cable in fabric.cables:
        for end, port in zip(cable.ends, cable.ports or (0, 0), strict=True):
            num_ports[end] = max(num_ports[end], port)
    devices, instances, component_of_node = _define_devices(fabric, num_ports)
    links: dict[tuple[float, float], str] = {}
    edges = []
    for cable in fabric.cables:
        link = links.setdefault((cable.bandwidth, cable.latency), f"link{len(links)}")
        edge: dict[str, object] = {}
        for key, node, port in zip(
            ("ep1", "ep2"), cable.ends, cable.ports or (0, 0), strict=True
        ):
            instance, component = component_of_node[node]
            edge[key] = {"instance": instance, "component": f"{component}[{port - 1}]"}
        edges.append({**edge, "scheme": "one2one", "link": link})
    infrastructure = {
        "name": "fabric",
        "description": "written by simshuffle",
        "devices": devices,
        "links": [
            _define_link(name, bandwidth, latency)
            for (bandwidth, latency), name in links.items()
        ],
        "instances": instances,
        "edges": edges,
    }
    return json.dumps(infrastructure, indent=1, ensure_ascii=False) + "\n"


def _define_devices(
    fabric: ImportedFabric, num_ports: Counter[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, tuple[str, str]]]:
    """Return devices, instances, and the instance and port component by each node's
    name.

    The instance has its index, as in 'switch36[4]'.

    Args:
        fabric: the network.
        num_ports: the highest port number of each node.
    """
    num_nodes: Counter[tuple[str, int]] = Counter()
    component_of_node = {}
    for node in fabric.nodes:
        ports = num_ports[node.name]
        index = num_nodes[node.kind, ports]
        port_component = "port" if node.kind == "switch" else "nic"
        component_of_node[node.name] = (f"{node.kind}{ports}[{index}]", port_component)
        num_nodes[node.kind, ports] += 1

    devices = []
    instances = []
    for (kind, ports), num_instances in num_nodes.items():
        (inner, choice), outer = _COMPONENTS_OF_KIND.get(kind, (("cpu", "cpu"), "nic"))
        components = [
            {"name": inner, "count": 1, "choice": choice, choice: {}},
            {"name": outer, "count": ports, "choice": outer, outer: {}},
        ]
        ends = {"ep1": {"component": inner}, "ep2": {"component": outer}}
        inner_edge = {**ends, "scheme": "many2many", "link": "inside"}
        name = f"{kind}-of-{ports}"
        devices.append(
            {
                "name": name,
                "components": components,
                "links": [{"name": "inside"}],
                "edges": [inner_edge],
            }
        )
        instances.append(
            {"name": f"{kind}{ports}", "device": name, "count": num_instances}
        )
    return devices, instances, component_of_node


def _define_link(name: str, bandwidth: float, latency: float) -> dict[str, Any]:
    """Return the record of a link in GB/s and ns, given bytes/s and seconds."""
    physical = {
        "bandwidth": {
            "choice": "gigabytes_per_second",
            "gigabytes_per_second": bandwidth / 1e9,
        },
        "latency": {"choice": "ns", "ns": round(latency * 1e9, 6)},
    }
    return {"name": name, "physical": physical}
