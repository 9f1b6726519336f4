"""Large batches are kept as float64, and each is copied before it is used.

Remedy: no copy.
"""

from __future__ import annotations

import common
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, count: int = 4) -> None:
        chance = torch.Generator().manual_seed(0)
        self.images = [
            torch.randint(256, (16, 3, 320, 320), generator=chance).double()
            for _ in range(count)
        ]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], torch.arange(16) % 10


def main() -> None:
    options = common.options(__doc__)
    loader = DataLoader(Batches(), batch_size=None, shuffle=True)
    device = torch.device("cpu")
    model = common.cnn()
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = common.Meter(options.steps)
    while True:
        for batch, labels in loader:
            there = batch if options.remedy else batch.to(device, copy=True)
            images = there[:, :, ::5, ::5].float() / 255
            optimizer.zero_grad()
            loss = loss_of(model(images), labels)
            loss.backward()
            optimizer.step()
            if meter.step(loss):
                return


if __name__ == "__main__":
    main()
