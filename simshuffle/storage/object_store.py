"""Object store: samples and shards as objects that are asked for over HTTP."""

from __future__ import annotations

import math
from typing import ClassVar

from simshuffle.spec.record import Bandwidth, Count, Frequency, NonNegative, Seconds, Share, Sourced

GIGABYTE = 1e9


class ObjectStore(Sourced):
    """A store of objects, read whole or by ranges of bytes; what is left out is as of Amazon S3
    (Standard), read from machines in its region.

    A connection has one request at a time, and a request that is tried again fails as often.

    Attributes:
        latency: of the first byte of an answer, in the mean.
        latency_spread: standard deviation of the latencies over their mean.
        connection_bandwidth: of one connection.
        bandwidth: of all connections together; if left out only the others bound.
        host_bandwidth: of the network by which one host reaches the store, which is not that of
            'topology'; if left out it does not bind.
        request_rate: requests a second of one prefix.
        prefixes: beginnings of names over which the objects are spread.
        retry_share: share of requests that are answered with an error and tried again.
        retry_delay: before a request is tried again.
        price_per_request: in US dollars.
        price_per_gigabyte: in US dollars for 10^9 bytes that are read.
    """

    default_sources: ClassVar[dict[str, str]] = {
        "latency": "default: middle of 100 to 200 ms, Amazon S3 user guide, performance design"
        " patterns; for small objects, or the first byte of large ones",
        "connection_bandwidth": "default: 85 to 90 MB/s, the same guide, of which it says how many"
        " connections fill a network card",
        "request_rate": "default: at least 5,500 GET requests a second and partitioned prefix, the"
        " same guide",
        "price_per_request": "default: 0.0004 US dollars for 1,000 GET requests, US East, June"
        " 2026, usage.ai's calculator and cloudoptimo.com",
        "price_per_gigabyte": "default: nothing is charged within a region; 0.09 US dollars to the"
        " internet (the same)",
    }

    latency: Seconds = 0.15
    latency_spread: NonNegative = 0.0
    connection_bandwidth: Bandwidth = 87.5e6
    bandwidth: Bandwidth | None = None
    host_bandwidth: Bandwidth | None = None
    request_rate: Frequency = 5500.0
    prefixes: Count = 1
    retry_share: Share = 0.0
    retry_delay: Seconds = 0.0
    price_per_request: NonNegative = 4e-7
    price_per_gigabyte: NonNegative = 0.0

    @property
    def tries(self) -> float:
        """How often a request is sent in the mean, 1 / (1 - p) of a geometric distribution."""
        return 1.0 / (1.0 - self.retry_share)

    @property
    def waiting_seconds(self) -> float:
        """Mean time (s) until the first byte of an answer that is no error comes: the tries with
        what is waited between them."""
        return self.tries * self.latency + (self.tries - 1.0) * self.retry_delay

    @property
    def alike(self) -> bool:
        """Whether all requests wait for their first byte equally long."""
        spreads = self.latency_spread > 0 and self.latency > 0
        return not spreads and (self.retry_share == 0 or self.waiting_seconds == 0)

    @property
    def answer_rate(self) -> float:
        """Requests that all prefixes answer in a second, without the tries that are errors."""
        return self.prefixes * self.request_rate / self.tries

    def request_seconds(self, nbytes: float) -> float:
        """Mean time (s) of a request for ``nbytes`` bytes on a connection: its tries with what is
        waited between them, and its bytes."""
        return self.waiting_seconds + nbytes / self.connection_bandwidth

    @property
    def bandwidths(self) -> tuple[float, float]:
        """Bytes/s of all hosts together, and of one of them; inf without a limit."""
        return (
            math.inf if self.bandwidth is None else self.bandwidth,
            math.inf if self.host_bandwidth is None else self.host_bandwidth,
        )

    def least_seconds(self, requests: float, nbytes: float, connections: int) -> dict[str, float]:
        """Least time (s) of each limit to answer ``requests`` requests for ``nbytes`` bytes in all
        over so many ``connections``, by its name: 'connections', 'requests', 'bandwidth'.

        Connections are never idle there, and the store is asked evenly.
        """
        each = self.request_seconds(nbytes / requests) if requests else 0.0
        return {
            "connections": requests * each / connections,
            "requests": requests / self.answer_rate,
            "bandwidth": nbytes / self.bandwidths[0],
        }

    def charge(self, requests: float, nbytes: float) -> float:
        """US dollars for so many requests, each try of which is charged, and bytes."""
        by_bytes = nbytes / GIGABYTE * self.price_per_gigabyte
        return requests * self.tries * self.price_per_request + by_bytes
