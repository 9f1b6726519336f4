"""Host memory as a storage tier: the page cache."""

from __future__ import annotations

import math

import numpy as np
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from simshuffle.spec.record import Bandwidth, NBytes, PositiveNBytes, Sourced


class Memory(Sourced):
    """The memory of a host; ``page_cache`` bytes of it keep what was read from files: None for
    three quarters of it, which leaves the rest to the processes (an estimate).

    Attributes:
        capacity: of one host.
        bandwidth: of one host.
        page_cache: bytes that keep what was read from files; '0 B' turns it off. If left out, three
            quarters of 'capacity'.
    """

    capacity: PositiveNBytes
    bandwidth: Bandwidth
    page_cache: NBytes | None = None

    @model_validator(mode="after")
    def _cache_fits(self) -> Memory:
        if self.cache_nbytes > self.capacity:
            raise PydanticCustomError("page_cache", "page_cache must not exceed capacity")
        return self

    @property
    def cache_nbytes(self) -> float:
        """Bytes of the page cache."""
        return 0.75 * self.capacity if self.page_cache is None else self.page_cache

    def repeat_hits(self, nbytes: float) -> float:
        """Share of the reads that hit when a set of ``nbytes`` bytes is read again, in a new random
        order each time.

        With an LRU cache that holds a share c < 1 of the set: the reads of one item in two
        successive orders are at uniform positions u and v, and 1 - u(1 - v) of the set is read
        between them, so it hits if u(1 - v) >= 1 - c, which has the probability c + (1 - c) ln(1 -
        c). Derived here; checked against a simulated cache in tests/contracts.
        """
        if nbytes <= self.cache_nbytes:
            return 1.0
        missing = 1.0 - self.cache_nbytes / nbytes
        return 1.0 - missing + (missing * math.log(missing) if missing > 0 else 0.0)

    def redrawn_hits(self, nbytes: float, share: float, epochs: int) -> float:
        """Expected share of the reads that hit when a random ``share`` of ``nbytes`` bytes was read
        in each of ``epochs`` epochs before.

        A sample was last read j epochs ago with the probability share (1 - share)^(j - 1), at
        position u of that epoch; it is now read at position v, and 1 - (1 - share (1 - u)) (1 -
        share)^(j - 1) (1 - share v) of the set was read in between. Mean over u and v.
        """
        middles = (np.arange(50) + 0.5) / 50
        head, tail = 1.0 - share * middles[:, None], 1.0 - share * (1.0 - middles)
        hits = 0.0
        for spared in (1.0 - share) ** np.arange(epochs):
            there = (
                1.0 - tail * spared * head <= self.cache_nbytes / nbytes
                if self.cache_nbytes < nbytes
                else np.ones(1)
            )
            hits += share * float(spared) * float(there.mean())
        return hits
