"""The cost of a training in closed form: sums of time, storage and prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simshuffle.extensions.planning.prices import HOST_HOUR

HOUR = 3600.0
TERA, GIGA = 1e12, 1e9
Prices = Mapping[str, float]


def cheapest_strategy(
    costs: Mapping[str, float],
    mixing: Mapping[str, float],
    tie_share: float,
    budget: float | None = None,
) -> str:
    """Return the name of the cheapest strategy; among strategies that tie, the one that
    mixes samples most. '' if no strategy has a cost within the budget.

    Args:
        costs: the cost of each strategy, by name.
        mixing: how much each strategy mixes samples, by name.
        tie_share: the share above the lowest cost up to which a strategy ties. Of tied
            strategies that mix alike, the cheapest is returned.
        budget: the highest cost that may be chosen; None for any.
    """
    if budget is not None:
        costs = {name: cost for name, cost in costs.items() if cost <= budget}
    if not costs:
        return ""
    max_cost = min(costs.values()) * (1.0 + tie_share)
    tied_names = [name for name in costs if costs[name] <= max_cost]
    return max(tied_names, key=lambda name: (mixing[name], -costs[name]))


def training_seconds(staging_s: float, epochs_s: Sequence[float], epochs: int) -> float:
    """Return the duration of a training (s): its staging and ``epochs`` epochs.

    Args:
        staging_s: s of staging before the first epoch.
        epochs_s: s of each simulated epoch, at least one; every further epoch lasts as
            long as the last of them. Those beyond ``epochs`` do not count.
        epochs: number of epochs of the training.
    """
    simulated_epochs_s = epochs_s[:epochs]
    num_repeated = epochs - len(simulated_epochs_s)
    return staging_s + sum(simulated_epochs_s) + num_repeated * epochs_s[-1]


@dataclass(frozen=True)
class MachineNeeds:
    """Hosts, SSD bytes and file system that a strategy needs."""

    hosts: int  # number of hosts, spare ones included
    ssd_nbytes: float  # bytes of samples that each host stores on its SSD
    # rates of the file system that samples are read from in every epoch; 0 if they are not
    pfs_bytes_per_s: float = 0.0  # read bandwidth
    pfs_files_per_s: float = 0.0  # open rate

    def time_cost(self, prices: Prices, seconds: float) -> float:
        """Return the cost of all hosts for ``seconds`` s; 0 if they have no price."""
        return seconds / HOUR * self.hosts * prices.get(HOST_HOUR, 0.0)

    def storage_cost(self, prices: Prices) -> float:
        """Return the cost of the SSDs of all hosts and of the file system, paid once.

        What has no price costs nothing.
        """
        return (
            self.ssd_nbytes * self.hosts / TERA * prices.get("ssd-tb", 0.0)
            + self.pfs_bytes_per_s / GIGA * prices.get("pfs-gbs", 0.0)
            + self.pfs_files_per_s * prices.get("pfs-files", 0.0)
        )

    def cost(self, prices: Prices, seconds: float) -> float:
        """Return the cost of the hosts for ``seconds`` s and of the storage."""
        return self.time_cost(prices, seconds) + self.storage_cost(prices)
