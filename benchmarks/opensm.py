"""OpenSM's forwarding tables beside those of simshuffle's routings.

    python benchmarks/opensm.py             # recorded tables, and live ones where opensm is
    python benchmarks/opensm.py --record    # make the nets and record the tables again
    python benchmarks/opensm.py FILE ...    # other files of ibnetdiscover, live

Live runs need opensm, ibsim and ibsim-run on PATH (Debian: opensm, ibsim-utils). Nothing is sent to
a real fabric: ibsim simulates it.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path

import numpy as np

from simshuffle.errors import SimulationError
from simshuffle.fabrics import ibsim
from simshuffle.fabrics.ibnetdiscover import fabric_of
from simshuffle.fabrics.imported import ImportedFabric, Missing
from simshuffle.fabrics.lfts import tables_of
from simshuffle.fabrics.network import of_network
from simshuffle.fabrics.opensm import Agreement, agreement, dumped, missing_programs
from simshuffle.routing import DModK, MinHop, RoutingRule
from simshuffle.routing.forwarding_tables import Tables
from simshuffle.scenario.scenario import machine_of
from simshuffle.topology import FatTree
from simshuffle.topology.graph import Sketch, add_host, add_switch, connect

KEPT = Path(__file__).parents[1] / "tests" / "data" / "opensm"
CABLE = {"bandwidth": 12.5e9, "latency": 26e-9}
ENGINES: dict[str, RoutingRule] = {"minhop": MinHop(), "ftree": DModK()}
"""OpenSM's engines, and the routing that stands for each."""


def fat_tree(ports: int, hosts: int) -> Sketch:
    """A fat tree of switches with so many ports."""
    return FatTree(kind="fat_tree", hosts=hosts, ports=ports, link_bandwidth="12.5 GB/s").sketch()


def abci() -> Sketch:
    """ABCI, 8 of its 32 racks: the spine directors of all would have more than 254 ports."""
    topology = machine_of("abci").topology
    return topology.model_copy(update={"racks": 8}).sketch()


def broken_tree() -> Sketch:
    """A fat tree of three levels of which every eighth cable between switches is cut."""
    whole, sketch = fat_tree(8, 100), Sketch()
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
    rng, sketch = np.random.default_rng(1), Sketch()
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


def recorded(name: str, engine: str) -> Tables:
    """The recorded tables of a case."""
    packed = (KEPT / f"{name}.{engine}.json.gz").read_bytes()
    return Tables.model_validate_json(gzip.decompress(packed))


def live(text: str, fabric: ImportedFabric, engine: str) -> Tables:
    """The tables that OpenSM computes now."""
    with tempfile.TemporaryDirectory() as folder:
        net = Path(folder, "net")
        net.write_text(text, encoding="utf-8")
        return tables_of(dumped(net, engine), f"OpenSM {engine}", fabric)


def compared(name: str, engine: str, *, again: bool) -> Agreement:
    """A case: recorded tables beside a routing, or live ones if ``again``."""
    fabric = fabric_of(net_of(name), name, Missing())
    tables = live(net_of(name), fabric, engine) if again else recorded(name, engine)
    return agreement(fabric, tables, ENGINES[engine])


def record() -> None:
    """Make the nets, and record the tables of every case."""
    for name, make in MADE.items():
        _pack(f"{name}.net.gz", ibsim.written(of_network(make(), name)))
    for name, engine in sorted(CASES | NOTED):
        fabric = fabric_of(net_of(name), name, Missing())
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
            fabric = fabric_of(text, file, Missing())
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
