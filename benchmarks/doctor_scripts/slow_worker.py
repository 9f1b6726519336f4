"""Each worker reads from a copy of the data of its own, and one copy lies on a slow disk.

Remedy: that copy at a better place.
"""

from __future__ import annotations

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, folders: list[str]) -> None:
        self.copies = [common.files(folder) for folder in folders]

    def __len__(self) -> int:
        return len(self.copies[0])

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        worker = get_worker_info()
        paths = self.copies[worker.id if worker else 0]
        pixels = np.fromfile(paths[index], np.uint8).reshape(3, 64, 64)
        return torch.from_numpy(pixels).float() / 255, index % 10


def main() -> None:
    options = common.options(__doc__)
    near = f"{options.data}/near"
    far = f"{options.data}/far"
    images = Images([near, near if options.remedy else far])
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
