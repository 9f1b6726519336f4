"""The groups of transfers by which all ranks go through an iteration inside the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simshuffle.fabric.network.batch import TransferBatch
from simshuffle.job.sim.clock import NetworkClock
from simshuffle.job.sim.recorder import PhaseEnds, Times
from simshuffle.spec.arrays import Floats, Ints, Ints32


class Iteration:
    """An iteration of all ranks. Group r of each array, (M,), is complete when rank r
    has come so far: it ``begun`` the iteration, has ``taken`` its batch, has
    ``computed`` its gradients, has ``arrived`` where it meets the others, is
    ``released`` when the weights are updated.

    Where samples are exchanged after it, the main thread of a rank has ``worked`` for
    that, None otherwise. A rank has then ``ended`` the iteration.

    Attributes:
        number: of the iteration, from 0.
        times: when its parts ended.
        factor: how many times as long ranks compute, (M,), or one number for all.
        receipt: the receipt of samples between computing and meeting; None for none.
        own_receipt: the receipt of what is sent after it, where nothing overlaps.
    """

    arrived: Ints32
    factor: Times = 1.0
    worked: Ints32 | None = None
    receipt: Receipt | None = None
    own_receipt: Receipt | None = None

    def __init__(
        self, clock: NetworkClock, number: int, begun: Ints32, batch_taken: Ints32
    ) -> None:
        self.clock = clock
        self.number = number
        self.begun = begun
        self.taken = batch_taken
        self._open: list[Ints32] = []
        self._parked: list[int] = []
        self.computed = self.open()
        self.released = self.ended = self.open()
        self.times = PhaseEnds()

    def open(self, expected: Ints | int = 1) -> Ints32:
        """Open a group for each rank until `close`; it expects so many counts, (M,) or
        as many for all.
        """
        groups = self.clock.network.open_groups(expected, len(self.taken))
        self._open.append(groups)
        return groups

    def park(self, groups: Ints32, make: Callable[[], TransferBatch]) -> None:
        """Have groups post transfers, as `NetworkClock.park`, until `close`."""
        self._parked.append(self.clock.park(groups, make))

    def seconds(self, slower: Floats, *passes: Floats) -> Floats:
        """Return (M,) s of ``passes`` together, (iterations, M) s each, for ranks that
        begin the iteration from now on: ``slower`` times as long, (M,), which is noted.
        """
        has_begun = self.clock.network.are_complete(self.taken)
        self.factor = np.where(has_begun, self.factor, slower)
        return sum(
            (values[self.number] * self.factor for values in passes),
            np.zeros(len(has_begun)),
        )

    def close(self) -> None:
        """Give back the groups that this iteration has opened, and what it has parked."""
        for groups in self._open:
            self.clock.network.close_groups(groups)
        for index in self._parked:
            self.clock.unpark(index)


@dataclass
class Receipt:
    """The receipt of the samples that were sent after an iteration: (M,) groups each."""

    sent_after: int  # number of the iteration, from 0
    awaited: Ints32  # a rank begins to wait for its messages
    # the messages that a rank sends or receives are there; NONE if there are none
    delivered: Ints32
    written: Ints32  # a rank has stored what it received
    stored: Ints32  # so have all ranks, where a barrier follows
