"""One image in 256 lies in a cold tier, and all batches wait for the one that has it.

Remedy: take batches as they come.
"""

from __future__ import annotations

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: str) -> None:
        self.paths = [*common.files(f"{folder}/near"), *common.files(f"{folder}/cold")]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = np.fromfile(self.paths[index], np.uint8).reshape(3, 64, 64)
        return torch.from_numpy(pixels).float() / 255, index % 10


def main() -> None:
    options = common.options(__doc__)
    loader = DataLoader(
        Images(options.data),
        batch_size=16,
        shuffle=True,
        num_workers=3,
        in_order=not options.remedy,
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
