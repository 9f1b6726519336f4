"""Complete the cables between the records of a subnet: two ends for each, dead ends
left out.
"""

from __future__ import annotations

from collections.abc import Callable

from simshuffle.errors import TopologyError
from simshuffle.extensions.interop.fabrics.imported import fabric_error
from simshuffle.extensions.interop.fabrics.infiniband import (
    bandwidth_of_rate,
    switch_name,
)
from simshuffle.extensions.interop.fabrics.subnet_records import (
    Dump,
    Port,
    Records,
    SubnetRecord,
)

_RUN_AGAIN = "Run the tool again: the fabric changed, or the file is cut off."
_SAVE_ALL = "Run the tool again, and keep its whole output: the file may be cut off."
_MAX_PORTS = 254
RecordPort = tuple[str, int]
"""The identity of a node, and the number of one of its ports."""


def complete_cables(dump: Dump) -> None:
    """Give every cable of a dump two ends that agree, in place.

    Routers, cables from a node to itself, adapters without a switch, and switches
    without a cable are dropped, and noted in ``left_out``. Where one end alone names a
    cable, that end counts; where the ends say different rates, the slower one. Both
    add to ``warnings``.

    Raises:
        TopologyError: a cable ends at a switch that the file does not have, its ends
            name other ports, or no adapter has a cable to a switch.
    """
    drop_routers(dump)
    drop_loopbacks(dump)
    add_missing_adapters(dump)
    add_missing_ends(dump)
    take_slower_rates(dump)
    drop_loose_adapters(dump)
    drop_loose_switches(dump)


def count_with_example(subject: str, examples: list[str]) -> str:
    """Return how many there are of something, with the first as an example.

    There must be at least one.
    """
    return f"{subject}: {len(examples)}, such as {examples[0]}"


def describe_port(records: Records, record_port: RecordPort) -> str:
    """Return the name of a port for people, such as 'leaf1 port 3'.

    A node without a record or label has its identity as name.
    """
    record = records.get(record_port[0])
    label = switch_name(record.label) if record is not None else ""
    return f"{label or record_port[0]} port {record_port[1]}"


def drop_ports(record: SubnetRecord, is_dropped: Callable[..., bool]) -> None:
    """Drop the ports of a record for which ``is_dropped``, given a `Port`, is true."""
    ports = record.ports.items()
    record.ports = {
        port_number: port for port_number, port in ports if not is_dropped(port)
    }


def drop_routers(dump: Dump) -> None:
    """Drop routers and the cables to them, and note the number of routers."""
    routers = {key for key, record in dump.records.items() if record.kind == "Rt"}
    for key in routers:
        del dump.records[key]
    for record in dump.records.values():
        drop_ports(record, lambda port: port.peer[0] in routers)
    if routers:
        dump.left_out.append(f"routers: {len(routers)}")


def drop_loopbacks(dump: Dump) -> None:
    """Drop cables between ports of one node, and plugs that lead a port back to itself;
    note the number of both.
    """
    loops: dict[frozenset[RecordPort], str] = {}
    for key, record in dump.records.items():
        for port_number, port in record.ports.items():
            if port.peer[0] == key:
                port_text = describe_port(dump.records, (key, port_number))
                loops.setdefault(frozenset({(key, port_number), port.peer}), port_text)
        drop_ports(record, lambda port, node=key: port.peer[0] == node)
    if loops:
        subject = "cables from a node to itself"
        dump.left_out.append(count_with_example(subject, list(loops.values())))


def add_missing_adapters(dump: Dump) -> None:
    """Add the adapters that switches name and that have no record.

    They are added only where a record of an adapter stands behind those of all
    switches: then no switch is cut off, and switches say of an adapter all that a cable
    needs. Else a peer without a record is a TopologyError, and so is a peer that is no
    adapter. A warning says how many are added.
    """
    records = dump.records
    kinds = [record.kind for record in records.values()]
    is_cut_in_switches = not kinds or kinds[-1] == "Switch"
    added: dict[str, str] = {}
    for key, record in list(records.items()):
        for port_number, port in record.ports.items():
            peer, peer_port = port.peer
            if peer in records and peer not in added:
                continue
            if is_cut_in_switches or not peer.startswith("H-"):
                port_text = describe_port(records, (key, port_number))
                rule = "a cable must end at a node of the file"
                value = f"{peer} at {port_text}, a node without a record"
                raise fabric_error(port.line, rule, value, _SAVE_ALL)
            if peer not in records:
                guid = peer.partition("-")[2].lstrip("0").lower()
                records[peer] = SubnetRecord(
                    port.line, "Ca", _MAX_PORTS, port.peer_label, guid
                )
            added[peer] = port.peer_label or peer
            records[peer].ports[peer_port] = Port(
                line=port.line,
                peer=(key, port_number),
                rate=port.rate,
                guid=port.peer_guid,
                lid=port.peer_lid,
            )
    if added:
        subject = "adapters without a record, read from the records of their switches"
        dump.warnings.append(count_with_example(subject, list(added.values())))


def add_missing_ends(dump: Dump) -> None:
    """Add the end of each cable that one end alone names, and warn of their number.

    Raises:
        TopologyError: the port at the other end names another one.
    """
    one_sided = []
    for key, record in dump.records.items():
        for port_number, port in list(record.ports.items()):
            peer, peer_port = port.peer
            back = dump.records[peer].ports.get(peer_port)
            if back is None:
                one_sided.append(describe_port(dump.records, (key, port_number)))
                dump.records[peer].ports[peer_port] = Port(
                    line=port.line,
                    peer=(key, port_number),
                    rate=port.rate,
                    guid=port.peer_guid or dump.records[peer].guid,
                    lid=port.peer_lid,
                )
            elif back.peer != (key, port_number):
                raise mismatch_error(dump.records, (key, port_number), back)
    if one_sided:
        subject = "cables that only one end names"
        dump.warnings.append(count_with_example(subject, one_sided))


def mismatch_error(
    records: Records, record_port: RecordPort, peer_record_port: Port
) -> TopologyError:
    """Return the error of a port whose peer names another port than this one."""
    port = records[record_port[0]].ports[record_port[1]]
    peer = records[port.peer[0]]
    named_port = f"port {peer_record_port.peer[1]} of {records[peer_record_port.peer[0]].label!r}"
    value = (
        f"port {record_port[1]} of {records[record_port[0]].label!r} names port {port.peer[1]} of"
        f" {peer.label!r}, but that port names {named_port}"
    )
    return fabric_error(
        port.line, "both ends of a cable must name each other", value, _RUN_AGAIN
    )


def take_slower_rates(dump: Dump) -> None:
    """Give both ends of a cable the slower of their rates, or the only one that is
    known; warn where two known rates differ.

    If neither is known, one of the two texts stays.
    """
    unequal = []
    for key, record in dump.records.items():
        for port_number, port in record.ports.items():
            peer_port = dump.records[port.peer[0]].ports[port.peer[1]]
            if port.rate == peer_port.rate:
                continue
            rates = [
                end.rate
                for end in (port, peer_port)
                if bandwidth_of_rate(end.rate) is not None
            ]
            if len(rates) == 2:
                end_text = (
                    f"{describe_port(dump.records, (key, port_number))} {port.rate}"
                )
                peer_text = f"{describe_port(dump.records, port.peer)} {peer_port.rate}"
                unequal.append(f"{end_text} and {peer_text}")
            rates.sort(key=lambda rate: bandwidth_of_rate(rate) or 0.0)
            port.rate = peer_port.rate = (rates or [port.rate or peer_port.rate])[0]
    if unequal:
        subject = "cables whose ends name different rates (the slower rate counts)"
        dump.warnings.append(count_with_example(subject, unequal))


def drop_loose_adapters(dump: Dump) -> None:
    """Drop adapters without a cable to a switch, with their cables, and note their
    number.

    Raises:
        TopologyError: no adapter has one.
    """
    records = dump.records
    reason_of_adapter = {}
    for key, record in records.items():
        if record.kind == "Ca":
            peers = [records[port.peer[0]] for port in record.ports.values()]
            if not any(peer.kind == "Switch" for peer in peers):
                cable_text = f"a cable to {peers[0].label!r}" if peers else "no cable"
                reason_of_adapter[key] = f"{record.label!r} has {cable_text}"
    if not reason_of_adapter:
        return
    first = next(iter(reason_of_adapter))
    adapters = {key for key, record in records.items() if record.kind == "Ca"}
    if not adapters - reason_of_adapter.keys():
        rule = "every host must have a cable to a switch"
        remedy = "Run the tool where it reaches a switch, or cable the host to one."
        raise fabric_error(records[first].line, rule, reason_of_adapter[first], remedy)
    for key in reason_of_adapter:
        del records[key]
    for record in records.values():
        drop_ports(record, lambda port: port.peer[0] in reason_of_adapter)
    subject = "adapters without a cable to a switch"
    dump.left_out.append(count_with_example(subject, list(reason_of_adapter.values())))


def drop_loose_switches(dump: Dump) -> None:
    """Drop switches to which no cable leads, unless no switch has a cable, and note the
    number of dropped switches.
    """
    records = dump.records
    switches = {
        key: record for key, record in records.items() if record.kind == "Switch"
    }
    unlinked_switches = [key for key, record in switches.items() if not record.ports]
    if unlinked_switches and len(unlinked_switches) < len(switches):
        names = [
            switch_name(records.pop(key).label) or key for key in unlinked_switches
        ]
        dump.left_out.append(count_with_example("switches without a cable", names))
