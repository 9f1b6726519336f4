"""The cables between the records of a file: two ends for each, and what leads nowhere left out."""

from __future__ import annotations

from collections.abc import Callable

from simshuffle.errors import TopologyError
from simshuffle.extensions.interop.fabrics.imported import refuse
from simshuffle.extensions.interop.fabrics.infiniband import bandwidth_of, switch_name
from simshuffle.extensions.interop.fabrics.subnet_records import Dump, Port, Records, SubnetRecord

_CHANGED = "Run the tool again: the fabric changed, or the file is cut off."
_WHOLE = "Run the tool again, and keep all that it prints: the file may be cut off."
_MOST_PORTS = 254
Place = tuple[str, int]
"""The identity of a node, and the number of one of its ports."""


def complete_cables(dump: Dump) -> None:
    """Give every cable two ends that agree.

    Left out by name are routers, cables from a node to itself, adapters without a switch, and
    switches without a cable. Where one end alone names a cable, that end counts; where the ends say
    different rates, the slower one.

    Raises:
        TopologyError: a cable ends at a switch that the file does not have, its ends name other
            ports, or no adapter has a cable to a switch.
    """
    drop_routers(dump)
    drop_loopbacks(dump)
    add_missing_adapters(dump)
    add_missing_ends(dump)
    take_slower_rates(dump)
    drop_loose_adapters(dump)
    drop_loose_switches(dump)


def count_with_example(what: str, examples: list[str]) -> str:
    """Say how many there are of something, and name the first."""
    return f"{what}: {len(examples)}, such as {examples[0]}"


def describe_port(records: Records, place: Place) -> str:
    """Name a port for people."""
    record = records.get(place[0])
    label = switch_name(record.label) if record is not None else ""
    return f"{label or place[0]} port {place[1]}"


def drop_ports(record: SubnetRecord, is_dropped: Callable[..., bool]) -> None:
    """Drop the ports of a record for which a function is true."""
    ports = record.ports.items()
    record.ports = {number: port for number, port in ports if not is_dropped(port)}


def drop_routers(dump: Dump) -> None:
    """Drop routers and the cables to them."""
    routers = {key for key, record in dump.records.items() if record.kind == "Rt"}
    for key in routers:
        del dump.records[key]
    for record in dump.records.values():
        drop_ports(record, lambda port: port.peer[0] in routers)
    if routers:
        dump.left_out.append(f"routers: {len(routers)}")


def drop_loopbacks(dump: Dump) -> None:
    """Drop cables between ports of one node, and plugs that lead a port back to itself."""
    loops: dict[frozenset[Place], str] = {}
    for key, record in dump.records.items():
        for number, port in record.ports.items():
            if port.peer[0] == key:
                where = describe_port(dump.records, (key, number))
                loops.setdefault(frozenset({(key, number), port.peer}), where)
        drop_ports(record, lambda port, node=key: port.peer[0] == node)
    if loops:
        what = "cables from a node to itself"
        dump.left_out.append(count_with_example(what, list(loops.values())))


def add_missing_adapters(dump: Dump) -> None:
    """Add the adapters that switches name and that have no record.

    They are added only where a record of an adapter stands behind those of all switches: then no
    switch is cut off, and switches say of an adapter all that a cable needs.
    """
    records = dump.records
    kinds = [record.kind for record in records.values()]
    is_cut_in_switches = not kinds or kinds[-1] == "Switch"
    added: dict[str, str] = {}
    for key, record in list(records.items()):
        for number, port in record.ports.items():
            peer, peer_port = port.peer
            if peer in records and peer not in added:
                continue
            if is_cut_in_switches or not peer.startswith("H-"):
                where = describe_port(records, (key, number))
                rule = "a cable must end at a node of the file"
                value = f"{peer} at {where}, which has no record"
                raise refuse(port.line, rule, value, _WHOLE)
            if peer not in records:
                guid = peer.partition("-")[2].lstrip("0").lower()
                records[peer] = SubnetRecord(port.line, "Ca", _MOST_PORTS, port.peer_label, guid)
            added[peer] = port.peer_label or peer
            records[peer].ports[peer_port] = Port(
                line=port.line,
                peer=(key, number),
                rate=port.rate,
                guid=port.peer_guid,
                lid=port.peer_lid,
            )
    if added:
        what = "adapters without a record of their own, read from their switches"
        dump.warnings.append(count_with_example(what, list(added.values())))


def add_missing_ends(dump: Dump) -> None:
    """Add the end of each cable that one end alone names.

    Raises:
        TopologyError: the port at the other end names another one.
    """
    one_sided = []
    for key, record in dump.records.items():
        for number, port in list(record.ports.items()):
            peer, peer_port = port.peer
            back = dump.records[peer].ports.get(peer_port)
            if back is None:
                one_sided.append(describe_port(dump.records, (key, number)))
                dump.records[peer].ports[peer_port] = Port(
                    line=port.line,
                    peer=(key, number),
                    rate=port.rate,
                    guid=port.peer_guid or dump.records[peer].guid,
                    lid=port.peer_lid,
                )
            elif back.peer != (key, number):
                raise unlike_ends(dump.records, (key, number), back)
    if one_sided:
        what = "cables that one end alone names"
        dump.warnings.append(count_with_example(what, one_sided))


def unlike_ends(records: Records, place: Place, back: Port) -> TopologyError:
    """Return the error of a port whose peer names another port than this one."""
    port = records[place[0]].ports[place[1]]
    peer = records[port.peer[0]]
    named = f"port {back.peer[1]} of {records[back.peer[0]].label!r}"
    value = (
        f"port {place[1]} of {records[place[0]].label!r} names port {port.peer[1]} of"
        f" {peer.label!r}, which names {named}"
    )
    return refuse(port.line, "both ends of a cable must name each other", value, _CHANGED)


def take_slower_rates(dump: Dump) -> None:
    """Give both ends of a cable the slower of their rates, or the only one that is known."""
    unequal = []
    for key, record in dump.records.items():
        for number, port in record.ports.items():
            back = dump.records[port.peer[0]].ports[port.peer[1]]
            if port.rate == back.rate:
                continue
            known = [end.rate for end in (port, back) if bandwidth_of(end.rate) is not None]
            if len(known) == 2:
                ends = f"{describe_port(dump.records, (key, number))} {port.rate}"
                peer = f"{describe_port(dump.records, port.peer)} {back.rate}"
                unequal.append(f"{ends} and {peer}")
            known.sort(key=lambda rate: bandwidth_of(rate) or 0.0)
            port.rate = back.rate = (known or [port.rate or back.rate])[0]
    if unequal:
        what = "cables whose ends say different rates, of which the slower counts"
        dump.warnings.append(count_with_example(what, unequal))


def drop_loose_adapters(dump: Dump) -> None:
    """Drop adapters without a cable to a switch.

    Raises:
        TopologyError: no adapter has one.
    """
    records = dump.records
    loose = {}
    for key, record in records.items():
        if record.kind == "Ca":
            peers = [records[port.peer[0]] for port in record.ports.values()]
            if not any(peer.kind == "Switch" for peer in peers):
                to_peer = f"a cable to {peers[0].label!r}" if peers else "no cable"
                loose[key] = f"{record.label!r} has {to_peer}"
    if not loose:
        return
    first = next(iter(loose))
    if not any(record.kind == "Ca" and key not in loose for key, record in records.items()):
        rule = "every host must have a cable to a switch"
        remedy = "Run the tool where it reaches a switch, or cable the host to one."
        raise refuse(records[first].line, rule, loose[first], remedy)
    for key in loose:
        del records[key]
    for record in records.values():
        drop_ports(record, lambda port: port.peer[0] in loose)
    what = "adapters without a cable to a switch"
    dump.left_out.append(count_with_example(what, list(loose.values())))


def drop_loose_switches(dump: Dump) -> None:
    """Drop switches to which no cable leads."""
    records = dump.records
    loose = [key for key, record in records.items() if record.kind == "Switch" and not record.ports]
    if loose and len(loose) < sum(record.kind == "Switch" for record in records.values()):
        names = [switch_name(records.pop(key).label) or key for key in loose]
        dump.left_out.append(count_with_example("switches without a cable", names))
