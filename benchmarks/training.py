"""How fast emulated ranks train, on one core: python benchmarks/training.py

Samples/s of the training step (gathering, forward, backward, update; no evaluation) with batch norm
by rank, without batch norm, and with batch norm by rank in a loop over the ranks, which is how one
would do it without grouping. Best of some epochs, each way in turn, so that what else the machine
does hits all alike. Then the memory of processes with few and many ranks.

--plain compares with a plain loop of PyTorch instead, in a process of its own: the same network as
built, batch 128, torch's SGD, on bytes of the shape of Fashion-MNIST. Seconds are those of the
processor, and the ratio is the median of those of the rounds, in each of which the loop and all M
take turns.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simshuffle.train import Emulation, Training
from simshuffle.train.models import Mlp, ResNet, SmallCnn
from simshuffle.train.samples import Samples
from simshuffle.train.sources import ArraySource
from simshuffle.workload.exchange import PartialLocalShuffle

LOCAL_BATCH, CLASSES = 8, 20
PARTIAL = PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=0.1)
CASES: dict[str, tuple[Any, tuple[int, ...], int, int]] = {
    "mlp, 2 x 128 units, 64 features": (Mlp(kind="mlp"), (64,), 1024, 32768),
    "small_cnn, 16 x 16 x 3": (SmallCnn(kind="small_cnn"), (3, 16, 16), 1024, 8192),
    "resnet-8, 16 x 16 x 3": (ResNet(kind="resnet", depth=8), (3, 16, 16), 256, 2048),
}
PLAIN_BATCH = 128
PLAIN_SHAPE = (1, 28, 28)
PLAIN_COUNT = 16384
PLAIN_NETWORKS: dict[str, Any] = {
    "mlp": Mlp(kind="mlp"),
    "small_cnn, width 8": SmallCnn(kind="small_cnn", width=8),
    "small_cnn, width 16": SmallCnn(kind="small_cnn"),
    "resnet-8": ResNet(kind="resnet", depth=8),
}
PLAIN_RANKS = (16, 64, 256, 1024)
WAYS = ("grouped", "none", "loop over ranks")


def emulation(case: str, way: str, ranks: int | None = None) -> Emulation:
    network, shape, usual, count = CASES[case]
    rng = np.random.default_rng(0)
    source = ArraySource(
        Samples(
            rng.normal(size=(count, *shape)).astype(np.float32),
            rng.integers(0, CLASSES, count),
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


Step = Callable[[], int]
"""Does one step, and returns its samples."""


def pixels() -> ArraySource:
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 256, (PLAIN_COUNT, *PLAIN_SHAPE), np.uint8)
    return ArraySource(
        Samples(inputs, rng.integers(0, 10, PLAIN_COUNT)), (0.29,), (0.35,)
    )


def plain(network: Any) -> Step:
    rng = np.random.default_rng(0)
    source = pixels()
    model = network.build(PLAIN_SHAPE, 10)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4
    )
    loss_of = torch.nn.CrossEntropyLoss()

    def step() -> int:
        inputs, targets = source.batch(rng.integers(0, PLAIN_COUNT, PLAIN_BATCH))
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        loss.item()
        return PLAIN_BATCH

    return step


def emulated(network: Any, ranks: int) -> Step:
    rng = np.random.default_rng(0)
    how = Training(local_batch_size=LOCAL_BATCH, learning_rate=0.01)
    model = network.build(PLAIN_SHAPE, 10)
    run = Emulation(model, pixels(), strategy=PARTIAL, world_size=ranks, training=how)

    def step() -> int:
        run.step(rng.integers(0, PLAIN_COUNT, (LOCAL_BATCH, ranks)), 0.01)
        return LOCAL_BATCH * ranks

    return step


def speed(step: Step, seconds: float = 1.0) -> float:
    begin = time.process_time()
    done = 0
    while time.process_time() - begin < seconds:
        done += step()
    return done / (time.process_time() - begin)


def answer_plain(name: str) -> None:
    """For each line that comes in, the speed of the plain loop."""
    step = plain(PLAIN_NETWORKS[name])
    step()
    for _ in sys.stdin:
        print(speed(step), flush=True)


def against_plain(name: str, rounds: int) -> dict[str, tuple[float, float]]:
    """Of each way the best samples/s, and the median of its ratios to the plain loop."""
    steps = {
        f"M = {ranks}": emulated(PLAIN_NETWORKS[name], ranks) for ranks in PLAIN_RANKS
    }
    found: dict[str, list[float]] = {way: [] for way in ("plain", *steps)}
    command = [sys.executable, __file__, "--plain-loop", name]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    for step in steps.values():
        step()  # compiles
    with subprocess.Popen(command, text=True, **pipes) as loop:
        for _ in range(rounds):
            loop.stdin.write("\n")
            loop.stdin.flush()
            found["plain"].append(float(loop.stdout.readline()))
            for way, step in steps.items():
                found[way].append(speed(step))
        loop.stdin.close()
    base = np.array(found["plain"])
    return {
        way: (max(each), float(np.median(np.array(each) / base)))
        for way, each in found.items()
    }


def peak_memory(case: str, ranks: int) -> float:
    """MB, the most that a process of its own held; ``ranks`` 0 builds everything and trains
    nothing."""
    command = [sys.executable, __file__, "--memory", case, str(ranks)]
    return float(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )


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
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--plain-loop", metavar="NETWORK", help=argparse.SUPPRESS)
    parser.add_argument(
        "--memory", nargs=2, metavar=("CASE", "RANKS"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory:
        report_memory(arguments.memory[0], int(arguments.memory[1]))
        return
    if arguments.plain_loop:
        answer_plain(arguments.plain_loop)
        return
    if arguments.plain:
        for name in PLAIN_NETWORKS:
            found = against_plain(name, arguments.rounds)
            text = ", ".join(
                f"{way} {s:,.0f}/s ({r:.2f})" for way, (s, r) in found.items()
            )
            print(f"{name}, 28 x 28 x 1, b = {LOCAL_BATCH}: {text}", flush=True)
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
            ranks: peak_memory(case, ranks)
            for ranks in (0, 64, min(2048, CASES[case][3] // 2))
        }
        text = ", ".join(
            f"{'before training' if not ranks else f'M = {ranks}'}: {size:.0f} MB"
            for ranks, size in found.items()
        )
        print(f"{case}, peak memory {text}", flush=True)


if __name__ == "__main__":
    main()
