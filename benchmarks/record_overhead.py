"""What recording a training costs it: pairs of the same training with and without, in turn.

    python benchmarks/record_overhead.py [--pairs 10] [--batches 300] [--width 24]

A small network of convolutions learns JPEG images of 32 x 32, 32 a batch, each in a file of its
own, that two workers read. Each training is a fresh process. Once ten batches are over, it measures
the wall time of the loop, and the computing time of all threads of its process and of its workers
(/proc/PID/task/*/schedstat). Printed is the ratio of recorded to not recorded less 1: the mean of
the pairs' logarithms and its 95 % interval (Student's t). Without ``--pairs`` in the tens, and on a
machine that is not quiet, the interval is wide.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np
from PIL import Image
from scipy import stats

import simshuffle.extensions.doctor.recorder

FILES = 1024
TRAINING = """
import json, sys, time
from pathlib import Path
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

folder, batches, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

class Images(Dataset):
    def __len__(self):
        return (batches + 10) * 32

    def __getitem__(self, index):
        with Image.open(f"{folder}/{index % FILES}.jpg") as image:
            pixels = np.asarray(image.convert("RGB"))
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), index % 10

def computed(pids):
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

torch.set_num_threads(1)
layers, before = [], 3
for stride in (2, 2, 1):
    layers += [nn.Conv2d(before, width, 3, stride, 1), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
iterator = iter(DataLoader(Images(), 32, shuffle=True, num_workers=2))
pids = ["self", *(worker.pid for worker in iterator._workers)]
for number in range(batches + 10):
    if number == 10:
        begun, cpu = time.perf_counter(), computed(pids)
    images, classes = next(iterator)
    loss = nn.functional.cross_entropy(model(images.float()), classes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(json.dumps([time.perf_counter() - begun, computed(pids) - cpu]))
"""


def trained(
    images: Path, batches: int, width: int, rows: Path | None
) -> tuple[float, float]:
    """Wall and computing seconds of a training."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = (
        simshuffle.extensions.doctor.recorder.SITE if rows else ""
    )
    if rows:
        environment[simshuffle.extensions.doctor.recorder.FOLDER] = str(rows)
    text = TRAINING.replace("FILES", str(FILES))
    command = [sys.executable, "-c", text, str(images), str(batches), str(width)]
    run = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    )
    wall, cpu = json.loads(run.stdout)
    return wall, cpu


def shown(name: str, ratios: Sequence[float]) -> str:
    logs = [math.log(ratio) for ratio in ratios]
    middle = mean(logs)
    reach = math.inf
    if len(logs) > 1:
        reach = stats.t.ppf(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    low, value, high = (
        100 * math.expm1(each) for each in (middle - reach, middle, middle + reach)
    )
    return f"{name}: {value:+.2f} % ({low:+.2f} to {high:+.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--width", type=int, default=24)
    options = parser.parse_args()
    walls = []
    cpus = []
    steps = []
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder, "images")
        images.mkdir()
        random = np.random.default_rng(0)
        for number in range(FILES):
            pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(images / f"{number}.jpg")
        for pair in range(options.pairs):
            took = {}
            for recorded in (True, False) if pair % 2 else (False, True):
                rows = Path(folder, f"rows{pair}")
                if recorded:
                    rows.mkdir()
                given = (images, options.batches, options.width)
                took[recorded] = trained(*given, rows if recorded else None)
            walls.append(took[True][0] / took[False][0])
            cpus.append(took[True][1] / took[False][1])
            steps.append(took[False][0] / options.batches)
            size = sum(path.stat().st_size for path in rows.glob("*.rows"))
            print(f"{walls[-1]:.4f} wall, {cpus[-1]:.4f} computing", flush=True)
    print(
        f"{1e3 * median(steps):.1f} ms a step, {size / (options.batches + 10):.0f} bytes a step"
    )
    print(shown("wall time", walls))
    print(shown("computing time", cpus))


if __name__ == "__main__":
    main()
