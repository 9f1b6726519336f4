"""What the clock of the packet network can count, and the sizes that it takes."""

from __future__ import annotations

from math import ceil, isfinite

TICK = 2.0**-44
"""Resolution of simulated time (s): 57 fs, 2e-7 of a packet of 4 KiB at 12.5 GB/s. Times are
rounded up to it."""
LONGEST = 2**61
"""Ticks that a clock can count."""


def check_sizes(mtu: float, port_buffer: float) -> None:
    """Raises a ValueError unless both (bytes) are positive and finite, and the buffer holds a
    packet."""
    if not (isfinite(mtu) and mtu > 0 and isfinite(port_buffer)):
        raise ValueError(
            f"mtu and port_buffer must be finite and greater than 0; got {mtu} and {port_buffer} B"
        )
    if int(port_buffer) < ceil(mtu):
        raise ValueError(
            f"port_buffer must hold at least one packet of mtu = {mtu:g} B; got {port_buffer:g} B."
            " Raise port_buffer."
        )
