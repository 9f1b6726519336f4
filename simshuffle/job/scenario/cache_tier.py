"""A cache that all hosts share, in front of the file system or the object store."""

from __future__ import annotations

from typing import ClassVar, Literal

from simshuffle.spec.interpolation import BandwidthByCount
from simshuffle.spec.record import (
    Bandwidth,
    Frequency,
    PositiveNBytes,
    Seconds,
    Sourced,
)

Eviction = Literal["none", "lru", "fifo", "clock", "random", "s3fifo"]


class CacheTier(Sourced):
    """A cache between all hosts and what they read from: Alluxio, JuiceFS, a burst
    buffer. A sample that it lacks is read from behind it, and written to it on the way.

    Attributes:
        capacity: of all its servers together; each sample is there once. Where each
            host caches for itself, it is that of one host.
        bandwidth: of all its servers together, for what is read from it and written to
            it.
        host_bandwidth: what one host gets from it at most; may be a curve over the
            hosts of the run. If left out there is no such limit.
        open_rate: samples, or files of them, that it opens in a second. If left out
            there is no such limit.
        latency: of opening one of them.
        eviction: what goes when it is full: what was read ('lru') or written ('fifo')
            longest ago; as fifo, but once more round if it was read since ('clock');
            any ('random'); what was read seldom ('s3fifo'); or nothing, so that what
            comes late is not kept ('none').
        warm: whether it is filled before the first epoch, with the samples of the
            lowest numbers.
    """

    default_sources: ClassVar[dict[str, str]] = {
        "eviction": "default: Alluxio 2's LRU annotator (alluxio.worker.block.annotator.class)",
        "latency": "default: none beside the bytes, estimate",
    }

    capacity: PositiveNBytes
    bandwidth: Bandwidth
    host_bandwidth: BandwidthByCount | None = None
    open_rate: Frequency | None = None
    latency: Seconds = 0.0
    eviction: Eviction = "lru"
    warm: bool = False

    def open_cap(
        self, samples_per_file: int, samples_per_request: float, in_flight: float = 1.0
    ) -> float:
        """Most files (1/s) that a reader opens whose requests take ``latency`` each,
        ``in_flight`` at once; inf without latency. As of `ParallelFileSystem.open_cap`.
        """
        if self.latency == 0:
            return float("inf")
        return in_flight * (samples_per_request / samples_per_file) / self.latency
