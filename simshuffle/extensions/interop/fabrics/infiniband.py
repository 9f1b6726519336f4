"""What nodes of InfiniBand are called: by their descriptions, or by a node-name map, as opensm and
the tools of infiniband-diags read it; and what a lane carries."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from simshuffle.extensions.interop.fabrics.imported import errors_of, plain_guid, read_text, refuse

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
