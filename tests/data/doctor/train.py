"""A small training that waits for its data: one worker, and a transformation in plain Python."""

import torch
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    """Made up, each of 64 numbers, and whether their sum is large."""

    def __len__(self):
        return 1200

    def __getitem__(self, index):
        signal = torch.rand(64, generator=torch.Generator().manual_seed(index))
        smooth = list(signal)
        for _ in range(12):
            smooth = [(a + b) / 2 for a, b in zip(smooth, smooth[1:] + smooth[:1], strict=True)]
        return torch.stack(smooth), (signal.sum() > 32).long()


def main():
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Signals(), batch_size=8, shuffle=True, num_workers=1)
    for signals, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(signals), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
