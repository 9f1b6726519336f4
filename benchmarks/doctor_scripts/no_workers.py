"""Photos are decoded in the loop itself, while nothing trains.

Remedy: a worker.
"""

from __future__ import annotations

import common
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: str) -> None:
        self.paths = common.files(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self.paths[index]) as photo:
            small = photo.resize((64, 64), Image.Resampling.NEAREST)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)
        return pixels.float() / 255, index % 10


def main() -> None:
    options = common.options(__doc__)
    workers = 1 if options.remedy else 0
    loader = DataLoader(
        Photos(f"{options.data}/middle"),
        16,
        shuffle=True,
        num_workers=workers,
        persistent_workers=options.remedy,
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
