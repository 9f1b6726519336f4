"""The records of a file of ibnetdiscover: switches, adapters and routers, as they are written, and
as a node-name map calls them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from simshuffle.errors import Problem, TopologyError
from simshuffle.fabrics.imported import plain_guid, refuse
from simshuffle.fabrics.infiniband import LEAVE_OUT, name_of

_WHOLE = "and keep all that it prints: the file may be cut off."
RECORD = re.compile(r'(Switch|Ca|Rt)\s+(\d+)\s+"([^"]+)"\s*(?:#\s*(.*))?$')
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
        if found := _GUID.match(line):
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
