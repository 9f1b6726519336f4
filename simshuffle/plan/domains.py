"""Scale-up domains of the hosts of a run; without any, each host is one of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simshuffle.spec.arrays import Ints32, Ints64


def numbered(names: Sequence[Any]) -> Ints32:
    """Numbers from 0 in the order in which the names first occur."""
    number: dict[Any, int] = {}
    return np.array([number.setdefault(name, len(number)) for name in names], np.int32)


class Domains:
    """Which hosts form a domain.

    Args:
        hosts: names, in the order in which ranks fill them.
        known: those of all hosts of the topology, in its order.
        each: consecutive hosts of that which form a domain.

    Attributes:
        of_host: (hosts,) the number of each one's domain, in the order in which they come.
        place: (hosts,) the place of each among those of its domain.
        count: of domains.
    """

    def __init__(self, hosts: Sequence[str], known: Sequence[str], each: int) -> None:
        place = {name: number for number, name in enumerate(known)}
        self.of_host = numbered([place[name] // each for name in hosts])
        self._size = np.bincount(self.of_host)
        self._first = np.cumsum(self._size) - self._size
        self._together = np.argsort(self.of_host, kind="stable")
        self.place = np.empty_like(self.of_host)
        self.place[self._together] = np.arange(len(self.place)) - np.repeat(self._first, self._size)
        self.count = len(self._size)

    def member(self, domain: Ints32, place: Ints32) -> Ints64:
        """The hosts at a place of each domain; beyond its last host again from its first one on."""
        return self._together[self._first[domain] + place % self._size[domain]]
