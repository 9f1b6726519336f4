"""Transfer batches: transfers that are posted together. Exchange, allreduce and
storage all hand the network such batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simshuffle.spec.arrays import Floats, Ints, Ints32

NO_PAIR = -1
NONE = -1

# One transfer, as the compiled kernel reads it. Units: work in units of the links it crosses (bytes
# on a cable, seconds on a device).
TASK = np.dtype(
    [
        (
            "work",
            "f8",
        ),  # units to drain through every link of the route; 0 for a pure delay
        ("cap", "f8"),  # units/s at most, inf for no cap of its own
        ("nbytes", "f8"),  # bytes, booked on every link of the route
        ("delay", "f8"),  # s after it is ready and before it uses a link
        ("start", "f8"),  # s of simulated time, not ready before
        (
            "pair",
            "i8",
        ),  # transfers of one pair go one after the other; NO_PAIR for none
        # queue (see `FluidNetwork.open_queues`) whose last transfer ends before this one is
        # ready; and queue whose last transfer this one becomes; NONE for none
        ("after", "i4"),
        ("last_of", "i4"),
        ("group", "i4"),  # groups count their transfers down; NONE for none
        ("group2", "i4"),
        ("account", "i4"),  # where the elapsed time (s) is added up; NONE for nowhere
        ("tag", "i4"),  # where the time of its end (s) is noted; NONE for nowhere
        ("mark", "i4"),  # 1: its end is noted in its group as well
        # its number, from 1, where it is carried elsewhere (see FluidNetwork.complete); 0: it is
        # not; only for a route without links
        ("outside", "i4"),
    ],
    align=True,
)


# a task as bytes: numpy copies records field by field, and bytes at once, ten times as fast
TASK_BYTES = np.dtype((np.void, TASK.itemsize))
NEUTRAL_TASK = np.zeros(1, TASK)
NEUTRAL_TASK["cap"] = np.inf
for _name in ("pair", "after", "last_of", "group", "group2", "account", "tag"):
    NEUTRAL_TASK[_name] = NONE


def tasks(count: int, **columns: Any) -> NDArray[Any]:
    """Make records of dtype `TASK` for ``count`` transfers.

    Args:
        count: number of transfers.
        columns: fields of `TASK`, each a scalar or an array of that length; all other
            fields are neutral: no cap (inf), no pair, group, account or tag (-1), and
            else 0.
    """
    records = np.full(count, NEUTRAL_TASK.view(TASK_BYTES)).view(TASK)
    for name, value in columns.items():
        records[name] = value
    return records


def pad_routes(routes: Sequence[Sequence[int]]) -> Ints32:
    """Pad routes of different lengths with -1: one (count, longest) int32 array, with
    one column at least.
    """
    width = max((len(route) for route in routes), default=0)
    padded = np.full((len(routes), max(width, 1)), -1, np.int32)
    for i, route in enumerate(routes):
        padded[i, : len(route)] = route
    return padded


def no_edges() -> Ints32:
    """Empty array of edges, for transfers that do not wait for others."""
    return np.empty(0, np.int32)


@dataclass
class TransferBatch:
    """Transfers posted at one moment, with their routes and the order among them."""

    tasks: NDArray[Any]  # (n,) records of dtype `TASK`
    # (n, hops) int32 link indices, padded with -1 at the end; a transfer without any link is a pure
    # delay
    routes: Ints32
    # edge_from, edge_to: (m,) int32; transfer ``edge_to[k]`` is ready when ``edge_from[k]`` has
    # ended (and all its others)
    edge_from: Ints32 = field(default_factory=no_edges)
    edge_to: Ints32 = field(default_factory=no_edges)

    def __len__(self) -> int:
        return len(self.tasks)

    def select(self, transfers: Ints) -> TransferBatch:
        """Return a batch of some transfers, with the edges among them alone; a transfer
        no longer waits for those that are left out.

        Args:
            transfers: (k,) indices in this batch, each once, in the order of the new
                one.
        """
        new_index = np.full(len(self), NONE, np.int32)
        new_index[transfers] = np.arange(len(transfers))
        ends = new_index[self.edge_from], new_index[self.edge_to]
        is_inside = (ends[0] != NONE) & (ends[1] != NONE)
        return TransferBatch(
            self.tasks.take(transfers),
            self.routes.take(transfers, axis=0),
            ends[0][is_inside],
            ends[1][is_inside],
        )


def chain_edges(count: int) -> tuple[Ints32, Ints32]:
    """Edges that put ``count`` transfers one after the other: two (count - 1,) int32
    arrays, edge_from and edge_to; empty for none or one.
    """
    transfer = np.arange(max(count, 1), dtype=np.int32)
    return transfer[:-1].copy(), transfer[1:].copy()


def join_items(batches: Sequence[TransferBatch], item_count: int) -> TransferBatch:
    """Join the items of several batches, ``item_count`` of each: item i of the result has
    the transfers of every item i. Edges are by transfer of an item.
    """
    rows = [len(batch) // item_count for batch in batches]
    hops = max(batch.routes.shape[1] for batch in batches)
    routes = np.full((item_count, sum(rows), hops), NONE, np.int32)
    edges: list[Ints32] = []
    first = 0
    for batch, count in zip(batches, rows, strict=True):
        width = batch.routes.shape[1]
        routes[:, first : first + count, :width] = batch.routes.reshape(
            item_count, count, width
        )
        edges.append(np.stack([batch.edge_from, batch.edge_to]) + np.int32(first))
        first += count
    columns = [
        batch.tasks.view(TASK_BYTES).reshape(item_count, -1) for batch in batches
    ]
    joined = np.concatenate(edges, axis=1)
    return TransferBatch(
        np.concatenate(columns, axis=1).ravel().view(TASK),
        routes.reshape(-1, hops),
        joined[0],
        joined[1],
    )


def delays(seconds: ArrayLike, groups: Ints32) -> TransferBatch:
    """Return a pure delay (s) for each of ``groups``, which counts its end."""
    count = len(groups)
    return TransferBatch(
        tasks(count, delay=seconds, group=groups), np.full((count, 1), NONE, np.int32)
    )


def as_floats(values: ArrayLike) -> Floats:
    """Return ``values`` as a contiguous array of floats; no copy if it is one."""
    return np.ascontiguousarray(values, np.float64)
