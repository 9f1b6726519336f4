"""What every data set of a training answers: samples in memory, with their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Samples:
    """Samples in memory.

    Attributes:
        inputs: (n, *shape) float32, ready for the network; or uint8, of which the network gets (x /
            255 - mean) / std by channel.
        targets: (n,) int64, labels from 0.
    """

    inputs: NDArray[Any]
    targets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample: (features,) or (channels, height, width)."""
        return tuple(self.inputs.shape[1:])


@dataclass(frozen=True)
class Augmentation:
    """How a view is made of a sample: shifted, with another contrast, and with more noise.

    Attributes:
        shape: of the image, (channels, height, width), whatever the shape of its sample.
        shift: largest shift along each axis in pixels; images wrap around.
        contrast: factor, from 1 - contrast to 1 + contrast.
        noise: standard deviation of what is added, where samples have 1; the sum is divided by its
            own.
    """

    shape: tuple[int, int, int]
    shift: int
    contrast: float
    noise: float


@dataclass(frozen=True)
class TrainingSet:
    """A data set, split for training.

    Attributes:
        name: for captions.
        train, test: its samples.
        classes: number of labels.
        mean, std: by channel, (channels,) float32, of uint8 inputs as fractions of 255; empty where
            inputs are float32.
        augmentation: how views of the samples are made; None if there is none.
    """

    name: str
    train: Samples
    test: Samples
    classes: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augmentation: Augmentation | None = None


class DataSource(Protocol):
    """A record of a study that can be loaded."""

    @property
    def kind(self) -> str:
        """Its name."""

    @property
    def label(self) -> str:
        """What it is in words, for figures: 'synthetic images'."""

    def load(self) -> TrainingSet:
        """The samples; the same on every call.

        Raises:
            InputError: a file is missing or not what it should be.
        """
