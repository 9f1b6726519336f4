"""The base of topologies whose switches, or leaf switches, all have equally many hosts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from simshuffle.fabric.topology.base import Interconnect, problem
from simshuffle.fabric.topology.graph import Graph, add_host, connect
from simshuffle.spec.record import MOST_HOSTS, Bandwidth, Count, Few, Seconds, Sourced
from simshuffle.spec.units import Dimension, readable

MOST_LINKS = 1_000_000
"""Links between switches; more would fill the memory before anything is simulated."""


def _number_to_list(value: object) -> object:
    """Put a whole number into a list; other values are returned as they are."""
    return [value] if type(value) is int else value


Shape = Annotated[
    list[Annotated[int, Field(ge=2, le=1024)]], Field(min_length=1, max_length=8)
]
"""Switches in every dimension."""
NumberPerDimension = Annotated[
    list[Few], BeforeValidator(_number_to_list, json_schema_input_type=Few | list[Few])
]
"""A number for each dimension, or one for all."""


class Populated(Sourced, Interconnect):
    """``hosts_per_switch`` hosts on each of the switches that have hosts, all HCAs of a
    host on its switch.

    If ``hosts`` are given, they are fewer. They are spread evenly over the switches, in
    their order, or fill one switch after the other.

    Attributes:
        hosts_per_switch: hosts on each switch that has some.
        hcas_per_host: links of a host to its switch.
        hosts: hosts in all; as many as there is room for if left out.
        spread: whether fewer hosts are spread evenly, with at least one on each switch;
            else they fill one switch after the other, and the last ones have none.
        link_bandwidth: of a link, in each direction.
        cable_latency: of every cable.
        switch_latency: of crossing a switch.
    """

    default_sources: ClassVar[dict[str, str]] = {
        "cable_latency": "default: 5 m x 5.2 ns/m, as in topologies/abci.yaml",
        "switch_latency": "default: Mellanox SB7890, 90 ns, as in topologies/abci.yaml",
    }

    sized_by: ClassVar[str]
    """The key that says how many switches there are."""

    hosts_per_switch: Few
    hcas_per_host: Few = 1
    hosts: Count | None = None
    spread: bool = True
    link_bandwidth: Bandwidth
    cable_latency: Seconds = 26e-9
    switch_latency: Seconds = 90e-9

    @property
    @abstractmethod
    def switches_with_hosts(self) -> int:
        """Number of switches that have hosts."""

    @property
    @abstractmethod
    def switch_links(self) -> int:
        """Number of links between switches."""

    @model_validator(mode="after")
    def _validate(self) -> Populated:
        """Check the record by `_check`, which topologies extend."""
        self._check()
        return self

    def _check(self) -> None:
        """Raise a PydanticCustomError where the numbers of hosts, HCAs, switches and
        links do not go together.

        The hosts must fit on the switches, and with ``spread`` be at least one on each.
        All hosts together have at most `MOST_HOSTS` HCAs. There are at most `MOST_LINKS`
        links between switches.
        """
        max_hosts = self.switches_with_hosts * self.hosts_per_switch
        min_hosts = self.switches_with_hosts if self.spread else 1
        if self.hosts is not None and not min_hosts <= self.hosts <= max_hosts:
            spread_rule = ", one on each switch," if self.spread else ""
            raise problem(
                "hosts",
                f"must be from {min_hosts}{spread_rule} to {max_hosts},"
                f" {self.hosts_per_switch} on each switch",
                self.hosts,
                "Give as many, or other numbers of switches or of hosts_per_switch.",
            )
        if self.num_hosts * self.hcas_per_host > MOST_HOSTS:
            rule = f"all hosts together must have at most {MOST_HOSTS} HCAs"
            hosts_and_hcas = f"{self.num_hosts} hosts x {self.hcas_per_host}"
            raise problem(
                "hosts_per_switch", rule, hosts_and_hcas, "Use fewer hosts or switches."
            )
        if self.switch_links > MOST_LINKS:
            rule = f"all links between switches together must be at most {MOST_LINKS}"
            raise problem(
                self.sized_by, rule, self.switch_links, "Use fewer switches or links."
            )

    @property
    def num_hosts(self) -> int:
        """Number of hosts on all switches."""
        return self.hosts or self.switches_with_hosts * self.hosts_per_switch

    @property
    def links_per_host(self) -> int:
        """Links of a host to its switch: one for each HCA."""
        return self.hcas_per_host

    @property
    def _cable(self) -> dict[str, Any]:
        """Bandwidth and latency of a cable, as keyword arguments of `connect`."""
        return {"bandwidth": self.link_bandwidth, "latency": self.cable_latency}

    def _add_hosts(self, graph: Graph, switches: Sequence[str]) -> None:
        """Add hosts ``h0000`` and so on to the switches named ``switches``, in their
        order.
        """
        num_hosts = self.num_hosts
        for host in range(num_hosts):
            name = f"h{host:04d}"
            add_host(graph, name)
            switch_index = (
                host * len(switches) // num_hosts
                if self.spread
                else host // self.hosts_per_switch
            )
            connect(
                graph,
                name,
                switches[switch_index],
                links=self.hcas_per_host,
                **self._cable,
            )

    def _describe(self, num_switches: int, *details: str, bisection: float) -> str:
        """Describe the network in words, for `Interconnect.structure`.

        The text has the numbers of switches and of links between them, the details, and
        the bisection bandwidth; not the number of hosts.

        Args:
            num_switches: switches of the network.
            details: further parts of the text.
            bisection: bytes/s that cross the middle of the network in one direction;
                the text has both together, twice as many.
        """
        bandwidth = readable(2 * bisection, Dimension.BANDWIDTH)
        return "; ".join(
            (
                f"{num_switches} switches, {format_count(self.switch_links, 'link')} between them",
                *details,
                f"bisection about {bandwidth} both ways together",
            )
        )


def format_count(count: int, noun: str) -> str:
    """Return a count and its noun, in the plural where needed: '2 links'."""
    return f"{count} {noun}{'s' * (count != 1)}"


def expand_to_dimensions(values: list[int], key: str, num_dimensions: int) -> list[int]:
    """Return the number of ``key`` for each of ``num_dimensions`` dimensions; a single
    number holds for all.

    Raises:
        PydanticCustomError: there are more or fewer.
    """
    if len(values) not in (1, num_dimensions):
        rule = f"must be one number, or {num_dimensions}: one for each dimension"
        raise problem(key, rule, values, "Give as many as the shape has.")
    return values if len(values) == num_dimensions else values * num_dimensions
