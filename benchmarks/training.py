"""How fast emulated ranks train, on one core: python benchmarks/training.py

Samples/s of the training step (gathering, forward, backward, update; no evaluation) with batch norm
by rank, without batch norm, and with batch norm by rank in a loop over the ranks, which is how one
would do it without grouping. Best of some epochs, each way in turn, so that what else the machine
does hits all alike. Then the memory of processes with few and many ranks.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simshuffle.exchange import PartialLocalShuffle
from simshuffle.train import Emulation, Training
from simshuffle.train.models import Mlp, ResNet, SmallCnn
from simshuffle.train.samples import ArraySource, Samples

LOCAL_BATCH, CLASSES = 8, 20
PARTIAL = PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=0.1)
CASES: dict[str, tuple[Any, tuple[int, ...], int, int]] = {
    "mlp, 2 x 128 units, 64 features": (Mlp(kind="mlp"), (64,), 1024, 32768),
    "small_cnn, 16 x 16 x 3": (SmallCnn(kind="small_cnn"), (3, 16, 16), 1024, 8192),
    "resnet-8, 16 x 16 x 3": (ResNet(kind="resnet", depth=8), (3, 16, 16), 256, 2048),
}
WAYS = ("grouped", "none", "loop over ranks")


def emulation(case: str, way: str, ranks: int | None = None) -> Emulation:
    network, shape, usual, count = CASES[case]
    rng = np.random.default_rng(0)
    source = ArraySource(
        Samples(
            rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(0, CLASSES, count)
        )
    )
    how = Training(
        local_batch_size=LOCAL_BATCH,
        learning_rate=0.01,
        batch_norm="none" if way == "none" else "per_rank",
    )
    run = Emulation(
        network.build(shape, CLASSES),
        source,
        strategy=PARTIAL,
        world_size=ranks or usual,
        training=how,
    )
    if way.startswith("loop"):
        run.network.rows_at_once = 1  # parts of one rank
    return run


def speeds(case: str, rounds: int) -> dict[str, float]:
    runs = {way: emulation(case, way) for way in WAYS}
    best = dict.fromkeys(WAYS, 0.0)
    for _ in range(rounds):
        for way, run in runs.items():
            outcome = run.epoch()
            best[way] = max(best[way], outcome.samples / outcome.seconds)
    return best


def peak_memory(case: str, ranks: int) -> float:
    """MB, the most that a process of its own held; ``ranks`` 0 builds everything and trains
    nothing."""
    command = [sys.executable, __file__, "--memory", case, str(ranks)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def report_memory(case: str, ranks: int) -> None:
    run = emulation(case, "grouped", ranks or 64)
    for _ in range(2 if ranks else 0):
        run.epoch()
    # getrusage would count the parent's memory too
    status = Path("/proc/self/status").read_text(encoding="ascii")
    print(int(status.split("VmHWM:")[1].split()[0]) / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "RANKS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory:
        report_memory(arguments.memory[0], int(arguments.memory[1]))
        return
    for case, (_, _, ranks, _) in CASES.items():
        found = speeds(case, arguments.rounds)
        print(
            f"{case}, M = {ranks}, b = {LOCAL_BATCH}: "
            + ", ".join(f"{way} {speed:,.0f}/s" for way, speed in found.items()),
            flush=True,
        )
    for case in CASES:
        found = {
            ranks: peak_memory(case, ranks) for ranks in (0, 64, min(2048, CASES[case][3] // 2))
        }
        text = ", ".join(
            f"{'before training' if not ranks else f'M = {ranks}'}: {size:.0f} MB"
            for ranks, size in found.items()
        )
        print(f"{case}, peak memory {text}", flush=True)


if __name__ == "__main__":
    main()
