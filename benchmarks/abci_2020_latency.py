"""Fits the latency of a file, and its spread, on the evening of 21 January 2020 on ABCI: python
benchmarks/abci_2020_latency.py

Fitted on the rows of abci_2020_latency in validation/abci_2020.csv that say so, of at most 64 GPUs.
The squared relative errors of an epoch are summed, those of ResNet-50, of which there are first
epochs only (up to 3 % of start-up), with a ninth of the weight, and the least sum over a grid is
taken. Then the other rows are predicted, on which nothing is fitted.
"""

from __future__ import annotations

import itertools

from simshuffle.extensions.calibration.validation.answers import simulate_run
from simshuffle.extensions.calibration.validation.concurrent import NUM_FILES
from simshuffle.extensions.calibration.validation.table import (
    ValidationRow,
    parse_assignments,
    read_rows,
)
from simshuffle.spec.library import shipped_folder

ITERATIONS = 200
LATENCIES = [0.069, 0.070, 0.071, 0.072, 0.073]
SPREADS = [0.52, 0.54, 0.56, 0.58]


def error(row: ValidationRow, latency: float, spread: float) -> float:
    """Relative, of a shorter epoch."""
    values = parse_assignments(row.values)
    batch = int(values["world_size"]) * int(values["workload.local_batch_size"])
    values["workload.dataset.num_samples"] = str(batch * ITERATIONS)
    values["cluster.parallel_file_system.latency"] = f"{latency} s"
    values["cluster.parallel_file_system.latency_spread"] = f"{spread}"
    seconds = simulate_run(row.scenario, values).epochs[1] / ITERATIONS
    assert row.measured is not None
    return seconds / (row.measured / (NUM_FILES / batch)) - 1


def main() -> None:
    rows = [
        row
        for row in read_rows(shipped_folder("validation"))
        if row.set == "abci_2020_latency"
    ]
    sums = {}
    for pair in itertools.product(LATENCIES, SPREADS):
        errors = {row: error(row, *pair) for row in rows if row.use == "fit"}
        sums[pair] = sum(
            (100 * e / (3 if row.case.startswith("ResNet-50") else 1)) ** 2
            for row, e in errors.items()
        )
        shown = ", ".join(f"{100 * e:+.1f} %" for e in errors.values())
        print(
            f"{1000 * pair[0]:.0f} ms, {pair[1]:.2f}: {shown}; {sums[pair]:.1f}",
            flush=True,
        )
    best = min(sums, key=lambda pair: sums[pair])
    print(f"latency {1000 * best[0]:.0f} ms, latency_spread {best[1]:.2f}")
    for row in rows:
        print(f"{row.case} ({row.use}): {100 * error(row, *best):+.1f} %")


if __name__ == "__main__":
    main()
