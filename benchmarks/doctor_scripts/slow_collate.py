"""Sentences of different lengths are padded number by number when a batch is put together.

Remedy: copy whole sentences.
"""

from __future__ import annotations

from functools import partial

import common
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

WORDS = 1000


class Sentences(Dataset[tuple[Tensor, int]]):
    def __init__(self, count: int = 2048) -> None:
        chance = torch.Generator().manual_seed(0)
        lengths = torch.randint(256, 513, (count,), generator=chance).tolist()
        self.sentences = [
            torch.randint(WORDS, (length,), generator=chance) for length in lengths
        ]

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.sentences[index], index % 10


def padded(samples: list[tuple[Tensor, int]], at_once: bool) -> tuple[Tensor, Tensor]:
    sentences, labels = zip(*samples, strict=True)
    if at_once:
        batch = pad_sequence(list(sentences), batch_first=True)
    else:
        batch = torch.zeros(len(sentences), max(map(len, sentences)), dtype=torch.long)
        for row, sentence in enumerate(sentences):
            for column in range(len(sentence)):
                batch[row, column] = sentence[column]
    return batch, torch.tensor(labels)


def main() -> None:
    options = common.options(__doc__)
    torch.set_num_threads(1)
    collate = partial(padded, at_once=options.remedy)
    loader = DataLoader(
        Sentences(),
        24,
        shuffle=True,
        num_workers=2,
        collate_fn=collate,
        persistent_workers=True,
    )
    embedding = nn.Embedding(WORDS, 256)
    loss_of = nn.CrossEntropyLoss()
    classes = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(
        [*embedding.parameters(), *classes.parameters()], lr=0.1
    )
    meter = common.Meter(options.steps)
    while True:
        for sentences, labels in loader:
            optimizer.zero_grad()
            loss = loss_of(classes(embedding(sentences).mean(dim=1)), labels)
            loss.backward()
            optimizer.step()
            if meter.step(loss):
                return


if __name__ == "__main__":
    main()
