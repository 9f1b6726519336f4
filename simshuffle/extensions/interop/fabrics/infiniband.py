"""Name InfiniBand nodes by their descriptions or by a node-name map, and know what
lanes carry.

Maps are those that opensm and the tools of infiniband-diags read.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from simshuffle.extensions.interop.fabrics.imported import (
    attribute_errors,
    fabric_error,
    normalize_guid,
    read_text,
)

_ADAPTER = re.compile(
    r"(\S+)\s+((?:mlx|hfi|qib|mthca|ib|roce|ocrdma|bnxt|hca)[\w-]*)", re.IGNORECASE
)
REMOVE_DUPLICATE = "Leave one of the two out."
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
"""Gbit/s of data, after the line code, by the name of the speed. InfiniBand
Architecture Specification, volume 1, release 1.7, PortInfo: SDR 2.5, DDR 5 and QDR 10
GBd with 8b/10b; FDR10 10.3125 and FDR 14.0625 GBd with 64b/66b; EDR, HDR, NDR and XDR
are named after what they carry with forward error correction
(infinibandta.org/infiniband-roadmap).
"""
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
"""Name and fastest speed of adapters by their device (pci-ids.ucw.cz, vendor 15b3, and
NVIDIA's data sheets).
"""
_RATE = re.compile(r"(1|2|4|8|12)x([A-Z]+[0-9]*)")


def host_name(label: str) -> str:
    """Return the host that a node's description names; '' if the name has blanks, '>'
    or '#'.

    'node1 mlx5_0' gives 'node1'.
    """
    match = _ADAPTER.fullmatch(label)
    name = match[1] if match else label
    return name if re.fullmatch(r"[^\s>#]+", name) else ""


def adapter_name(label: str) -> str:
    """Return the adapter that a description names beside its host; '' if it names none.

    'node1 mlx5_0' gives 'mlx5_0'.
    """
    match = _ADAPTER.fullmatch(label)
    return match[2] if match else ""


def switch_name(label: str) -> str:
    """Return a switch's name from its description; other descriptions as they are.

    'MF0;ib5:SX6036/U1' gives 'ib5', and 'MF0;d:CS7500/L01/U1', part of a director,
    'd/L01/U1'.
    """
    match = re.fullmatch(r"MF0;([^:;]+):[^/]+(/.*)?", label)
    if not match:
        return label
    part = match[2] or ""
    return match[1] if part in {"", "/U1"} else match[1] + part


def begins(text: str) -> bool:
    """Return whether a text may be a node-name map: its first 2000 lines are pairs of
    words, and at least one key is a GUID. Blank lines and comments do not count.
    """
    pairs = [words for line in text.splitlines()[:2000] if (words := _split_line(line))]
    return all(len(words) == 2 for words in pairs) and any(
        _GUID.fullmatch(key) for key, *_ in pairs
    )


def read_names(path: Path) -> dict[str, str]:
    """Read a node-name map: names by GUID, or by label of an adapter, host or switch.

    GUIDs are as `normalize_guid` writes them.

    Raises:
        TopologyError: the file cannot be read or names no node, a line is none of a
            map, or a node has two names.
    """
    with attribute_errors(path):
        return _parse_names(read_text(path))


def _parse_names(text: str) -> dict[str, str]:
    """Parse the text of a node-name map: names by GUID or label.

    Raises:
        TopologyError: the map names no node, a line is none of a map, or a node has two
            names.
    """
    names: dict[str, str] = {}
    for line_number, line in enumerate(text.splitlines(), 1):
        if not (words := _split_line(line)):
            continue
        if len(words) != 2:
            rule = (
                "must be a GUID (or the name of an adapter in the dump), and then a name in"
                " quotes"
            )
            remedy = 'Write for example 0xe09d730300000010 "node1".'
            raise fabric_error(line_number, rule, repr(line.strip()[:60]), remedy)
        key, name = words
        if _GUID.fullmatch(key):
            key = normalize_guid(key.lower().removeprefix("0x"))
        if names.setdefault(key, name) != name:
            raise fabric_error(
                line_number,
                "must name each node only once",
                f"{words[0]} again",
                REMOVE_DUPLICATE,
            )
    if not names:
        remedy = 'Write a line for each node: 0xGUID "name".'
        raise fabric_error(0, "must hold names", "none", remedy)
    return names


def _split_line(line: str) -> list[str]:
    """Split a line into words without quotes and comments; [] for a blank line.

    A line with an open quote is one word, the whole line.
    """
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote without end
        return [line]


def find_description(
    names: Mapping[str, str], label: str, guids: Iterable[str], *, is_switch: bool
) -> str | None:
    """Return the description of a node by a node-name map; None if the map does not
    name the node.

    Blanks, '>' and '#' in the map's name of a host become '_', and the adapter that the
    dump names is kept behind it. A name with an adapter, and that of a switch, is as
    the map has it.

    Args:
        names: as `read_names` returns them.
        label: description of the node in the dump.
        guids: GUIDs of the node and of its ports, which are tried before the label.
        is_switch: True for a switch, False for an adapter.
    """
    node_name = switch_name(label) if is_switch else host_name(label)
    mapped_name = next(
        (names[key] for key in (*guids, label, node_name) if key and key in names), None
    )
    if mapped_name is None or is_switch:
        return mapped_name
    adapter = adapter_name(label)
    mapped_name = mapped_name.strip()
    if adapter_name(mapped_name):
        return mapped_name
    mapped_name = re.sub(r"[\s>#]+", "_", mapped_name)
    return f"{mapped_name} {adapter}" if adapter else mapped_name


def bandwidth_of_rate(rate: str) -> float | None:
    """Return bytes/s in each direction of a rate such as '4xNDR'; None for other text,
    or an unknown speed.
    """
    match = _RATE.fullmatch(rate)
    lane_gbit = LANE_GBIT.get(match[2]) if match else None
    return (
        None
        if match is None or lane_gbit is None
        else int(match[1]) * lane_gbit * 1e9 / 8
    )


def rate_of_bandwidth(bandwidth: float) -> str:
    """Return the rate, such as '4xNDR', that carries exactly ``bandwidth`` (bytes/s).

    Four lanes are tried first; '' if no width and speed give this bandwidth.
    """
    for width in (4, 1, 2, 8, 12):
        for speed in LANE_GBIT:
            if bandwidth_of_rate(f"{width}x{speed}") == bandwidth:
                return f"{width}x{speed}"
    return ""


def adapter_of_device(device: int) -> tuple[str, float]:
    """Return name and fastest speed of an adapter, such as 'ConnectX-7, NDR', and the
    bytes/s each way of one of its ports with 4 lanes at that speed.

    Unknown devices give '' and infinity.

    Args:
        device: PCI device ID, a key of `ADAPTERS`.
    """
    if device not in ADAPTERS:
        return "", math.inf
    name, speed = ADAPTERS[device]
    return f"{name}, {speed}", 4 * LANE_GBIT[speed] * 1e9 / 8
