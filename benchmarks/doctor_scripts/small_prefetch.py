"""Every 16 batches an archive is opened, which takes long; what is fetched ahead does not last.

Remedy: fetch more ahead.
"""

from __future__ import annotations

import common
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

IMAGES = 256
"""Of an archive."""


class Archives(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: str) -> None:
        self.paths = common.files(folder)
        self.opened = -1
        self.images: NDArray[np.uint8] = np.empty(0, np.uint8)

    def __len__(self) -> int:
        return len(self.paths) * IMAGES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        archive, image = divmod(index, IMAGES)
        if archive != self.opened:
            self.images = np.load(self.paths[archive])
            self.opened = archive
        return torch.from_numpy(self.images[image]).float() / 255, index % 10


def main() -> None:
    options = common.options(__doc__)
    ahead = 16 if options.remedy else 2
    archives = Archives(f"{options.data}/plain")
    loader = DataLoader(
        archives,
        batch_size=16,
        num_workers=1,
        prefetch_factor=ahead,
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
