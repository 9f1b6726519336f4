"""Storage tiers: capacities, and what an operation costs. Each has a field of
`Cluster`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import ClassVar, TypeVar

import numpy as np
from pydantic import model_validator

from simshuffle.spec.arrays import Floats
from simshuffle.spec.interpolation import BandwidthByCount, FrequencyByCount
from simshuffle.spec.record import (
    Bandwidth,
    Count,
    Few,
    Frequency,
    NBytes,
    NonNegative,
    PositiveNBytes,
    Seconds,
    Share,
    Sourced,
)

Amount = TypeVar("Amount", float, Floats)


class LocalSsd(Sourced):
    """An SSD of a host. Reads and writes share its device time.

    Attributes:
        capacity: of one host.
        read_bandwidth, write_bandwidth: of one host.
        latency: of one request.
        iops: most requests that it reads a second; may be a curve over the reads in
            flight on a host. If left out, bandwidth and latency alone limit it.
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
        """Device time (s) to read ``nbytes`` bytes in ``requests`` requests (None:
        few), ``queue_depth`` of the host's being in flight. The larger of bytes /
        bandwidth and requests / iops(queue depth); without iops or requests the first.
        The latency is not in it.
        """
        transfer = nbytes / self.read_bandwidth
        if self.iops is None or requests is None:
            return transfer
        slowest: Amount = np.maximum(transfer, requests / self.iops(queue_depth))
        return slowest

    def write_seconds(self, nbytes: Amount) -> Amount:
        """Device time (s) to write ``nbytes`` bytes."""
        return nbytes / self.write_bandwidth


class Memory(Sourced):
    """The memory of a host. The default of ``page_cache`` leaves the rest to the
    processes (an estimate).

    Attributes:
        capacity: of one host.
        bandwidth: of one host.
        page_cache: bytes that keep what was read from files; '0 B' turns it off. If
            left out, three quarters of 'capacity'.
    """

    capacity: PositiveNBytes
    bandwidth: Bandwidth
    page_cache: NBytes | None = None

    @model_validator(mode="after")
    def _cache_fits(self) -> Memory:
        """Refuse a page cache larger than the memory."""
        if self.cache_nbytes > self.capacity:
            raise ValueError("page_cache must not exceed capacity")
        return self

    @property
    def cache_nbytes(self) -> float:
        """Bytes of the page cache; three quarters of the memory if it is left out."""
        return 0.75 * self.capacity if self.page_cache is None else self.page_cache

    def repeat_hits(self, nbytes: float) -> float:
        """Share of the reads that hit when a set of ``nbytes`` bytes is read again, in a new random
        order each time. With an LRU cache that holds a share c < 1 of the set: the reads of one
        item in two successive orders are at uniform positions u and v, and 1 - u(1 - v) of the set
        is read between them, so it hits if u(1 - v) >= 1 - c, which has the probability c + (1 - c)
        ln(1 - c). Derived here; checked against a simulated cache in tests/contracts.
        """
        if nbytes <= self.cache_nbytes:
            return 1.0
        missing = 1.0 - self.cache_nbytes / nbytes
        return 1.0 - missing + (missing * math.log(missing) if missing > 0 else 0.0)

    def redrawn_hits(self, nbytes: float, share: float, epochs: int) -> float:
        """Expected share of the reads that hit when a random ``share`` of ``nbytes`` bytes was read
        in each of ``epochs`` epochs before. A sample was last read j epochs ago with the
        probability share (1 - share)^(j - 1), at position u of that epoch; it is now read at
        position v, and 1 - (1 - share (1 - u)) (1 - share)^(j - 1) (1 - share v) of the set was
        read in between. Mean over u and v. 0 for no epoch before.
        """
        return _redrawn_hits(self.cache_nbytes / nbytes, share, epochs)


@lru_cache(maxsize=64)
def _redrawn_hits(cached: float, share: float, epochs: int) -> float:
    """Compute `Memory.redrawn_hits` of a cache that holds the share ``cached`` of the
    set, or more than all of it.
    """
    # in the product of tail and head a row is a v, and a column a u: the middles of 50 bins
    middles = (np.arange(50) + 0.5) / 50
    head = 1.0 - share * middles[:, None]
    tail = 1.0 - share * (1.0 - middles)
    hits = 0.0
    for spared in (1.0 - share) ** np.arange(epochs):
        is_cached = 1.0 - tail * spared * head <= cached
        hits += share * float(spared) * float(is_cached.mean())
    return hits


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
        client_bandwidth: what one host gets at most; may be a curve over the hosts of
            the run. If left out there is no such limit.
        background_load: share of bandwidth and operations that other users take.
        write_bandwidth: of all servers together, for what is written; if left out that
            of reads.
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
    write_bandwidth: Bandwidth | None = None

    @property
    def free_bandwidth(self) -> float:
        """Bytes/s that the background load leaves."""
        return self.read_bandwidth * (1.0 - self.background_load)

    @property
    def free_write_bandwidth(self) -> float:
        """Bytes/s of writing that the background load leaves; of reading if none is
        given.
        """
        written = (
            self.read_bandwidth
            if self.write_bandwidth is None
            else self.write_bandwidth
        )
        return written * (1.0 - self.background_load)

    @property
    def free_open_rate(self) -> float:
        """Files opened a second that the background load leaves."""
        return self.open_rate * (1.0 - self.background_load)

    def open_cap(
        self, samples_per_file: int, samples_per_request: float, in_flight: float = 1.0
    ) -> float:
        """Return the most files (1/s) that one reader opens; inf without latency.

        A request takes the mean ``latency``, with ``in_flight`` at once; a file takes
        samples_per_file / samples_per_request requests.
        """
        if self.latency == 0:
            return float("inf")
        return in_flight * (samples_per_request / samples_per_file) / self.latency


class ObjectStore(Sourced):
    """A store of objects, read whole or by ranges of bytes; what is left out is as of
    Amazon S3 (Standard), read from machines in its region.

    A connection has one request at a time, and a request that is tried again fails as
    often.

    Attributes:
        latency: of the first byte of an answer, in the mean.
        latency_spread: standard deviation of the latencies over their mean.
        connection_bandwidth: of one connection.
        bandwidth: of all connections together; if left out only the others bound.
        host_bandwidth: of the network by which one host reaches the store, which is not
            that of 'topology'; if left out it does not bind.
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
        """Mean number of times that a request is sent, the first included: 1 / (1 - p)
        of a geometric distribution.
        """
        return 1.0 / (1.0 - self.retry_share)

    @property
    def waiting_seconds(self) -> float:
        """Mean time (s) until the first byte of an answer that is no error comes: the
        tries with what is waited between them.
        """
        return self.tries * self.latency + (self.tries - 1.0) * self.retry_delay

    @property
    def has_equal_latencies(self) -> bool:
        """True if all requests wait equally long for their first byte."""
        spreads = self.latency_spread > 0 and self.latency > 0
        return not spreads and (self.retry_share == 0 or self.waiting_seconds == 0)

    @property
    def answer_rate(self) -> float:
        """Requests that all prefixes answer in a second, without the tries that are
        errors.
        """
        return self.prefixes * self.request_rate / self.tries

    def request_seconds(self, nbytes: float) -> float:
        """Mean time (s) of a request for ``nbytes`` bytes on a connection: its tries
        with what is waited between them, and its bytes.
        """
        return self.waiting_seconds + nbytes / self.connection_bandwidth

    @property
    def bandwidths(self) -> tuple[float, float]:
        """Bytes/s of all hosts together, and of a single host; inf without a limit."""
        return (
            math.inf if self.bandwidth is None else self.bandwidth,
            math.inf if self.host_bandwidth is None else self.host_bandwidth,
        )

    def least_seconds(
        self, requests: float, nbytes: float, connections: int
    ) -> dict[str, float]:
        """Return the least seconds of each limit to answer ``requests`` requests.

        By its name: 'connections', 'requests', 'bandwidth'. Connections are never idle
        there, and the store is asked evenly; the limit of a host is left out.

        Args:
            requests: without tries that fail.
            nbytes: bytes in all.
            connections: at once.
        """
        seconds_per_request = (
            self.request_seconds(nbytes / requests) if requests else 0.0
        )
        return {
            "connections": requests * seconds_per_request / connections,
            "requests": requests / self.answer_rate,
            "bandwidth": nbytes / self.bandwidths[0],
        }

    def charge(self, requests: float, nbytes: float) -> float:
        """US dollars for so many requests, each try of which is charged, and bytes."""
        by_bytes = nbytes / 1e9 * self.price_per_gigabyte
        return requests * self.tries * self.price_per_request + by_bytes


Tier = LocalSsd | Memory | ParallelFileSystem | ObjectStore
