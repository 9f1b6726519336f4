"""The cables of a network as directed links, two for each cable."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from simshuffle.fabric.topology.cabling import Cabling
from simshuffle.spec.arrays import Floats, Ints, Ints32


@dataclass(frozen=True)
class DirectedLinks:
    """The cables of a network, each in both directions.

    Link 2k leads from the first end of cable k to the second, link 2k + 1 back; see
    `Cabling.ends`.
    """

    cabling: Cabling = field(repr=False)
    capacity: Floats  # (links,) bytes/s
    latency: (
        Floats  # (links,) s, of the cable and of crossing the node that the link enters
    )
    src_node: Ints32  # (links,) the node that each link leaves
    dst_node: Ints32  # (links,) the node that each link enters

    def __len__(self) -> int:
        """Number of links: two for each cable."""
        return len(self.capacity)

    @cached_property
    def names(self) -> list[str]:
        """The names of all links, such as 'leaf0>spine1#2', see `names_of`."""
        return self.names_of(np.arange(len(self)))

    @cached_property
    def tiers(self) -> list[str]:
        """The tiers that each link joins, such as 'leaf>spine', see `tiers_of`."""
        return self.tiers_of(np.arange(len(self)))

    def names_of(self, links: Ints) -> list[str]:
        """Names of ``links``: 'from>to', with '#k' for parallel link k (from 0) if
        several join the two nodes.
        """
        cabling = self.cabling
        nodes = cabling.names
        parallel_index = np.where(cabling.has_parallel, cabling.parallel, -1)[
            links // 2
        ].tolist()
        src_and_dst = (self.src_node[links].tolist(), self.dst_node[links].tolist())
        return [
            f"{nodes[a]}>{nodes[b]}" if k < 0 else f"{nodes[a]}>{nodes[b]}#{k}"
            for a, b, k in zip(*src_and_dst, parallel_index, strict=True)
        ]

    def tiers_of(self, links: Ints) -> list[str]:
        """Return the tiers that each of ``links`` leaves and enters, as 'leaf>fbb'."""
        tier_of = self.cabling.tiers
        index_of_tier = {name: i for i, name in enumerate(dict.fromkeys(tier_of))}
        tier_index = np.array([index_of_tier[name] for name in tier_of])
        tier_pairs = [f"{a}>{b}" for a in index_of_tier for b in index_of_tier]
        pair_index = (
            tier_index[self.src_node[links]] * len(index_of_tier)
            + tier_index[self.dst_node[links]]
        )
        return [tier_pairs[i] for i in pair_index.tolist()]


def directed_links(cabling: Cabling) -> DirectedLinks:
    """Return the two directed links of every cable of a network, in the order of its
    cables.
    """
    # link 2k leaves the first end of cable k, link 2k + 1 the second one
    src_node = cabling.ends.ravel()
    dst_node = cabling.ends[:, ::-1].ravel()
    latency = np.repeat(cabling.latency, 2) + cabling.crossing_latency[dst_node]
    return DirectedLinks(
        cabling, np.repeat(cabling.bandwidth, 2), latency, src_node, dst_node
    )
