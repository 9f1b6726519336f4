"""The cables of a network as directed links."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simshuffle.topology.cabling import Cabling, Ints


@dataclass(frozen=True)
class DirectedLinks:
    """The cables of a network, each in both directions: link 2k and link 2k + 1.

    Attributes:
        names: 'from>to', with '#k' for the k-th of several parallel ones.
        tiers: 'leaf>fbb' and so on.
        capacity: (links,) bytes/s.
        latency: (links,) s, of the cable and of the switch that it enters.
        enters: (links,) the number of the node that each enters.
        nodes: the names of all nodes.
    """

    names: list[str]
    tiers: list[str]
    capacity: NDArray[np.float64]
    latency: NDArray[np.float64]
    enters: Ints
    nodes: list[str] = field(repr=False)

    @property
    def target(self) -> list[str]:
        """For each link the name of the node it enters."""
        return [self.nodes[node] for node in self.enters.tolist()]


def directed_links(cabling: Cabling) -> DirectedLinks:
    """All directed links of a network, in the order of its cables."""
    leaves, enters = cabling.ends.ravel(), cabling.ends[:, ::-1].ravel()
    mark = np.where(cabling.several, cabling.parallel, -1)
    nodes, tier_of = cabling.names, cabling.tiers
    ends = list(zip(leaves.tolist(), enters.tolist(), strict=True))
    names = [
        f"{nodes[a]}>{nodes[b]}" if k < 0 else f"{nodes[a]}>{nodes[b]}#{k}"
        for (a, b), k in zip(ends, np.repeat(mark, 2).tolist(), strict=True)
    ]
    known = {name: i for i, name in enumerate(dict.fromkeys(tier_of))}
    number = np.array([known[name] for name in tier_of])
    both = [f"{a}>{b}" for a in known for b in known]
    tiers = [both[i] for i in (number[leaves] * len(known) + number[enters]).tolist()]
    latency = np.repeat(cabling.latency, 2) + cabling.crossing[enters]
    return DirectedLinks(names, tiers, np.repeat(cabling.bandwidth, 2), latency, enters, nodes)
