"""Forwarding tables as tools of InfiniBand dump them: opensm-lfts.dump of OpenSM, and what
dump_lfts and ibroute print."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from simshuffle.errors import TopologyError
from simshuffle.extensions.interop.fabrics.imported import (
    ImportedFabric,
    Place,
    errors_of,
    plain_guid,
    read_text,
    refuse,
)
from simshuffle.fabric.routing import Fabric
from simshuffle.fabric.routing.forwarding_tables import ForwardingTableFile, TableRouter

_SWITCH = re.compile(r"Unicast lids.* of switch .*?guid (?:0x)?([0-9a-fA-F]+)")
_ENTRY = re.compile(r"(0x[0-9a-fA-F]+)\s+(\d{1,3}|UNREACHABLE)\b\s*(?:[:#]\s*(.*))?$")
_PORT_GUID = re.compile(
    r"\(?(?:Channel Adapter|CA|Switch|Router)\b.*?(?:port)?guid (?:0x)?([0-9a-fA-F]+)"
)
_NO_PATH = {"255", "UNREACHABLE"}
_PASSED = re.compile(r"\d+ (valid )?lids dumped|Lid\s+Out|\s*Port\s+Info|#|Dump of all|[\w./-]+:")
"""Lines without an entry, the last of them warnings of a program, as in 'ibwarn: [123] ...'."""
_AGAIN = "Dump the tables again, and keep all that the tool prints."


def begins(text: str) -> bool:
    """Whether a text may hold forwarding tables."""
    return any(_SWITCH.match(line.strip()) for line in text.splitlines()[:2000])


def read_tables(path: Path, fabric: ImportedFabric) -> ForwardingTableFile:
    """The tables of a file for the adapter ports of a fabric.

    Raises:
        TopologyError: the file holds no such tables, is cut off, or is of another fabric. Ways are
            checked where the tables are used.
    """
    return tables_of(read_text(path), str(path), fabric)


def tables_of(text: str, source: str, fabric: ImportedFabric) -> ForwardingTableFile:
    """The same of a text; ``source`` is what errors call it."""
    with errors_of(source):
        return _tables(text, fabric).model_copy(update={"source": Path(source).name})


def _tables(text: str, fabric: ImportedFabric) -> ForwardingTableFile:
    names = {node.guid: node.name for node in fabric.of_kind("switch")}
    dumped: dict[str, dict[Place, int]] = {}
    begun: dict[str, int] = {}
    for switch, line, entries in _dumped(text):
        name = names.get(switch)
        if name is None:
            remedy = "Dump fabric and tables again, one after the other."
            raise refuse(line, "must be a switch of the fabric", f"guid 0x{switch}", remedy)
        dumped[name], begun[name] = {}, line
        for lid, guid, port in entries:
            place = fabric.ports.get(guid) if guid else fabric.lids.get(lid)
            if place is not None:
                dumped[name][place] = port
    missing = [name for name in names.values() if name not in dumped]
    if missing:
        found = f"none for {', '.join(missing[:3])}"
        raise refuse(0, f"must have a table for all {len(names)} switches", found, _AGAIN)
    destinations = sorted(set(fabric.ports.values()))
    hosts = {node.name for node in fabric.of_kind("host")}
    needed = {place for place in destinations if place[0] in hosts}
    for name, table in dumped.items():
        if lost := sorted(needed - table.keys()):
            rule = f"the table of {name} must have all {len(needed)} host ports"
            found = f"{len(lost)} of them missing, such as {lost[0][0]} port {lost[0][1]}"
            raise refuse(begun[name], rule, found, _AGAIN)
    known = [place for place in destinations if any(place in of for of in dumped.values())]
    switches = {name: [table.get(place, 0) for place in known] for name, table in dumped.items()}
    return ForwardingTableFile(destinations=known, switches=switches)


def check_ways(path: Path, fabric: ImportedFabric, tables: ForwardingTableFile) -> None:
    """See that the tables that were read from ``path`` lead to every host port of a fabric.

    Raises:
        TopologyError: a port has no cable, a host port is not reached, or a way is a circle; with
            the line where the table of the switch begins.
    """
    try:
        TableRouter(Fabric(fabric.sketch()), tables, str(path))
    except TopologyError as error:
        names = {node.guid: node.name for node in fabric.of_kind("switch")}
        begun = {
            f"switches.{names[guid]}": f"line {line}, switches.{names[guid]}"
            for guid, line, _ in _dumped(read_text(path))
        }
        problems = [
            replace(problem, path=begun.get(problem.path, problem.path))
            for problem in error.problems
        ]
        raise TopologyError(problems, error.source) from None


def _dumped(text: str) -> list[tuple[str, int, list[tuple[int, str, int]]]]:
    """For each switch its GUID, the line where its table begins, and its entries: the identifier
    and, if it is known, the GUID of the port that each leads to, and by which port."""
    out: list[tuple[str, int, list[tuple[int, str, int]]]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if found := _SWITCH.match(line):
            out.append((plain_guid(found[1]), number, []))
        elif (found := _ENTRY.match(line)) and out:
            port = 0 if found[2] in _NO_PATH else int(found[2])
            to = _PORT_GUID.search(found[3] or "")
            out[-1][2].append((int(found[1], 16), plain_guid(to[1]) if to else "", port))
        elif line and not _PASSED.match(line):
            rule = "must be a line of a forwarding table"
            raise refuse(number, rule, repr(line[:60]), _AGAIN)
    if not out:
        rule, remedy = "must hold forwarding tables", "Name what `dump_lfts` or OpenSM wrote."
        raise refuse(0, rule, "none", remedy)
    return out
