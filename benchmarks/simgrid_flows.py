"""What SimGrid takes for a case of network.py whose flows wait for nothing, where its Python module
is installed (Debian: python3-simgrid).

    python benchmarks/simgrid_flows.py CASE

Plain max-min fairness, as tests/golden/simgrid/README.md says. CPU seconds of the simulation
without its platform, MB of the process, and by how much the end differs from ours.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import network
import numpy as np
from packet import megabytes

CONFIG = (
    "network/model:CM02",
    "network/optim:Full",
    "network/crosstraffic:0",
    "network/TCP-gamma:0",
    "network/latency-factor:1",
    "network/bandwidth-factor:1",
    "network/weight-S:0",
    "contexts/factory:thread",
)
CASES = (
    "all-to-all, 512 hosts",
    "exponential, 128 hosts",
    "2000 random pairs",
    "10000 random pairs",
    "20000 random pairs",
)
"""Those that take minutes at most."""


def installed() -> bool:
    """Whether this interpreter finds SimGrid."""
    return importlib.util.find_spec("simgrid") is not None


def beside(name: str) -> str:
    """What SimGrid takes for a case, in a process of its own, beside our own processes."""
    done = subprocess.run(
        [sys.executable, __file__, name],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return (
        f"SimGrid {found['version']} {found['cpu_s']:.3g} s, {found['peak_MB']:,.0f} MB"
    )


def simulate(name: str) -> dict[str, object]:
    """Run a case here: every flow goes from the host of its first link to that of its last."""
    import simgrid

    links, flows = network.WORKS[name].make()
    assert not len(flows.after_from)
    engine = simgrid.Engine(["speed", *(f"--cfg={setting}" for setting in CONFIG)])
    zone = simgrid.NetZone.create_full_zone("network")
    made = [
        zone.create_link(f"link{i}", capacity).set_latency(latency).seal()
        for i, (capacity, latency) in enumerate(
            zip(links.capacity, links.latency, strict=True)
        )
    ]
    length = (flows.routes >= 0).sum(1)
    ends = np.stack(
        [flows.routes[:, 0], flows.routes[np.arange(len(flows)), length - 1]]
    )
    hosts = {
        int(link): zone.create_host(f"host{link}", 1e9) for link in np.unique(ends)
    }
    _, firsts = np.unique(ends, axis=1, return_index=True)
    for flow in firsts:
        source, target = (hosts[int(link)].netpoint for link in ends[:, flow])
        route = [
            simgrid.LinkInRoute(made[i]) for i in flows.routes[flow, : length[flow]]
        ]
        zone.add_route(source, target, None, None, route, False)
    zone.seal()

    def send() -> None:
        posted = []
        for flow in np.argsort(flows.start, kind="stable"):
            if flows.start[flow] > simgrid.Engine.clock:
                simgrid.this_actor.sleep_until(float(flows.start[flow]))
            source, target = (hosts[int(link)] for link in ends[:, flow])
            posted.append(
                simgrid.Comm.sendto_async(source, target, round(flows.nbytes[flow]))
            )
        for comm in posted:
            comm.wait()

    simgrid.Actor.create("send", next(iter(hosts.values())), send)
    begin = time.process_time()
    engine.run()
    seconds = time.process_time() - begin
    end = simgrid.Engine.clock
    peak = megabytes("VmHWM")
    ours = network.solve(network.WORKS[name].model, links, flows)[0]
    return {
        "version": str(simgrid.simgrid_version),
        "cpu_s": seconds,
        "peak_MB": peak,
        "ours_differs": ours / end - 1.0,
    }


if __name__ == "__main__":
    if not installed():
        sys.exit(
            f"{Path(__file__).name}: SimGrid is not installed here; on Debian, python3-simgrid"
        )
    print(json.dumps(simulate(sys.argv[1])))
