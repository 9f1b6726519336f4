"""The packet-level network (placeholder until the compiled kernel is in)."""

from __future__ import annotations

from typing import Literal

from simshuffle.network.flows import Flows, Links, Outcome
from simshuffle.spec import PositiveNBytes, Spec


class Packet(Spec):
    """Lossless InfiniBand, packet by packet."""

    kind: Literal["packet"] = "packet"
    mtu: PositiveNBytes = 4096.0
    port_buffer: PositiveNBytes = 65536.0

    @property
    def serial_pairs(self) -> bool:
        """Whether the messages of one (src, dst) pair go one after the other: always, as on one queue pair."""
        return True

    def finish_times(self, links: Links, flows: Flows) -> Outcome:
        """When ``flows`` end."""
        raise NotImplementedError
