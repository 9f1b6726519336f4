"""Directors: large switches that are built of line and fabric modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import PydanticCustomError

from simshuffle.fabric.topology.base import problem
from simshuffle.fabric.topology.graph import Graph, add_switch, connect
from simshuffle.spec.record import Few, Seconds, Spec


class Directors(Spec):
    """Directors as the topmost switches: line modules with ``line_ports`` ports for the
    switches below, each linked to every one of ``fabric_modules``. A module has as many
    ports as both numbers together, so there are at most so many line modules; those
    that are not needed are left out. A Mellanox CS7500 has 36 line modules of 18 ports
    and 18 fabric modules.

    All parallel links of a lower switch are side by side on one line module. Lower
    switches fill line modules in their order; where not all links of one fit, it goes
    to the next module, and so does the first of each set of those that lead to
    different hosts: FBB switches 0 of all racks, then FBB switches 1, and so on. So two
    racks share a line module of every set or of none, and D-mod-K spreads traffic
    evenly: shortest routes turn at a line module where they can.

    A route through two line modules and a fabric module takes as long as one through
    the closed switch. Links inside have the bandwidth of those outside and no length.

    Attributes:
        line_ports: ports of a line module for the switches below.
        fabric_modules: of a director; each line module has a link to every one.
        module_latency: of crossing a module; a third of that of the closed switch if
            left out.
    """

    line_ports: Few
    fabric_modules: Few
    module_latency: Seconds | None = None

    @property
    def max_lines(self) -> int:
        """Number of line modules that the ports of a fabric module have room for."""
        return self.line_ports + self.fabric_modules

    @property
    def ports(self) -> int:
        """Number of ports for the switches below, on all line modules together."""
        return self.max_lines * self.line_ports

    def num_lines(self, set_size: int, links: int, num_sets: int = 1) -> int:
        """Number of line modules that lower switches need; more than `max_lines` if
        they do not fit.

        Args:
            set_size: lower switches of a set.
            links: parallel links from each lower switch to the director.
            num_sets: sets; each begins on a line module of its own.
        """
        switches_per_line = self.line_ports // links
        return (
            num_sets * -(-set_size // switches_per_line)
            if switches_per_line
            else self.max_lines + 1
        )

    def problem(
        self, set_size: int, links: int, num_sets: int = 1
    ) -> PydanticCustomError | None:
        """Return, not raise, the error if the lower switches do not fit one director;
        None if they fit. For the arguments see `num_lines`.
        """
        if self.num_lines(set_size, links, num_sets) <= self.max_lines:
            return None
        rule = (
            f"{self.max_lines} line modules of {self.line_ports} ports have no room for the links"
            " of all switches below, those of each on one module"
        )
        requested_links = f"{num_sets * set_size} switches x {links} links"
        return problem(
            "directors",
            rule,
            requested_links,
            "Use more line_ports, or leave directors out.",
        )

    def describe(self, set_size: int, links: int, num_sets: int = 1) -> str:
        """Describe in words how many modules a director has, such as '3 line and 18
        fabric modules'. For the arguments see `num_lines`.
        """
        lines = self.num_lines(set_size, links, num_sets)
        return f"{lines} line and {self.fabric_modules} fabric modules"

    def add_modules(
        self,
        graph: Graph,
        name: str,
        latency: float,
        lower_sets: Sequence[Sequence[str]],
        *,
        links: int,
        cable: dict[str, Any],
    ) -> None:
        """Add the modules ``NAME.line0`` and ``NAME.fabric0`` of a director, the links
        between them and the links to lower switches. Whether these fit is not checked.

        Args:
            graph: the network that the modules are added to.
            name: name of the director.
            latency: of crossing the closed switch (s).
            lower_sets: names of the switches below, set by set; all sets have the same
                size.
            links: parallel links from each lower switch.
            cable: bandwidth and latency of each link to a lower switch. Links between
                modules have this bandwidth and latency 0.
        """
        module_latency = (
            latency / 3 if self.module_latency is None else self.module_latency
        )
        switches_per_line = self.line_ports // links
        lines_per_set = self.num_lines(len(lower_sets[0]), links)
        lines = [f"{name}.line{i}" for i in range(lines_per_set * len(lower_sets))]
        for line in lines:
            add_switch(graph, line, "line", module_latency)
        for set_index, switches in enumerate(lower_sets):
            for i, switch in enumerate(switches):
                line = lines[set_index * lines_per_set + i // switches_per_line]
                connect(graph, switch, line, links=links, **cable)
        for i in range(self.fabric_modules):
            fabric = f"{name}.fabric{i}"
            add_switch(graph, fabric, "fabric", module_latency)
            for line in lines:
                connect(graph, line, fabric, bandwidth=cable["bandwidth"], latency=0.0)
