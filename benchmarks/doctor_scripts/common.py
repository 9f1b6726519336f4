"""What the scripts have in common: options, a small network, and what a batch takes."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn


def options(description: str | None) -> argparse.Namespace:
    """The command line: data, steps, and whether the remedy is applied."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", default="data", help="folder or address of the data")
    parser.add_argument("--steps", type=int, default=240, help="batches to train with")
    parser.add_argument("--remedy", action="store_true", help="do what helps")
    torch.manual_seed(0)  # runs with and without the remedy read in the same order
    return parser.parse_args()


def files(folder: str | Path) -> list[Path]:
    """Those in a folder, in the order of their numbers."""
    return sorted(Path(folder).iterdir(), key=lambda path: int(path.stem))


def cnn() -> nn.Module:
    """A network of 3x64x64 images and ten classes: about 10 ms for a batch of 16 on one core."""
    torch.set_num_threads(1)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(32, 10)),
    )


class Meter:
    """Counts batches, and says at the end what one took; the first quarter does not count."""

    def __init__(self, steps: int) -> None:
        self.steps, self.times = steps, [time.perf_counter()]

    def step(self, loss: Tensor) -> bool:
        """Whether this was the last one."""
        self.times.append(time.perf_counter())
        done = len(self.times) > self.steps
        if done and os.environ.get("RANK", "0") == "0":
            first = self.steps // 4
            seconds = (self.times[-1] - self.times[first]) / (self.steps - first)
            print(f"loss {loss.item():.3f}, {seconds:.6f} s a batch", flush=True)
        return done
