"""A shard holds 32 batches and is unpacked as a whole; then training waits.

Remedy: smaller shards.
"""

from __future__ import annotations

import bz2
from collections.abc import Iterator
from itertools import cycle

import common
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset


class Shards(IterableDataset[tuple[Tensor, int]]):
    def __init__(self, folder: str) -> None:
        self.paths = common.files(folder)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for path in cycle(self.paths):
            content = bz2.decompress(path.read_bytes())
            images = np.frombuffer(content, np.uint8).reshape(-1, 3, 64, 64)
            for index, pixels in enumerate(images):
                yield torch.from_numpy(pixels.copy()).float() / 255, index % 10


def main() -> None:
    options = common.options(__doc__)
    shards = Shards(f"{options.data}/{'small' if options.remedy else 'large'}")
    loader = DataLoader(shards, batch_size=16, num_workers=1)
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
