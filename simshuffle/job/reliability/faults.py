"""Faults of hosts as arrays: the host, the time, the duration, and the cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simshuffle.spec.arrays import Flags, Floats, Ints


@dataclass(frozen=True)
class Faults:
    """F faults of the hosts of a machine, in the order in which they start.

    Whoever makes them sorts them (`sort_by_start`). A host may have several faults at a
    time.
    """

    host: Ints  # (F,) from 0
    start_s: Floats  # (F,) s from the beginning
    end_s: Floats  # (F,) s from the beginning; when the host can be used again
    cause: Ints  # (F,) the index of its cause in ``causes``
    causes: tuple[str, ...]  # names

    def __len__(self) -> int:
        return len(self.host)

    def is_repaired_in_place(self, causes: Sequence[str]) -> Flags:
        """Tell which faults have one of these causes, which leave the host good, (F,).

        Causes that no fault has are ignored.
        """
        return np.isin(
            self.cause, [n for n, name in enumerate(self.causes) if name in causes]
        )

    def sort_by_start(self) -> Faults:
        """Return a copy in the order of the starts; simultaneous faults keep their
        order.
        """
        order = np.argsort(self.start_s, kind="stable")
        return Faults(
            self.host[order],
            self.start_s[order],
            self.end_s[order],
            self.cause[order],
            self.causes,
        )
