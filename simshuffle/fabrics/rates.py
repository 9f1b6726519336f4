"""What a lane of InfiniBand carries.

Bits of data a second, after the line code. The rates are those of the InfiniBand Architecture
Specification, volume 1, release 1.7, PortInfo: SDR 2.5, DDR 5 and QDR 10 GBd with 8b/10b; FDR10
10.3125 and FDR 14.0625 GBd with 64b/66b; EDR, HDR, NDR and XDR are named after what they carry with
forward error correction: 25, 50, 100 and 200 Gbit/s (infinibandta.org/infiniband-roadmap).
"""

from __future__ import annotations

import math
import re

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
"""Gbit/s of data, by the name of the speed."""
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
