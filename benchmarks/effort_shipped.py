"""What simulating the runs of all shipped scenarios takes: CPU seconds and iterations of ranks, in
docs/data/effort.csv; the test of the estimates compares them with what `simshuffle check` says.

    python benchmarks/effort_shipped.py [SCENARIO ...]

Of a sweep the first run, the last and two between are taken; those above `LONGEST` are left out.
Iterations are counted in every window, also in those that did not do.
"""

from __future__ import annotations

import csv
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simshuffle.network import Fluid
from simshuffle.network.models import make_ready
from simshuffle.plan.effort import effort
from simshuffle.plan.epochs import EpochPlan
from simshuffle.plan.jobs import each_alone
from simshuffle.scenario.scenario import Scenario, all_runs, load_scenarios
from simshuffle.sim.cell import RunCell
from simshuffle.sim.machine import Machine, SimulatedEpoch

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
        runs = list(each_alone(all_runs(load_scenarios(path))).items())
        places = {round(place * (len(runs) - 1) / (MOST - 1)) for place in range(MOST)}
        name = str(path.relative_to(ROOT / "scenarios").with_suffix(""))
        found += [(name, *runs[place]) for place in sorted(places)]
    return [each for each in found if effort(each[2]).seconds <= LONGEST]


def counted(simulate: Callable[[], Any]) -> int:
    """Iterations of ranks that are simulated by calling it, windows that do not do included."""
    count, epoch = 0, Machine.epoch

    def counting(machine: Machine, plan: EpochPlan, *rest: Any) -> SimulatedEpoch:
        nonlocal count
        count += plan.iterations * machine.scenario.world_size
        return epoch(machine, plan, *rest)

    Machine.epoch = counting  # type: ignore[assignment]
    try:
        simulate()
    finally:
        Machine.epoch = epoch  # type: ignore[method-assign]
    return count


def main() -> None:
    """Measure, and write the table; of the scenarios that are named, or of all."""
    make_ready(Fluid())
    RunCell.make_ready()
    runs = taken()
    names = set(sys.argv[1:]) or {name for name, *_ in runs}
    with KEPT.open(newline="", encoding="utf-8") as file:
        kept = {(row[0], row[1]): row for row in csv.reader(file)}
    for name, run, scenario in runs:
        if name not in names:
            continue
        cell = RunCell(scenario.to_dict(), run)
        begin = time.process_time()
        count = counted(lambda cell=cell: cell.run(lambda share: None))  # type: ignore[misc]
        seconds = time.process_time() - begin
        kept[name, run] = [name, run, str(count), f"{seconds:.3g}"]
        with KEPT.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(kept.values())
        told = f"{seconds:.2f} s, {effort(scenario).seconds:.2f} by estimate"
        print(f"{name}: {run}: {told}", flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
