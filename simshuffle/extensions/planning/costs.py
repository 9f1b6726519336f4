"""What a training costs: closed sums of time, storage and prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simshuffle.extensions.planning.prices import HOST_HOUR

HOUR = 3600.0
TERA, GIGA = 1e12, 1e9
Prices = Mapping[str, float]


def cheapest(costs: Mapping[str, float], mixing: Mapping[str, float], close: float) -> str:
    """Of strategies by name the one with the lowest cost; of those that cost no more than a share
    ``close`` above that, the one that mixes samples most, and of these the cheapest; '' if there is
    none."""
    if not costs:
        return ""
    most = min(costs.values()) * (1.0 + close)
    able = [name for name in costs if costs[name] <= most]
    return max(able, key=lambda name: (mixing[name], -costs[name]))


def training_seconds(staging: float, epochs_s: Sequence[float], epochs: int) -> float:
    """s of staging and ``epochs`` epochs, of which the first take ``epochs_s`` s each, and all
    others as long as the last of these."""
    known = epochs_s[:epochs]
    return staging + sum(known) + (epochs - len(known)) * epochs_s[-1]


@dataclass(frozen=True)
class Needs:
    """What a strategy takes of a machine beside time."""

    hosts: int
    ssd_nbytes: float  # that a host keeps on its SSD
    # pfs_bytes_per_s, pfs_files_per_s: of the file system that samples are read from in every
    # epoch; 0 where they are not
    pfs_bytes_per_s: float = 0.0
    pfs_files_per_s: float = 0.0

    def time_cost(self, prices: Prices, seconds: float) -> float:
        """Of all hosts for ``seconds`` s."""
        return seconds / HOUR * self.hosts * prices.get(HOST_HOUR, 0.0)

    def storage_cost(self, prices: Prices) -> float:
        """Of SSDs and file system, once."""
        return (
            self.ssd_nbytes * self.hosts / TERA * prices.get("ssd-tb", 0.0)
            + self.pfs_bytes_per_s / GIGA * prices.get("pfs-gbs", 0.0)
            + self.pfs_files_per_s * prices.get("pfs-files", 0.0)
        )

    def cost(self, prices: Prices, seconds: float) -> float:
        """Of both."""
        return self.time_cost(prices, seconds) + self.storage_cost(prices)
