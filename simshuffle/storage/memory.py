"""Host memory as a storage tier: the page cache."""

from __future__ import annotations

import math

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from simshuffle.spec import Bandwidth, NBytes, PositiveNBytes, Sourced


class Memory(Sourced):
    """The memory of a host; ``page_cache`` bytes of it keep what was read from files."""

    capacity: PositiveNBytes
    bandwidth: Bandwidth
    page_cache: NBytes

    @model_validator(mode="after")
    def _cache_fits(self) -> Memory:
        if self.page_cache > self.capacity:
            raise PydanticCustomError("page_cache", "page_cache must not exceed capacity")
        return self

    def repeat_hits(self, nbytes: float) -> float:
        """Share of the reads that hit when a set of ``nbytes`` bytes is read again, in a new random order each time.

        With an LRU cache that holds a share c < 1 of the set: the reads of one item in two successive orders are at uniform positions u
        and v, and 1 - u(1 - v) of the set is read between them, so it hits if u(1 - v) >= 1 - c, which has the probability
        c + (1 - c) ln(1 - c). Derived here; checked against a simulated cache in tests/contracts.
        """
        if nbytes <= self.page_cache:
            return 1.0
        missing = 1.0 - self.page_cache / nbytes
        return 1.0 - missing + (missing * math.log(missing) if missing > 0 else 0.0)

    def resident_share(self, read_before: float, total: float) -> float:
        """Probability that a random one of ``total`` bytes is cached after ``read_before`` random ones were read once."""
        return min(read_before, self.page_cache, total) / total if total > 0 else 0.0
