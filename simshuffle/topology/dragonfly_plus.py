"""Dragonfly+: groups of leaf and spine switches, linked by their spines."""

from __future__ import annotations

from typing import Literal

from simshuffle.spec.record import Few
from simshuffle.topology.graph import Graph, add_switch, connect
from simshuffle.topology.groups import Grouped
from simshuffle.topology.populated import of


class DragonflyPlus(Grouped):
    """Dragonfly+ (Shpiner et al., Dragonfly+: Low Cost Topology for Scaling Datacenters, HiPINEB
    2017): in every one of the ``groups`` each of ``leaf_switches`` is linked to each of
    ``spine_switches`` by ``leaf_spine_links``. Leaf switches have ``hosts_per_switch`` hosts, spine
    switches ``global_links_per_switch`` ports for links to other groups.

    Attributes:
        leaf_switches: of a group.
        spine_switches: of a group.
        leaf_spine_links: parallel links between a leaf and a spine switch of a group.
    """

    kind: Literal["dragonfly_plus"]
    leaf_switches: Few
    spine_switches: Few
    leaf_spine_links: Few = 1

    @property
    def gateways(self) -> int:
        """The spine switches of a group."""
        return self.spine_switches

    @property
    def switches_with_hosts(self) -> int:
        """The leaf switches of all groups."""
        return self.num_groups * self.leaf_switches

    @property
    def links_in_group(self) -> int:
        """Between all leaf and all spine switches."""
        return self.leaf_switches * self.spine_switches * self.leaf_spine_links

    def structure(self) -> str:
        """See `Interconnect.structure`."""
        middle, told = self._between_halves, self._global_told
        if self.num_groups == 1:
            # each spine switch is linked to as many leaf switches in one half as in the other
            local = self.local_bandwidth or self.link_bandwidth
            middle, told = self.links_in_group * local / 2, "global ports unused"
        each = self.leaf_switches + self.spine_switches
        return self._told(
            self.num_groups * each,
            f"{of(self.num_groups, 'group')} of {self.leaf_switches} leaf and"
            f" {self.spine_switches} spine switches",
            told,
            bisection=middle,
        )

    def build(self, graph: Graph) -> None:
        """Add switches ``g0.leaf1`` and ``g0.spine2``, and hosts ``h0000``."""
        groups = range(self.num_groups)
        leaves = [[f"g{g}.leaf{i}" for i in range(self.leaf_switches)] for g in groups]
        spines = [[f"g{g}.spine{i}" for i in range(self.spine_switches)] for g in groups]
        for group in groups:
            for number, (tier, names) in enumerate([("leaf", leaves), ("spine", spines)]):
                for i, name in enumerate(names[group]):
                    add_switch(graph, name, tier, self.switch_latency, (group, number, i))
        for lower, upper in zip(leaves, spines, strict=True):
            for leaf in lower:
                for spine in upper:
                    connect(graph, leaf, spine, links=self.leaf_spine_links, **self._local_cable)
        self._add_global_links(graph, spines)
        self._add_hosts(graph, [name for names in leaves for name in names])
