"""Every image is a file of its own, on a disk where opening one takes long.

Remedy: all images in one file.
"""

from __future__ import annotations

import os

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SHAPE = (3, 64, 64)
NBYTES = 3 * 64 * 64


class Files(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: str) -> None:
        self.paths = common.files(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = np.frombuffer(self.paths[index].read_bytes(), np.uint8).reshape(SHAPE)
        return torch.from_numpy(pixels.copy()).float() / 255, index % 10


class Shard(Dataset[tuple[Tensor, int]]):
    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_RDONLY)

    def __len__(self) -> int:
        return os.fstat(self.file).st_size // NBYTES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        content = os.pread(self.file, NBYTES, index * NBYTES)
        pixels = np.frombuffer(content, np.uint8).reshape(SHAPE)
        return torch.from_numpy(pixels.copy()).float() / 255, index % 10


def main() -> None:
    options = common.options(__doc__)
    shard = f"{options.data}/shard.bin"
    folder = f"{options.data}/tiny"
    images = Shard(shard) if options.remedy else Files(folder)
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
