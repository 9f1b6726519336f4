"""Healthy: epochs of 16 batches, whose workers stay."""

from __future__ import annotations

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: str) -> None:
        self.images = np.load(f"{folder}/images.npy", mmap_mode="r")

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.images[index].copy()).float() / 255, index % 10


def main() -> None:
    options = common.options(__doc__)
    loader = DataLoader(
        Images(options.data),
        batch_size=16,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
    )
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
