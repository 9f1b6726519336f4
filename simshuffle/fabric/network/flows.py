"""The input and output of network models: explicit flows over explicit links (`Flows`,
`Links`), and the time when each flow ends (`FlowOutcome`). All in SI units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from simshuffle.errors import SimulationError
from simshuffle.fabric.network.batch import as_floats, no_edges, pad_routes
from simshuffle.spec.arrays import Floats, Ints32, Ints64


@dataclass(frozen=True)
class Links:
    """The directed links of a network.

    Raises:
        ValueError: capacities or latencies that are out of range or differ in length.
    """

    capacity: Floats  # (links,) bytes/s, finite and greater than 0
    latency: Floats  # (links,) s, finite and at least 0
    # (links,) what messages and tables call them; empty for 'link 0', 'link 1', ...; their number
    # is not checked
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "capacity", as_floats(self.capacity))
        object.__setattr__(self, "latency", as_floats(self.latency))
        if self.capacity.ndim != 1 or self.capacity.shape != self.latency.shape:
            raise ValueError(
                f"capacities {self.capacity.shape} and latencies {self.latency.shape} must be two"
                " lists of one length"
            )
        if not np.all(np.isfinite(self.capacity) & (self.capacity > 0)):
            raise ValueError(
                "every link needs a capacity that is finite and greater than 0"
            )
        if not np.all(np.isfinite(self.latency) & (self.latency >= 0)):
            raise ValueError("every link needs a latency that is finite and at least 0")

    def __len__(self) -> int:
        return len(self.capacity)

    def name(self, link: int) -> str:
        """Return the name of a link, such as 'link 0' if the links have no names."""
        return self.names[link] if len(self.names) else f"link {link}"


@dataclass(frozen=True)
class Flows:
    """Flows, each over a fixed route of links.

    A flow is posted at its ``start``, or at the latest end of the flows it waits for.
    It spends the sum of its links' latencies without using them, and then moves its
    bytes. A flow without any link ends as soon as it is posted, whatever its bytes: one
    with several predecessors is a barrier.

    A route must not cross a link twice, and routes and edges must name links and flows
    that exist: neither is checked here.

    Raises:
        ValueError: arrays that do not fit together, or bytes or starts out of range.
    """

    routes: Ints32  # (flows, hops) int32 links of each route, padded with -1 at the end only
    nbytes: Floats  # (flows,) bytes, finite and at least 0
    # (flows,) s, finite and at least 0; without meaning for a flow that waits for another
    start: Floats
    # after_from, after_to: (edges,) int32; flow ``after_to[k]`` waits for flow ``after_from[k]``,
    # and for all its others
    after_from: Ints32 = field(default_factory=no_edges)
    after_to: Ints32 = field(default_factory=no_edges)

    def __post_init__(self) -> None:
        for name in ("nbytes", "start"):
            object.__setattr__(self, name, as_floats(getattr(self, name)))
        for name in ("routes", "after_from", "after_to"):
            object.__setattr__(
                self, name, np.ascontiguousarray(getattr(self, name), np.int32)
            )
        count = len(self.nbytes)
        if (
            self.routes.ndim != 2
            or self.routes.shape[0] != count
            or self.start.shape != (count,)
        ):
            raise ValueError(
                f"routes {self.routes.shape}, nbytes {self.nbytes.shape} and start"
                f" {self.start.shape} do not fit together"
            )
        for name, values in (("nbytes", self.nbytes), ("start", self.start)):
            if not np.all(np.isfinite(values) & (values >= 0)):
                raise ValueError(f"{name} must be finite and at least 0")
        if self.after_from.shape != self.after_to.shape:
            raise ValueError("after_from and after_to must have one length")

    def __len__(self) -> int:
        return len(self.nbytes)

    @classmethod
    def from_lists(
        cls,
        routes: Sequence[Sequence[int]] | Ints32,
        nbytes: Sequence[float] | Floats,
        start: Sequence[float] | Floats | None = None,
        predecessors: Sequence[Sequence[int]] | None = None,
    ) -> Flows:
        """Build flows from lists.

        Args:
            routes: for each flow the indices of its links; or a padded array.
            nbytes: (flows,) bytes.
            start: (flows,) s; None for 0. Ignored for a flow that waits for others.
            predecessors: for each flow the indices of the flows it waits for; None if
                none waits. Flows beyond the end of a shorter list wait for none.

        Raises:
            ValueError: lengths that do not fit, or numbers that are not finite or
                negative.
        """
        table = routes if isinstance(routes, np.ndarray) else pad_routes(routes)
        # (edges, 2) a row for each pair of a flow that must end and a flow that waits for it
        pairs = [
            (predecessor, flow)
            for flow, flow_predecessors in enumerate(predecessors or ())
            for predecessor in flow_predecessors
        ]
        edges = np.array(pairs, np.int32).reshape(-1, 2)
        sizes = as_floats(nbytes)
        return cls(
            routes=table,
            nbytes=sizes,
            start=np.zeros(len(sizes)) if start is None else as_floats(start),
            after_from=edges[:, 0],
            after_to=edges[:, 1],
        )

    @cached_property
    def earliest_post(self) -> Floats:
        """(flows,) s, the earliest time at which each flow may be posted: ``start``, or
        0 for the flows that wait for others. Kept: do not change it in place.
        """
        seconds = self.start.copy()
        seconds[self.after_to] = 0.0
        return seconds

    def latencies(self, links: Links) -> Floats:
        """(flows,) s: sum of the latencies of each route, 0 without links."""
        padded = np.append(links.latency, 0.0)
        seconds = np.zeros(len(self))
        for hop in self.routes.T:  # column by column: no copy of the whole table
            seconds += padded[hop]
        return seconds

    def link_bytes(self, links: Links) -> Floats:
        """(links,) bytes that cross each link, over all flows and all time."""
        # entry 0 is for the padding, -1; link k is counted at k + 1
        nbytes = np.zeros(len(links) + 1)
        for hop in self.routes.T:
            nbytes += np.bincount(
                hop + 1, weights=self.nbytes, minlength=len(links) + 1
            )
        return nbytes[1:]


@dataclass(frozen=True)
class FlowOutcome:
    """The ends of flows, by one network model."""

    finish: Floats  # (flows,) s
    # s, when the last of them ends, 0 without flows; for the analytic model the largest of its
    # lower bounds
    makespan: float
    # 0 if the model was solved exactly; x if the answer is the exact one for flows whose bytes are
    # smaller by a share of at most x; None if the model does not say
    error_bound: float | None = None


def successors(flows: Flows) -> tuple[Ints64, Ints32]:
    """The flows that wait for each flow, as (flows + 1,) offsets into the second array,
    (edges,) int32; the successors of one flow stand in the order of the edges.
    """
    offsets = np.zeros(len(flows) + 1, np.int64)
    np.cumsum(np.bincount(flows.after_from, minlength=len(flows)), out=offsets[1:])
    return offsets, flows.after_to[np.argsort(flows.after_from, kind="stable")]


def latest_ends(flows: Flows, seconds: Floats) -> Floats:
    """(flows,) s: end of each flow if it took ``seconds`` from its post on: the
    critical path.

    A flow that waits is posted at the latest end of the flows it waits for; its
    ``start`` is ignored. Other flows are posted at their ``start``.

    Args:
        flows: the flows, and which of them wait for others.
        seconds: (flows,) s from the post to the end of each.

    Raises:
        SimulationError: flows wait for each other in a circle.
    """
    ends = flows.earliest_post + seconds
    if not len(flows.after_to):
        return ends
    offsets, edge_targets = successors(flows)
    num_waiting = np.bincount(flows.after_to, minlength=len(flows))
    post_time = (
        flows.earliest_post.copy()
    )  # the flows stay as they are, for another model
    ready_flows = np.flatnonzero(num_waiting == 0)
    num_reached = len(ready_flows)
    while len(ready_flows):
        # (edges of all ready flows,) one flow after the other: offsets[flow] + 0, 1, ...
        counts = offsets[ready_flows + 1] - offsets[ready_flows]
        edge = np.repeat(
            offsets[ready_flows] - np.cumsum(counts) + counts, counts
        ) + np.arange(counts.sum())
        edge_target = edge_targets[edge]
        np.maximum.at(post_time, edge_target, np.repeat(ends[ready_flows], counts))
        ready_flows, num_edges = np.unique(edge_target, return_counts=True)
        num_waiting[ready_flows] -= (
            num_edges  # not over all flows: a long chain has as many levels as flows
        )
        ready_flows = ready_flows[num_waiting[ready_flows] == 0]
        ends[ready_flows] = post_time[ready_flows] + seconds[ready_flows]
        num_reached += len(ready_flows)
    if num_reached < len(flows):
        raise SimulationError(
            f"{len(flows) - num_reached} flows wait for each other in a circle and never start"
        )
    return ends
