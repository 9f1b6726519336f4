"""Workers hold one lock while they read, so they read one after another.

Remedy: no lock, as nobody writes.
"""

from __future__ import annotations

import multiprocessing
from contextlib import nullcontext
from typing import Any

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: str, lock: Any) -> None:
        self.paths = common.files(folder)
        self.lock = lock

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with self.lock:
            content = self.paths[index].read_bytes()
        pixels = np.frombuffer(content, np.uint8).reshape(3, 64, 64)
        return torch.from_numpy(pixels.copy()).float() / 255, index % 10


def main() -> None:
    options = common.options(__doc__)
    lock = nullcontext() if options.remedy else multiprocessing.Lock()
    images = Images(f"{options.data}/tiny", lock)
    loader = DataLoader(
        images, batch_size=16, shuffle=True, num_workers=4, persistent_workers=True
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
