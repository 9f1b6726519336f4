"""Bytes and load of links in every epoch, also where epochs of several jobs overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.job.plan.resources import Resources
from simshuffle.job.sim.clock import NetworkClock
from simshuffle.spec.arrays import Flags, Floats

if TYPE_CHECKING:
    from simshuffle.fabric.network.fluid import FluidNetwork


class Peaks:
    """The highest load of every link since several moments, each under a key.

    The network itself keeps the highest loads since one moment alone. All who use the
    network must take its peaks from here: every call restarts those of the network.
    """

    def __init__(self, clock: NetworkClock) -> None:
        self._clock = clock
        self._since: dict[int, Floats] = {}

    def restart(self, key: int) -> None:
        """Begin or restart the peaks of ``key`` (any number) now.

        Loads of before do not count, but loads that last until now do.
        """
        self._note()
        self._since[key] = np.zeros(len(self._clock.network.links))

    def stop(self, key: int) -> Floats:
        """Return (links,) the highest load / capacity since ``key`` began, and forget
        the key.

        Raises:
            KeyError: the key was not begun, or is stopped already.
        """
        self._note()
        return self._since.pop(key)

    def _note(self) -> None:
        """Bring the network to this moment and add its peaks to each key's.

        The network's own peaks begin anew.
        """
        network = self._clock.network
        self._clock.settle()
        for peaks in self._since.values():
            np.maximum(peaks, network.links["peak"], out=peaks)
        network.restart_peaks()


class EpochLinkStatistics:
    """Per-epoch differences of the network's link counters.

    Where others use the network as well, ``peaks`` are those of all who do. Then an
    epoch need not begin where the last one ended, and bytes are what links moved, since
    transfers of others that have not ended count too.

    Args:
        resources: the links of the run or the job, with their names.
        network: the network whose counters are read.
        peaks: shared by all who use the network; None if the run uses it alone.
        foreign: (links,) links that are left out of the tables; None for none.
        since: s at which the first epoch begins.
    """

    def __init__(
        self,
        resources: Resources,
        network: FluidNetwork,
        peaks: Peaks | None = None,
        foreign: Flags | None = None,
        since: float = 0.0,
    ) -> None:
        self._resources = resources
        self._network = network
        self._peaks = peaks
        self._is_of_job = (
            np.ones(len(resources.links.names), bool) if foreign is None else ~foreign
        )
        self._previous_counters = network.links.copy()
        self._since = since

    def open_epoch(self, now: float) -> None:
        """Begin an epoch at ``now`` (s).

        Without ``peaks`` nothing is done: the epoch began where the last one ended.
        """
        if self._peaks is not None:
            self._peaks.restart(id(self))
            self._previous_counters = self._network.links.copy()
            self._since = now

    def close_epoch(self, epoch: int, now: float) -> pd.DataFrame:
        """Return the links table of the epoch, without the name of the run.

        The columns are epoch, link, tier, capacity, unit, nbytes, mean_utilisation,
        peak_utilisation and busy_s (s). They say what each link did since the last
        call, or since the epoch was opened. Links that carried nothing and foreign ones
        are left out. Utilisations are shares of the capacity: the mean of the epoch and
        the highest of any moment. The network's peaks restart. Without ``peaks`` the
        next epoch begins now; with them, `open_epoch` must begin every epoch.

        Args:
            epoch: its number, from 1.
            now: s, up to which the network has run.

        Raises:
            KeyError: there are ``peaks``, and the epoch was not opened.
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
    """Return ``names`` (one for each link) at the indices ``used``, as categories.

    Made of names, not of codes, pandas would copy all of them into strings of Arrow.
    """
    kinds, codes = np.unique(np.array(names, object)[used], return_inverse=True)
    return pd.Categorical.from_codes(codes, pd.Index(kinds))
