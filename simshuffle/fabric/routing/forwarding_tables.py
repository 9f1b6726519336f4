"""Forwarding tables of a file: those that the switches of a machine really have."""

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
"""Problems of a file that are told."""
_REMEDY = "Dump fabric and tables again, one after the other, and import both."

Port = Annotated[int, Field(ge=0, le=65535)]


class ForwardingTableFile(BaseModel):
    """What a file of forwarding tables holds.

    Attributes:
        destinations: of each the node, and the number of the port at which it is reached.
        switches: for each switch the number of the port to each destination; 0 for none.
        source: where they are from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    destinations: list[tuple[str, Port]]
    switches: dict[str, list[Port]]
    source: str = ""

    def to_json(self) -> str:
        """The text of the file; a line for each switch."""
        rows = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(ports, separators=(',', ':'))}"
            for name, ports in self.switches.items()
        )
        destinations = json.dumps([list(each) for each in self.destinations])
        return (
            f'{{"source": {json.dumps(self.source)},\n"destinations": {destinations},\n'
            f'"switches": {{\n{rows}\n}}}}\n'
        )


class ForwardingTables(RoutingRule):
    """Forwarding tables that were dumped from a fabric: a JSON file, which ``simshuffle machine
    import --routes`` writes. It needs a topology whose links have ports. Storage that is not in the
    file is reached as by `MinHop`. ``sha256``, if given, must be that of the file.

    Attributes:
        path: of the file, from the folder of the scenario or from the working directory.
        sha256: of that file, in hexadecimal; if given, another file is refused.
    """

    kind: Literal["forwarding_tables"] = "forwarding_tables"
    path: str
    sha256: str | None = None

    def router(self, fabric: Fabric, seed: int) -> Router:
        """See `RoutingRule.router`."""
        return TableRouter(fabric, self.tables(), self.path)

    def tables(self) -> ForwardingTableFile:
        """What the file holds.

        Raises:
            TopologyError: it cannot be read, has changed, or holds no tables.
        """
        try:
            content = read_limited_file(self.path, MAX_BYTES, "Import a part of the fabric.")
            if self.sha256 not in (None, hashlib.sha256(content).hexdigest()):
                rule = "is no longer the file that sha256 names. Remove sha256 to use the new one."
                raise TopologyError(rule, self.path)
            return ForwardingTableFile.model_validate_json(content)
        except TopologyError:
            raise
        except OSError as error:
            remedy = "Give the path relative to the machine's file."
            raise TopologyError(f"cannot be read: {error.strerror}. {remedy}", self.path) from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            remedy = "Write it with `simshuffle machine import --routes`."
            raise TopologyError(Problem(where, first["msg"], "", remedy), self.path) from None
        except ValueError as error:
            raise TopologyError(f"cannot be read: {error}. Correct the path.", self.path) from None


class TableRouter(HopByHop):
    """Routes by given tables.

    Args:
        fabric: the network.
        tables: of its switches.
        source: what errors call them.

    Raises:
        TopologyError: a port has no cable, a destination is not reached, or a way is a circle.
    """

    by_destination = True

    def __init__(self, fabric: Fabric, tables: ForwardingTableFile, source: str) -> None:
        super().__init__(fabric)
        if fabric.cabling.ports is None:
            raise unsuited(
                "forwarding_tables is for links with ports",
                "links without ports",
                "Import the fabric with `simshuffle machine import`.",
            )
        self._problems: list[Problem] = []
        self._tables, self._source = tables, source
        kinds = np.array(fabric.cabling.kinds)
        self._owner = fabric.links.dst_node[fabric.eject]
        """(ports,) the node of each port."""
        self._kind = kinds[self._owner]
        self.table = self._filled()
        self._steps = self._checked()

    @property
    def diameter(self) -> int:
        """See `Router.diameter`."""
        return 2 + self._steps

    def choose(self, step: MessagePositions) -> Ints32:
        """See `HopByHop.choose`."""
        return self.table[step.here, step.dst]

    def _filled(self) -> Ints32:
        """(switches, ports) the link by which each switch sends to each port; -1 for none."""
        fabric, tables = self.fabric, self._tables
        # what the file does not know: the storage that a machine adds, and the switch of its own
        table = BalancedRouter(fabric).table.copy()
        known = self._known_ports()
        columns = np.array([known.get(each, -1) for each in tables.destinations], np.int64)
        missing = set(np.flatnonzero(self._kind != "storage").tolist()) - set(columns.tolist())
        for port in sorted(missing):
            if self._kind[port] == "host":
                self._problem("destinations", "must hold every host port", self._called(port))
        asked = columns >= 0
        for switch, node in enumerate(fabric.switches.nodes.tolist()):
            name = fabric.cabling.names[node]
            row = tables.switches.get(name)
            if row is None:
                if fabric.switches.is_transit[switch]:
                    self._problem(f"switches.{name}", "every switch needs a table", "none")
            elif len(row) != len(columns):
                rule = f"must have a port for each of the {len(columns)} destinations"
                self._problem(f"switches.{name}", rule, f"{len(row)} ports")
            else:
                ports = np.array(row, np.int64)[asked]
                table[switch, columns[asked]] = self._links(name, switch, ports, columns[asked])
        self._raise()
        return table

    def _known_ports(self) -> dict[tuple[str, int], int]:
        """The number of each port by its node and the number that it has there."""
        cabling = self.fabric.cabling
        assert cabling.ports is not None  # noqa: S101 - checked before
        # the end of a cable that link 2k leaves is the first; that of 2k + 1 the second
        leaving = cabling.ports.ravel()[self.fabric.inject].tolist()
        owners = [cabling.names[node] for node in self._owner.tolist()]
        return {key: port for port, key in enumerate(zip(owners, leaving, strict=True))}

    def _links(self, name: str, switch: int, ports: Any, columns: Any) -> Ints32:
        """(n,) the links that leave a switch by its ``ports`` (n,), -1 for 0."""
        fabric = self.fabric
        cabling = fabric.cabling
        assert cabling.ports is not None  # noqa: S101 - checked before
        leaves = fabric.number[cabling.ends.ravel()]
        own = np.flatnonzero(leaves == switch)
        numbers = cabling.ports.ravel()[own]
        by_port = np.full(
            max(int(ports.max(initial=0)), int(numbers.max(initial=0))) + 1, -1, np.int32
        )
        by_port[numbers[numbers > 0]] = own[numbers > 0]
        links: Ints32 = by_port[ports]
        for wrong in np.flatnonzero((links < 0) & (ports > 0)).tolist():
            to = self._called(int(columns[wrong]))
            rule = f"the port towards {to} must have a cable"
            self._problem(f"switches.{name}", rule, f"port {ports[wrong]}")
        return links

    def _checked(self) -> int:
        """The most switches that a way between hosts or storage passes after the first."""
        fabric, table = self.fabric, self.table
        partake = np.flatnonzero(self._kind != "other")
        starts = np.unique(fabric.at[partake])
        longest = 0
        for port in partake.tolist():
            column, goal = table[:, port], int(fabric.at[port])
            self._check_last(port, goal)
            following = np.where(column >= 0, fabric.entered[column], -1)
            following[goal] = goal
            here, steps = starts, 0
            while (here != goal).any() and steps <= len(table):
                here = np.where(here < 0, -1, following[here])
                if (here < 0).any():
                    break
                steps += 1
            if (here != goal).any():
                self._lost(port, goal, following, starts)
            longest = max(longest, steps)
        self._raise()
        return longest

    def _check_last(self, port: int, goal: int) -> None:
        link = int(self.table[goal, port])
        if link not in (-1, int(self.fabric.eject[port])):
            rule = f"what is for {self._called(port)} must leave by the port that leads there"
            self._problem(f"switches.{self._name(goal)}", rule, f"port {self._port(link)}")

    def _lost(self, port: int, goal: int, following: Ints32, starts: Ints32) -> None:
        """Note the first switch from which a port is not reached, and why."""
        for start in starts.tolist():
            way = [start]
            while way[-1] not in (goal, -1) and way[-1] not in way[:-1]:
                way.append(int(following[way[-1]]))
            if way[-1] == goal:
                continue
            names = [self._name(switch) for switch in way if switch >= 0]
            rule = f"{self._called(port)} must be reached from every host"
            found = "no port for it" if way[-1] == -1 else f"a circle: {' > '.join(names)}"
            self._problem(f"switches.{names[-1]}", rule, found)
            return

    def _name(self, switch: int) -> str:
        return self.fabric.switch_names(np.array([switch]))[0]

    def _port(self, link: int) -> int:
        assert self.fabric.cabling.ports is not None  # noqa: S101 - checked before
        return int(self.fabric.cabling.ports.ravel()[link])

    def _called(self, port: int) -> str:
        name = self.fabric.cabling.names[int(self._owner[port])]
        return f"{name} port {self._port(int(self.fabric.inject[port]))}"

    def _problem(self, path: str, rule: str, found: str) -> None:
        self._problems.append(Problem(path, rule, found, _REMEDY))

    def _raise(self) -> None:
        if self._problems:
            raise TopologyError(self._problems[:MANY], self._source)
