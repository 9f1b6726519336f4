"""Fat trees of one or more levels, full-bisection or tapered, by their switches or as a
k-ary n-tree.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from simshuffle.fabric.topology.base import Interconnect, problem
from simshuffle.fabric.topology.directors import Directors
from simshuffle.fabric.topology.graph import Graph, add_host, add_switch, connect
from simshuffle.fabric.topology.populated import Populated, format_count
from simshuffle.spec.record import (
    MOST_HOSTS,
    Bandwidth,
    Count,
    Seconds,
    Sourced,
    whole_as_float,
)
from simshuffle.spec.units import Dimension, readable

Taper = Annotated[float, BeforeValidator(whole_as_float), Field(ge=1)]
MOST_LEVELS = 4
MOST_PORTS = 4096
ROUNDING = 1e-3  # of a port: 33 links below 7 may be written as taper: 4.714


@dataclass(frozen=True)
class LevelLinks:
    """The links between a level of switches, or the hosts, and the one above."""

    children: int  # lower nodes linked to an upper one
    parents: int = 1  # upper nodes linked to a lower one
    parallel: int = 1  # links of each such pair


class FatTree(Sourced, Interconnect):
    """A fat tree, described in one of two ways.

    *By its switches*: ``hosts`` on switches with ``ports`` ports. A leaf switch has u =
    floor(ports / (taper + 1)) links up and floor(u taper) hosts; what is left of its
    ports is unused. Switches between leaf and spine have half their ports up. There are
    as many ``levels`` as the hosts need, and of the switches above others the fewest
    over which those can spread their links evenly.

    *As a k-ary n-tree* (Petrini & Vanneschi 1997): ``arity`` hosts a leaf switch, and
    as many links down at each of ``levels`` levels. ``hosts`` cuts the tree down to
    that many hosts; the default is ``arity ** levels``.

    Above the leaf switches the tree is full. Rail k of every host is on leaf switches
    of its own, and rails meet in the topmost switches; on a tree of one switch all are
    on that. ``directors`` have as many ports as their modules, whatever ``ports`` is.

    Attributes:
        ports: of every switch; or 'arity' and 'levels'.
        levels: of switches; as many as the hosts need if left out, with 'ports'.
        arity: hosts on a leaf switch, and links down at every level.
        taper: links below a leaf switch to those above it: 1 is full bisection. With
            'arity' it must divide that into a whole number.
        rails: HCAs of a host; ``cluster.host.hcas`` must be the same.
        hosts: in all; needed with 'ports', otherwise 'arity ** levels'.
        link_bandwidth: of a link, in each direction.
        cable_latency: of every cable.
        switch_latency: of crossing a switch.
        directors: what the topmost switches are made of; one ideal switch each if left
            out.
    """

    hcas_are_rails: ClassVar[bool] = True
    default_sources: ClassVar[dict[str, str]] = Populated.default_sources

    kind: Literal["fat_tree"]
    ports: Annotated[int, Field(ge=2, le=MOST_PORTS)] | None = None
    levels: Annotated[int, Field(ge=1, le=MOST_LEVELS)] | None = None
    arity: Annotated[int, Field(ge=2, le=1024)] | None = None
    taper: Taper = 1.0
    rails: Annotated[int, Field(ge=1, le=64)] = 1
    hosts: Count | None = None
    link_bandwidth: Bandwidth
    cable_latency: Seconds = 26e-9
    switch_latency: Seconds = 90e-9
    directors: Directors | None = None

    @model_validator(mode="after")
    def _check(self) -> FatTree:
        """Check keys and directors; raises a PydanticCustomError."""
        if self.ports is None:
            self._check_arity()
        else:
            self._check_ports()
        if self.directors:
            if self.num_levels == 1:
                rule = "are for trees of at least two levels"
                raise problem(
                    "directors", rule, "1 level", "Leave it out, or set levels: 2."
                )
            top_links = self.links()[-1]
            if director_problem := self.directors.problem(
                top_links.children, top_links.parallel
            ):
                raise director_problem
        return self

    def _check_arity(self) -> None:
        """Check the keys of a k-ary n-tree; raises a PydanticCustomError."""
        if self.arity is None or self.levels is None:
            missing = "levels" if self.arity else "arity" if self.levels else "ports"
            rule = "is required: a fat tree has the ports of its switches, or arity and levels"
            remedy = "Write for example ports: 40, hosts: 64, taper: 2, rails: 2."
            raise problem(missing, rule, "none", remedy)
        if self.levels > 1 and not math.isclose(self.uplinks * self.taper, self.arity):
            raise PydanticCustomError(
                "taper", "taper must divide the arity into a whole number of links up"
            )
        if self.num_hosts * self.rails > min(
            MOST_HOSTS, self.arity ** (self.levels - 1) * 4096
        ):
            raise PydanticCustomError(
                "hosts",
                "a tree of this arity and these levels has too many hosts; give fewer as hosts",
            )

    def _check_ports(self) -> None:
        """Check the keys of a tree that is described by its switches; raises a
        PydanticCustomError.
        """
        if self.arity is not None:
            raise problem(
                "arity",
                "a fat tree has either ports or arity",
                str(self.arity),
                "Leave arity out: ports and taper say how many hosts are on a leaf switch.",
            )
        if self.hosts is None:
            raise problem("hosts", "is required with ports", "none", "Add it.")
        if self.hosts * self.rails > MOST_HOSTS:
            rule = f"x rails must be at most {MOST_HOSTS}"
            raise problem("hosts", rule, f"{self.hosts} x {self.rails}", "Give fewer.")
        if self.uplinks == 0 and self.levels != 1:
            raise problem(
                "taper",
                f"a leaf switch of {self.ports} ports must have at least one of them up",
                f"{self.taper:g}",
                f"Use a taper of at most {self._ports - 1}.",
            )
        if self.hosts > (
            max_hosts := self._capacity(self._ports, self.levels or MOST_LEVELS)
        ):
            raise self._too_many_hosts(max_hosts)

    def _too_many_hosts(self, max_hosts: int) -> PydanticCustomError:
        """Return the error of a tree with more hosts than its levels have room for,
        with the levels or ports that suffice.
        """
        hosts = self.num_hosts
        levels = self.levels or MOST_LEVELS
        sufficient = [
            f"levels: {num_levels}"
            for num_levels in range(levels + 1, MOST_LEVELS + 1)
            if self._capacity(self._ports, num_levels) >= hosts
        ][:1] + [
            f"ports: {ports}"
            for ports in range(self._ports + 1, MOST_PORTS + 1)
            if self._capacity(ports, levels) >= hosts
        ][:1]
        taper_text = (
            f" tapered {self.taper:g}:1" if self.taper > 1 and levels > 1 else ""
        )
        switches = (
            f"{format_count(levels, 'level')} of {self.ports}-port switches{taper_text}"
        )
        rails = format_count(self.rails, "rail")
        rule = f"a fat tree with {switches} and {rails} has room for {max_hosts}"
        remedy = f"Use {' or '.join(sufficient) or 'fewer rails'}, or at most {max_hosts} hosts."
        return problem("hosts", rule, str(hosts), remedy)

    @property
    def _ports(self) -> int:
        """Ports of a switch; 0 for a k-ary n-tree."""
        return self.ports or 0

    def _uplinks_of(self, ports: int) -> int:
        """Number of links up from a leaf switch with ``ports`` ports."""
        return math.floor(ports / (self.taper + 1) + ROUNDING)

    def _capacity(self, ports: int, levels: int) -> int:
        """Number of hosts that a tree of so many levels of such switches has room for.

        Each rail has its share of the ports of a topmost switch, and every switch
        between leaf and top has half of its ports down.
        """
        if levels == 1:
            return ports // self.rails
        top_children = (self.directors.ports if self.directors else ports) // self.rails
        hosts_per_leaf = math.floor(self._uplinks_of(ports) * self.taper + ROUNDING)
        return int(hosts_per_leaf * (ports // 2) ** (levels - 2) * top_children)

    @property
    def uplinks(self) -> int:
        """Number of links from a leaf switch up."""
        if self.ports is None:
            return max(round((self.arity or 1) / self.taper), 1)
        return self._uplinks_of(self.ports)

    @property
    def hosts_per_leaf(self) -> int:
        """Number of hosts on a full leaf switch, or on the only switch."""
        if self.ports is None:
            return self.num_hosts if self.levels == 1 else self.arity or 1
        if self.num_levels == 1:
            return self.num_hosts
        return math.floor(self.uplinks * self.taper + ROUNDING)

    @property
    def num_levels(self) -> int:
        """Number of switch levels: ``levels``, or as many as the hosts need."""
        if self.levels is not None:
            return self.levels
        return next(
            n
            for n in itertools.count(1)
            if self._capacity(self._ports, n) >= self.num_hosts
        )

    @property
    def num_hosts(self) -> int:
        """Number of hosts of the tree."""
        return self.hosts or (self.arity or 1) ** (self.levels or 1)

    @property
    def links_per_host(self) -> int:
        """Links of a host to leaf switches: one for each rail."""
        return self.rails

    @property
    def _leaves_per_rail(self) -> int:
        """Number of leaf switches of a rail that have hosts."""
        return -(-self.num_hosts // self.hosts_per_leaf)

    def links(self) -> list[LevelLinks]:
        """Return the links below every level of switches, from the hosts up."""
        links = [LevelLinks(self.hosts_per_leaf)]
        if self.num_levels == 1:
            return links
        return links + (
            self._links_of_arity() if self.ports is None else self._links_of_ports()
        )

    def _links_of_arity(self) -> list[LevelLinks]:
        """Return the links below every level but the leaf switches, of a k-ary n-tree."""
        arity = self.arity or 1
        middle_levels = (self.levels or 1) - 2
        subtrees = -(-self.num_hosts // arity ** (middle_levels + 1))
        children = [arity] * middle_levels + [self.rails * subtrees]
        parents = [self.uplinks, *[arity] * middle_levels]
        return [
            LevelLinks(num_children, num_parents)
            for num_children, num_parents in zip(children, parents, strict=True)
        ]

    def _links_of_ports(self) -> list[LevelLinks]:
        """Return the links below every level but the leaf switches, of a tree described
        by its switches.
        """
        links = []
        uplinks = self.uplinks
        subtrees_below = self._leaves_per_rail
        half_ports = self._ports // 2
        for level in range(2, self.num_levels + 1):
            is_top = level == self.num_levels
            # subtrees of one size, as few as there can be
            subtrees = 1 if is_top else -(-subtrees_below // half_ports)
            children = (
                subtrees_below * self.rails
                if is_top
                else -(-subtrees_below // subtrees)
            )
            parents = next(
                n
                for n in range(1, uplinks + 1)
                if uplinks % n == 0
                and self._fits(children, uplinks // n, is_top=is_top)
            )
            links.append(LevelLinks(children, parents, uplinks // parents))
            uplinks = children * uplinks // parents
            subtrees_below = subtrees
        return links

    def _fits(self, children: int, parallel: int, *, is_top: bool) -> bool:
        """Return True if a switch has the ports for ``parallel`` links to ``children``
        children.
        """
        if is_top and self.directors:
            return self.directors.problem(children, parallel) is None
        return children * parallel <= (self._ports if is_top else self._ports // 2)

    def structure(self) -> str:
        """Describe the switches of a tree that is given by its ports; empty for a k-ary
        n-tree.
        """
        if self.ports is None:
            return ""
        links = self.links()
        if len(links) == 1:
            return f"1 switch with {self.num_hosts * self.rails} of {self.ports} ports in use"
        unused = self.ports - self.hosts_per_leaf - self.uplinks
        remark = f", {unused} of {self.ports} ports unused" if unused else ""
        subtrees = self._leaves_per_rail
        switches_per_subtree = 1
        tiers = [
            f"{subtrees * self.rails} leaf switches with {self.hosts_per_leaf} links down and"
            f" {self.uplinks} up{remark}"
        ]
        for level, upper in enumerate(links[1:], 2):
            is_top = level == len(links)
            subtrees = 1 if is_top else -(-subtrees // upper.children)
            switches_per_subtree *= upper.parents
            count = switches_per_subtree * (1 if is_top else subtrees * self.rails)
            switches = f"{count} {self._tier(level)} switch{'es' * (count > 1)}"
            if is_top and self.directors:
                switches += (
                    f" of {self.directors.describe(upper.children, upper.parallel)}"
                )
            tiers.append(
                f"{switches}, {format_count(upper.parallel, 'link')} to each one below"
            )
        bisection_links = (
            self.num_hosts * self.rails * self.uplinks / self.hosts_per_leaf
        )
        bisection = readable(bisection_links * self.link_bandwidth, Dimension.BANDWIDTH)
        return "; ".join((*tiers, f"bisection about {bisection} both ways together"))

    @property
    def height(self) -> int:
        """Number of switch levels less one; ``directors`` count as two levels of
        modules.
        """
        return self.num_levels - 1 + (self.directors is not None)

    def build(self, graph: Graph) -> None:
        """Add hosts ``h0000`` and switches, named by level and digits: ``leaf.3``,
        ``spine.0``.

        A switch of level l is a digit for each level above it (which subtree) and one
        for each level below (which parent was taken); two switches of neighbouring
        levels are linked where their other digits agree. The subtrees below the topmost
        switches are those of rail 0, of rail 1, and so on.
        """
        links = self.links()
        cable: dict[str, Any] = {
            "bandwidth": self.link_bandwidth,
            "latency": self.cable_latency,
        }
        tiers = [self._tier(level) for level in range(1, self.num_levels + 1)]
        for level, tier in enumerate(tiers, 1):
            parents = itertools.product(
                *(range(upper.parents) for upper in links[1:level])
            )
            subtrees = self._subtrees(links[level:])
            for parent_digits, subtree_digits in itertools.product(parents, subtrees):
                if self._is_empty(subtree_digits, links):
                    continue  # no host below: not built
                name = self._name(tier, subtree_digits, parent_digits)
                children: list[str] = []
                if level > 1:
                    child_names = (
                        self._name(
                            tiers[level - 2],
                            (*subtree_digits, child),
                            parent_digits[:-1],
                        )
                        for child in range(links[level - 1].children)
                    )
                    children = [child for child in child_names if child in graph]
                parallel = links[level - 1].parallel
                if self.directors and level == len(tiers):
                    self.directors.add_modules(
                        graph,
                        name,
                        self.switch_latency,
                        [children],
                        links=parallel,
                        cable=cable,
                    )
                    continue
                add_switch(graph, name, tier, self.switch_latency)
                for child_name in children:
                    connect(graph, child_name, name, links=parallel, **cable)
        self._add_hosts(graph, links, cable)

    @staticmethod
    def _subtrees(links: list[LevelLinks]) -> Iterable[tuple[int, ...]]:
        """Iterate over the digits of all subtrees below ``links``, the topmost digit
        first.
        """
        return itertools.product(
            *(range(level_links.children) for level_links in reversed(links))
        )

    def _is_empty(
        self, subtree_digits: tuple[int, ...], links: list[LevelLinks]
    ) -> bool:
        """Return True if no host is below the switches with the digits
        ``subtree_digits``.
        """
        # the digits, read as a number with a radix for each level, are the index of the subtree
        level = len(links) - len(subtree_digits)
        subtree = 0
        for digit, upper in zip(subtree_digits, reversed(links[level:]), strict=True):
            subtree = subtree * upper.children + digit
        first_leaf = subtree * math.prod(
            level_links.children for level_links in links[1:level]
        )
        rails = self.rails if len(links) > 1 else 1
        leaves_of_rail = (
            math.prod(level_links.children for level_links in links[1:]) // rails
        )
        return first_leaf % leaves_of_rail >= self._leaves_per_rail

    def _add_hosts(
        self, graph: Graph, links: list[LevelLinks], cable: dict[str, Any]
    ) -> None:
        """Add all hosts and their links to leaf switches."""
        leaves = list(self._subtrees(links[1:]))
        # of a host: one on the leaf switches of each rail, or all on the only switch
        rails, parallel = (self.rails, 1) if len(links) > 1 else (1, self.rails)
        leaf_names = [self._name("leaf", leaf, ()) for leaf in leaves]
        hosts_per_leaf = self.hosts_per_leaf
        for host in range(self.num_hosts):
            name = f"h{host:04d}"
            add_host(graph, name)
            for rail in range(rails):
                leaf = leaf_names[
                    rail * (len(leaf_names) // rails) + host // hosts_per_leaf
                ]
                connect(graph, name, leaf, links=parallel, **cable)

    def _tier(self, level: int) -> str:
        """Return the tier of a level: 'leaf', 'spine', or 'level2' and so on between
        them.
        """
        if level == 1:
            return "leaf"
        return "spine" if level == self.num_levels else f"level{level}"

    @staticmethod
    def _name(
        tier: str, subtree_digits: tuple[int, ...], parent_digits: tuple[int, ...]
    ) -> str:
        """Return the name of a switch: its tier, then its digits, such as ``leaf.3``."""
        return ".".join([tier, *map(str, subtree_digits), *map(str, parent_digits)])
