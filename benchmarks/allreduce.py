"""What one allreduce takes, and what simulating it costs: python benchmarks/allreduce.py [RANKS]

102.2 MB on ABCI, four ranks a host, nothing else on the machine. Flows are laid out once for each
size; the seconds are the least of five that were posted and simulated after that.
"""

from __future__ import annotations

import sys
from time import process_time
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from simshuffle.fabric.allreduce import Allreduce
from simshuffle.fabric.network.flows import Links
from simshuffle.fabric.network.models import Fluid, shared_network
from simshuffle.job.lowering.collectives import Allreduces
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.scenario import load_scenario

NBYTES = 102.2e6
PACE = {
    "intra_host_latency": "3.4 us",
    "inter_host_latency": "9.6 us",
    "intra_host_bus_bandwidth": "21 GB/s",
    "inter_host_bus_bandwidth": "6.3 GB/s",
}
ALGORITHMS: list[dict[str, Any]] = [
    {"kind": "ring", "rings": 2},
    {
        "kind": "tree",
        "channels": 2,
        "intra_host_latency": "28 us",
        "inter_host_latency": "50 us",
    },
    {"kind": "halving_doubling", "rails": 2},
    {"kind": "recursive_doubling", "rails": 2},
    {"kind": "torus", "rails": 2},
    *(
        {"kind": "hierarchical", "leaders": leaders, "among_hosts": among}
        for leaders in (1, 2)
        for among in ("ring", "halving_doubling")
    ),
]


def main(world_size: int) -> None:
    cluster = load_scenario("quickstart").cluster
    rng = np.random.default_rng(1)
    resources = Resources(cluster, world_size, rng)
    table = resources.links
    print(
        "| algorithm | time ms | no contention ms | flows | edges | lay out ms | CPU ms |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for values in ALGORITHMS:
        algorithm: Allreduce = TypeAdapter(Allreduce).validate_python(
            {**PACE, **values}
        )
        begin = process_time()
        allreduces = Allreduces(algorithm, resources, rng)
        batch = allreduces.batch(NBYTES)
        flows = allreduces.flows(NBYTES)
        laid_out = process_time() - begin
        if batch is None or flows is None:
            sys.exit("one rank reduces nothing: give 2 or more")
        network = shared_network(
            Fluid(),
            Links(table.capacity, table.latency),
            table.cable,
            width=resources.width,
        )
        spent = []
        took = 0.0
        for _ in range(7):  # the first two make room
            begin = process_time()
            posted = network.now
            batch.tasks["group"] = group = network.open_group(len(batch))
            network.post(posted, batch)
            network.watch(group)
            network.advance(np.inf)
            network.close_group(group)
            spent.append(process_time() - begin)
            took = network.now - posted
        name = " ".join(
            str(values[key]) for key in values if not key.endswith("latency")
        )
        print(
            f"| {name} | {1e3 * took:.2f} | {1e3 * flows.seconds_uncontended:.2f} | {len(batch)}"
            f" | {len(batch.edge_from)} | {1e3 * laid_out:.1f} | {1e3 * min(spent[2:]):.1f} |"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2048)
