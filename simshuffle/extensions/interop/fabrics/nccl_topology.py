"""The topology of a host in NCCL's XML: what NCCL_TOPO_DUMP_FILE is written to, and what clouds
give to NCCL_TOPO_FILE (github.com/NVIDIA/nccl, src/graph/xml.cc and topo.cc).

A ``system`` holds a ``cpu`` for each NUMA domain, and below it the PCIe tree: ``pci`` with
``class`` (0x0604 a bridge, 0x03 a GPU, 0x02 a network adapter), ``link_speed`` and ``link_width``
of the link above it. A dump names a GPU's ``nvlink`` and an adapter's ``net`` too, one a port.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.parsers import expat

from simshuffle.extensions.interop.fabrics.host_inside import Gpu, HostInside, nvlink_bandwidth
from simshuffle.extensions.interop.fabrics.imported import refuse

DEEPEST = 64
"""Elements inside one another: NCCL writes fewer than ten."""
_BEGIN = re.compile(r"<system\b[^>]*>\s*(<!--.*?-->\s*)*<cpu\b", re.DOTALL)
_SPEED = re.compile(r"(\d+(?:\.\d+)?) ?GT/s(?: PCIe)?")
_GPUS, _ADAPTER = ("0x03", "0x12"), "0x02"
"""What the classes of displays, of processing accelerators and of network adapters begin with."""
_TO_PROCESSOR = "0x068001"
"""Class of the far end of an NVLink that does not lead to another GPU (POWER9)."""


def begins(text: str) -> bool:
    """Whether a text may be such a topology."""
    return _BEGIN.search(text) is not None


def link_bandwidth(speed: str, width: str) -> float | None:
    """Bytes/s of a PCIe link in each direction: lanes x transfers a second, less the line code (8
    of 10 bits up to PCIe 2, 128 of 130 up to 5, 242 of 256 bytes from 64 GT/s on); None where the
    file does not say it."""
    found = _SPEED.fullmatch(speed.strip())
    lanes = int(width) if re.fullmatch(r"[0-9]{1,3}", width) else 0
    if found is None or not lanes:
        return None
    rate = float(found[1])
    payload = 8 / 10 if rate < 8 else 128 / 130 if rate < 64 else 242 / 256
    return lanes * rate * 1e9 / 8 * payload or None


@dataclass
class _Device:
    """A GPU or a network adapter of the tree."""

    busid: str
    numa: str
    slot: str  # bus id of the topmost bridge above it, or its own
    bandwidth: float | None  # of the narrowest link on the way to the processor
    ports: list[str] = field(default_factory=list)  # of an adapter
    capability: int = 0  # of a GPU
    nvlinks: int = 0


class _Reading:
    """What has been read so far: the elements that are open, and the devices."""

    def __init__(self) -> None:
        self.open: list[tuple[str, dict[str, str]]] = []
        self.gpus: list[_Device] = []
        self.adapters: list[_Device] = []
        self.loose: list[str] = []  # names of ports without a PCIe device
        self.hosts: set[str] = set()
        self.of: dict[int, _Device] = {}  # the device of an open element, by how deep it is

    def begin(self, tag: str, found: dict[str, str]) -> None:
        if not self.open and tag != "system":
            raise ValueError(f"must begin with <system>, not <{tag}>")
        if len(self.open) == DEEPEST:
            raise ValueError(f"must have at most {DEEPEST} elements inside one another")
        self.open.append((tag, found))
        device = self.of.get(max(self.of, default=0))
        match tag:
            case "cpu" if "host_hash" in found:
                self.hosts.add(found["host_hash"])
            case "pci":
                self._pci(found)
            case "net" if device in self.adapters and device is not None:
                device.ports.append(found.get("name", device.busid))
            case "net":
                self.loose.append(found.get("name", "?"))
            case "gpu" if device in self.gpus and device is not None:
                device.capability = _whole(found, "sm")
            case "nvlink" if device in self.gpus and device is not None:
                if found.get("tclass") != _TO_PROCESSOR:
                    device.nvlinks += _whole(found, "count")

    def end(self, _: str) -> None:
        self.of.pop(len(self.open), None)
        self.open.pop()

    def _pci(self, found: dict[str, str]) -> None:
        kind = found.get("class", "")
        if not kind.startswith((*_GPUS, _ADAPTER)):
            return
        way = [of for tag, of in self.open if tag == "pci"]
        links = [link_bandwidth(of.get("link_speed", ""), of.get("link_width", "")) for of in way]
        numa = next((of.get("numaid", "") for tag, of in self.open if tag == "cpu"), "")
        device = _Device(
            busid=found.get("busid", "?"),
            numa="" if numa == "-1" else numa,
            slot=way[0].get("busid", "?"),
            bandwidth=min((rate for rate in links if rate is not None), default=None),
        )
        self.of[len(self.open)] = device
        (self.gpus if kind.startswith(_GPUS) else self.adapters).append(device)


def _whole(found: dict[str, str], key: str) -> int:
    text = found.get(key, "0")
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise ValueError(f"{key} must be a whole number, not {text!r}")
    return int(text)


def host_of(text: str, source: str) -> HostInside:
    """What a file's text shows; ``source`` is the file.

    Raises:
        TopologyError: it is no XML, cut, has a DOCTYPE, several hosts or no GPU.
    """
    reading, parser = _Reading(), expat.ParserCreate()
    parser.StartDoctypeDeclHandler = _no_doctype
    parser.StartElementHandler, parser.EndElementHandler = reading.begin, reading.end
    remedy = "Let NCCL write it once more, with NCCL_TOPO_DUMP_FILE."
    try:
        parser.Parse(document_of(text).encode(), True)
    except expat.ExpatError as error:
        rule = f"must be whole XML: {expat.ErrorString(error.code)}"
        raise refuse(error.lineno, rule, "", remedy) from None
    except ValueError as error:
        raise refuse(parser.CurrentLineNumber, str(error), "", remedy) from None
    if len(reading.hosts) > 1:
        rule = "must be of one host"
        raise refuse(0, rule, f"{len(reading.hosts)}", "Dump it in a run on one host.")
    if not reading.gpus:
        raise refuse(0, "must have a GPU, a pci of class 0x03 or 0x12", "none", remedy)
    ports = {
        device.busid: (device.slot, device.ports or [device.busid]) for device in reading.adapters
    }
    gpus = [
        Gpu(
            device.busid,
            device.numa,
            device.slot,
            tuple(name for slot, names in ports.values() if slot == device.slot for name in names),
            device.nvlinks,
            nvlink_bandwidth(device.capability) if device.nvlinks else None,
            device.bandwidth,
        )
        for device in reading.gpus
    ]
    every = [name for _, names in ports.values() for name in names]
    return HostInside(f"{source} (topology of NCCL)", gpus, [*every, *reading.loose])


def document_of(text: str) -> str:
    """Blank what stands before and behind the XML of a log; lines keep their numbers."""
    start = re.search(r"^\s*<(?:\?xml|!|system\b)", text, re.MULTILINE)
    before = text[: start.start()] if start else ""
    body, end, _ = text[len(before) :].partition("</system>")
    return "\n" * before.count("\n") + body.lstrip() + end


def _no_doctype(*_: object) -> None:
    raise ValueError("must have no <!DOCTYPE>, which may stand for anything")
