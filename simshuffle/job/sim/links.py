"""Bytes and load of links in every epoch, also where epochs of several jobs overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.fabric.network.batch import TransferBatch, tasks
from simshuffle.job.plan.resources import Resources
from simshuffle.job.sim.clock import NetworkClock
from simshuffle.spec.arrays import Flags, Floats

if TYPE_CHECKING:
    from simshuffle.fabric.network.fluid import FluidNetwork


class Peaks:
    """The highest loads of links since several moments: the network itself knows one."""

    def __init__(self, clock: NetworkClock) -> None:
        self._clock = clock
        self._since: dict[int, Floats] = {}

    def restart(self, key: int) -> None:
        """Begin or restart the peaks of ``key`` now: earlier loads do not count."""
        self._note()
        self._since[key] = np.zeros(len(self._clock.network.links))

    def stop(self, key: int) -> Floats:
        """Return (links,) the highest load / capacity since ``key`` began, and forget
        it.
        """
        self._note()
        return self._since.pop(key)

    def _note(self) -> None:
        """Bring the network to this moment and add its peaks to each key's.

        The network's own peaks begin anew.
        """
        network = self._clock.network
        # brings the network to this moment
        self._clock.post(TransferBatch(tasks(0), np.empty((0, 1), np.int32)))
        network.settle()
        for peaks in self._since.values():
            np.maximum(peaks, network.links["peak"], out=peaks)
        network.restart_peaks()


class EpochLinkStatistics:
    """Per-epoch differences of the network's link counters.

    Where others use the network as well, ``peaks`` are those of all who do. Then an
    epoch need not begin where the last one ended; the links called ``foreign`` are left
    out; and bytes are what links moved, since transfers of others that have not ended
    count too.
    """

    def __init__(
        self,
        resources: Resources,
        network: FluidNetwork,
        peaks: Peaks | None = None,
        foreign: Flags | None = None,
        since: float = 0.0,
    ) -> None:
        table = resources.links
        self._resources = resources
        self._network = network
        self._peaks = peaks
        self._is_of_job = (
            np.ones(len(table.names), bool) if foreign is None else ~foreign
        )
        self._previous_counters = network.links.copy()
        self._since = since

    def open_epoch(self, now: float) -> None:
        """Begin an epoch at ``now`` (s); without ``peaks`` it began where the last one
        ended.
        """
        if self._peaks is not None:
            self._peaks.restart(id(self))
            self._previous_counters = self._network.links.copy()
            self._since = now

    def close_epoch(self, epoch: int, now: float) -> pd.DataFrame:
        """Return the links table of the epoch, without the name of the run; begin the
        next.

        It has what each link carried since the last call, or since the epoch was
        opened; links that carried nothing are left out. ``now`` is in s.
        """
        network = self._network
        table = self._resources.links
        peaks = None if self._peaks is None else self._peaks.stop(id(self))
        network.settle()
        counters = network.links
        work = counters["work"] - self._previous_counters["work"]
        nbytes = counters["nbytes"] - self._previous_counters["nbytes"]
        if peaks is None:
            peaks = counters["peak"]
        else:
            nbytes = np.where(np.array(table.units, object) == "B", work, nbytes)
        used = np.flatnonzero((work > 0) & self._is_of_job)
        elapsed = max(now - self._since, np.finfo(float).tiny)
        carried = pd.DataFrame(
            {
                "epoch": np.full(len(used), epoch, np.int16),
                "link": np.array(table.names, object)[used],
                "tier": _categories(table.tiers, used),
                "capacity": table.capacity[used],
                "unit": _categories(table.units, used),
                "nbytes": nbytes[used],
                "mean_utilisation": work[used] / table.capacity[used] / elapsed,
                "peak_utilisation": peaks[used],
                "busy_s": (counters["busy"] - self._previous_counters["busy"])[used],
            }
        )
        network.restart_peaks()
        self._previous_counters = counters.copy()
        self._since = now
        return carried


def _categories(names: list[str], used: NDArray[np.intp]) -> pd.Categorical:
    """Return the names of the links ``used``, which are indices, as categories.

    Made of names, not of codes, pandas would copy all of them into strings of Arrow.
    """
    kinds, codes = np.unique(np.array(names, object)[used], return_inverse=True)
    return pd.Categorical.from_codes(codes, pd.Index(kinds))
