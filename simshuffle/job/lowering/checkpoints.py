"""Turn checkpoints into transfers, on the links that reads, gradients and samples use
too.

A save goes through its resources in pieces. A stage therefore uses all its resources at
once, as transfers side by side, and ends with the slowest of them. The laws are in
docs/failures.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simshuffle.fabric.network.batch import TransferBatch, pad_routes, tasks
from simshuffle.job.plan.checkpoint_bounds import (
    PUT_CONNECTIONS,
    checkpoint_of,
    put_requests,
    put_wait_seconds,
    read_back_nbytes,
    ring_nbytes,
    save_size,
)
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.checkpoint import Place
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Ints32

Row = dict[str, Any]
"""A transfer: 'route' is the list of its links. 'work' (0), 'cap' (inf), 'nbytes' (0)
and 'delay' (0 s) are columns of `simshuffle.fabric.network.batch.TASK`, with defaults.
"""


@dataclass
class _Transfers:
    """Transfers in the order of their creation, and edges (i, j): transfer j begins
    when transfer i has ended.
    """

    rows: list[Row] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)

    def add(self, row: Row, predecessors: Sequence[int] = ()) -> int:
        """Append a transfer that begins when its ``predecessors`` have ended; return
        its number.
        """
        self.rows.append(row)
        self.edges += [
            (predecessor, len(self.rows) - 1) for predecessor in predecessors
        ]
        return len(self.rows) - 1

    def side_by_side(
        self, chains: Sequence[Sequence[Row]], predecessors: Sequence[int] = ()
    ) -> list[int]:
        """Append chains of transfers that begin together, when all ``predecessors`` have
        ended. Return the number of the last of each chain; of an empty chain, its
        predecessors.
        """
        ends = []
        for chain in chains:
            last_added = list(predecessors)
            for row in chain:
                last_added = [self.add(row, last_added)]
            ends += last_added
        return ends

    def batch(self) -> TransferBatch | None:
        """Return the transfers as one batch; None if there are none."""
        if not self.rows:
            return None
        routes = pad_routes([row["route"] for row in self.rows])
        columns = {
            name: np.array([row.get(name, default) for row in self.rows])
            for name, default in (
                ("work", 0.0),
                ("cap", np.inf),
                ("nbytes", 0.0),
                ("delay", 0.0),
            )
        }
        edges = np.array(self.edges, np.int32).reshape(-1, 2)
        records = tasks(len(self.rows), **columns)
        return TransferBatch(records, routes, edges[:, 0].copy(), edges[:, 1].copy())


class CheckpointTransfers:
    """The transfers of the checkpoints of a scenario that saves some, on ``resources``.

    Attributes:
        written: bytes that each writing rank writes, and number of these ranks: the
            first ones.
    """

    def __init__(self, scenario: Scenario, resources: Resources) -> None:
        self._scenario = scenario
        self._resources = resources
        self._checkpoint = checkpoint_of(scenario)
        self.written = save_size(scenario)
        places = {self._checkpoint.to, self._checkpoint.kept_in}
        self._pfs_written = self._pfs_read = (np.empty((0, 0), np.int32), np.empty(0))
        self._store: Ints32 = np.empty((0, 0), np.int32)
        if "pfs" in places:
            self._pfs_written, self._pfs_read = (
                resources.pfs_write_routes(),
                resources.pfs_read(),
            )
        if "object_store" in places:
            self._store = resources.store_read()

    # ------------------------------------------------------------------------------------ a save

    def blocking_transfers(self, rank: int) -> TransferBatch | None:
        """Return the transfers that a rank's training loop waits for at a save; None if
        the rank writes nothing.

        A synchronous save has the copy to the host, serialising and writing, side by
        side. An asynchronous save has the copy alone.
        """
        if rank >= self.written.ranks:
            return None
        chains = [[self._copy(rank)]]
        if self._checkpoint.mode == "synchronous":
            chains += self._save(rank)
        transfers = _Transfers()
        transfers.side_by_side(chains)
        return transfers.batch()

    def background_transfers(self, rank: int) -> TransferBatch | None:
        """Return the transfers of a rank beside the training; None if there are none.

        They are serialising and writing of an asynchronous save, then the drain, which
        waits for all of the save. The copy to the host is in `blocking_transfers`.
        """
        transfers = _Transfers()
        save_ends = list[int]()
        if rank < self.written.ranks:
            if self._checkpoint.mode == "asynchronous":
                save_ends = transfers.side_by_side(self._save(rank))
            if self._checkpoint.drain != "none":
                transfers.side_by_side(self._drain(rank), save_ends)
        return transfers.batch()

    def _save(self, rank: int) -> list[list[Row]]:
        """Return the chains of a save beside the copy: serialising, and the write. They
        run side by side. What stays in memory is not serialised.
        """
        place = self._checkpoint.to
        nbytes = self.written.nbytes
        serialising = [] if place == "memory" else [[self._core(rank, nbytes)]]
        return [*serialising, self._write(rank, place, nbytes)]

    def _drain(self, rank: int) -> list[list[Row]]:
        """Return the chains of a drain, which run side by side: the read, serialising of
        what was kept in memory, and the write. Only for a checkpoint that is drained.
        """
        checkpoint = self._checkpoint
        nbytes = self.written.nbytes
        assert checkpoint.drain != "none"  # noqa: S101 - the caller has seen to it
        serialising = [[self._core(rank, nbytes)]] if checkpoint.to == "memory" else []
        read = self._read(rank, checkpoint.to, nbytes)
        return [read, *serialising, self._write(rank, checkpoint.drain, nbytes)]

    def _copy(self, rank: int) -> Row:
        """Return the copy from the GPU to the host, over its PCIe slot."""
        resources = self._resources
        nbytes = self.written.nbytes
        slot = resources.pcie_out[resources.host_of[rank], resources.slot_of[rank]]
        return {"work": nbytes, "nbytes": nbytes, "route": [slot]}

    def _core(self, rank: int, nbytes: float) -> Row:
        """Return the work (s) of one core of a rank's host that serialises ``nbytes``
        bytes, or deserialises them.
        """
        cores = self._resources.cores[self._resources.host_of[rank]]
        return {
            "work": nbytes / self._checkpoint.serialise,
            "cap": 1.0,
            "route": [cores],
        }

    def _write(self, rank: int, place: Place, nbytes: float) -> list[Row]:
        """Return the chain that writes ``nbytes`` bytes of a rank to a place."""
        if place == "pfs":
            return self._pfs(rank, nbytes, *self._pfs_written)
        if place == "ssd":
            resources = self._resources
            ssd = self._resources.cluster.ssd
            work = ssd.write_seconds(nbytes)
            link = resources.ssd[resources.host_of[rank]]
            return [{"work": work, "nbytes": nbytes, "route": [link]}]
        return self._read(
            rank, place, nbytes
        )  # memory and object store are the same either way

    def _read(self, rank: int, place: Place, nbytes: float) -> list[Row]:
        """Return the chain that reads ``nbytes`` bytes of a rank from a place."""
        resources = self._resources
        host = resources.host_of[rank]
        if place == "pfs":
            return self._pfs(rank, nbytes, *self._pfs_read)
        if place == "object_store":
            return self._object(rank, nbytes)
        if place == "memory":
            return [
                {"work": nbytes, "nbytes": nbytes, "route": [resources.memory[host]]}
            ]
        work = resources.cluster.ssd.read_seconds(nbytes)
        return [{"work": work, "nbytes": nbytes, "route": [resources.ssd[host]]}]

    def _pfs(self, rank: int, nbytes: float, routes: Ints32, latency: Any) -> list[Row]:
        """Return the transfers of one file on the PFS: its opening, then its bytes.

        ``routes`` (M, width) and ``latency`` (M,) s are those of all ranks.
        """
        pfs = self._resources.cluster.parallel_file_system
        opening = {
            "work": 1.0,
            "cap": pfs.open_cap(1, 1.0),
            "route": [self._resources.pfs_open],
        }
        moving = {"work": nbytes, "nbytes": nbytes, "delay": float(latency[rank])}
        return [opening, moving | {"route": _links(routes[rank])}]

    def _object(self, rank: int, nbytes: float) -> list[Row]:
        """Return the transfers of one object: the requests for its parts, then its
        bytes.
        """
        store = self._resources.cluster.store
        requests = put_requests(nbytes)
        work = requests * store.tries
        waiting = put_wait_seconds(store, nbytes)
        request = {"work": work, "cap": work / waiting if waiting else np.inf}
        cap = min(requests, PUT_CONNECTIONS) * store.connection_bandwidth
        moving = {
            "work": nbytes,
            "nbytes": nbytes,
            "cap": cap,
            "route": _links(self._store[rank]),
        }
        return [request | {"route": [self._resources.store_requests]}, moving]

    # --------------------------------------------------------------------------------- a restart

    def restore(self) -> TransferBatch:
        """Return the transfers by which all ranks read the last checkpoint back, from
        its last place, in one batch.

        Every rank copies to its GPU and, unless the place is memory, deserialises. From
        the PFS or the object store, every rank reads all that it needs. From SSD or
        memory, ranks that wrote read what they wrote, and hosts pass on the rest around
        a ring. All of these run side by side.
        """
        resources = self._resources
        place = self._checkpoint.kept_in
        transfers = _Transfers()
        nbytes = read_back_nbytes(self._scenario)
        is_remote = place in {"pfs", "object_store"}
        for rank in range(resources.world_size):
            host = resources.host_of[rank]
            slot = resources.slot_of[rank]
            copy = {
                "work": nbytes,
                "nbytes": nbytes,
                "route": [resources.pcie_in[host, slot]],
            }
            chains = [[copy]]
            if place != "memory":
                chains.append([self._core(rank, nbytes)])
            if is_remote:
                chains.append(self._read(rank, place, nbytes))
            elif rank < self.written.ranks:
                chains.append(self._read(rank, place, self.written.nbytes))
            transfers.side_by_side(chains)
        if not is_remote and (ring_bytes := ring_nbytes(self._scenario)):
            transfers.side_by_side(self._ring_chains(ring_bytes))
        batch = transfers.batch()
        assert batch is not None, "there is a rank"  # noqa: S101
        return batch

    def _ring_chains(self, nbytes: float) -> list[list[Row]]:
        """Return the transfers of ``nbytes`` bytes from the first rank of every host to
        the first rank of the next host, and from the last host to the first.
        """
        resources = self._resources
        _, first_ranks = np.unique(resources.host_of, return_index=True)
        routes, latency = resources.message(first_ranks, np.roll(first_ranks, -1))
        return [
            [
                {
                    "work": nbytes,
                    "nbytes": nbytes,
                    "delay": float(delay),
                    "route": _links(route),
                }
            ]
            for route, delay in zip(routes, latency, strict=True)
        ]


def _links(route: Ints32) -> list[int]:
    """Return the links of a route, without its padding."""
    return [int(link) for link in route if link >= 0]
