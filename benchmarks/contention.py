"""Self-contention by equal parts of every link beside the fluid network: all patterns of
``simshuffle congestion``.

    python benchmarks/contention.py [SCENARIO] [RANKS]
"""

from __future__ import annotations

import sys

from simshuffle.fabric.network import Fluid
from simshuffle.fabric.network.contention import self_contention
from simshuffle.studies.congestion.cell import TrafficCell, fabric_of, traffic_of
from simshuffle.studies.congestion.study import request
from simshuffle.studies.congestion.verb import CongestionOptions


def main(scenario: str = "paper/congestion-imagenet1k", ranks: str = "128") -> None:
    """Print a row for every variant, first seed, all bytes."""
    sizes = (int(ranks),)
    options = CongestionOptions(scenario=scenario, world_size=sizes, network=("fluid",), seeds=1)
    asked = request(options)
    print(
        "| variant | without contention (s) | coefficient, equal parts | coefficient, fluid |"
        " equal parts / fluid | first stage |"
    )
    print("|---|---|---|---|---|---|")
    for job in asked.values:
        for run, _ in job.runs():
            row(run)


def row(run: TrafficCell) -> None:
    """Print what one run says."""
    links = fabric_of(run.place).links
    flows = traffic_of(run).flows
    found = self_contention(links, flows)
    fluid = Fluid().finish_times(links, flows).makespan
    print(
        f"| {run.variant} | {found.alone:.4g} | {found.coefficient:.3f} |"
        f" {fluid / found.alone:.3f} | {found.makespan / fluid:.3f} | {found.first:.3g} |",
        flush=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
