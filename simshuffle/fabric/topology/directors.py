"""Directors: large switches that are built of modules, opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import PydanticCustomError

from simshuffle.fabric.topology.base import problem
from simshuffle.fabric.topology.graph import Graph, add_switch, connect
from simshuffle.spec.record import Few, Seconds, Spec


class Directors(Spec):
    """What the topmost switches are made of: line modules with ``line_ports`` ports for the
    switches below, each linked to every one of ``fabric_modules``. A module has as many ports as
    both numbers together, so there are at most so many line modules; those that are not needed are
    left out. A Mellanox CS7500 has 36 line modules of 18 ports and 18 fabric modules.

    All parallel links of a lower switch are side by side on one line module. Lower switches fill
    line modules in their order; where not all links of one fit, it goes to the next module, and
    so does the first of each set of those that lead to different hosts: FBB switches 0 of all
    racks, then FBB switches 1, and so on. So two racks share a line module of every set or of none,
    and D-mod-K spreads traffic evenly: shortest routes turn at a line module where they can.

    A way through two line modules and a fabric module takes as long as one through the closed
    switch. Links inside have the bandwidth of those outside and no length.

    Attributes:
        line_ports: ports of a line module for the switches below.
        fabric_modules: of a director; each line module has a link to every one.
        module_latency: of crossing a module; a third of that of the closed switch if left out.
    """

    line_ports: Few
    fabric_modules: Few
    module_latency: Seconds | None = None

    @property
    def most_lines(self) -> int:
        """Line modules that the ports of a fabric module have room for."""
        return self.line_ports + self.fabric_modules

    @property
    def ports(self) -> int:
        """For the switches below, of all line modules."""
        return self.most_lines * self.line_ports

    def lines(self, count: int, links: int, sets: int = 1) -> int:
        """Line modules that sets of ``count`` lower switches with ``links`` each need; more than
        there can be if their links do not fit one."""
        on_line = self.line_ports // links
        return sets * -(-count // on_line) if on_line else self.most_lines + 1

    def problem(self, count: int, links: int, sets: int = 1) -> PydanticCustomError | None:
        """What keeps so many lower switches from being linked to one director."""
        if self.lines(count, links, sets) <= self.most_lines:
            return None
        rule = (
            f"{self.most_lines} line modules of {self.line_ports} ports have no room for the links"
            " of all switches below, those of each on one module"
        )
        found = f"{sets * count} switches x {links} links"
        return problem("directors", rule, found, "Use more line_ports, or leave directors out.")

    def told(self, count: int, links: int, sets: int = 1) -> str:
        """What a director is made of, for people."""
        return f"{self.lines(count, links, sets)} line and {self.fabric_modules} fabric modules"

    def add(
        self,
        graph: Graph,
        name: str,
        latency: float,
        lower: Sequence[Sequence[str]],
        *,
        links: int,
        cable: dict[str, Any],
    ) -> None:
        """Add the modules ``NAME.line0`` and ``NAME.fabric0`` of a director.

        Args:
            graph: what they are added to.
            name: of the director.
            latency: of the closed switch (s).
            lower: the names of the switches below, set by set, of which all have as many.
            links: parallel links from each of those.
            cable: bandwidth and latency of each.
        """
        each = latency / 3 if self.module_latency is None else self.module_latency
        on_line, of_set = self.line_ports // links, self.lines(len(lower[0]), links)
        lines = [f"{name}.line{i}" for i in range(of_set * len(lower))]
        for line in lines:
            add_switch(graph, line, "line", each)
        for number, switches in enumerate(lower):
            for i, switch in enumerate(switches):
                line = lines[number * of_set + i // on_line]
                connect(graph, switch, line, links=links, **cable)
        for i in range(self.fabric_modules):
            fabric = f"{name}.fabric{i}"
            add_switch(graph, fabric, "fabric", each)
            for line in lines:
                connect(graph, line, fabric, bandwidth=cable["bandwidth"], latency=0.0)
