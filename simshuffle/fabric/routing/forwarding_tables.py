"""Forwarding tables from a file: the ones that the switches of a real machine have."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simshuffle.errors import Problem, TopologyError
from simshuffle.fabric.routing.fabric import Fabric
from simshuffle.fabric.routing.min_hop import BalancedRouter
from simshuffle.fabric.routing.router import (
    HopByHop,
    MessagePositions,
    Router,
    RoutingRule,
    unsuited,
)
from simshuffle.fabric.topology.custom import read_limited_file
from simshuffle.spec.arrays import Ints32

MAX_BYTES = 256 << 20
"""Largest file: 1,000 switches and 20,000 destinations have some 80 MB."""
MANY = 20
"""Most problems of a file that an error names; further ones are left out."""
_REMEDY = "Dump fabric and tables again, one after the other, and import both."

Port = Annotated[int, Field(ge=0, le=65535)]


class ForwardingTableFile(BaseModel):
    """The content of a file of forwarding tables.

    Attributes:
        destinations: of each destination the name of the node, and the number of the
            port at that node.
        switches: by the name of each switch, the numbers of its ports to the
            destinations, in their order; 0 where the switch has no route.
        source: text that says where the tables are from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    destinations: list[tuple[str, Port]]
    switches: dict[str, list[Port]]
    source: str = ""

    def to_json(self) -> str:
        """Return the text of the file; a line for each switch."""
        rows = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(ports, separators=(',', ':'))}"
            for name, ports in self.switches.items()
        )
        destinations = json.dumps(
            [list(destination) for destination in self.destinations]
        )
        return (
            f'{{"source": {json.dumps(self.source)},\n"destinations": {destinations},\n'
            f'"switches": {{\n{rows}\n}}}}\n'
        )


class ForwardingTables(RoutingRule):
    """Forwarding tables that were dumped from a fabric: a JSON file, which ``simshuffle
    machine import --routes`` writes. It needs a topology whose links have ports.
    Storage that is not in the file is reached as by `MinHop`. ``sha256``, if given,
    must be that of the file.

    Attributes:
        path: of the file, from the folder of the scenario or from the working
            directory.
        sha256: of that file, in hexadecimal; if given, another file is refused.
    """

    kind: Literal["forwarding_tables"] = "forwarding_tables"
    path: str
    sha256: str | None = None

    def router(self, fabric: Fabric, seed: int) -> Router:
        """Return a router that looks up the tables of the file; see
        `RoutingRule.router`.
        """
        return TableRouter(fabric, self.tables(), self.path)

    def tables(self) -> ForwardingTableFile:
        """Read the file, of at most `MAX_BYTES`.

        Raises:
            TopologyError: the file cannot be read, is too large, has another hash than
                ``sha256``, or holds no tables.
        """
        try:
            content = read_limited_file(
                self.path, MAX_BYTES, "Import a part of the fabric."
            )
            if self.sha256 not in (None, hashlib.sha256(content).hexdigest()):
                rule = "is no longer the file that sha256 names. Remove sha256 to use the new one."
                raise TopologyError(rule, self.path)
            return ForwardingTableFile.model_validate_json(content)
        except TopologyError:
            raise
        except OSError as error:
            remedy = "Give the path relative to the machine's file."
            raise TopologyError(
                f"cannot be read: {error.strerror}. {remedy}", self.path
            ) from None
        except ValidationError as error:
            first_error = error.errors()[0]
            where = ".".join(map(str, first_error["loc"]))
            remedy = "Write it with `simshuffle machine import --routes`."
            raise TopologyError(
                Problem(where, first_error["msg"], "", remedy), self.path
            ) from None
        except ValueError as error:
            raise TopologyError(
                f"cannot be read: {error}. Correct the path.", self.path
            ) from None


class TableRouter(HopByHop):
    """Routes by the forwarding tables of a file.

    Destinations and switches of the file that are not in the network are left out.
    Ports that are not in the file are reached as by `MinHop`: storage that a machine
    adds.

    Args:
        fabric: the network.
        tables: the tables of its switches.
        source: name of the file, for errors.

    Attributes:
        table: (switches, ports) the link by which each switch sends to each port; -1
            for none.

    Raises:
        TopologyError: links have no ports, a host port or the table of a transit switch
            is missing, a table has another length than the destinations, a port has no
            cable, a destination is not reached, its last switch sends by another link
            than the one that leads to it, or a route is a circle. The error names at
            most `MANY` problems.
    """

    by_destination = True

    def __init__(
        self, fabric: Fabric, tables: ForwardingTableFile, source: str
    ) -> None:
        super().__init__(fabric)
        if fabric.cabling.ports is None:
            raise unsuited(
                "forwarding_tables is for links with ports",
                "links without ports",
                "Import the fabric with `simshuffle machine import`.",
            )
        self._problems: list[Problem] = []
        self._tables = tables
        self._source = source
        kinds = np.array(fabric.cabling.kinds)
        self._node_of_port = fabric.links.dst_node[fabric.eject_link]
        """(ports,) the node of each port."""
        self._kind_of_port = kinds[self._node_of_port]
        self.table = self._fill_table()
        self._max_steps = self._check_routes()

    @property
    def diameter(self) -> int:
        """Number of links of the longest route; see `Router.diameter`."""
        return 2 + self._max_steps

    def choose(self, step: MessagePositions) -> Ints32:
        """(n,) next link of each message, looked up in the table; see
        `HopByHop.choose`.
        """
        return self.table[step.switch, step.dst]

    def _fill_table(self) -> Ints32:
        """(switches, ports) the link by which each switch sends to each port; -1 for
        none.

        Ports that are not in the file are reached as by `MinHop`. A switch without a
        table in the file sends so to all ports, unless it is a transit switch.

        Raises:
            TopologyError: with the first `MANY` problems: a host port or the table of a
                transit switch is missing, a table has another length than the
                destinations, or a port has no cable.
        """
        fabric = self.fabric
        tables = self._tables
        # the file does not know the storage that a machine adds, and the switch of that storage
        table = BalancedRouter(fabric).table
        port_by_node = self._ports_by_node()
        port_of_column = np.array(
            [port_by_node.get(destination, -1) for destination in tables.destinations],
            np.int64,
        )
        host_ports = np.flatnonzero(self._kind_of_port == "host").tolist()
        for port in sorted(set(host_ports) - set(port_of_column.tolist())):
            rule = "must hold every host port"
            self._note_problem("destinations", rule, self._describe_port(port))
        is_known = port_of_column >= 0
        known_ports = port_of_column[is_known]
        for switch, node in enumerate(fabric.switches.nodes.tolist()):
            name = fabric.cabling.names[node]
            switch_row = tables.switches.get(name)
            if switch_row is None:
                if fabric.switches.is_transit[switch]:
                    self._note_problem(
                        f"switches.{name}", "every switch needs a table", "none"
                    )
            elif len(switch_row) != len(port_of_column):
                rule = f"must have a port for each of the {len(port_of_column)} destinations"
                self._note_problem(f"switches.{name}", rule, f"{len(switch_row)} ports")
            else:
                row_ports = np.array(switch_row, np.int64)[is_known]
                table[switch, known_ports] = self._links_by_port(
                    name, switch, row_ports, known_ports
                )
        self._raise_problems()
        return table

    def _ports_by_node(self) -> dict[tuple[str, int], int]:
        """Map the name of a node, and the number of a port there, to the port index."""
        cabling = self.fabric.cabling
        assert cabling.ports is not None  # noqa: S101 - checked before
        # the end of a cable that link 2k leaves is the first; that of 2k + 1 the second
        port_indices = cabling.ports.ravel()[self.fabric.inject_link].tolist()
        node_names = [cabling.names[node] for node in self._node_of_port.tolist()]
        return {
            key: port
            for port, key in enumerate(zip(node_names, port_indices, strict=True))
        }

    def _links_by_port(
        self, name: str, switch: int, ports: Any, destinations: Any
    ) -> Ints32:
        """(n,) the links that leave a switch by the port numbers ``ports`` (n,).

        It is -1 for number 0, and for a number without a cable, which is noted as a
        problem.

        Args:
            name: of the switch.
            switch: its index.
            ports: (n,) port numbers at the switch.
            destinations: (n,) indices of the ports to which they lead, for the text of
                a problem.
        """
        fabric = self.fabric
        cabling = fabric.cabling
        assert cabling.ports is not None  # noqa: S101 - checked before
        src_switch = fabric.switch_of_node[cabling.ends.ravel()]
        switch_links = np.flatnonzero(src_switch == switch)
        port_numbers = cabling.ports.ravel()[switch_links]
        max_number = max(int(ports.max(initial=0)), int(port_numbers.max(initial=0)))
        link_of_number = np.full(max_number + 1, -1, np.int32)
        link_of_number[port_numbers[port_numbers > 0]] = switch_links[port_numbers > 0]
        links: Ints32 = link_of_number[ports]
        for row in np.flatnonzero((links < 0) & (ports > 0)).tolist():
            destination = self._describe_port(int(destinations[row]))
            rule = f"the port towards {destination} must have a cable"
            self._note_problem(f"switches.{name}", rule, f"port {ports[row]}")
        return links

    def _check_routes(self) -> int:
        """Follow all routes between hosts or storage; return the most switches that a
        route passes after the first. Ports of 'other' nodes are not checked.

        Raises:
            TopologyError: with the first `MANY` problems: ports that are not reached,
                circles, and wrong last links.
        """
        fabric = self.fabric
        table = self.table
        traffic_ports = np.flatnonzero(self._kind_of_port != "other")
        start_switches = np.unique(fabric.switch_of_port[traffic_ports])
        max_steps = 0
        for port in traffic_ports.tolist():
            link_to_port = table[:, port]
            goal = int(fabric.switch_of_port[port])
            self._check_last(port, goal)
            next_switch = np.where(
                link_to_port >= 0, fabric.entered_switch[link_to_port], -1
            )
            next_switch[goal] = goal
            positions = start_switches
            steps = 0
            while (positions != goal).any() and steps <= len(table):
                positions = np.where(positions < 0, -1, next_switch[positions])
                if (positions < 0).any():
                    break
                steps += 1
            if (positions != goal).any():
                self._note_lost_port(port, goal, next_switch, start_switches)
            max_steps = max(max_steps, steps)
        self._raise_problems()
        return max_steps

    def _check_last(self, port: int, goal: int) -> None:
        """Note a problem if the last switch ``goal`` sends to ``port`` by another link
        than the one that leads there; -1 in the table is no problem.
        """
        link = int(self.table[goal, port])
        if link not in (-1, int(self.fabric.eject_link[port])):
            destination = self._describe_port(port)
            rule = f"what is for {destination} must leave by the port that leads there"
            path = f"switches.{self._switch_name(goal)}"
            self._note_problem(path, rule, f"port {self._port_of_link(link)}")

    def _note_lost_port(
        self, port: int, goal: int, next_switch: Ints32, start_switches: Ints32
    ) -> None:
        """Note the first switch from which a port is not reached, and the reason: a
        switch without a link for it, or a circle. The problem names where the route
        ends.

        Args:
            port: the port that is not reached.
            goal: the switch of the port.
            next_switch: (switches,) where each switch sends what is for the port; -1
                for nowhere.
            start_switches: the switches that routes begin at.
        """
        for start in start_switches.tolist():
            route = [start]
            while route[-1] not in (goal, -1) and route[-1] not in route[:-1]:
                route.append(int(next_switch[route[-1]]))
            if route[-1] == goal:
                continue
            names = [self._switch_name(switch) for switch in route if switch >= 0]
            rule = f"{self._describe_port(port)} must be reached from every host"
            observed = (
                "no port for it"
                if route[-1] == -1
                else f"a circle: {' > '.join(names)}"
            )
            self._note_problem(f"switches.{names[-1]}", rule, observed)
            return

    def _switch_name(self, switch: int) -> str:
        """Return the name of a switch."""
        return self.fabric.switch_names(np.array([switch]))[0]

    def _port_of_link(self, link: int) -> int:
        """Return the number of the port by which a link leaves its node."""
        assert self.fabric.cabling.ports is not None  # noqa: S101 - checked before
        return int(self.fabric.cabling.ports.ravel()[link])

    def _describe_port(self, port: int) -> str:
        """Return a port as text, its node and its number there: 'h0003 port 1'."""
        name = self.fabric.cabling.names[int(self._node_of_port[port])]
        return f"{name} port {self._port_of_link(int(self.fabric.inject_link[port]))}"

    def _note_problem(self, path: str, rule: str, observed: str) -> None:
        """Keep a problem of the tables for `_raise_problems`."""
        self._problems.append(Problem(path, rule, observed, _REMEDY))

    def _raise_problems(self) -> None:
        """Raise a TopologyError with the first `MANY` problems noted, if any."""
        if self._problems:
            raise TopologyError(self._problems[:MANY], self._source)
