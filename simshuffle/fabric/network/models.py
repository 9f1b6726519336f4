"""The network models that a scenario names: records with their parameters, each of
which answers when explicit flows end; and the network of a run by each model: one
object that carries transfers over cables and over everything else.

The code that computes the answers is imported when it is first asked for: compiled
code takes a second to load, which only a simulation should cost.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args

import numpy as np
from pydantic import Field, model_validator

from simshuffle.errors import InputError, Problem
from simshuffle.fabric.network import analytic
from simshuffle.fabric.network.batch import TransferBatch, tasks
from simshuffle.fabric.network.flows import FlowOutcome, Flows, Links
from simshuffle.spec.arrays import Flags
from simshuffle.spec.record import Fraction, PositiveNBytes, Spec

if TYPE_CHECKING:
    from simshuffle.fabric.network.fluid import FluidNetwork

Progress = Callable[[float], None]


class Analytic(Spec):
    """The analytic model: each flow as if it were alone, latency plus bytes over its
    slowest link (Hockney, Parallel Computing 20, 1994).

    The makespan is also bounded by every single link: it cannot end its bytes before
    all of them have crossed it. A lower bound that no other model beats, in no time.
    """

    # whether the messages of one (src, dst) pair go one after the other: nothing waits here
    serial_pairs: ClassVar[bool] = False

    kind: Literal["analytic"] = "analytic"

    def finish_times(
        self, links: Links, flows: Flows, progress: Progress | None = None
    ) -> FlowOutcome:
        """Compute lower bounds of the ends of ``flows``; ``progress`` is not called, as
        this takes no time.

        Returns:
            finish: (flows,) s, ``posted + sum of latencies + nbytes / smallest capacity
                of the route``, where a flow that waits is posted at the latest bound of
                its predecessors.
            makespan: s, the larger of the last of those ends and, over all links, of
                ``smallest (post + sum of latencies) of its flows + bytes / capacity``;
                0 without flows.
            error_bound: None.

        Raises:
            SimulationError: flows wait for each other in a circle.
        """
        return analytic.finish_times(links, flows)


class Fluid(Spec):
    """Flow-level, max-min fair, work-conserving sharing of links over static routes,
    latency then bandwidth.

    In `finish_times` every flow is on its own. With a tolerance fewer moments have to
    be solved for.

    Attributes:
        fair_share: between what links are shared fairly: (src, dst) pairs, whose
            messages go one after the other, or single messages.
        tolerance: a transfer may end together with another as soon as it has at most
            this share of its bytes left; 0 for the exact answer.
    """

    kind: Literal["fluid"] = "fluid"
    fair_share: Literal["pair", "message"] = "pair"
    tolerance: Fraction = 0.0

    @property
    def serial_pairs(self) -> bool:
        """True if the messages of one (src, dst) pair go one after the other."""
        return self.fair_share == "pair"

    def finish_times(
        self, links: Links, flows: Flows, progress: Progress | None = None
    ) -> FlowOutcome:
        """Compute when ``flows`` end, each draining its bytes at its max-min fair rate;
        ``progress`` is called with the share of the flows that have ended.

        Where symmetry makes the problem small, ``progress`` is never called, and the
        answer is exact whatever ``tolerance`` is. Short runs do not call it, either.

        Returns:
            finish: (flows,) s; makespan: s; error_bound: the largest share of its bytes
                that a flow skipped, 0 if exact. So the answer is the exact one for
                flows that are smaller by at most this share.

        Raises:
            SimulationError: flows wait for each other in a circle.
        """
        from simshuffle.fabric.network import fluid_solve

        return fluid_solve.finish_times(links, flows, self.tolerance, progress)


class Packet(Spec):
    """Lossless InfiniBand, packet by packet.

    A directed link is the output port of its tail and the input buffer of its head. Its
    laws:

    - A message is cut into packets of ``mtu`` bytes; the last one carries the rest. Headers are
      ignored: capacities are data rates.
    - A packet starts on a link when the link is idle and its tail has credits for the whole packet:
      bytes (rounded up to whole ones) that are free in the buffer of ``port_buffer`` bytes at the
      head. The credit is given back when the tail of the packet has left that buffer, and needs the
      link's latency to get back. So a link moves at most ``floor(port_buffer / mtu)`` packets in
      ``mtu / capacity + 2 * latency`` where the packets go on at once. The last link of a route
      ends in a host that takes all at once.
    - There is one virtual lane. An input buffer is a FIFO that is read by one output at a time:
      only the packet at its head can ask for its next link, and the one behind it can ask when the
      tail of the first has left (head-of-line blocking; input FIFOs alone limit random traffic to 2
      - sqrt(2) of capacity: Karol, Hluchyj & Morgan, IEEE Transactions on Communications COM-35,
      1987).
    - A link serves the inputs that ask for it in turn, one packet each; an input that begins to ask
      takes its place behind those that ask already (round-robin by an active list). The packet
      whose turn it is waits for its credits, and so do all behind it.
    - At a source, messages with one first link and one last link form a queue pair: they go one
      after the other in order of posting. The sender takes the queue pairs that have data in turn,
      a packet each, and counts as one input of the link.
    - Virtual cut-through (Kermani & Kleinrock, Computer Networks 3, 1979): a packet can go on when
      its header has arrived (start + latency). From a slow to a fast link the output is held until
      the tail has come in: ``max(start + nbytes / capacity, arrival of the tail)``.
    - A message without bytes ends after the latencies of its route, past all queues. A flow without
      links ends as soon as it is posted.

    A message alone ends exactly at ``start + sum of latencies + nbytes / smallest capacity``, if no
    buffer is shorter than the round trip. For its k-th packet let B(k) be the bytes up to it, M(j)
    the smallest capacity of the first j links, and let times on link j be counted without the
    latencies before it. It starts on link j when its header is there, at ``B(k-1) / M(j-1)``, and
    the packet before it is gone, at ``B(k-1) / M(j)``: the latter, since M(j) <= M(j-1). It ends at
    ``max(B(k-1) / M(j) + b(k) / C(j), B(k) / M(j-1))``, which is ``B(k) / M(j)`` for C(j) <=
    M(j-1), the first term, and for C(j) > M(j-1) = M(j), the second. So there is no term of
    pipeline filling.

    Simultaneous events are handled in the order posts, ends of messages, headers, links
    that fall free; within a kind by number of the link, posts by first link, queue
    pair, and last by index of the flow.

    Not modelled: adaptive routes, congestion control (rates that senders lower when
    told so), several virtual lanes, lost packets.

    ``mtu``: 4096 B is the largest that the InfiniBand architecture has.
    ``port_buffer``: 64 KiB for the one virtual lane of a port is an estimate.

    Attributes:
        mtu: of a packet.
        port_buffer: of the input buffer of a port; at least 'mtu'.
    """

    # whether the messages of one (src, dst) pair go one after the other: as on one queue pair
    serial_pairs: ClassVar[bool] = True

    kind: Literal["packet"] = "packet"
    mtu: PositiveNBytes = 4096.0
    port_buffer: PositiveNBytes = 65536.0

    @model_validator(mode="after")
    def _check_buffer(self) -> Packet:
        """Raise an InputError if a packet of ``mtu`` does not fit ``port_buffer``."""
        if int(self.port_buffer) < ceil(self.mtu):
            rule = f"must hold at least one packet of mtu = {self.mtu:g} B"
            buffer_text = f"{self.port_buffer:g} B"
            raise InputError(
                Problem("port_buffer", rule, buffer_text, "Raise port_buffer.")
            )
        return self

    def finish_times(
        self, links: Links, flows: Flows, progress: Progress | None = None
    ) -> FlowOutcome:
        """Compute when ``flows`` end; `packet_run.run` returns statistics as well.
        ``progress`` is called with the share of the bytes that has been delivered.

        Returns:
            finish: (flows,) s; makespan: s; error_bound: None.

        Raises:
            TopologyError: links wait for each other in a circle, so that the network
                could deadlock.
            SimulationError: flows wait for each other in a circle.
            ValueError: a route has a link that does not exist.
        """
        from simshuffle.fabric.network import packet_run

        return packet_run.run(
            links, flows, self.mtu, self.port_buffer, progress=progress
        ).outcome


Model = Analytic | Fluid | Packet
Network = Annotated[Model, Field(discriminator="kind")]
MODELS: dict[str, type[Model]] = {
    model.model_fields["kind"].default: model for model in get_args(Model)
}
"""The models by name; a new one is added to `Model`, and to `shared_network` for runs."""


def shared_network(
    model: Model,
    links: Links,
    cables: Flags,
    *,
    width: int,
    accounts: int = 0,
    tags: int = 0,
) -> FluidNetwork:
    """Make the network of a run. Only cables follow ``model``: host devices, memory,
    the file system's servers and rate limits are fluid in every model.

    Args:
        model: of the cables.
        links: all links; of their latencies only those of cables are read, and these
            for packets alone.
        cables: (links,) which of them are cables. Latencies of cables are part of
            `TASK.delay`, whatever the model.
        width: the longest route, in links.
        accounts: number of time accounts (see `TASK.account`).
        tags: number of end times to note (see `TASK.tag`).

    Raises:
        ValueError: a cable is so slow that its packets do not fit the clock.
    """
    from simshuffle.fabric.network.fluid import FluidNetwork
    from simshuffle.fabric.network.hybrid import AnalyticNetwork, HybridNetwork

    if isinstance(model, Packet):
        return HybridNetwork(
            links,
            cables,
            model.mtu,
            model.port_buffer,
            width=width,
            accounts=accounts,
            tags=tags,
        )
    if isinstance(model, Analytic):
        return AnalyticNetwork(links, cables, width=width, accounts=accounts, tags=tags)
    return FluidNetwork(
        links.capacity,
        width=width,
        accounts=accounts,
        tags=tags,
        tolerance=model.tolerance,
    )


def load_model(model: Model) -> None:
    """Load the code that simulates ``model``, or compile and cache it: so that
    processes which are started afterwards need not, nor say so. A transfer is simulated
    for that.
    """
    links = Links(np.ones(1), np.zeros(1))
    network = shared_network(model, links, np.ones(1, bool), width=1)
    network.post(0.0, TransferBatch(tasks(1, work=1.0), np.zeros((1, 1), np.int32)))
    network.advance(inf)
    network.count_down(np.zeros(0, np.int32), 0.0)
    network.settle()
