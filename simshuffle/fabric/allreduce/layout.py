"""The layout of an allreduce: its flows between ranks, whatever bytes they carry and how
fast ranks send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import TypeVar

import numpy as np

from simshuffle.fabric.allreduce.base import Paced
from simshuffle.spec.arrays import Floats, Ints32
from simshuffle.spec.record import CacheArgument

Algorithm = TypeVar("Algorithm", bound=Paced)
Layout = TypeVar("Layout")
PACE_FIELDS = frozenset(Paced.model_fields)
"""Fields that do not decide which ranks send to which, but how fast, or when."""


@dataclass(frozen=True)
class FlowLayout:
    """The flows of an allreduce that all run at once, whatever their bytes and pace."""

    hosts: int  # number of hosts that have ranks
    # src, dst: (flows,) ranks
    src: Ints32
    dst: Ints32
    rail: Ints32  # (flows,) HCA, of those between hosts


@dataclass(frozen=True)
class SharedLayout(FlowLayout):
    """Flows that carry unequal shares of the buffer."""

    share: Floats  # (flows,) of the buffer

    @classmethod
    def both_ways(
        cls, *, hosts: int, child: Ints32, parent: Ints32, rail: Ints32, share: Floats
    ) -> SharedLayout:
        """Lay out a flow from child to parent for each of (edges,), then all flows
        back.
        """
        return cls(
            hosts=hosts,
            src=np.concatenate([child, parent]),
            dst=np.concatenate([parent, child]),
            rail=np.tile(rail, 2),
            share=np.tile(share, 2),
        )


def keep_layouts(
    lay_out: Callable[[Algorithm, Ints32], Layout],
) -> Callable[[Algorithm, Ints32], Layout]:
    """Keep the last two results of a method that lays out an allreduce over the hosts
    of ranks, (M,): draws of latencies and bandwidths share them.

    The method reads none of `PACE_FIELDS`. Nobody may change its results.
    """

    @lru_cache(maxsize=2)
    def keep(request: CacheArgument[tuple[Algorithm, Ints32]]) -> Layout:
        return lay_out(*request.argument)

    @wraps(lay_out)
    def look_up(algorithm: Algorithm, host_of: Ints32) -> Layout:
        fields = vars(algorithm)
        decisive_values = [fields[name] for name in fields if name not in PACE_FIELDS]
        hosts = (len(host_of), host_of.tobytes())
        key = (type(algorithm), *decisive_values, *hosts)
        return keep(CacheArgument(key, (algorithm, host_of)))

    return look_up
