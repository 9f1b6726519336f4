"""Parallel file system."""

from __future__ import annotations

from typing import ClassVar

from simshuffle.spec.interpolation import BandwidthByCount
from simshuffle.spec.record import Bandwidth, Few, Frequency, NonNegative, Seconds, Share, Sourced


class ParallelFileSystem(Sourced):
    """A file system that all hosts share.

    A file is opened first, then its bytes come through the network.

    Attributes:
        read_bandwidth: of all servers together.
        open_rate: files that all servers together open in a second.
        latency: of opening a file: the mean of a log-normal distribution.
        latency_spread: its standard deviation over its mean.
        link_bandwidth: of a cable between the servers and a topmost switch.
        link_latency: of such a cable.
        links_per_switch: such cables of each topmost switch.
        client_bandwidth: what one host gets at most; may be a curve over the hosts of the run. If
            left out there is no such limit.
        background_load: share of bandwidth and operations that other users take.
    """

    default_sources: ClassVar[dict[str, str]] = {
        "latency": "default: estimate of one open and read of a small file on a busy file system",
        "link_bandwidth": "default: so wide that the servers bind and not their cables",
        "link_latency": "default: a cable of 5 m x 5.2 ns/m",
        "links_per_switch": "default: one, of the default link_bandwidth",
    }

    read_bandwidth: Bandwidth
    open_rate: Frequency
    latency: Seconds = 1e-3
    latency_spread: NonNegative = 0.0
    link_bandwidth: Bandwidth = 10e12
    link_latency: Seconds = 26e-9
    links_per_switch: Few = 1
    client_bandwidth: BandwidthByCount | None = None
    background_load: Share = 0.0

    @property
    def free_bandwidth(self) -> float:
        """Bytes/s that the background load leaves."""
        return self.read_bandwidth * (1.0 - self.background_load)

    @property
    def free_open_rate(self) -> float:
        """Files opened a second that the background load leaves."""
        return self.open_rate * (1.0 - self.background_load)

    def open_cap(
        self, samples_per_file: int, samples_per_request: float, in_flight: float = 1.0
    ) -> float:
        """Most files (1/s) that a reader opens whose requests take ``latency`` each, ``in_flight``
        at once; inf without latency, of which the mean counts.

        A file takes samples_per_file / samples_per_request requests.
        """
        if self.latency == 0:
            return float("inf")
        return in_flight * (samples_per_request / samples_per_file) / self.latency
