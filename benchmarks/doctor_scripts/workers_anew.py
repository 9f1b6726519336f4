"""Epochs are short, and each one starts its workers anew, which read an index.

Remedy: keep them.
"""

from __future__ import annotations

import json
from pathlib import Path

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.images = np.load(self.folder / "images.npy", mmap_mode="r")
        self.index: dict[str, int] = {}

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = torch.from_numpy(self.images[index].copy())
        return pixels.float() / 255, self.index[f"image-{index}"]


def read_index(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.index = json.loads(
        (info.dataset.folder / "index.json").read_text("utf-8")
    )


def main() -> None:
    options = common.options(__doc__)
    loader = DataLoader(
        Images(options.data),
        batch_size=16,
        shuffle=True,
        num_workers=2,
        worker_init_fn=read_index,
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
