"""Each of two ranks reads its own part of the data, and one part lies on a slow disk.

Remedy: that part at a better place.
"""

from __future__ import annotations

import common
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: str) -> None:
        self.paths = common.files(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = np.fromfile(self.paths[index], np.uint8).reshape(3, 64, 64)
        return torch.from_numpy(pixels).float() / 255, index % 10


def main() -> None:
    options = common.options(__doc__)
    dist.init_process_group("gloo")
    part = "near" if dist.get_rank() == 0 or options.remedy else "far"
    images = Images(f"{options.data}/{part}")
    loader = DataLoader(
        images, 16, shuffle=True, num_workers=1, persistent_workers=True
    )
    train(loader, options.steps)
    dist.destroy_process_group()


def train(loader: DataLoader[tuple[Tensor, int]], steps: int) -> None:
    model = DistributedDataParallel(common.cnn())
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = common.Meter(steps)
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
