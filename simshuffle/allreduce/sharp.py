"""Allreduce that the switches of the network carry out."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simshuffle.allreduce.base import Paced
from simshuffle.allreduce.flows import AllreduceFlows
from simshuffle.allreduce.grid import Grid
from simshuffle.allreduce.steps import Sends, Steps, dependent_flows
from simshuffle.spec.record import OneEach


class Sharp(Paced):
    """Switches sum what comes up from below, pass the sum on to the switch above them, and the
    topmost sends the result down (SHArP: Graham et al., COMHPC 2016; for large buffers, as bytes
    arrive: Graham et al., ISC 2020). So a host sends and receives each byte once, and not twice.

    Inside a host the ranks are a chain to the one at each HCA, which has an equal share, and back;
    all bytes move as in a pipeline, at once. A level of switches costs ``inter_host_latency`` up
    and once more down; as many are needed as trees with ``radix`` hosts or switches below each
    have. A host sends at most at the bus bandwidth; what nccl-tests call so is up to twice that.

    **Flows.** On the links of switches that form a tree, flows from each host to the next in sorted
    order, and from the last to the first, load every link as the reduction does. For the hosts
    below a link follow one another: one flow leaves them, and one enters, unless they are all. The
    reduction sends one sum up that link and one result down. Where switches have several ways up,
    both take one of them.

    Attributes:
        rails: HCAs of a host that the bytes are spread over; at most, and by default,
            ``cluster.host.hcas``.
        radix: hosts or switches below a switch; 'inter_host_latency' is that of a level of
            switches.
    """

    default_sources: ClassVar[dict[str, str]] = {
        "radix": "default: half of the 36 ports of Switch-IB 2, with which Graham et al. (2016)"
        " measured"
    }

    one_for_each_hca: ClassVar[str] = "rails"
    kind: Literal["sharp"]
    rails: OneEach
    radix: Annotated[int, Field(ge=2, le=4096)] = 18

    def levels(self, hosts: int) -> int:
        """Levels of switches above so many hosts; 0 above a single one."""
        levels, below = 0, 1
        while below < hosts:
            levels, below = levels + 1, below * self.radix
        return levels

    def steps(self, host_of: NDArray[np.int32]) -> Steps:
        """What ranks on hosts ``host_of``, (M,), send, where rank M stands for all switches, which
        have nothing to add."""
        hosts = len(np.unique(host_of))
        if hosts == 1:
            return Grid(host_of, self.rails).steps(Steps.joined(1, ()))
        host, switches = np.arange(hosts), hosts
        among = Steps.joined(1, [(0, host, switches, 0, 1, True), (1, switches, host, 0, 1, False)])
        with_switches = np.append(host_of, host_of.max() + 1).astype(np.int32)
        return Grid(with_switches, self.rails).steps(among)

    def flows(self, host_of: NDArray[np.int32], nbytes: float) -> AllreduceFlows | None:
        """The flows of an allreduce of ``nbytes`` bytes over ranks on hosts ``host_of``, (M,); None
        for a single rank."""
        if len(host_of) == 1:
            return None
        grid = Grid(host_of, self.rails)
        host = np.arange(grid.hosts if grid.hosts > 1 else 0)
        once = Sends.joined([(0, host, np.roll(host, -1), 1.0, 0, 1, host)])
        rail = np.broadcast_to(np.arange(self.rails, dtype=np.int32), grid.leader.shape)
        sends = grid.sends(once, rail)
        flows = dependent_flows(
            replace(sends, step=np.zeros_like(sends.step)), host_of, nbytes, self
        )
        hops = int(grid.size.max()) - 1
        latency = 2 * (
            hops * self.intra_host_latency + self.levels(grid.hosts) * self.inter_host_latency
        )
        return replace(flows, delay=0.0, latency=latency)
