"""What simulating a run takes, measured, beside the estimate that ``simshuffle check`` prints
(`simshuffle.job.plan.effort`).

    python benchmarks/effort.py

Every run is a fresh process with one thread, which keeps its outcome as a cell of a study does. CPU
seconds without start, and the largest resident set, are the operating system's. The estimate is to
be right within a factor of 2.
"""

from __future__ import annotations

import json
import subprocess
import sys

CHILD = """
import json, resource, sys, tempfile, time
from pathlib import Path
from simshuffle import load_scenario
from simshuffle.fabric.network import Flows, Fluid, Links
from simshuffle.job.plan.effort import effort
from simshuffle.job.sim.cell import RunCell
from simshuffle.study.store import Disk
Fluid().finish_times(Links([1.0], [0.0]), Flows.from_lists([[0]], [1.0]))
scenario = load_scenario(sys.argv[1], {"sweep": {}, **json.loads(sys.argv[2])})
ready = time.process_time()
cell = RunCell(scenario.to_dict(), "")
with tempfile.TemporaryDirectory() as folder:
    Disk(Path(folder)).add("none", cell.run(lambda share: None))
seconds = time.process_time() - ready
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
found = effort(scenario)
print(json.dumps([seconds, found.seconds, peak / 1e6, found.nbytes / 1e6]))
"""
PARTIAL = "partial_local_shuffle:exchange_fraction="
PACE = {
    "source": "assumed",
    "intra_host_latency": "3.4 us",
    "inter_host_latency": "9.6 us",
    "intra_host_bus_bandwidth": "21 GB/s",
    "inter_host_bus_bandwidth": "6.3 GB/s",
}
HALVING: dict[str, object] = {"kind": "halving_doubling", "rails": 2, **PACE}
RECURSIVE: dict[str, object] = {"kind": "recursive_doubling", "rails": 2, **PACE}
TORUS: dict[str, object] = {"kind": "torus", "rails": 2, **PACE}


def _reduced(
    algorithm: dict[str, object], overlap: str, world_size: int
) -> dict[str, object]:
    """An epoch of local shuffling on ABCI with this allreduce; none is the machine's."""
    how = (
        {"workload.allreduce": {**algorithm, "overlap": overlap}}
        if algorithm
        else {"workload.allreduce.overlap": overlap}
    )
    return {
        "workload.exchange": "local_shuffle",
        "world_size": world_size,
        "epochs": 1,
        **how,
    }


RUNS: list[tuple[str, dict[str, object]]] = [
    ("quickstart", {"workload.exchange": "local_shuffle"}),
    ("quickstart", {"workload.exchange": f"{PARTIAL}0.1"}),
    ("abci-imagenet1k", {"workload.exchange": "local_shuffle", "world_size": 512}),
    ("abci-imagenet1k", {"world_size": 128, "epochs": 1}),
    ("abci-imagenet1k", {}),
    ("abci-imagenet1k", {"workload.exchange": f"{PARTIAL}0.7"}),
    ("paper/strategies", {"workload.exchange": "global_shuffle", "world_size": 1024}),
    (
        "paper/importance",
        {
            "workload.exchange": "importance_exchange:exchange_fraction=0.1",
            "world_size": 512,
        },
    ),
    ("paper/congestion-deepcam", {}),
    ("validation/resnet50-summit", {"epochs": 1}),
    ("validation/deepcam-selene", {}),
    *(
        ("abci-imagenet1k", {"workload.dataset": "imagenet21k", "epochs": 1, **values})
        for values in (
            {"workload.exchange": "local_shuffle", "world_size": 256},
            {"workload.exchange": "local_shuffle"},
            {"workload.exchange": f"{PARTIAL}0.1"},
        )
    ),
    (
        "quickstart",
        {
            "workload.exchange": f"{PARTIAL}0.1",
            "network": {"kind": "packet", "mtu": "64 KiB", "port_buffer": "1 MiB"},
            "world_size": 16,
            "epochs": 1,
        },
    ),
    *(
        ("abci-imagenet1k", _reduced(algorithm, overlap, world_size))
        for algorithm in ({}, HALVING)
        for overlap in ("none", "ddp", "horovod")
        for world_size in (256, 2048)
    ),
    ("abci-imagenet1k", _reduced(RECURSIVE, "none", 1024)),
    ("abci-imagenet1k", _reduced(TORUS, "ddp", 2048)),
    ("large/imagenet21k-16384", {"time_tolerance": 0.0}),
]


def main() -> None:
    """Print a line for each run."""
    print(f"{'run':150s} {'CPU s':>7s} {'estimate':>8s} {'MB':>5s} {'estimate':>8s}")
    for name, values in RUNS:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, name, json.dumps(values)],
            check=True,
            capture_output=True,
            text=True,
        )
        seconds, estimate, peak, memory = json.loads(done.stdout)
        allreduce = values.get("workload.allreduce")
        # its kind and overlap say enough
        short = (
            {"workload.allreduce": f"{allreduce['kind']} {allreduce['overlap']}"}
            if isinstance(allreduce, dict)
            else {}
        )
        told = f"{name} {json.dumps(values | short)}"
        print(
            f"{told[:150]:150s} {seconds:7.2f} {estimate:8.2f} {peak:5.0f} {memory:8.0f}"
        )


if __name__ == "__main__":
    main()
