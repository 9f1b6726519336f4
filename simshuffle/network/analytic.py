"""The analytic network: alpha-beta latency and the bottleneck link. A lower bound that no other
model beats, in no time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from simshuffle.network.flows import Floats, Flows, Links, Outcome
from simshuffle.network.order import latest_ends
from simshuffle.spec.record import Spec


class Analytic(Spec):
    """Every flow as if it were alone: latency plus bytes over its slowest link (Hockney, Parallel
    Computing 20, 1994).

    The makespan is also bounded by every single link: it cannot end its bytes before all of them
    have crossed it.
    """

    kind: Literal["analytic"] = "analytic"

    @property
    def serial_pairs(self) -> bool:
        """Whether the messages of one (src, dst) pair go one after the other: nothing waits for
        anything here."""
        return False

    def finish_times(
        self, links: Links, flows: Flows, progress: Callable[[float], None] | None = None
    ) -> Outcome:
        """Lower bounds of the ends of ``flows``; ``progress`` is not needed for what takes no time.

        Returns:
            finish: (flows,) s, ``posted + sum of latencies + nbytes / smallest capacity of the
                route``, where a flow that waits is posted
            at the latest bound of its predecessors. makespan: s, the larger of the last of those
                and, over all links, of
            ``earliest post + its flows' smallest latency + bytes / capacity``.

        Raises:
            SimulationError: flows wait for each other in a circle.
        """
        finish = latest_ends(flows, alone(links, flows))
        return Outcome(
            finish, max(float(finish.max(initial=0.0)), link_bound(links, flows, finish))
        )


def alone(links: Links, flows: Flows) -> Floats:
    """(flows,) s that each flow takes without any other: sum of latencies + nbytes / smallest
    capacity."""
    return np.asarray(flows.latencies(links) + _drain(links, flows))


def _drain(links: Links, flows: Flows) -> Floats:
    """(flows,) s that the bytes of each flow take over its slowest link."""
    padded = np.append(links.capacity, np.inf)
    slowest = np.full(len(flows), np.inf)
    for hop in flows.routes.T:
        np.minimum(slowest, padded[hop], out=slowest)
    return np.asarray(flows.nbytes / slowest)


def link_bound(links: Links, flows: Flows, finish: Floats) -> float:
    """The latest moment (s) before which some link cannot have carried all its bytes; ``finish`` as
    `Analytic.finish_times` gives it.

    A link is not used before the first of its flows has been posted and has spent its latency.
    """
    begin = finish - _drain(links, flows)
    first = np.full(len(links) + 1, np.inf)
    for hop in flows.routes.T:
        np.minimum.at(first, hop, begin)
    used = np.isfinite(first[:-1])
    bound = first[:-1][used] + flows.link_bytes(links)[used] / links.capacity[used]
    return float(bound.max(initial=0.0))
