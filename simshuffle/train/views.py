"""Views: what a contrastive training sees of a sample, two changed copies of it, drawn anew in
every epoch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from simshuffle.spec.rng import stream
from simshuffle.train.data.base import Augmentation

Ints = NDArray[np.integer]


class Views:
    """Two views of every sample in every epoch, the same whoever asks: an emulated rank, a real one
    that holds the sample, in whatever batch. Draws of an epoch are made for all samples together
    and take twice the memory of the samples.

    Args:
        augmentation: how a view is made of a sample.
        count: N, samples.
        seed: of the run.
    """

    def __init__(self, augmentation: Augmentation, count: int, seed: int) -> None:
        self._how, self._count, self._seed, self._epoch = augmentation, count, seed, 0

    def pair(self, inputs: torch.Tensor, samples: Ints, epoch: int) -> torch.Tensor:
        """The first views of all samples, and then the second: (2 n, *shape).

        Args:
            inputs: (n, *shape), as the network would get them.
            samples: their numbers, (n,).
            epoch: from 1.
        """
        if epoch != self._epoch:
            self._draw(epoch)
        which = torch.from_numpy(np.asarray(samples, np.int64))
        return torch.cat([self._view(number, inputs, which) for number in (0, 1)])

    def _draw(self, epoch: int) -> None:
        rng, how = stream(self._seed, "views", epoch), self._how
        size = (2, self._count)
        self._shift = torch.from_numpy(rng.integers(-how.shift, how.shift + 1, (*size, 2)))
        contrast = 1 + how.contrast * (2 * rng.random(size, dtype=np.float32) - 1)
        self._contrast = torch.from_numpy(contrast)
        noise = rng.standard_normal((*size, *how.shape), dtype=np.float32)
        self._noise = torch.from_numpy(noise)
        self._epoch = epoch

    def _view(self, number: int, inputs: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        """One view of each of the samples ``which``."""
        how = self._how
        pixels = inputs.reshape(len(inputs), how.shape[0], -1)
        places = self._places(self._shift[number, which]).to(inputs.device)
        shifted = pixels.gather(2, places[:, None, :].expand_as(pixels))
        contrast = self._contrast[number, which].to(inputs).view(-1, 1, 1)
        noise = self._noise[number, which].to(inputs).view(pixels.shape)
        view: torch.Tensor = (shifted * contrast + noise * how.noise) / (1 + how.noise**2) ** 0.5
        return view.reshape(inputs.shape)

    def _places(self, shift: torch.Tensor) -> torch.Tensor:
        """Where the pixels of images shifted by (n, 2) come from: (n, height width)."""
        _, height, width = self._how.shape
        rows = (torch.arange(height) + shift[:, :1]) % height
        columns = (torch.arange(width) + shift[:, 1:]) % width
        return (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
