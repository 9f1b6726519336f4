"""Healthy: all images are in memory, and no worker is needed."""

from __future__ import annotations

import common
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    options = common.options(__doc__)
    images = torch.from_numpy(np.load(f"{options.data}/images.npy")).float() / 255
    labels = torch.arange(len(images)) % 10
    loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
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
