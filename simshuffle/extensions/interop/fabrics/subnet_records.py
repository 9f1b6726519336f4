"""Parse the switches, adapters and routers that ibnetdiscover prints, or that a net
file holds.

Formats: ibnetdiscover with or without -p, and ibsim's net files (ibsim/sim_net.c of
github.com/linux-rdma/ibsim).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from simshuffle.errors import Problem, TopologyError
from simshuffle.extensions.interop.fabrics.imported import fabric_error, normalize_guid
from simshuffle.extensions.interop.fabrics.infiniband import (
    REMOVE_DUPLICATE,
    find_description,
)

RECORD = re.compile(r'(Switch|Ca|Hca|Rt)\s+(\d+)\s+"([^"]+)"\s*(?:#\s*(.*))?$')
REPORT = re.compile(
    r"(SW|CA|RT)\s+(\d+)\s+(\d+)\s+0x([0-9a-fA-F]+)\s+(\S+)\s+(\S+)\s+"
    r"-\s+(SW|CA|RT)\s+(\d+)\s+(\d+)\s+0x([0-9a-fA-F]+)\s+\(\s*'(.*)'\s+-\s+'(.*)'\s*\)$"
)
"""A cable of `ibnetdiscover -p`: kind, LID, port, GUID and rate of one end, and the
other end.
"""
_PORT = re.compile(
    r"\[(\d+)\](?:\[ext \d+\])?(?:\(([0-9a-fA-F]+)\))?\s*"
    r'"([^"]+)"\s*(?:\[(\d+)\])?(?:\[ext \d+\])?\s*(?:\(([0-9a-fA-F]+)\))?'
    r"(?:\s+[\w=]+)*\s*(?:#\s*(.*))?$"
)
_NODE_GUID = re.compile(r"(?:switch|h?ca|rt)guids?=(?:0x)?([0-9a-fA-F]+)")
_DEVICE = re.compile(r"devid=0x([0-9a-fA-F]+)")
_MODEL = re.compile(r"MT(\d{4,5})\b")
_LINE_WITHOUT_CABLE = re.compile(
    r"#|vendid=|devid=|sysimgguid=|Chassis |Non-Chassis |(?:width|speed|module|pdebug)\s*=|do "
    r"|(?:SW|CA|RT)\s+\d+\s+\d+\s+0x\S+\s+\S+\s+\S+\s+'"
)
"""Lines that say nothing of cables, the last of ports without one (`ibnetdiscover -p`)."""
_RECORD_LINE = re.compile(r'\[\d+\]|\w+\s+\d+\s+"|.*"[SHR]-[0-9a-fA-F]{4}')
_IDENTITY = re.compile(r"[SHR]-[0-9a-fA-F]{8,16}")
_AGGREGATION = re.compile(r"Aggregation Node|SHARP", re.IGNORECASE)
_KIND_OF_WORD = {"Hca": "Ca", "SW": "Switch", "CA": "Ca", "RT": "Rt"}
_MAX_PORTS = 254
_REMEDY = "Run ibnetdiscover again, and keep its whole output: the file may be cut off."


@dataclass
class Port:
    """The end of a cable as the record of its node says it."""

    line: int  # of the file, from 1
    peer: tuple[str, int]  # identity of the node at the other end, and the port there
    rate: str  # such as '4xNDR'; '' if the file does not say it
    guid: str = ""  # of the port, or of its node; '' if not known
    lid: int = 0  # local identifier; 0 if not known
    # label, GUID and local identifier of the port at the other end, as this end says them
    peer_label: str = ""
    peer_guid: str = ""
    peer_lid: int = 0


@dataclass
class SubnetRecord:
    """A switch, adapter (Ca) or router (Rt)."""

    line: int  # of the file, from 1
    kind: str  # 'Switch', 'Ca' or 'Rt'
    size: int  # highest number that a port may have
    # the description, or the name that ibsim calls the node by; '' if the file has neither
    label: str
    guid: str  # as `normalize_guid` writes it
    device: int = 0  # the maker's device ID; 0 if the file does not say it
    # ports with a cable, by number
    ports: dict[int, Port] = field(default_factory=dict)

    @property
    def aggregates(self) -> bool:
        """True for an adapter that stands for the reductions that a switch does itself."""
        return self.kind == "Ca" and bool(_AGGREGATION.search(self.label))


Records = dict[str, SubnetRecord]
"""Records in the order of the file, by identities such as 'S-0008f10500650104'."""


@dataclass
class Dump:
    """The records of a file, and notes on the lines that were not read."""

    records: Records = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)  # what takes no part, as texts
    warnings: list[str] = field(default_factory=list)  # what is unusual, as texts
    # lines that are of no record, such as warnings of standard error
    foreign: list[str] = field(default_factory=list)


def read_dump(text: str) -> Dump:
    """Read the records of a file.

    Lines of other programs are left out, and counted in ``left_out``. A line of a
    record that cannot be read is refused, except the last one of a file that was cut
    off there, which becomes a warning. Cables are as the file has them, perhaps with
    one end.

    Raises:
        TopologyError: with the line; or there is no record.
    """
    dump = Dump()
    current: SubnetRecord | None = None
    guid = ""
    device = 0
    lines = text.split("\n")
    last_line = max(
        (
            line_number
            for line_number, raw_line in enumerate(lines, 1)
            if raw_line.strip()
        ),
        default=0,
    )
    for line_number, raw_line in enumerate(lines, 1):
        line = raw_line.strip()
        if match := _DEVICE.match(line):
            device = int(match[1], 16)
        if not line or _LINE_WITHOUT_CABLE.match(line):
            continue
        if match := _NODE_GUID.match(line):
            guid = normalize_guid(match[1])
        elif match := RECORD.match(line):
            current = add_record(dump.records, line_number, match, guid, device)
            guid = ""
            device = 0
        elif match := REPORT.match(line):
            add_reported_cable(dump.records, line_number, match)
        elif (
            (match := _PORT.match(line)) and names_a_port(match) and current is not None
        ):
            add_port(current, line_number, match)
        elif not _RECORD_LINE.match(line):
            dump.foreign.append(line)
        elif line_number == last_line:
            dump.warnings.append(
                f"line {line_number} is cut off and was left out: {line[:60]!r}"
            )
        else:
            rule = "must be a line of ibnetdiscover: a node, or a port of a node"
            raise fabric_error(line_number, rule, repr(line[:60]), _REMEDY)
    if not dump.records:
        rule = "must hold switches and adapters with their ports, as ibnetdiscover prints them"
        remedy = "Run ibnetdiscover without -l, -H, -S or -R."
        raise fabric_error(0, rule, "no switch and no adapter", remedy)
    if dump.foreign:
        example = dump.foreign[0]
        example = example if len(example) <= 60 else f"{example[:57]}..."
        dump.left_out.append(
            f"lines of other programs: {len(dump.foreign)}, such as {example!r}"
        )
    return dump


def names_a_port(match: re.Match[str]) -> bool:
    """Return whether the line of a port names the port at the other end, or need not.

    ibnetdiscover always names it behind an identity. Behind any other name the port may
    be missing: ibsim then takes the first port.
    """
    return match[4] is not None or not _IDENTITY.match(match[3])


def add_record(
    records: Records, line_number: int, match: re.Match[str], guid: str, device: int
) -> SubnetRecord:
    """Add the record that begins in a line, and return it; without a ``guid`` its own
    is from its identity.

    A node of ibsim that the file calls by a name, not by an identity, has that name as
    its label where it has no description.

    Args:
        records: the records so far, changed in place.
        line_number: number of the line.
        match: match of `RECORD`.
        guid: GUID of the node; '' if no line before names it.
        device: the maker's device ID; 0 for the one in the label, as in 'MT4123', if
            there is one.

    Raises:
        TopologyError: there is one already.
    """
    kind, size, identity, comment = match.groups()
    if identity in records:
        raise fabric_error(
            line_number,
            "must have each node only once",
            f"{identity} again",
            REMOVE_DUPLICATE,
        )
    label, _ = split_comment(comment)
    if not _IDENTITY.fullmatch(identity):  # ibsim calls a node by its identity
        label = label or identity
    if model := _MODEL.search(label):  # as in 'MT4123 ConnectX6'
        device = device or int(model[1])
    guid = guid or normalize_guid(identity.partition("-")[2])
    records[identity] = SubnetRecord(
        line_number, _KIND_OF_WORD.get(kind, kind), int(size), label, guid, device
    )
    return records[identity]


def split_comment(text: str | None) -> tuple[str, str]:
    """Split a comment into what stands in quotes and what stands around that; one
    without quotes is both.
    """
    comment = text or ""
    if '"' not in comment:
        return comment.strip(), comment
    words_before, _, quoted_and_behind = comment.partition('"')
    label, _, words_behind = quoted_and_behind.rpartition('"')
    return label.strip(), f"{words_before} {words_behind}"


def add_port(record: SubnetRecord, line_number: int, match: re.Match[str]) -> None:
    """Add the port of a line to the record above it; port 0 of a switch, which has no
    cable, is passed over.

    A line that does not name the port at the other end means port 1.

    Raises:
        TopologyError: the node has no such port, or has it already.
    """
    port = int(match[1])
    if port == 0 and record.kind == "Switch":
        return
    if port in record.ports or not 1 <= port <= record.size:
        rule = f"must be a port from 1 to {record.size} that stands only once"
        remedy = "Run the tool again: the file was changed."
        raise fabric_error(
            line_number, rule, f"port {port} of {record.label!r}", remedy
        )
    label, comment = split_comment(match[6])
    rate = next(
        (word for word in comment.split() if re.fullmatch(r"\d+x\S+", word)), ""
    )
    own_lid = re.search(r"\blid (\d+) lmc", comment)
    peer_lid = re.search(r"\blid (\d+)(?! lmc)\b", comment)
    record.ports[port] = Port(
        line=line_number,
        peer=(match[3], int(match[4] or 1)),
        rate=rate,
        guid=normalize_guid(match[2] or record.guid),
        lid=int(own_lid[1]) if own_lid else 0,
        peer_label=label,
        peer_guid=normalize_guid(match[5] or ""),
        peer_lid=int(peer_lid[1]) if peer_lid else 0,
    )


def add_reported_cable(
    records: Records, line_number: int, match: re.Match[str]
) -> None:
    """Add both ends of a cable that `ibnetdiscover -p` reports.

    Each port of an adapter is one record, since the report has GUIDs of ports alone. A
    port that is there already stays as it is.
    """
    width = match[5]
    speed = match[6]
    ends = []
    for first_group, label in ((1, match[11]), (7, match[12])):
        kind = _KIND_OF_WORD[match[first_group]]
        guid = normalize_guid(match[first_group + 3])
        key = f"{'S' if kind == 'Switch' else 'H'}-{guid:0>16}"
        records.setdefault(
            key, SubnetRecord(line_number, kind, _MAX_PORTS, label.strip(), guid)
        )
        ends.append((key, int(match[first_group + 2]), int(match[first_group + 1])))
    for (key, port, lid), (peer, peer_port, _) in (ends, ends[::-1]):
        record = records[key]
        record.ports.setdefault(
            port,
            Port(line_number, (peer, peer_port), f"{width}{speed}", record.guid, lid),
        )


def name_records(records: Records, names: Mapping[str, str], source: str) -> None:
    """Replace the descriptions of nodes by the names of a node-name map, in place;
    aggregation nodes keep theirs.

    Raises:
        TopologyError: the map names none of the nodes.
    """
    num_named = 0
    for record in records.values():
        guids = [record.guid, *(port.guid for port in record.ports.values())]
        label = find_description(
            names, record.label, guids, is_switch=record.kind == "Switch"
        )
        if label is not None and not record.aggregates:
            record.label = label
            num_named = num_named + 1
    if not num_named:
        rule = f"must name some of the {len(records)} nodes of {source}"
        remedy = "Give the node-name map of this fabric, with GUIDs of nodes."
        problem = Problem("--names", rule, f"{len(names)} other names", remedy)
        raise TopologyError(problem, "command line")
