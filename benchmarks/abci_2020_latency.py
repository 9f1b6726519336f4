"""Fits the latency of a file, and its spread, on the evening of 21 January 2020 on ABCI: python
benchmarks/abci_2020_latency.py

Fitted on four runs of at most 64 GPUs, on their epochs that lie before VGG-16 began on 512 GPUs: in
those minutes it ran on 128 and on 256 as well. Of a run with an epoch after its first one in that
time, the first is left out, since start-up is in it. The squared relative errors of the seconds of
an iteration are summed, those of first epochs (up to 3 % of start-up) with a ninth of the weight,
and the least sum over a grid is taken. Then VGG-16 on 128 and on 256 GPUs is predicted, on which
nothing is fitted.
"""

from __future__ import annotations

import csv
import itertools
from datetime import datetime, timedelta
from pathlib import Path
from statistics import mean

from simshuffle.studies.validation.runs import times

LOG = Path(__file__).parent.parent / "validation" / "data" / "abci_dataparallel_2020.csv"
SCENARIO = "validation/abci-chainer-2020"
STAMP = "%Y-%m-%d-%H-%M-%S"
ENDS = datetime(2020, 1, 21, 20, 40)
BEGINS = ENDS - timedelta(minutes=20)
# what is fitted on, and its uncertainty: of ResNet-50 there are first epochs only
FITTED_ON = {
    ("resnet50", 8): 0.03,
    ("resnet50", 16): 0.03,
    ("alexnet", 16): 0.01,
    ("vgg16", 64): 0.01,
}
PREDICTED = [("vgg16", 128), ("vgg16", 256)]
ITERATIONS = 200
LATENCIES = [0.069, 0.070, 0.071, 0.072, 0.073]
SPREADS = [0.52, 0.54, 0.56, 0.58]


Run = tuple[str, int, str]


def measured() -> dict[Run, list[float]]:
    """Seconds of an iteration of every epoch in that time, by model, GPUs and local batch size."""
    out: dict[Run, list[float]] = {}
    ended: dict[tuple[str, str, str], datetime] = {}
    with LOG.open(encoding="utf-8", newline="") as file:
        for record in csv.DictReader(file):
            job = record["job_start"], record["model"], record["gpus"]
            begun = ended.setdefault(job, datetime.strptime(job[0], STAMP))
            ended[job] = begun + timedelta(seconds=float(record["epoch_s"]))
            if begun < BEGINS or ended[job] > ENDS:
                continue
            run = record["model"], int(record["gpus"]), record["local_batch_size"]
            seconds = float(record["epoch_s"]) / int(record["iterations"])
            out[run] = [seconds] if record["epoch"] == "2" else [*out.get(run, []), seconds]
    return out


def predicted(run: Run, latency: float, spread: float) -> float:
    """Seconds of an iteration."""
    model, gpus, batch = run
    values = {
        "workload.model": model,
        "world_size": str(gpus),
        "workload.local_batch_size": batch,
        "workload.dataset.num_samples": str(gpus * int(batch) * ITERATIONS),
        "epochs": "2",
        "workload.jitter.read": "0",
        "cluster.memory.page_cache": "0 B",
        "cluster.parallel_file_system.background_load": "0",
        "cluster.parallel_file_system.latency": f"{latency} s",
        "cluster.parallel_file_system.latency_spread": f"{spread}",
    }
    return times(SCENARIO, values).epochs[1] / ITERATIONS


def error(run: Run, seconds: float, latency: float, spread: float) -> float:
    """Relative."""
    return predicted(run, latency, spread) / seconds - 1


def main() -> None:
    found = {run: mean(seconds) for run, seconds in measured().items()}
    sums = {}
    for pair in itertools.product(LATENCIES, SPREADS):
        errors = {r: error(r, s, *pair) for r, s in found.items() if r[:2] in FITTED_ON}
        sums[pair] = sum((e / FITTED_ON[run[:2]]) ** 2 for run, e in errors.items())
        shown = ", ".join(f"{r[0]} {r[1]} {100 * e:+.1f} %" for r, e in errors.items())
        print(f"{1000 * pair[0]:.0f} ms, {pair[1]:.2f}: {shown}; {sums[pair]:.1f}", flush=True)
    best = min(sums, key=lambda pair: sums[pair])
    print(f"latency {1000 * best[0]:.0f} ms, latency_spread {best[1]:.2f}")
    for run, seconds in found.items():
        if run[:2] in PREDICTED:
            print(*run[:2], f"{seconds:.4f} s, predicted {100 * error(run, seconds, *best):+.1f} %")


if __name__ == "__main__":
    main()
