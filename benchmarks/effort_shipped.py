"""What simulating the runs of all shipped scenarios takes: CPU seconds, iterations of ranks and the
largest resident set, in docs/data/effort.csv; the test of the estimates compares them with what
`simshuffle check` says. Every run is a fresh process, which keeps its outcome as a cell does.

    python benchmarks/effort_shipped.py [SCENARIO ...]

Of a sweep the first run, the last and two between are taken; those above `LONGEST` are left out.
Iterations are counted in every window, also in those that did not do.
"""

from __future__ import annotations

import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simshuffle.fabric.network import Fluid
from simshuffle.fabric.network.models import load_model
from simshuffle.job.plan.effort import effort
from simshuffle.job.plan.epochs import EpochPlan
from simshuffle.job.plan.jobs import separate_jobs
from simshuffle.job.scenario.scenario import Scenario, all_runs, load_scenarios
from simshuffle.job.sim.cell import RunCell
from simshuffle.job.sim.machine import SimulatedEpoch, SimulatedMachine
from simshuffle.study.store import Disk

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs" / "data" / "effort.csv"
LONGEST = 60.0
"""s by estimate."""
MOST = 4
"""Runs of a scenario."""


def taken() -> list[tuple[str, str, Scenario]]:
    """Scenario, name of the run, and the run."""
    found = []
    for path in sorted((ROOT / "scenarios").rglob("*.yaml")):
        runs = list(separate_jobs(all_runs(load_scenarios(path))).items())
        places = {round(place * (len(runs) - 1) / (MOST - 1)) for place in range(MOST)}
        name = str(path.relative_to(ROOT / "scenarios").with_suffix(""))
        found += [(name, *runs[place]) for place in sorted(places)]
    return [each for each in found if effort(each[2]).seconds <= LONGEST]


def counted(simulate: Callable[[], Any]) -> int:
    """Iterations of ranks that are simulated by calling it, windows that do not do included."""
    count = 0
    epoch = SimulatedMachine.epoch

    def counting(
        machine: SimulatedMachine, plan: EpochPlan, *arguments: Any, **options: Any
    ) -> SimulatedEpoch:
        nonlocal count
        count += plan.iterations * machine.scenario.world_size
        return epoch(machine, plan, *arguments, **options)

    SimulatedMachine.epoch = counting  # type: ignore[assignment]
    try:
        simulate()
    finally:
        SimulatedMachine.epoch = epoch  # type: ignore[method-assign]
    return count


def one(name: str, run: str) -> tuple[int, float, int]:
    """Iterations, CPU seconds and the largest resident set (bytes) of a run, in this process."""
    load_model(Fluid())
    scenario = separate_jobs(
        all_runs(load_scenarios(ROOT / "scenarios" / f"{name}.yaml"))
    )[run]
    cell = RunCell(scenario.to_dict(), run)
    cell.make_ready()
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        count = counted(
            lambda: Disk(Path(folder)).add("none", cell.run(lambda share: None))
        )
    seconds = time.process_time() - begin
    return count, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Measure, and write the table; of the scenarios that are named, or of all."""
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(*sys.argv[2:])))
        return
    runs = taken()
    names = set(sys.argv[1:]) or {name for name, *_ in runs}
    with KEPT.open(newline="", encoding="utf-8") as file:
        kept = {(row[0], row[1]): row for row in csv.reader(file)}
    for name, run, scenario in runs:
        if name not in names:
            continue
        command = [sys.executable, __file__, "--one", name, run]
        answer = subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout
        count, seconds, nbytes = json.loads(answer)
        kept[name, run] = [
            name,
            run,
            str(count),
            f"{seconds:.3g}",
            f"{nbytes / 1e6:.0f}",
        ]
        with KEPT.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(kept.values())
        found = effort(scenario)
        told = f"{seconds:.2f} s and {nbytes / 1e6:.0f} MB"
        print(
            f"{name}: {run}: {told}, {found.seconds:.2f} and {found.nbytes / 1e6:.0f} by estimate"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
