"""Each line of an image is scaled by itself, in Python.

Remedy: scale the whole image at once.
"""

from __future__ import annotations

import common
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: str, at_once: bool) -> None:
        self.images = np.load(f"{folder}/images.npy")
        self.at_once = at_once

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index].astype(np.float32)
        scaled = (
            self.transform_whole(image) if self.at_once else self.transform_lines(image)
        )
        return torch.from_numpy(scaled), index % 10

    def transform_whole(self, image: NDArray[np.float32]) -> NDArray[np.float32]:
        return image / (1 + image.std(axis=2, keepdims=True))

    def transform_lines(self, image: NDArray[np.float32]) -> NDArray[np.float32]:
        for channel in image:
            for line in channel:
                line[:] = line / (1 + line.std())
        return image


def main() -> None:
    options = common.options(__doc__)
    images = Images(options.data, at_once=options.remedy)
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
