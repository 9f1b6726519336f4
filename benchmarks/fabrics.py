"""How long networks, their routes and the loads of their links take.

    python benchmarks/fabrics.py

Each case is a fresh process. CPU seconds and the largest resident set, imports included, beside
what is wanted. The limit is what networkx takes for the same nodes and links as a graph alone.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from simshuffle.extensions.interop.fabrics.survey import host_ports, pattern_loads
from simshuffle.fabric.routing import Fabric, routing_named
from simshuffle.fabric.topology import Topology
from simshuffle.job.scenario.scenario import machine_of
from simshuffle.spec.record import Spec
from simshuffle.spec.validation import validated

LINK = {"link_bandwidth": "12.5 GB/s"}
LATENCIES = {"cable_latency": "26 ns", "switch_latency": "90 ns"}
ABCI = {**machine_of("abci").topology.model_dump(mode="json", exclude_none=True), "racks": 64}
TREE = {"kind": "fat_tree", "ports": 64, "hosts": 65_536, **LINK}
DRAGONFLY = {
    "kind": "dragonfly",
    "hosts_per_switch": 16,
    "switches_per_group": 32,
    "global_links_per_switch": 16,
    "groups": 128,
    **LATENCIES,
    **LINK,
}


@dataclass(frozen=True)
class Case:
    """A network, what is asked of it, and what it may take (s, MB)."""

    name: str
    topology: dict[str, Any]
    routing: str
    all_pairs: bool
    seconds: float
    megabytes: float


CASES = (
    Case("4,352 HCAs of ABCI, loads of all pairs, D-mod-K", ABCI, "d_mod_k", True, 1.0, 300),
    Case("the same, min-hop", ABCI, "min_hop", True, 1.0, 300),
    Case("fat tree of 65,536 hosts, a permutation, D-mod-K", TREE, "d_mod_k", False, 20.0, 3000),
    Case("the same, ECMP", TREE, "ecmp", False, 20.0, 3000),
    Case("dragonfly of 65,536 hosts, minimal", DRAGONFLY, "minimal", False, 20.0, 3000),
    Case("the same, adaptive with detours", DRAGONFLY, "adaptive:detours=true", False, 20, 3000),
)


class Named(Spec):
    """A network by its kind."""

    topology: Topology


def one(topology: dict[str, Any], routing: str, all_pairs: bool) -> None:
    """Do one case and print its seconds, MB, and the seconds of networkx."""
    found, problems = validated({"topology": topology}, Named)
    if found is None:
        raise SystemExit("\n".join(map(str, problems)))
    router = routing_named(routing).router(Fabric(found.topology.sketch()), 1)
    rng = np.random.default_rng(1)
    pattern_loads(router, "all_to_all" if all_pairs else "random_permutation", rng)
    used = resource.getrusage(resource.RUSAGE_SELF)
    hosts = len(host_ports(router.fabric))
    begun = time.process_time()
    found.topology.graph()
    graph = time.process_time() - begun
    print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3, graph, hosts]))


def main() -> None:
    """Print the table."""
    print("| case | s | wanted s | MB | wanted MB | networkx, the graph alone (s) |")
    print("|---|---:|---:|---:|---:|---:|")
    for case in CASES:
        words = [json.dumps(case.topology), case.routing, str(int(case.all_pairs))]
        done = subprocess.run(
            [sys.executable, __file__, *words], capture_output=True, check=True, text=True
        )
        seconds, megabytes, graph, _ = json.loads(done.stdout)
        print(
            f"| {case.name} | {seconds:.2f} | {case.seconds:g} | {megabytes:.0f} |"
            f" {case.megabytes:g} | {graph:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:]:
        one(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3] == "1")
    else:
        main()
