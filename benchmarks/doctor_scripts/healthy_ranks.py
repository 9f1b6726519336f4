"""Healthy: two ranks, each with its part of images in memory."""

from __future__ import annotations

import common
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    options = common.options(__doc__)
    dist.init_process_group("gloo")
    pixels = torch.from_numpy(np.load(f"{options.data}/images.npy")).float() / 255
    images = TensorDataset(pixels, torch.arange(len(pixels)) % 10)
    loader = DataLoader(images, batch_size=32, sampler=DistributedSampler(images))
    train(loader, options.steps)
    dist.destroy_process_group()


def train(loader: DataLoader[tuple[Tensor, ...]], steps: int) -> None:
    model = DistributedDataParallel(common.cnn())
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = common.Meter(steps)
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = loss_of(model(images), labels)
            loss.backward()
            optimizer.step()
            if meter.step(loss):
                return


if __name__ == "__main__":
    main()
