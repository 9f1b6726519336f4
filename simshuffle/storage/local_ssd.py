"""Node-local SSD."""

from __future__ import annotations

from simshuffle.spec import Bandwidth, PositiveNBytes, Seconds, Sourced


class LocalSsd(Sourced):
    """One SSD of a host. Its device time is the resource that reads and writes share."""

    capacity: PositiveNBytes
    read_bandwidth: Bandwidth
    write_bandwidth: Bandwidth
    latency: Seconds

    def read_seconds(self, nbytes: float) -> float:
        """Device time (s) to read ``nbytes`` bytes."""
        return nbytes / self.read_bandwidth

    def write_seconds(self, nbytes: float) -> float:
        """Device time (s) to write ``nbytes`` bytes."""
        return nbytes / self.write_bandwidth
