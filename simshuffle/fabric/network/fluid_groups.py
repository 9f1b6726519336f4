"""The groups of a network, which count transfers and post others when they are
complete; its queues, accounts and noted ends.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.fabric.network import fluid_records as records
from simshuffle.fabric.network.batch import TransferBatch
from simshuffle.spec.arrays import Flags, Floats, Ints, Ints32, Ints64
from simshuffle.spec.compiling import words


class TransferGroups(ABC):
    """The groups, queues, accounts and noted ends of a network.

    Args:
        accounts: number of sums of s from ready to end (see `TASK.account`).
        tags: number of end times to note (see `TASK.tag`).
    """

    def __init__(self, accounts: int, tags: int) -> None:
        self._graph = records.empty_transfer_graph(max(accounts, 1), max(tags, 1))
        self._free_groups = np.empty(0, np.int32)  # a stack: the last is opened next
        self._num_free = 0
        # by index in `TransferGraph.sequels`: what is posted, and what keeps its words alive
        self._sequels: dict[int, tuple[TransferBatch, records.Sequel, Ints64]] = {}

    @abstractmethod
    def _write_words(self) -> None:
        """Tell compiled code where the arrays are: again when any has been replaced."""

    @property
    def accounts(self) -> Floats:
        """(accounts,) s added up so far in each account, see `TASK.account`."""
        return self._graph.accounts

    @property
    def finish(self) -> Floats:
        """(tags or more,) s at which the transfer of a tag ended, nan before."""
        return self._graph.finish

    def reserve_tags(self, count: int) -> None:
        """Make room for at least ``count`` noted ends."""
        old = self._graph.finish
        if count > len(old):
            finish = np.full(2 * count, np.nan)
            finish[: len(old)] = old
            self._graph = self._graph._replace(finish=finish)
            self._write_words()

    def open_group(self, expected: int) -> int:
        """Open a group, which is complete when ``expected`` (at least 1) of its
        transfers have ended; return its index.
        """
        group = int(self._take_free(1)[0])
        self._remaining[group] = expected
        self._watched[group] = 0
        self._parent[group] = self._sequel[group] = -1
        return group

    def open_groups(self, expected: Ints | int, count: int) -> Ints32:
        """Open ``count`` groups as `open_group`, each of which is complete when as many
        of its transfers, or of the groups whose parent it is, are as ``expected``.
        """
        groups = self._take_free(count)
        self._graph.groups[groups] = records.NEW_GROUP
        self._graph.groups["remaining"][groups] = expected
        return groups

    def _take_free(self, count: int) -> Ints32:
        """Take ``count`` indices from the free ones, of which more are made if needed."""
        while self._num_free < count:
            self._grow_groups(2 * len(self._graph.groups))
            self._write_words()
        self._num_free -= count
        return self._free_groups[self._num_free : self._num_free + count].copy()

    def close_groups(self, groups: Ints32 | int) -> None:
        """Free the indices of groups that nothing will be counted in any more."""
        last = self._num_free + np.size(groups)
        self._free_groups[self._num_free : last] = groups
        self._num_free = last

    def set_parents(self, groups: Ints32, parents: Ints32 | int) -> None:
        """Have the completion of each group counted in its parent."""
        self._graph.groups["parent"][groups] = parents

    def are_complete(self, groups: Ints32) -> Flags:
        """Return whether each of ``groups`` is complete."""
        return np.asarray(self._graph.groups["remaining"][groups] == 0)

    def ends(self, groups: Ints32) -> Floats:
        """Return when each of ``groups`` was complete (s); 0 for those that are not."""
        ends: Floats = self._graph.groups["t_done"][groups]
        return ends

    def marks(self, groups: Ints32) -> Floats:
        """Return when the last marked transfer of each of ``groups`` ended (s)."""
        marks: Floats = self._graph.groups["t_mark"][groups]
        return marks

    def order(self, groups: Ints32) -> Ints:
        """Return the indices of ``groups`` in the order of their completion; those that
        are not complete come last.
        """
        return np.argsort(self._graph.groups["seq"][groups], kind="stable")

    def is_complete(self, group: int) -> bool:
        """Return True if all transfers of a group have ended."""
        return bool(self._remaining[group] == 0)

    def watch(self, group: int) -> bool:
        """Make `advance` report the completion of a group; return False if it is
        complete already.
        """
        if self._remaining[group] == 0:
            return False
        self._watched[group] = 1
        return True

    def close_group(self, group: int) -> tuple[float, float]:
        """Free the index of a complete group; return when its last marked transfer
        ended (without meaning if it had none), and its last one (s).
        """
        self.close_groups(group)
        return self._t_mark[group], self._t_done[group]

    def open_queues(self, count: int) -> int:
        """Make ``count`` empty queues, for `TASK.after` and `TASK.last_of`; return the
        index of the first.
        """
        queues = self._graph.queues
        first = len(queues)
        longer = enlarge(queues, first + count)
        longer["slot"][first:] = -1
        self._graph = self._graph._replace(queues=longer)
        self._write_words()
        return first

    def park(
        self,
        batch: TransferBatch,
        item_count: int,
        index: int | None = None,
    ) -> int:
        """Keep transfers that groups are to post (`set_sequels`); return their index.

        Args:
            batch: ``item_count`` items one after the other, of as many transfers each; its
                edges are those of every item, by its transfers.
            item_count: number of items.
            index: of the transfers that these replace; None for new ones.
        """
        batch = self.prepare(batch)
        sequel = records.Sequel(
            len(batch) // item_count,
            batch.tasks,
            np.ascontiguousarray(batch.routes),
            batch.edge_from,
            batch.edge_to,
        )
        if index is None:
            index = next(
                n for n in range(len(self._sequels) + 1) if n not in self._sequels
            )
        if index >= len(self._graph.sequels):
            sequels = enlarge(self._graph.sequels, 2 * index + 8)
            self._graph = self._graph._replace(sequels=sequels)
            self._write_words()
        addresses = words(sequel)
        self._sequels[index] = batch, sequel, addresses
        self._graph.sequels[index] = addresses.ctypes.data
        return index

    def unpark(self, index: int) -> None:
        """Forget transfers that have been posted by all their groups."""
        del self._sequels[index]

    def set_sequels(self, groups: Ints32, index: int) -> None:
        """Have item i of the parked transfers of an index posted when the i-th of
        ``groups`` is complete.
        """
        opened = self._graph.groups
        opened["sequel"][groups] = index
        opened["item"][groups] = np.arange(len(groups))

    def prepare(self, batch: TransferBatch) -> TransferBatch:
        """Return a batch as this network carries it."""
        return batch

    def _grow_groups(self, count: int) -> None:
        """Make the number of groups ``count``."""
        old_count = len(self._graph.groups)
        groups = enlarge(self._graph.groups, count)
        self._graph = self._graph._replace(
            groups=groups,
            completed_groups=np.empty(count, np.int32),
            due=np.empty(count, np.int32),
        )
        self._done = fast_view(self._graph.completed_groups)
        self._remaining, self._watched, self._parent, self._sequel = (
            fast_view(groups[name])
            for name in ("remaining", "watched", "parent", "sequel")
        )
        self._t_mark, self._t_done = map(
            fast_view, (groups["t_mark"], groups["t_done"])
        )
        new_groups = np.arange(count - 1, old_count - 1, -1, dtype=np.int32)
        was_free = self._free_groups[: self._num_free]
        self._num_free += len(new_groups)
        self._free_groups = enlarge(np.append(new_groups, was_free), count)


def fast_view(values: Any) -> Any:
    """Return a view of an array from which Python reads and writes single numbers
    faster.
    """
    return memoryview(values)


def enlarge(
    values: NDArray[Any], count: int, num_used: int | None = None
) -> NDArray[Any]:
    """Return a copy of an array with ``count`` rows: the first ``num_used`` rows (all
    by default), then zeros. It begins with a cache line.
    """
    shape = (count, *values.shape[1:])
    size = math.prod(shape) * values.dtype.itemsize
    buffer = np.zeros(size + records.CACHE_LINE, np.uint8)
    first = -buffer.ctypes.data % records.CACHE_LINE
    enlarged = buffer[first : first + size].view(values.dtype).reshape(shape)
    enlarged[: len(values[:num_used])] = values[:num_used]
    return enlarged
