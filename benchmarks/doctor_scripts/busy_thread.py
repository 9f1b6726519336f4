"""A thread of the training process counts words, and holds the interpreter meanwhile.

Remedy: a process for that.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter

import common
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

TEXT = "what a training did is told by its log, which grows and grows " * 20


def count_words() -> None:
    counts: Counter[str] = Counter()
    while True:
        started = time.perf_counter()
        while time.perf_counter() - started < 0.03:
            for word in TEXT.split():
                counts[word.strip(",")] += 1
        time.sleep(0.03)


def photos() -> TensorDataset:
    pixels: Tensor = torch.rand(
        1024, 3, 64, 64, generator=torch.Generator().manual_seed(0)
    )
    return TensorDataset(pixels, torch.arange(1024) % 10)


def main() -> None:
    options = common.options(__doc__)
    loader = DataLoader(photos(), batch_size=16, shuffle=True)
    if options.remedy:
        multiprocessing.Process(target=count_words, daemon=True).start()
    else:
        threading.Thread(target=count_words, daemon=True).start()
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
