"""Healthy: a stream of images from plain archives."""

from __future__ import annotations

from collections.abc import Iterator

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset[tuple[Tensor, int]]):
    def __init__(self, folder: str) -> None:
        self.paths = common.files(folder)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for path in self.paths:
            for index, pixels in enumerate(np.load(path)):
                yield torch.from_numpy(pixels).float() / 255, index % 10


def main() -> None:
    options = common.options(__doc__)
    stream = Stream(f"{options.data}/plain")
    loader = DataLoader(stream, batch_size=16, num_workers=1, persistent_workers=True)
    model = common.cnn()
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = common.Meter(options.steps)
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
