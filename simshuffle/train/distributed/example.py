"""Partial local shuffle in a training script of one's own, to be started by torchrun."""

from __future__ import annotations

import sys
import tempfile

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from simshuffle.train.distributed import Scheduler, ShardDataset, data_parallel, leave


def main() -> None:
    """Train on scikit-learn's digits for 3 epochs."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    digits = load_digits()
    source = TensorDataset(
        torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    )
    model = data_parallel(
        nn.Sequential(
            nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    with tempfile.TemporaryDirectory() as ssd:  # a folder on the node's SSD
        dataset = ShardDataset(source, ssd)
        scheduler = Scheduler(dataset, batch_size=16, fraction=0.1)
        loader = DataLoader(dataset, batch_size=16, sampler=scheduler.sampler)
        for epoch in range(1, 4):
            scheduler.scheduling(epoch)
            losses = []
            for inputs, targets in loader:
                loss = nn.functional.cross_entropy(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                scheduler.synchronize()  # wait for the samples of the last iteration
                optimizer.step()
                scheduler.communicate()  # begin to send and receive those of this one
                losses.append(loss.item())
            scheduler.clean_local_storage()  # wait for the last samples, and remove what was sent
            scheduler.verify()
            if dist.get_rank() == 0:
                sys.stdout.write(
                    f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}\n"
                )
        dist.barrier()


if __name__ == "__main__":
    main()
    leave()
