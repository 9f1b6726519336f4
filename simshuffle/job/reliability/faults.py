"""Faults of hosts, as arrays: who, when, for how long, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simshuffle.spec.arrays import Flags, Floats, Ints


@dataclass(frozen=True)
class Faults:
    """Faults (F,) of the hosts of a machine in the order in which they start. The same host may
    have several at a time."""

    host: Ints  # from 0
    start_s: Floats  # s from the beginning
    end_s: Floats  # s; when the host can be used again
    cause: Ints  # its place in ``causes``
    causes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.host)

    def repaired_in_place(self, causes: Sequence[str]) -> Flags:
        """(F,) whether a fault is of these causes, after which the host is good at once."""
        return np.isin(self.cause, [n for n, name in enumerate(self.causes) if name in causes])

    def ordered(self) -> Faults:
        """The same in the order of their starts; those of one moment stay as they are."""
        order = np.argsort(self.start_s, kind="stable")
        return Faults(
            self.host[order], self.start_s[order], self.end_s[order], self.cause[order], self.causes
        )
