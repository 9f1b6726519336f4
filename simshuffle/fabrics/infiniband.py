"""What nodes of InfiniBand are called: by their descriptions, or by a node-name map, as opensm and
the tools of infiniband-diags read it; what a lane carries; and the records of a file of
ibnetdiscover: switches, adapters and routers."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from simshuffle.errors import Problem, TopologyError
from simshuffle.fabrics.imported import errors_of, plain_guid, read_text, refuse

_ADAPTER = re.compile(
    r"(\S+)\s+((?:mlx|hfi|qib|mthca|ib|roce|ocrdma|bnxt|hca)[\w-]*)", re.IGNORECASE
)
LEAVE_OUT = "Leave one of the two out."
_GUID = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9a-fA-F]{16}")
LANE_GBIT = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 14.0625 * 64 / 66,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
"""Gbit/s of data, after the line code, by the name of the speed. InfiniBand Architecture
Specification, volume 1, release 1.7, PortInfo: SDR 2.5, DDR 5 and QDR 10 GBd with 8b/10b; FDR10
10.3125 and FDR 14.0625 GBd with 64b/66b; EDR, HDR, NDR and XDR are named after what they carry with
forward error correction (infinibandta.org/infiniband-roadmap)."""
ADAPTERS = {
    0x634A: ("ConnectX", "DDR"),
    0x6732: ("ConnectX", "DDR"),
    0x673C: ("ConnectX-2", "QDR"),
    0x1003: ("ConnectX-3", "FDR"),
    0x1007: ("ConnectX-3 Pro", "FDR"),
    0x1011: ("Connect-IB", "FDR"),
    0x1013: ("ConnectX-4", "EDR"),
    0x1017: ("ConnectX-5", "EDR"),
    0x1019: ("ConnectX-5 Ex", "EDR"),
    0x101B: ("ConnectX-6", "HDR"),
    0x1021: ("ConnectX-7", "NDR"),
    0x1023: ("ConnectX-8", "XDR"),
    0xA2D2: ("BlueField", "EDR"),
    0xA2D6: ("BlueField-2", "HDR"),
    0xA2DC: ("BlueField-3", "NDR"),
}
"""Name and fastest speed of adapters by their device (pci-ids.ucw.cz, vendor 15b3, and NVIDIA's
data sheets)."""
_RATE = re.compile(r"(1|2|4|8|12)x([A-Z]+[0-9]*)")


def host_name(label: str) -> str:
    """The host that a description names; '' if none."""
    found = _ADAPTER.fullmatch(label)
    name = found[1] if found else label
    return name if re.fullmatch(r"[^\s>#]+", name) else ""


def adapter_name(label: str) -> str:
    """The adapter that a description names beside its host; '' if none."""
    found = _ADAPTER.fullmatch(label)
    return found[2] if found else ""


def switch_name(label: str) -> str:
    """A switch's name: of 'MF0;ib5:SX6036/U1' 'ib5', of a director's part 'MF0;d:CS7500/L01/U1'
    'd/L01/U1'."""
    found = re.fullmatch(r"MF0;([^:;]+):[^/]+(/.*)?", label)
    if not found:
        return label
    part = found[2] or ""
    return found[1] if part in {"", "/U1"} else found[1] + part


def begins(text: str) -> bool:
    """Whether a text may be a node-name map: pairs of words, and some of the first are GUIDs."""
    pairs = [words for line in text.splitlines()[:2000] if (words := _words(line))]
    return all(len(words) == 2 for words in pairs) and any(_GUID.fullmatch(a) for a, *_ in pairs)


def read_names(path: Path) -> dict[str, str]:
    """The names of a node-name map: by GUID, as `plain_guid` writes it, or by what an adapter, its
    host or a switch is called in the dump.

    Raises:
        TopologyError: a line is none of a map, or names something twice.
    """
    with errors_of(path):
        return _names(read_text(path))


def _names(text: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not (words := _words(line)):
            continue
        if len(words) != 2:
            rule = "must be a GUID, or the name of an adapter in the dump, and a name in quotes"
            remedy = 'Write for example 0xe09d730300000010 "node1".'
            raise refuse(number, rule, repr(line.strip()[:60]), remedy)
        key, name = words
        if _GUID.fullmatch(key):
            key = plain_guid(key.lower().removeprefix("0x"))
        if names.setdefault(key, name) != name:
            raise refuse(number, "must name every node once", f"{words[0]} again", LEAVE_OUT)
    if not names:
        remedy = 'Write a line for each node: 0xGUID "name".'
        raise refuse(0, "must hold names", "none", remedy)
    return names


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote without end
        return [line]


def name_of(
    names: Mapping[str, str], label: str, guids: Iterable[str], *, switch: bool
) -> str | None:
    """The description of a node by a map; None where no line is about it. Adapters that only the
    dump tells apart keep their names behind that of the host.

    Args:
        names: as `read_names` gives them.
        label: its description in the dump.
        guids: its own, and those of its ports.
        switch: whether it is one, and no adapter.
    """
    called = switch_name(label) if switch else host_name(label)
    found = next((names[key] for key in (*guids, label, called) if key and key in names), None)
    if found is None or switch:
        return found
    adapter, found = adapter_name(label), found.strip()
    if adapter_name(found):
        return found
    found = re.sub(r"[\s>#]+", "_", found)
    return f"{found} {adapter}" if adapter else found


def bandwidth_of(rate: str) -> float | None:
    """Bytes/s in each direction of a width and speed such as '4xNDR'; None if it is none."""
    found = _RATE.fullmatch(rate)
    lane = LANE_GBIT.get(found[2]) if found else None
    return None if found is None or lane is None else int(found[1]) * lane * 1e9 / 8


def rate_of(bandwidth: float) -> str:
    """The width and speed that carry so much (bytes/s), four lanes first; '' if none does."""
    for width in (4, 1, 2, 8, 12):
        for speed in LANE_GBIT:
            if bandwidth_of(f"{width}x{speed}") == bandwidth:
                return f"{width}x{speed}"
    return ""


def adapter_of(device: int) -> tuple[str, float]:
    """What an adapter is, and the bytes/s in each direction that a port of it carries at most, over
    4 lanes; '' and infinity for devices that are not known."""
    if device not in ADAPTERS:
        return "", math.inf
    name, speed = ADAPTERS[device]
    return f"{name}, {speed}", 4 * LANE_GBIT[speed] * 1e9 / 8


# ---------------------------------------------------------------------------- records of a dump

_WHOLE = "and keep all that it prints: the file may be cut off."
RECORD = re.compile(r'(Switch|Ca|Rt)\s+(\d+)\s+"([^"]+)"\s*(?:#\s*(.*))?$')
_PORT = re.compile(
    r"\[(\d+)\](?:\[ext \d+\])?(?:\(([0-9a-fA-F]+)\))?\s*"
    r'"([^"]+)"\[(\d+)\](?:\[ext \d+\])?(?:\(([0-9a-fA-F]+)\))?\s*(?:#\s*(.*))?$'
)
_NODE_GUID = re.compile(r"(switch|ca|rt)guid=(?:0x)?([0-9a-fA-F]+)")
_DEVICE = re.compile(r"devid=0x([0-9a-fA-F]+)")
_MODEL = re.compile(r"MT(\d{4,5})\b")
_PASSED = ("vendid=", "devid=", "sysimgguid=", "Chassis ", "Non-Chassis ", "#")
_AGGREGATION = re.compile(r"Aggregation Node|SHARP", re.IGNORECASE)


@dataclass
class Port:
    """The end of a cable as the record of its node says it."""

    line: int
    peer: tuple[str, int]
    rate: str
    guid: str
    lid: int


@dataclass
class Record:
    """A switch, adapter (Ca) or router (Rt)."""

    line: int
    kind: str
    size: int
    label: str
    guid: str
    device: int = 0  # of the maker; 0 if the file does not say it
    ports: dict[int, Port] = field(default_factory=dict)

    @property
    def aggregates(self) -> bool:
        """Whether it stands for the reductions that a switch does itself."""
        return self.kind == "Ca" and bool(_AGGREGATION.search(self.label))


def read_records(text: str) -> dict[str, Record]:
    """The records of a file by their identities."""
    records: dict[str, Record] = {}
    current: Record | None = None
    guid, device = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if found := _DEVICE.match(line):
            device = int(found[1], 16)
        if not line or line.startswith(_PASSED):
            continue
        if found := _NODE_GUID.match(line):
            guid = plain_guid(found[2])
        elif found := RECORD.match(line):
            key = found[3]
            if key in records:
                raise refuse(number, "must have every node once", f"{key} again", LEAVE_OUT)
            label, _ = _comment(found[4])
            guid = guid or plain_guid(key.partition("-")[2])
            if model := _MODEL.search(label):  # as in 'MT4123 ConnectX6'
                device = device or int(model[1])
            current = records[key] = Record(number, found[1], int(found[2]), label, guid, device)
            guid, device = "", 0
        elif (found := _PORT.match(line)) and current is not None:
            _add_port(current, number, found)
        else:
            rule = "must be a line of ibnetdiscover: a node, or one of its ports"
            remedy = f"Run ibnetdiscover again, {_WHOLE}"
            raise refuse(number, rule, repr(line[:60]), remedy)
    if not records:
        rule, remedy = "must hold what ibnetdiscover prints", "Name the file that it wrote."
        raise refuse(0, rule, "no switch and no adapter", remedy)
    return records


def _comment(text: str | None) -> tuple[str, str]:
    """What stands in quotes in a comment, and what stands behind that."""
    comment = text or ""
    if '"' not in comment:
        return comment.strip(), comment
    before, _, rest = comment.partition('"')
    label, _, behind = rest.rpartition('"')
    return label.strip(), f"{before} {behind}"


def _add_port(record: Record, number: int, found: re.Match[str]) -> None:
    port = int(found[1])
    if port in record.ports or not 1 <= port <= record.size:
        rule = f"must be a port from 1 to {record.size}, each once"
        remedy = "Run the tool again: the file was changed."
        raise refuse(number, rule, f"port {port} of {record.label!r}", remedy)
    _, comment = _comment(found[6])
    rate = next((word for word in comment.split() if re.fullmatch(r"\d+x\S+", word)), "")
    own = re.search(r"\blid (\d+) lmc", comment)
    record.ports[port] = Port(
        number,
        (found[3], int(found[4])),
        rate,
        plain_guid(found[2] or record.guid),
        int(own[1]) if own else 0,
    )


def check_records(records: dict[str, Record]) -> None:
    """Raises a TopologyError where a port does not match the one at its other end, or an adapter
    has no switch."""
    for key, record in records.items():
        if record.kind == "Ca" and not record.ports:
            raise _without_switch(record, "no cable")
        for number, port in record.ports.items():
            peer, other = port.peer
            if peer not in records:
                rule, remedy = (
                    "a cable must end at a node of the file",
                    f"Run the tool again, {_WHOLE}",
                )
                raise refuse(port.line, rule, f"{peer}, which it does not have", remedy)
            if record.kind == records[peer].kind == "Ca":
                raise _without_switch(record, f"a cable to {records[peer].label!r}")
            back = records[peer].ports.get(other)
            if back is None or back.peer != (key, number):
                raise refuse(
                    port.line,
                    "both ends of a cable must name each other",
                    f"port {number} of {record.label!r} names port {other} of"
                    f" {records[peer].label!r}, which names "
                    + (f"port {back.peer[1]} of {back.peer[0]}" if back else "nothing"),
                    "Run the tool again: the fabric changed, or the file is cut off.",
                )
            if port.rate and back.rate and port.rate != back.rate:
                rule, remedy = "both ends of a cable must have one rate", "Correct one of them."
                raise refuse(port.line, rule, f"{port.rate} and {back.rate}", remedy)


def _without_switch(record: Record, found: str) -> TopologyError:
    rule, remedy = "every host must have a cable to a switch", "Cable it, or leave its record out."
    return refuse(record.line, rule, f"{record.label!r} has {found}", remedy)


def name_records(records: dict[str, Record], names: Mapping[str, str], source: str) -> None:
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
        remedy = "Take the map of this fabric, with GUIDs of nodes."
        problem = Problem("--names", rule, f"{len(names)} other names", remedy)
        raise TopologyError(problem, "command line")
