"""Read the topology of a host from NCCL's XML (github.com/NVIDIA/nccl,
src/graph/xml.cc, topo.cc).

NCCL writes it to NCCL_TOPO_DUMP_FILE, and clouds give it to NCCL_TOPO_FILE.

A ``system`` holds a ``cpu`` for each NUMA domain, and below it the PCIe tree: ``pci``
with ``class`` (0x0604 a bridge, 0x03 a GPU, 0x02 a network adapter), ``link_speed`` and
``link_width`` of the link above it. A dump names a GPU's ``nvlink`` and an adapter's
``net`` too, one a port.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.parsers import expat

from simshuffle.extensions.interop.fabrics.host_inside import (
    Gpu,
    HostInventory,
    nvlink_bandwidth,
)
from simshuffle.extensions.interop.fabrics.imported import fabric_error

MAX_DEPTH = 64
"""Elements inside one another, at most: NCCL writes fewer than ten."""
_BEGIN = re.compile(r"<system\b[^>]*>\s*(<!--.*?-->\s*)*<cpu\b", re.DOTALL)
_BEFORE_XML = re.compile(
    r"^[^\S\n]*(?:<\?xml\b[^>]*>\s*)?(?=<(?:!|system\b))", re.MULTILINE
)
"""Blanks of the first line of an XML, and its declaration, which must not follow blank
lines.
"""
_SPEED = re.compile(r"(\d+(?:\.\d+)?) ?GT/s(?: PCIe)?")
_GPU_CLASSES = ("0x03", "0x12")
_ADAPTER_CLASS = "0x02"
"""What the classes of displays, of processing accelerators and of network adapters
begin with.
"""
_PROCESSOR_CLASS = "0x068001"
"""Class of the far end of an NVLink that does not lead to another GPU (POWER9)."""


def begins(text: str) -> bool:
    """Return whether a text may be an XML topology of NCCL."""
    return _BEGIN.search(text) is not None


def link_bandwidth(speed: str, width: str) -> float | None:
    """Return bytes/s of a PCIe link in each direction; None where the file does not say
    it, or says 0.

    Bandwidth is lanes x transfers a second, less the line code: 8 of 10 bits up to PCIe
    2, 128 of 130 up to PCIe 5, 242 of 256 bytes from 64 GT/s on.

    Args:
        speed: transfers a second of a lane, such as '16.0 GT/s PCIe'.
        width: number of lanes.
    """
    match = _SPEED.fullmatch(speed.strip())
    lanes = int(width) if re.fullmatch(r"[0-9]{1,3}", width) else 0
    if match is None or not lanes:
        return None
    rate = float(match[1])
    payload = 8 / 10 if rate < 8 else 128 / 130 if rate < 64 else 242 / 256
    return lanes * rate * 1e9 / 8 * payload or None


@dataclass
class _PciDevice:
    """A GPU or a network adapter of the tree."""

    busid: str  # its PCI bus id
    numa: str  # number of its NUMA domain; '' if not known
    root_port: str  # bus id of the topmost bridge above it, or its own
    # bytes/s of the narrowest link to the processor of those that are known; None if none is
    bandwidth: float | None
    ports: list[str] = field(default_factory=list)  # names of the ports of an adapter
    capability: int = 0  # compute capability of a GPU, times 10; 0 if not known
    nvlinks: int = 0  # NVLinks of a GPU to others and to NVSwitches

    def port_names(self) -> list[str]:
        """Return the names of an adapter's ports; its bus id if the file names none."""
        return self.ports or [self.busid]


class _TopologyHandler:
    """Handlers of the XML parser: they keep the open elements and collect the devices.

    GPUs and adapters stay in ``gpus`` and ``adapters``, in the order of the file.
    """

    def __init__(self) -> None:
        self.open_elements: list[tuple[str, dict[str, str]]] = []
        self.gpus: list[_PciDevice] = []
        self.adapters: list[_PciDevice] = []
        self.ports_without_device: list[
            str
        ] = []  # names of ports without a PCIe device
        self.host_hashes: set[str] = set()
        # the device of an open element, by how deep it is
        self.device_of_depth: dict[int, _PciDevice] = {}

    def start_element(self, tag: str, attributes: dict[str, str]) -> None:
        """Open an element, and add what it says to the devices.

        Elements of other kinds are passed over, and so are NVLinks to a processor.

        Raises:
            ValueError: the element may not stand there, or has no valid number.
        """
        if not self.open_elements and tag != "system":
            raise ValueError(f"must begin with <system>, not <{tag}>")
        if len(self.open_elements) == MAX_DEPTH:
            raise ValueError(
                f"must have at most {MAX_DEPTH} elements inside one another"
            )
        self.open_elements.append((tag, attributes))
        device = self.device_of_depth.get(max(self.device_of_depth, default=0))
        match tag:
            case "cpu" if "host_hash" in attributes:
                self.host_hashes.add(attributes["host_hash"])
            case "pci":
                self._add_device(attributes)
            case "net" if device in self.adapters and device is not None:
                device.ports.append(attributes.get("name", device.busid))
            case "net":
                self.ports_without_device.append(attributes.get("name", "?"))
            case "gpu" if device in self.gpus and device is not None:
                device.capability = _parse_count(attributes, "sm")
            case "nvlink" if device in self.gpus and device is not None:
                if attributes.get("tclass") != _PROCESSOR_CLASS:
                    device.nvlinks += _parse_count(attributes, "count")

    def end_element(self, _: str) -> None:
        """Close the innermost element, and forget its device."""
        self.device_of_depth.pop(len(self.open_elements), None)
        self.open_elements.pop()

    def _add_device(self, attributes: dict[str, str]) -> None:
        """Add the GPU or network adapter that an open ``pci`` element describes; other
        devices are passed over.
        """
        pci_class = attributes.get("class", "")
        if not pci_class.startswith((*_GPU_CLASSES, _ADAPTER_CLASS)):
            return
        # attributes of the open elements, the outermost first
        pci_elements = [opened for tag, opened in self.open_elements if tag == "pci"]
        cpu_elements = [opened for tag, opened in self.open_elements if tag == "cpu"]
        numa = cpu_elements[0].get("numaid", "") if cpu_elements else ""
        bandwidths = [
            link_bandwidth(opened.get("link_speed", ""), opened.get("link_width", ""))
            for opened in pci_elements
        ]
        known_bandwidths = [
            bandwidth for bandwidth in bandwidths if bandwidth is not None
        ]
        device = _PciDevice(
            busid=attributes.get("busid", "?"),
            numa="" if numa == "-1" else numa,
            root_port=pci_elements[0].get("busid", "?"),
            bandwidth=min(known_bandwidths, default=None),
        )
        self.device_of_depth[len(self.open_elements)] = device
        (self.gpus if pci_class.startswith(_GPU_CLASSES) else self.adapters).append(
            device
        )


def _parse_count(attributes: dict[str, str], key: str) -> int:
    """Return the whole number of an attribute, 0 if it is absent.

    Raises:
        ValueError: it is no whole number of at most six digits.
    """
    text = attributes.get(key, "0")
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise ValueError(f"{key} must be a whole number, not {text!r}")
    return int(text)


def host_of(text: str, source: str) -> HostInventory:
    """Parse the GPUs and network ports of a host from NCCL's XML.

    Of adapters with one bus id the last counts. Ports without a PCIe device are near no
    GPU.

    Args:
        text: the file's text.
        source: name of the file.

    Raises:
        TopologyError: it is no XML, is cut, has a DOCTYPE, several hosts or no GPU.
    """
    handler = _TopologyHandler()
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.StartElementHandler = handler.start_element
    parser.EndElementHandler = handler.end_element
    remedy = "Let NCCL write the file again, with NCCL_TOPO_DUMP_FILE."
    try:
        parser.Parse(blank_surroundings(text).encode(), True)
    except expat.ExpatError as error:
        rule = f"must be complete XML: {expat.ErrorString(error.code)}"
        raise fabric_error(error.lineno, rule, "", remedy) from None
    except ValueError as error:
        raise fabric_error(parser.CurrentLineNumber, str(error), "", remedy) from None
    if len(handler.host_hashes) > 1:
        rule = "must describe one host"
        raise fabric_error(
            0,
            rule,
            f"{len(handler.host_hashes)}",
            "Dump the file in a run on one host.",
        )
    if not handler.gpus:
        raise fabric_error(
            0, "must have a GPU, a pci of class 0x03 or 0x12", "none", remedy
        )

    # one adapter for each bus id, the last that the file names
    adapters = list({adapter.busid: adapter for adapter in handler.adapters}.values())
    gpus = [
        Gpu(
            name=device.busid,
            numa=device.numa,
            root_port=device.root_port,
            nearby_ports=tuple(
                port
                for adapter in adapters
                if adapter.root_port == device.root_port
                for port in adapter.port_names()
            ),
            nvlinks=device.nvlinks,
            nvlink_bandwidth=nvlink_bandwidth(device.capability)
            if device.nvlinks
            else None,
            pcie_bandwidth=device.bandwidth,
        )
        for device in handler.gpus
    ]
    port_names = [port for adapter in adapters for port in adapter.port_names()]
    port_names += handler.ports_without_device
    return HostInventory(f"{source} (topology of NCCL)", gpus, port_names)


def blank_surroundings(text: str) -> str:
    """Blank what stands before and behind the XML of a log, with its declaration; lines
    keep their numbers. A text that is cut keeps its end.
    """
    before_xml = _BEFORE_XML.search(text)
    start = before_xml.end() if before_xml else 0
    body, end, _ = text[start:].partition("</system>")
    return "\n" * text.count("\n", 0, start) + body + end


def _refuse_doctype(*_: object) -> None:
    """Raise the ValueError of an XML with a DOCTYPE."""
    raise ValueError("must have no <!DOCTYPE>, which may stand for anything")
