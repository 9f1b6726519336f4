"""Two ranks sum the gradients of a network with far more parameters than work, every batch.

Remedy: sum them every fourth batch.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext

import common
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def vectors(count: int = 2048) -> TensorDataset:
    values: Tensor = torch.rand(count, 2048, generator=torch.Generator().manual_seed(0))
    return TensorDataset(values, torch.arange(count) % 10)


def main() -> None:
    options = common.options(__doc__)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(DataLoader(vectors(), batch_size=4, shuffle=True), options)
    dist.destroy_process_group()


def train(loader: DataLoader[tuple[Tensor, ...]], options: argparse.Namespace) -> None:
    layers = (nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU())
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(2048, 10)))
    loss_of = nn.CrossEntropyLoss()
    every = 4 if options.remedy else 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 / every)
    meter = common.Meter(options.steps)
    batch = 0
    while True:
        for values, labels in loader:
            batch += 1
            last = batch % every == 0
            with nullcontext() if last else model.no_sync():
                loss = loss_of(model(values), labels)
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            if meter.step(loss):
                return


if __name__ == "__main__":
    main()
