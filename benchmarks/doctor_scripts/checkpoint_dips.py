"""Every 32 batches the state is packed and written to disk, and training waits for that.

Remedy: a thread writes a copy.
"""

from __future__ import annotations

import gzip
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

EVERY = 32


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: str) -> None:
        self.images = np.load(f"{folder}/images.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.images[index].copy()).float() / 255, index % 10


def save(state: dict[str, Tensor], path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        torch.save(state, file)


def main() -> None:
    options = common.options(__doc__)
    loader = DataLoader(
        Images(options.data),
        batch_size=16,
        shuffle=True,
        num_workers=1,
        persistent_workers=True,
    )
    model = common.cnn()
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = torch.rand(2_000_000)
    meter = common.Meter(options.steps)
    batch = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as writer:
        while True:
            for images, labels in loader:
                optimizer.zero_grad()
                loss = loss_of(model(images), labels)
                loss.backward()
                optimizer.step()
                batch += 1
                if batch % EVERY == 0:
                    state = {**model.state_dict(), "seen": seen}
                    written = writer.submit(save, state, Path(folder, "last.pt.gz"))
                    if not options.remedy:
                        written.result()
                if meter.step(loss):
                    return


if __name__ == "__main__":
    main()
