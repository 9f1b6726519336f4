"""Images are stored compressed, and unpacking them takes longer than a step.

Remedy: store them as they are.
"""

from __future__ import annotations

import zlib

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: str, packed: bool) -> None:
        self.paths = common.files(folder)
        self.packed = packed

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        content = self.paths[index].read_bytes()
        if self.packed:
            content = zlib.decompress(content)
        pixels = np.frombuffer(content, np.float32).reshape(3, 192, 192)
        return torch.from_numpy(pixels[:, ::3, ::3].copy()), index % 10


def main() -> None:
    options = common.options(__doc__)
    folder = f"{options.data}/{'plain' if options.remedy else 'packed'}"
    images = Images(folder, packed=not options.remedy)
    loader = DataLoader(
        images, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True
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
