"""OpenSM's forwarding tables beside those of simshuffle's routings.

    python benchmarks/opensm.py             # recorded tables, and live ones where opensm is
    python benchmarks/opensm.py --record    # make the nets and record the tables again
    python benchmarks/opensm.py FILE ...    # other files of ibnetdiscover, live

Live runs need opensm, ibsim and ibsim-run on PATH (Debian: opensm, ibsim-utils). Nothing is sent to
a real fabric: ibsim simulates it.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simshuffle.errors import SimulationError
from simshuffle.extensions.interop.fabrics import ibsim
from simshuffle.extensions.interop.fabrics.ibnetdiscover import fabric_of
from simshuffle.extensions.interop.fabrics.imported import (
    FabricSupplement,
    ImportedFabric,
)
from simshuffle.extensions.interop.fabrics.lfts import parse_tables
from simshuffle.extensions.interop.fabrics.network_fabric import fabric_of_network
from simshuffle.fabric.routing import DModK, MinHop, RoutingRule
from simshuffle.fabric.routing.fabric import Fabric
from simshuffle.fabric.routing.forwarding_tables import ForwardingTableFile, TableRouter
from simshuffle.fabric.routing.router import HopByHop, MessagePositions
from simshuffle.fabric.topology import FatTree
from simshuffle.fabric.topology.graph import Sketch, add_host, add_switch, connect
from simshuffle.job.scenario.scenario import machine_of
from simshuffle.spec.arrays import Ints32

PROGRAMS = ("opensm", "ibsim", "ibsim-run")
"""Of the packages opensm and ibsim-utils of Debian."""
PATIENCE = 120
"""Seconds for one run."""
DUMP = "opensm-lfts.dump"


def missing_programs() -> list[str]:
    """Those of `PROGRAMS` that are not there."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


def dumped(net: Path, engine: str) -> str:
    """The forwarding tables that OpenSM's routing engine ``engine`` computes for a net file, as it
    dumps them.

    Raises:
        SimulationError: a program fails, or the engine falls back to another one.
    """
    with (
        tempfile.TemporaryDirectory(prefix="opensm-") as folder,
        _simulated(net, folder) as known,
    ):
        known |= {"OSM_TMP_DIR": folder, "OSM_CACHE_DIR": folder}
        log = Path(folder, "log")
        words = [
            "ibsim-run",
            "opensm",
            "-R",
            engine,
            "-D",
            "0x43",
            "-e",
            "-o",
            "-f",
            str(log),
        ]
        try:
            done = subprocess.run(
                words,
                env=known,
                capture_output=True,
                timeout=PATIENCE,
                check=False,
                cwd=folder,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SimulationError(
                f"OpenSM did not end: {error}. Run {' '.join(words)}."
            ) from None
        told = (
            log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        )
        if done.returncode or f"{engine} tables configured" not in told:
            last = (done.stderr.decode(errors="replace") + told)[-600:]
            raise SimulationError(f"OpenSM made no tables with {engine}: {last}")
        return Path(folder, DUMP).read_text(encoding="utf-8", errors="replace")


@contextmanager
def _simulated(net: Path, folder: str) -> Iterator[dict[str, str]]:
    """The environment in which programs find the fabric of a net file."""
    known = os.environ | {"IBSIM_SOCKNAME": f"simshuffle-{os.getpid()}"}
    sizes = ["-N", "4096", "-S", "2048", "-P", "131072", "-L", "49151"]
    words = ["ibsim", "-s", "-n", *sizes, str(net.resolve())]
    with Path(folder, "ibsim.log").open("w", encoding="utf-8") as log:
        server = subprocess.Popen(
            words,
            env=known,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(server, Path(folder, "ibsim.log"))
            yield known
        finally:
            server.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(10)
            if server.stdin is not None:
                server.stdin.close()


def _wait(server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        told = log.read_text(encoding="utf-8", errors="replace")
        if "simulator ready" in told:
            time.sleep(0.2)  # it opens its socket after that line
            return
        if server.poll() is not None:
            raise SimulationError(f"ibsim ended: {told[-300:]}")
        time.sleep(0.05)
    raise SimulationError(f"ibsim is not ready: {told[-300:]}")


@dataclass(frozen=True)
class Agreement:
    """How far two sets of tables are the same.

    Attributes:
        entries: that both have, those of a destination's own switch left out.
        equal: of these.
        upward: entries that lead up a level.
        renumbered: of these, equal ones if the switches above each switch are numbered alike.
    """

    entries: int
    equal: int
    upward: int
    renumbered: int

    def __str__(self) -> str:
        share = self.equal / max(1, self.entries)
        same = self.renumbered / max(1, self.upward)
        return (
            f"{self.entries} entries, {share:.2%} equal; of {self.upward} upward ones {same:.2%} up"
            " to the numbers of the switches above"
        )


def agreement(
    imported: ImportedFabric, tables: ForwardingTableFile, rule: RoutingRule
) -> Agreement:
    """How far ``tables`` of a fabric are those of a routing.

    Raises:
        TopologyError: the tables do not fit the fabric, or the routing is not for it.
    """
    fabric = Fabric(imported.sketch())
    router = rule.router(fabric, 0)
    if not isinstance(router, HopByHop) or not router.by_destination:
        raise ValueError(f"{rule.describe()} has no forwarding tables")
    own = table_of(router)
    other = TableRouter(fabric, tables, tables.source).table
    both = (own >= 0) & (other >= 0)
    both[fabric.switch_of_port, np.arange(len(fabric.switch_of_port))] = False
    level = fabric.switches.depth
    upward = renumbered = 0
    for switch in range(len(own)):
        columns = np.flatnonzero(both[switch])
        a = fabric.entered_switch[own[switch, columns]]
        b = fabric.entered_switch[other[switch, columns]]
        up = (level[a] > level[switch]) & (level[b] > level[switch])
        upward += int(up.sum())
        renumbered += _matched(a[up], b[up])
    return Agreement(
        int(both.sum()), int((own == other)[both].sum()), upward, renumbered
    )


def _matched(a: Ints32, b: Ints32) -> int:
    """How many of ``a`` (n,) are equal to ``b`` (n,) if the numbers in ``a`` are called by the
    numbers in ``b`` with which they stand most often, each once."""
    found = 0
    called: set[int] = set()
    taken: set[int] = set()
    for (x, y), count in Counter(
        zip(a.tolist(), b.tolist(), strict=True)
    ).most_common():
        if x not in called and y not in taken:
            called.add(x)
            taken.add(y)
            found += count
    return found


def table_of(router: HopByHop) -> Ints32:
    """(switches, ports) the link by which each switch sends to each port; -1 where no choice is
    needed or there is none. The router must look at the destination alone."""
    fabric = router.fabric
    goal = fabric.goal_of_port
    choice = router.choices.index[:, goal]
    here, port = (each.astype(np.int32) for each in np.nonzero(choice >= 0))
    step = MessagePositions(
        1, here, goal[port], choice[here, port], port, port, np.arange(len(port))
    )
    table = np.full(choice.shape, -1, np.int32)
    table[here, port] = router.choose(step)
    return table


KEPT = Path(__file__).parents[1] / "tests" / "data" / "opensm"
CABLE = {"bandwidth": 12.5e9, "latency": 26e-9}
ENGINES: dict[str, RoutingRule] = {"minhop": MinHop(), "ftree": DModK()}
"""OpenSM's engines, and the routing that stands for each."""


def fat_tree(ports: int, hosts: int) -> Sketch:
    """A fat tree of switches with so many ports."""
    return FatTree(
        kind="fat_tree", hosts=hosts, ports=ports, link_bandwidth="12.5 GB/s"
    ).sketch()


def abci() -> Sketch:
    """ABCI, 8 of its 32 racks: the spine directors of all would have more than 254 ports."""
    topology = machine_of("abci").topology
    return topology.model_copy(update={"racks": 8}).sketch()


def broken_tree() -> Sketch:
    """A fat tree of three levels of which every eighth cable between switches is cut."""
    whole = fat_tree(8, 100)
    sketch = Sketch()
    for name, data in whole.nodes(data=True):
        sketch.add_node(name, **data)
    kinds = {name: data["kind"] for name, data in whole.nodes(data=True)}
    between = 0
    for a, b, data in whole.edges(data=True):
        if kinds[a] == kinds[b] == "switch":
            between += 1
            if between % 8 == 0:
                continue
        sketch.add_edge(a, b, **data)
    return sketch


def random_switches() -> Sketch:
    """24 switches in a ring with 40 more cables, some parallel, and 0 to 7 hosts each."""
    rng = np.random.default_rng(1)
    sketch = Sketch()
    names = [f"s{number:02d}" for number in range(24)]
    for name in names:
        add_switch(sketch, name, "switch", 100e-9)
    for number, name in enumerate(names):
        connect(sketch, name, names[(number + 1) % len(names)], **CABLE)
        for host in range(int(rng.integers(8))):
            add_host(sketch, f"h{number:02d}x{host}")
            connect(sketch, f"h{number:02d}x{host}", name, **CABLE)
    for _ in range(40):
        a, b = rng.choice(len(names), 2, replace=False).tolist()
        connect(sketch, names[a], names[b], **CABLE)
    return sketch


MADE = {
    "tree-648": lambda: fat_tree(36, 648),
    "abci-8-racks": abci,
    "broken-tree": broken_tree,
    "random-switches": random_switches,
}
"""The fabrics that are made; `dgx-pod` is kept as it is."""
CASES = {
    ("tree-648", "ftree"),
    *((name, "minhop") for name in (*MADE, "dgx-pod")),
}
NOTED = {("abci-8-racks", "ftree")}
"""Compared without a claim."""


def net_of(name: str) -> str:
    """The net file of a case."""
    return gzip.decompress((KEPT / f"{name}.net.gz").read_bytes()).decode()


def recorded(name: str, engine: str) -> ForwardingTableFile:
    """The recorded tables of a case."""
    packed = (KEPT / f"{name}.{engine}.json.gz").read_bytes()
    return ForwardingTableFile.model_validate_json(gzip.decompress(packed))


def live(text: str, fabric: ImportedFabric, engine: str) -> ForwardingTableFile:
    """The tables that OpenSM computes now."""
    with tempfile.TemporaryDirectory() as folder:
        net = Path(folder, "net")
        net.write_text(text, encoding="utf-8")
        return parse_tables(dumped(net, engine), f"OpenSM {engine}", fabric)


def compared(name: str, engine: str, *, again: bool) -> Agreement:
    """A case: recorded tables beside a routing, or live ones if ``again``."""
    fabric = fabric_of(net_of(name), name, FabricSupplement())
    tables = live(net_of(name), fabric, engine) if again else recorded(name, engine)
    return agreement(fabric, tables, ENGINES[engine])


def record() -> None:
    """Make the nets, and record the tables of every case."""
    for name, make in MADE.items():
        _pack(f"{name}.net.gz", ibsim.format_net_file(fabric_of_network(make(), name)))
    for name, engine in sorted(CASES | NOTED):
        fabric = fabric_of(net_of(name), name, FabricSupplement())
        tables = live(net_of(name), fabric, engine)
        _pack(f"{name}.{engine}.json.gz", tables.to_json())


def _pack(name: str, text: str) -> None:
    (KEPT / name).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def main(arguments: list[str]) -> None:
    """See the text of the module."""
    without = missing_programs()
    if arguments == ["--record"]:
        record()
    elif arguments:
        for file in arguments:
            text = Path(file).read_text(encoding="utf-8")
            fabric = fabric_of(text, file, FabricSupplement())
            for engine, rule in ENGINES.items():
                try:
                    found = str(agreement(fabric, live(text, fabric, engine), rule))
                except SimulationError:
                    found = "OpenSM refuses the fabric"
                print(f"{Path(file).name} {engine} live: {found}")
        return
    for name, engine in sorted(CASES | NOTED):
        print(f"{name} {engine} recorded: {compared(name, engine, again=False)}")
        if not without:
            print(f"{name} {engine} live: {compared(name, engine, again=True)}")
    if without:
        print(f"Not run live: {', '.join(without)} not on PATH.")


if __name__ == "__main__":
    main(sys.argv[1:])
