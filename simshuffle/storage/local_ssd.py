"""Node-local SSD."""

from __future__ import annotations

from typing import ClassVar, TypeVar

import numpy as np

from simshuffle.spec.arrays import Floats
from simshuffle.spec.interpolation import FrequencyByCount
from simshuffle.spec.record import Bandwidth, PositiveNBytes, Seconds, Sourced

Amount = TypeVar("Amount", float, Floats)


class LocalSsd(Sourced):
    """One SSD of a host. Its device time is the resource that reads and writes share.

    Attributes:
        capacity: of one host.
        read_bandwidth, write_bandwidth: of one host.
        latency: of one request.
        iops: most requests that it reads a second; may be a curve over the reads in flight on a
            host. If left out, bandwidth and latency alone limit it.
    """

    default_sources: ClassVar[dict[str, str]] = {
        "latency": "default: Intel DC P4500, random read 85 us, as in topologies/abci.yaml"
    }

    capacity: PositiveNBytes
    read_bandwidth: Bandwidth
    write_bandwidth: Bandwidth
    latency: Seconds = 85e-6
    iops: FrequencyByCount | None = None

    def read_seconds(
        self, nbytes: Amount, requests: Amount | None = None, queue_depth: float = 1.0
    ) -> Amount:
        """Device time (s) to read ``nbytes`` bytes in ``requests`` requests (None: few),
        ``queue_depth`` of the host's being in flight.

        The larger of bytes / bandwidth and requests / iops(queue depth).
        """
        transfer = nbytes / self.read_bandwidth
        if self.iops is None or requests is None:
            return transfer
        slowest: Amount = np.maximum(transfer, requests / self.iops(queue_depth))
        return slowest

    def write_seconds(self, nbytes: Amount) -> Amount:
        """Device time (s) to write ``nbytes`` bytes."""
        return nbytes / self.write_bandwidth
