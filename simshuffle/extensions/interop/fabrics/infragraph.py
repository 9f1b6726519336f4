"""InfraGraph 3.1, the model of github.com/Keysight/infragraph (MIT): devices with components, links
with bandwidths, instances of devices and the edges between them; YAML or JSON.

Read are devices, instances and the edges between instances. What is inside of a device, such as
PCIe, is not: a machine's file says it. A device with an ``xpu``, in itself or in a device that it
is composed of, is a host; another one with a ``nic`` is attached and takes no part; the rest are
switches.
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
    ImportedFabric,
    Missing,
    refuse,
    with_ports,
)
from simshuffle.spec.library import parse_documents

_BEGIN = re.compile(r'^\s*"?(instances|devices)"?\s*:', re.MULTILINE)
_BITS = {"gigabits_per_second": 1e9 / 8, "gigabytes_per_second": 1e9}
_A_SECOND = {"ms": 1e3, "us": 1e6, "ns": 1e9}
MOST_EDGES = 1_000_000
_PARTS = {"switch": (("asic", "switch"), "port"), "host": (("xpu", "xpu"), "nic")}
"""Of a written device by the kind of its nodes: name and kind of what is inside, and its ports."""


def begins(text: str) -> bool:
    """Whether a text may be of InfraGraph."""
    return len(set(_BEGIN.findall(text))) == 2


@dataclass
class _Infrastructure:
    """What the file holds, by names."""

    devices: dict[str, dict[str, tuple[int, str]]]  # of each the components: count and kind by name
    instances: dict[str, tuple[str, int]]  # of each the device and the count
    # of each bandwidth (bytes/s, None if left out) and latency (s)
    links: dict[str, tuple[float | None, float]]
    edges: list[dict[str, Any]]  # as they are written


def fabric_of(text: str, source: str, missing: Missing) -> ImportedFabric:
    """The fabric of a file's text; ``source`` is the file, ``missing`` is for
    links without a bandwidth.

    Raises:
        TopologyError: the file is none of InfraGraph, names what it does not have, or is no usable
            network.
    """
    try:
        return _imported(_infrastructure(text), source, missing).checked()
    except InputError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        rule, remedy = "must be InfraGraph 3.1", "See its schema, docs/openapi.yaml."
        raise refuse(0, rule, f"{type(error).__name__}: {error}", remedy) from None


def _infrastructure(text: str) -> _Infrastructure:
    raw = json.loads(text) if text.lstrip().startswith("{") else parse_documents(text, "")[0]
    raw = raw.get("infrastructure", raw)
    devices = {
        each["name"]: {
            part["name"]: (int(part["count"]), part.get("choice", "custom"))
            for part in each["components"]
        }
        for each in raw["devices"]
    }
    instances = {each["name"]: (each["device"], int(each["count"])) for each in raw["instances"]}
    links = {each["name"]: _physical(each.get("physical") or {}) for each in raw.get("links") or []}
    return _Infrastructure(devices, instances, links, list(raw["edges"]))


def _physical(physical: dict[str, Any]) -> tuple[float | None, float]:
    """Bandwidth and latency of a link."""
    wide, late = physical.get("bandwidth") or {}, physical.get("latency") or {}
    bandwidth = next((wide[unit] * _BITS[unit] for unit in _BITS if wide.get(unit)), None)
    latency = next((late[unit] / _A_SECOND[unit] for unit in _A_SECOND if unit in late), None)
    return bandwidth, CABLE_LATENCY if latency is None else float(latency)


def _imported(of: _Infrastructure, source: str, missing: Missing) -> ImportedFabric:
    cables: list[Cable] = []
    numbers: dict[str, dict[tuple[int, ...], int]] = {}
    """Of each node the number of each port by what the file calls it."""
    for place, edge in enumerate(of.edges):
        where = f"edges[{place}]"
        bandwidth, latency = of.links.get(edge["link"], (None, CABLE_LATENCY))
        bandwidth = bandwidth or missing.bandwidth
        if bandwidth is None:
            rule, remedy = "every link needs a bandwidth", "Add --link-bandwidth '50 GB/s'."
            raise refuse(f"{where}.link", rule, repr(edge["link"]), remedy)
        ends = [_endpoints(of, edge[end], f"{where}.{end}") for end in ("ep1", "ep2")]
        if len(ends[0]) * len(ends[1]) > MOST_EDGES:
            rule = f"an edge must stand for at most {MOST_EDGES} links"
            raise refuse(where, rule, "more", "Split it.")
        scheme = edge.get("scheme", "one2one")
        if scheme not in {"one2one", "many2many"}:
            remedy = "Write each of its edges as one2one."
            rule = "scheme must be one2one or many2many"
            raise refuse(f"{where}.scheme", rule, repr(scheme), remedy)
        pairs = zip(*ends, strict=False) if scheme == "one2one" else product(*ends)
        for (a, p), (b, q) in pairs:
            if a != b:
                ports = tuple(
                    numbers.setdefault(n, {}).setdefault(w, len(numbers[n]) + 1)
                    for n, w in ((a, p), (b, q))
                )
                cables.append(Cable((a, b), (ports[0], ports[1]), bandwidth, latency=latency))
    used = {end for cable in cables for end in cable.ends}
    nodes, left_out = [], Counter[str]()
    for instance, (device, count) in of.instances.items():
        kind = _kind(of, device)
        for number in range(count):
            name = f"{instance}.{number}"
            if name in used:
                nodes.append(FabricNode(name, kind))
            else:
                left_out[instance] += 1
    adapters = sum(len(numbers[node.name]) for node in nodes if node.kind != "switch")
    without = [f"{name} without an edge: {count}" for name, count in left_out.items()]
    return ImportedFabric(source, nodes, cables, adapters, left_out=without)


def _kind(of: _Infrastructure, device: str) -> str:
    """The kind of the nodes that a device stands for."""
    if _has_xpu(of, device, {device}):
        return "host"
    has_nic = any(choice == "nic" for _, choice in of.devices[device].values())
    return "other" if has_nic else "switch"


def _has_xpu(of: _Infrastructure, device: str, seen: set[str]) -> bool:
    """Whether a device has an xpu, in itself or in a device that it is composed of."""
    for name, (count, choice) in of.devices[device].items():
        if choice == "xpu" and count:
            return True
        if choice == "device" and name not in seen and _has_xpu(of, name, seen | {name}):
            return True
    return False


def _endpoints(
    of: _Infrastructure, end: dict[str, str], where: str
) -> list[tuple[str, tuple[int, ...]]]:
    """The node and the port of every endpoint that an edge's end stands for."""
    name, which = _sliced(end["instance"])
    if name not in of.instances:
        rule, remedy = "must be an instance", f"Known: {', '.join(of.instances)}."
        raise refuse(f"{where}.instance", rule, repr(name), remedy)
    device, count = of.instances[name]
    nodes = [f"{name}.{number}" for number in _indices(which, count, f"{where}.instance")]
    ports: list[tuple[int, ...]] = [()]
    for part in end["component"].split("."):
        component, which = _sliced(part)
        parts = of.devices.get(device, {})
        if component not in parts:
            rule, remedy = f"must be a component of {device}", f"Known: {', '.join(parts)}."
            raise refuse(f"{where}.component", rule, repr(component), remedy)
        chosen = _indices(which, parts[component][0], f"{where}.component")
        kind = list(parts).index(component)
        ports = [(*port, kind, number) for port in ports for number in chosen]
        device = component
    return list(product(nodes, ports))


def _sliced(text: str) -> tuple[str, str]:
    """The name and what stands in brackets of 'name[0:2]'."""
    name, _, rest = text.partition("[")
    return name, rest.removesuffix("]")


def _indices(text: str, count: int, where: str) -> list[int]:
    """The indices that a slice of Python means, of so many."""
    parts = [int(part) if part.strip() else None for part in text.split(":")]
    if len(parts) > 3:
        raise ValueError(f"slice [{text}]")
    if len(parts) > 1 or parts[0] is None:
        return list(range(*slice(*parts).indices(count) if len(parts) > 1 else (count,)))
    index = parts[0] + count if parts[0] < 0 else parts[0]
    if not 0 <= index < count:
        rule, remedy = f"must be an index below {count}", "Correct the index, or the count."
        raise refuse(where, rule, repr(text), remedy)
    return [index]


def written(fabric: ImportedFabric) -> str:
    """The text of a JSON file: a device and an instance for each kind and number of ports, a link
    for each bandwidth and latency, an edge for each cable. Hosts have one xpu."""
    fabric = with_ports(fabric)
    most: Counter[str] = Counter()
    for cable in fabric.cables:
        for end, port in zip(cable.ends, cable.ports or (0, 0), strict=True):
            most[end] = max(most[end], port)
    devices, instances, called = _devices(fabric, most)
    links: dict[tuple[float, float], str] = {}
    edges = []
    for cable in fabric.cables:
        (a, b), (p, q) = cable.ends, cable.ports or (0, 0)
        key = cable.bandwidth, cable.latency
        link = links.setdefault(key, f"link{len(links)}")
        ends = {
            name: {"instance": called[node][0], "component": f"{called[node][1]}[{port - 1}]"}
            for name, node, port in (("ep1", a, p), ("ep2", b, q))
        }
        edges.append({**ends, "scheme": "one2one", "link": link})
    infrastructure = {
        "name": "fabric",
        "description": "written by simshuffle",
        "devices": devices,
        "links": [_link(name, *key) for key, name in links.items()],
        "instances": instances,
        "edges": edges,
    }
    return json.dumps(infrastructure, indent=1, ensure_ascii=False) + "\n"


def _devices(
    fabric: ImportedFabric, most: Counter[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, tuple[str, str]]]:
    """Devices, instances, and for each node its instance with index and the component of its
    ports."""
    count: Counter[tuple[str, int]] = Counter()
    called = {}
    for node in fabric.nodes:
        alike = node.kind, most[node.name]
        part = "port" if node.kind == "switch" else "nic"
        called[node.name] = (f"{node.kind}{alike[1]}[{count[alike]}]", part)
        count[alike] += 1
    devices, instances = [], []
    for (kind, ports), number in count.items():
        (inner, choice), outer = _PARTS.get(kind, (("cpu", "cpu"), "nic"))
        parts = [
            {"name": inner, "count": 1, "choice": choice, choice: {}},
            {"name": outer, "count": ports, "choice": outer, outer: {}},
        ]
        ends = {"ep1": {"component": inner}, "ep2": {"component": outer}}
        inside = {**ends, "scheme": "many2many", "link": "inside"}
        name = f"{kind}-of-{ports}"
        devices.append(
            {"name": name, "components": parts, "links": [{"name": "inside"}], "edges": [inside]}
        )
        instances.append({"name": f"{kind}{ports}", "device": name, "count": number})
    return devices, instances, called


def _link(name: str, bandwidth: float, latency: float) -> dict[str, Any]:
    physical = {
        "bandwidth": {"choice": "gigabytes_per_second", "gigabytes_per_second": bandwidth / 1e9},
        "latency": {"choice": "ns", "ns": round(latency * 1e9, 6)},
    }
    return {"name": name, "physical": physical}
