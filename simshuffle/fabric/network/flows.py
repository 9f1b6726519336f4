"""Explicit flows over explicit links, in SI units: what network models are asked, and answer."""

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
    """Directed links."""

    capacity: Floats  # (links,) bytes/s, finite and greater than 0
    latency: Floats  # (links,) s, finite and at least 0
    # (links,) what messages and tables call them; empty for 'link 0', 'link 1', ...
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
            raise ValueError("every link needs a capacity that is finite and greater than 0")
        if not np.all(np.isfinite(self.latency) & (self.latency >= 0)):
            raise ValueError("every link needs a latency that is finite and at least 0")

    def __len__(self) -> int:
        return len(self.capacity)

    def name(self, link: int) -> str:
        """The name of a link."""
        return self.names[link] if len(self.names) else f"link {link}"


@dataclass(frozen=True)
class Flows:
    """Flows, each over a fixed route of links.

    A flow is posted at its ``start``, or at the latest end of the flows it waits for. It spends the
    sum of its links' latencies without using them, and then moves its bytes. A flow without any
    link ends as soon as it is posted: one with several predecessors is a barrier."""

    routes: Ints32  # (flows, hops) int32 links of each route, padded with -1 at the end
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
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), np.int32))
        count = len(self.nbytes)
        if self.routes.ndim != 2 or self.routes.shape[0] != count or self.start.shape != (count,):
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
    def of(
        cls,
        routes: Sequence[Sequence[int]] | Ints32,
        nbytes: Sequence[float] | Floats,
        start: Sequence[float] | Floats | None = None,
        after: Sequence[Sequence[int]] | None = None,
    ) -> Flows:
        """Flows from lists.

        Args:
            routes: for each flow the indices of its links; or a padded array.
            nbytes: (flows,) bytes.
            start: (flows,) s; None for 0.
            after: for each flow the indices of the flows it waits for; None if no flow waits.

        Raises:
            ValueError: lengths that do not fit, or numbers that are not finite or negative.
        """
        table = routes if isinstance(routes, np.ndarray) else pad_routes(routes)
        edges = np.array(
            [(i, j) for j, before in enumerate(after or ()) for i in before], np.int32
        ).reshape(-1, 2)
        sizes = as_floats(nbytes)
        return cls(
            table,
            sizes,
            np.zeros(len(sizes)) if start is None else as_floats(start),
            edges[:, 0],
            edges[:, 1],
        )

    @cached_property
    def posted(self) -> Floats:
        """(flows,) s: ``start``, or 0 for the flows that wait for others."""
        out = self.start.copy()
        out[self.after_to] = 0.0
        return out

    def latencies(self, links: Links) -> Floats:
        """(flows,) s: sum of the latencies of each route."""
        padded = np.append(links.latency, 0.0)
        out = np.zeros(len(self))
        for hop in self.routes.T:  # column by column: no copy of the whole table
            out += padded[hop]
        return out

    def link_bytes(self, links: Links) -> Floats:
        """(links,) bytes that cross each link."""
        out = np.zeros(len(links) + 1)
        for hop in self.routes.T:
            out += np.bincount(hop + 1, weights=self.nbytes, minlength=len(links) + 1)
        return out[1:]


@dataclass(frozen=True)
class FlowOutcome:
    """When flows end, by one network model."""

    finish: Floats  # (flows,) s
    # s, when the last of them ends; for the analytic model the largest of its lower bounds
    makespan: float
    # 0 if the model was solved exactly; x if the answer is the exact one for flows whose bytes are
    # smaller by a share of at most x; None if the model does not say
    error_bound: float | None = None


def successors(flows: Flows) -> tuple[Ints64, Ints32]:
    """For each flow those that wait for it: (flows + 1,) offsets into the second array, (edges,)
    int32."""
    offsets = np.zeros(len(flows) + 1, np.int64)
    np.cumsum(np.bincount(flows.after_from, minlength=len(flows)), out=offsets[1:])
    return offsets, flows.after_to[np.argsort(flows.after_from, kind="stable")]


def latest_ends(flows: Flows, seconds: Floats) -> Floats:
    """(flows,) s: end of each flow if it took ``seconds`` from its post on: the critical path.

    Raises:
        SimulationError: flows wait for each other in a circle.
    """
    ends = flows.posted + seconds
    if not len(flows.after_to):
        return ends
    offsets, following = successors(flows)
    waiting = np.bincount(flows.after_to, minlength=len(flows))
    posted = flows.posted.copy()  # the flows stay as they are, for another model
    level = np.flatnonzero(waiting == 0)
    reached = len(level)
    while len(level):
        counts = offsets[level + 1] - offsets[level]
        place = np.repeat(offsets[level] - np.cumsum(counts) + counts, counts) + np.arange(
            counts.sum()
        )
        to = following[place]
        np.maximum.at(posted, to, np.repeat(ends[level], counts))
        level, edges = np.unique(to, return_counts=True)
        waiting[level] -= edges  # not over all flows: a long chain has as many levels as flows
        level = level[waiting[level] == 0]
        ends[level] = posted[level] + seconds[level]
        reached += len(level)
    if reached < len(flows):
        raise SimulationError(
            f"{len(flows) - reached} flows wait for each other in a circle and never start"
        )
    return ends
