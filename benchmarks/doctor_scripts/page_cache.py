"""The files are larger than what the host's page cache has room for, so each epoch reads them anew.

Remedy: an order that stays with files that fit.
"""

from __future__ import annotations

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FIT = 128
"""Files that the cache has room for."""


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: str, most: int | None) -> None:
        self.paths = common.files(folder)[:most]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = torch.from_numpy(np.load(self.paths[index]))
        return pixels[:, ::3, ::3].float() / 255, index % 10


def main() -> None:
    options = common.options(__doc__)
    images = Images(f"{options.data}/float32", FIT if options.remedy else None)
    loader = DataLoader(
        images, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True
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
