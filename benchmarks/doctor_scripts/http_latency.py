"""Images come from a far server, one request after another.

Remedy: more workers, so that more requests are under way.
"""

from __future__ import annotations

from urllib.request import urlopen

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, address: str, count: int = 1024) -> None:
        self.address = address
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with urlopen(f"{self.address}/tiny/{index}.bin") as response:
            content = response.read()
        pixels = np.frombuffer(content, np.uint8).reshape(3, 64, 64)
        return torch.from_numpy(pixels.copy()).float() / 255, index % 10


def main() -> None:
    options = common.options(__doc__)
    workers = 8 if options.remedy else 1
    images = Images(options.data)
    loader = DataLoader(
        images,
        batch_size=16,
        shuffle=True,
        num_workers=workers,
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
