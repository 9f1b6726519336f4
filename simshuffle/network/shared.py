"""The network of a run: one object that carries transfers over cables and over everything else,
whatever the model of the cables."""

from __future__ import annotations

from math import inf
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simshuffle.network.batch import TransferBatch, tasks
from simshuffle.network.flows import Floats, Links
from simshuffle.network.models import Analytic, Model, Packet


class SharedNetwork(Protocol):
    """Links and the transfers on them, without SimPy: post batches, ask for the next moment at
    which a group of transfers is complete."""

    @property
    def links(self) -> NDArray[Any]:
        """(links,) records; ``work`` (units carried), ``nbytes`` (bytes of the transfers that
        ended), ``busy`` (s with any transfer) and ``peak`` (highest load / capacity since
        `restart_peaks`) are up to date after `settle`."""

    @property
    def now(self) -> float:
        """Simulated time reached (s)."""

    @property
    def last(self) -> tuple[int, int]:
        """The last transfer of the batch posted last, for the columns 'after' and 'after_seq' of
        another."""

    @property
    def accounts(self) -> Floats:
        """(accounts,) s, see `TASK.account`."""

    @property
    def finish(self) -> Floats:
        """(tags,) s, see `TASK.tag`; nan where nothing has ended."""

    def reserve_tags(self, count: int) -> None:
        """Make room for at least ``count`` noted ends."""

    def open_group(self, expected: int) -> int:
        """The number of a new group, which is complete when ``expected`` (at least 1) of its
        transfers have ended."""

    def watch(self, group: int) -> bool:
        """Have `advance` report the completion of a group; False if it is complete already."""

    def close_group(self, group: int) -> tuple[float, float]:
        """Give the number of a complete group back: when its marked transfer ended, and its last
        one (s)."""

    def post(self, now: float, batch: TransferBatch) -> float:
        """Post transfers at time ``now`` (s); returns the time of the next event (s).

        All events before ``now`` must have been run by `advance`.
        """

    def advance(self, horizon: float) -> tuple[float, list[int]]:
        """Run events up to ``horizon`` (s), stopping after the first instant that completes a
        watched group.

        Returns the time of the next event (s, inf if there is none) and those groups; `now` is the
        instant reached.
        """

    def settle(self, now: float | None = None) -> None:
        """Bring the statistics of every link up to `now`; or to a moment (s) after it, up to which
        all events have been run. Packets count when they have crossed a cable."""

    def restart_peaks(self) -> None:
        """Forget the highest loads so far; `settle` then gives those from now on."""


def shared_network(
    model: Model,
    links: Links,
    cables: NDArray[np.bool_],
    *,
    width: int,
    accounts: int = 0,
    tags: int = 0,
) -> SharedNetwork:
    """The network of a run. Only cables are the network: host devices, memory, the file system's
    servers and rate limits are fluid in every model.

    Args:
        model: of the cables.
        links: all links; of their latencies only those of cables are read.
        cables: (links,) which of them are cables. Latencies of cables are part of `TASK.delay`,
            whatever the model.
        width: the longest route, in links.
        accounts: number of time accounts (see `TASK.account`).
        tags: number of end times to note (see `TASK.tag`).

    Raises:
        ValueError: a cable is so slow that its packets do not fit the clock.
    """
    from simshuffle.network.fluid import FluidNetwork
    from simshuffle.network.hybrid import AnalyticNetwork, HybridNetwork

    if isinstance(model, Packet):
        return HybridNetwork(
            links, cables, model.mtu, model.port_buffer, width=width, accounts=accounts, tags=tags
        )
    if isinstance(model, Analytic):
        return AnalyticNetwork(links, cables, width=width, accounts=accounts, tags=tags)
    return FluidNetwork(
        links.capacity, width=width, accounts=accounts, tags=tags, tolerance=model.tolerance
    )


def make_ready(model: Model) -> None:
    """Load what simulates ``model``, or compile and keep it: so that processes which are started
    after this need not, nor say so."""
    links = Links(np.ones(1), np.zeros(1))
    network = shared_network(model, links, np.ones(1, bool), width=1)
    network.post(0.0, TransferBatch(tasks(1, work=1.0), np.zeros((1, 1), np.int32)))
    network.advance(inf)
    network.settle()
