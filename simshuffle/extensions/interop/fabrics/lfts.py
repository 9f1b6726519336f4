"""Read forwarding tables that OpenSM (opensm-lfts.dump), dump_lfts and ibroute print."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from simshuffle.errors import TopologyError
from simshuffle.extensions.interop.fabrics.imported import (
    ImportedFabric,
    NodePort,
    attribute_errors,
    fabric_error,
    normalize_guid,
    read_text,
)
from simshuffle.fabric.routing import Fabric
from simshuffle.fabric.routing.forwarding_tables import ForwardingTableFile, TableRouter

_SWITCH = re.compile(r"Unicast lids.* of switch .*?guid (?:0x)?([0-9a-fA-F]+)")
_ENTRY = re.compile(r"(0x[0-9a-fA-F]+)\s+(\d{1,3}|UNREACHABLE)\b\s*(?:[:#]\s*(.*))?$")
_PORT_GUID = re.compile(
    r"\(?(?:Channel Adapter|CA|Switch|Router)\b.*?(?:port)?guid (?:0x)?([0-9a-fA-F]+)"
)
_NO_PATH = {"255", "UNREACHABLE"}
_LINE_WITHOUT_ENTRY = re.compile(
    r"\d+ (valid )?lids dumped|Lid\s+Out|\s*Port\s+Info|#|Dump of all|[\w./-]+:"
)
"""Lines without an entry, the last of them warnings of a program, as in 'ibwarn: [123]
...'.
"""
_REMEDY = "Dump the tables again, and keep the tool's whole output."


class _DumpedEntry(NamedTuple):
    """An entry of a switch's forwarding table."""

    lid: int  # local identifier of the destination port
    guid: str  # GUID of the destination port; '' if the dump does not say it
    # port of the switch by which it leads there; 0 for no path, or for the switch itself
    port: int


class _DumpedTable(NamedTuple):
    """The forwarding table of a switch."""

    switch_guid: str  # as `normalize_guid` writes it
    line: int  # where the table begins in the dump, from 1
    entries: list[_DumpedEntry]


def begins(text: str) -> bool:
    """Return whether a text may hold forwarding tables, by its first 2000 lines."""
    return any(_SWITCH.match(line.strip()) for line in text.splitlines()[:2000])


def read_tables(path: Path, fabric: ImportedFabric) -> ForwardingTableFile:
    """Read the forwarding tables of a file for the adapter ports of a fabric.

    Entries for other ports, such as those of switches, are left out.

    Whether routes reach their destinations is checked by `check_routes`.

    Raises:
        TopologyError: the file holds no such tables, is cut off, or is of another
            fabric.
    """
    return parse_tables(read_text(path), str(path), fabric)


def parse_tables(text: str, source: str, fabric: ImportedFabric) -> ForwardingTableFile:
    """Parse forwarding tables from text for the adapter ports of a fabric.

    Args:
        text: the dump.
        source: name of the dump in errors.
        fabric: the network that the tables route.

    Raises:
        TopologyError: the text holds no such tables, is cut off, or is of another
            fabric.
    """
    with attribute_errors(source):
        return _match_to_fabric(text, fabric).model_copy(
            update={"source": Path(source).name}
        )


def _match_to_fabric(text: str, fabric: ImportedFabric) -> ForwardingTableFile:
    """Keep the entries that lead to adapter ports of a fabric, 0 where there is no
    path.

    A destination is found by its GUID, or by its LID if the dump has no GUID.
    Destinations are sorted by node and port; those in no table are left out. Of two
    tables of one switch the last counts.

    Raises a TopologyError if a switch is not of the fabric or has no table, or a table
    lacks a host's port.
    """
    names = {node.guid: node.name for node in fabric.nodes_of_kind("switch")}
    port_of_destination: dict[str, dict[NodePort, int]] = {}  # by switch
    first_line: dict[str, int] = {}  # of each switch's table
    for dumped in _parse_dump(text):
        name = names.get(dumped.switch_guid)
        if name is None:
            remedy = "Dump the fabric and the tables again, right after each other."
            value = f"guid 0x{dumped.switch_guid}"
            raise fabric_error(
                dumped.line, "must be a switch of the fabric", value, remedy
            )
        port_of_destination[name] = {}
        first_line[name] = dumped.line
        for entry in dumped.entries:
            destination = (
                fabric.ports.get(entry.guid)
                if entry.guid
                else fabric.lids.get(entry.lid)
            )
            if destination is not None:
                port_of_destination[name][destination] = entry.port

    switches_without_table = [
        name for name in names.values() if name not in port_of_destination
    ]
    if switches_without_table:
        value = f"none for {', '.join(switches_without_table[:3])}"
        raise fabric_error(
            0, f"must have a table for all {len(names)} switches", value, _REMEDY
        )

    destinations = sorted(set(fabric.ports.values()))
    host_names = {node.name for node in fabric.nodes_of_kind("host")}
    host_ports = {
        destination for destination in destinations if destination[0] in host_names
    }
    for name, table in port_of_destination.items():
        if missing_ports := sorted(host_ports - table.keys()):
            rule = f"the table of {name} must have all {len(host_ports)} host ports"
            node, port = missing_ports[0]
            value = f"{len(missing_ports)} missing, such as {node} port {port}"
            raise fabric_error(first_line[name], rule, value, _REMEDY)

    listed_destinations = [
        destination
        for destination in destinations
        if any(destination in table for table in port_of_destination.values())
    ]
    switches = {
        name: [table.get(destination, 0) for destination in listed_destinations]
        for name, table in port_of_destination.items()
    }
    return ForwardingTableFile(destinations=listed_destinations, switches=switches)


def check_routes(
    path: Path, fabric: ImportedFabric, tables: ForwardingTableFile
) -> None:
    """Check that forwarding tables lead to every host port of a fabric.

    Args:
        path: the file from which the tables were read.
        fabric: the network.
        tables: the tables, as `read_tables` returns them.

    Raises:
        TopologyError: a port has no cable, a host port is not reached, or a route is a
            circle. The error names the line where the switch's table begins.
    """
    try:
        TableRouter(Fabric(fabric.sketch()), tables, str(path))
    except TopologyError as error:
        names = {node.guid: node.name for node in fabric.nodes_of_kind("switch")}
        line_of_table = {
            f"switches.{names[guid]}": f"line {line}, switches.{names[guid]}"
            for guid, line, _ in _parse_dump(read_text(path))
        }
        problems = [
            replace(problem, path=line_of_table.get(problem.path, problem.path))
            for problem in error.problems
        ]
        raise TopologyError(problems, error.source) from None


def _parse_dump(text: str) -> list[_DumpedTable]:
    """Return the forwarding table of each switch, in the order of the dump. Raises a
    TopologyError if a line is of no table, or there is no table.

    Comments and warnings of programs are passed over.
    """
    tables: list[_DumpedTable] = []
    for line_number, raw_line in enumerate(text.splitlines(), 1):
        line = raw_line.strip()
        if match := _SWITCH.match(line):
            tables.append(_DumpedTable(normalize_guid(match[1]), line_number, []))
        elif (match := _ENTRY.match(line)) and tables:
            port = 0 if match[2] in _NO_PATH else int(match[2])
            port_guid = _PORT_GUID.search(match[3] or "")
            guid = normalize_guid(port_guid[1]) if port_guid else ""
            tables[-1].entries.append(_DumpedEntry(int(match[1], 16), guid, port))
        elif line and not _LINE_WITHOUT_ENTRY.match(line):
            rule = "must be a line of a forwarding table"
            raise fabric_error(line_number, rule, repr(line[:60]), _REMEDY)
    if not tables:
        rule = "must hold forwarding tables"
        remedy = "Name a file that `dump_lfts` or OpenSM wrote."
        raise fabric_error(0, rule, "none", remedy)
    return tables
