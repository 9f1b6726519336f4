"""Ranks that share a file system or a network: a small network, and a sleep that stands for what an
accelerator computes.

    torchrun --nproc-per-node 4 ranks_training.py --data FOLDER
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FEATURES, SAMPLES = 64, 100_000


class Samples(Dataset[Tensor]):
    """Files of a folder, again and again; or zeros, without one."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(Path(folder).iterdir()) if folder else []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        if not self.paths:
            return torch.zeros(FEATURES, dtype=torch.uint8)
        return torch.from_numpy(np.fromfile(self.paths[index % len(self.paths)], np.uint8))


class Accelerated(nn.Module):
    """About ``parameters`` parameters, and ``seconds`` that a forward pass takes without a core."""

    def __init__(self, parameters: int, seconds: float) -> None:
        super().__init__()
        width = max(parameters // (FEATURES + 12), 1)
        self.layers = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, 10))
        self.seconds = seconds

    def forward(self, features: Tensor) -> Tensor:
        time.sleep(self.seconds)
        out: Tensor = self.layers(features)
        return out


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="", help="folder of files; none for zeros")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8, help="files of a rank's batch")
    parser.add_argument("--workers", type=int, default=1, help="of a rank")
    parser.add_argument("--parameters", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=0.1, help="of the accelerator, a step")
    return parser.parse_args()


def main() -> None:
    of = options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    samples = Samples(of.data)
    loader = DataLoader(
        samples, of.batch, sampler=DistributedSampler(samples), num_workers=of.workers
    )
    model = DistributedDataParallel(Accelerated(of.parameters, of.seconds))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(loader, model, optimizer, of.steps)
    dist.destroy_process_group()


def train(
    loader: DataLoader[Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, steps: int
) -> None:
    """Steps, of which the first half does not count: there are batches ahead of the first ones."""
    waited, begin, asked = 0.0, 0.0, time.perf_counter()
    for step, batch in enumerate(loader):
        if step == steps // 2:
            waited, begin = 0.0, asked
        waited += time.perf_counter() - asked
        loss = model(batch[:, :FEATURES].float() / 255).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        asked = time.perf_counter()
        if step + 1 == steps:
            break
    counted = steps - steps // 2
    if dist.get_rank() == 0:
        print(f"{(asked - begin) / counted:.6f} s a batch, {waited / counted:.6f} s of it waiting")


if __name__ == "__main__":
    main()
