"""Images are stored as float32, and a disk of 200 MB/s cannot deliver them in time.

Remedy: store bytes, and convert them when they are read.
"""

from __future__ import annotations

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: str) -> None:
        self.paths = common.files(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = torch.from_numpy(np.load(self.paths[index]))
        return pixels[:, ::3, ::3].float() / 255, index % 10


def main() -> None:
    options = common.options(__doc__)
    images = Images(f"{options.data}/{'uint8' if options.remedy else 'float32'}")
    drawn = RandomSampler(images, replacement=True, num_samples=8 * options.steps)
    loader = DataLoader(images, batch_size=8, sampler=drawn, num_workers=2)
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
