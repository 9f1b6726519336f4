"""Equal-cost multipath: a hash of a flow's header chooses among the links of all shortest ways."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simshuffle.routing.base import RoutingRule
from simshuffle.routing.fabric import Fabric, Ints
from simshuffle.routing.router import HopByHop, Router, Step, mixed


class Ecmp(RoutingRule):
    """ECMP, as Ethernet switches do for RoCE.

    ``queue_pairs`` is how many connections two ports have between them; messages take them in turn.
    The header of each has one of ``ports`` UDP source ports, drawn by a hash (RoCE v2 uses 49,152
    to 65,535). ``salt`` says whether every switch hashes in its own way (``per_switch``) or all
    alike (``none``): then a switch repeats the choice of the one before it, and of its links only
    those are used that agree with that (polarisation).
    """

    drawn: ClassVar[bool] = True

    kind: Literal["ecmp"] = "ecmp"
    queue_pairs: Annotated[int, Field(ge=1, le=4096)] = 1
    ports: Annotated[int, Field(ge=1, le=16384)] = 16384
    salt: Literal["per_switch", "none"] = "per_switch"

    def router(self, fabric: Fabric, seed: int) -> Router:
        """See `RoutingRule.router`."""
        return _EcmpRouter(fabric, seed, self)


class _EcmpRouter(HopByHop):
    def __init__(self, fabric: Fabric, seed: int, rule: Ecmp) -> None:
        super().__init__(fabric)
        self._seed, self._rule = seed, rule
        self._header: NDArray[np.uint64] = np.zeros(0, np.uint64)

    @property
    def constant(self) -> bool:
        return self._rule.queue_pairs == 1

    def routes(self, src: Ints, dst: Ints) -> Ints:
        pair = src.astype(np.int64) * (len(self.fabric.at) + 1) + dst
        queue = _occurrence(pair) % self._rule.queue_pairs
        port = mixed(self._seed, pair, queue) % np.uint64(self._rule.ports)
        self._header = mixed(self._seed, src, dst, port)
        return super().routes(src, dst)

    def choose(self, step: Step) -> Ints:
        salt = step.here if self._rule.salt == "per_switch" else 0
        return self.of_count(step, mixed(self._header[step.message], salt))


def _occurrence(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) how many equal keys stand before each."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    out = np.empty(len(keys), np.int64)
    sizes = np.diff(np.append(begins, len(keys)))
    out[order] = np.arange(len(keys)) - np.repeat(begins, sizes)
    return out
