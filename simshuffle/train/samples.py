"""Samples in memory, with their labels, and what data sets need to split, scale and label them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.spec.record import whole_as_float

TestShare = Annotated[float, BeforeValidator(whole_as_float), Field(ge=0.001, le=0.9)]


@dataclass(frozen=True)
class Samples:
    """Samples in memory."""

    # (n, *shape) float32, ready for the network; or uint8, of which the network gets (x / 255 -
    # mean) / std by channel
    inputs: NDArray[Any]
    targets: Ints64  # (n,) int64, labels from 0

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample: (features,) or (channels, height, width)."""
        return tuple(self.inputs.shape[1:])


@dataclass(frozen=True)
class Augmentation:
    """How a view is made of a sample: shifted, with another contrast, and with more noise."""

    # of the image, (channels, height, width), whatever the shape of its sample
    shape: tuple[int, int, int]
    shift: int  # largest shift along each axis in pixels; images wrap around
    contrast: float  # factor, from 1 - contrast to 1 + contrast
    # standard deviation of what is added, where samples have 1; the sum is divided by its own
    noise: float


@dataclass(frozen=True)
class TrainingSet:
    """A data set, split for training."""

    name: str  # for captions
    # train, test: its samples
    train: Samples
    test: Samples
    classes: int  # number of labels
    # mean, std: by channel, (channels,) float32, of uint8 inputs as fractions of 255; empty where
    # inputs are float32
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    # how views of the samples are made; None if there is none
    augmentation: Augmentation | None = None


# ---------------------------------------------------------------------- what several data sets need


def split(targets: Ints64, test_share: float, rng: np.random.Generator) -> tuple[Ints64, Ints64]:
    """Sample numbers of the training part and of the test part, both rising; the latter has the
    whole part of ``test_share`` n samples, its share of every label to within one."""
    shuffled = rng.permutation(len(targets))
    order = shuffled[np.argsort(targets[shuffled], kind="stable")]
    tested = np.diff(np.floor(np.arange(len(targets) + 1) * test_share + 1e-9)) > 0
    return np.sort(order[~tested]), np.sort(order[tested])


def standardised(
    train: NDArray[Any], test: NDArray[Any], *, by_feature: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Both parts, less the training part's mean, over its deviation: of all values, or by
    feature."""
    axis = 0 if by_feature else None
    mean, std = train.mean(axis=axis, dtype=np.float64), train.std(axis=axis, dtype=np.float64)
    scale = np.where(std > 0, std, 1.0)
    return ((train - mean) / scale).astype(np.float32), ((test - mean) / scale).astype(np.float32)


def channel_statistics(inputs: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation by channel of (n, channels, height, width) bytes, as fractions of
    255; 1 where a channel has one value. Counted by histogram, so the same in any order."""
    means, stds = [], []
    values = np.arange(256) / 255
    for channel in range(inputs.shape[1]):
        count = np.zeros(256, np.int64)
        # in pieces, because bincount makes eight bytes of each
        for first in range(0, len(inputs), 4096):
            count += np.bincount(inputs[first : first + 4096, channel].ravel(), minlength=256)
        mean = float((count * values).sum() / count.sum())
        std = float(np.sqrt((count * (values - mean) ** 2).sum() / count.sum()))
        means.append(mean)
        stds.append(std if std > 0 else 1.0)
    return tuple(means), tuple(stds)


def with_wrong_labels(
    targets: Ints64, classes: int, share: float, rng: np.random.Generator
) -> Ints64:
    """The labels, of which round(``share`` n) chosen at random are replaced by another label, each
    other one being equally likely."""
    wrong = rng.permutation(len(targets))[: round(share * len(targets))]
    out = targets.copy()
    if classes > 1:
        out[wrong] = (out[wrong] + rng.integers(1, classes, len(wrong))) % classes
    return out


def balanced_labels(count: int, classes: int, rng: np.random.Generator) -> Ints64:
    """Labels in random order, (count,); each one as often as any other, to within one."""
    labels = np.arange(count, dtype=np.int64) % classes
    rng.shuffle(labels)
    return labels


def long_tailed_labels(
    count: int, classes: int, imbalance: float, rng: np.random.Generator
) -> Ints64:
    """Labels in random order, (count,): the first class ``imbalance`` times as often as the last,
    each by the same factor as often as the one before, to within one; 1 is `balanced_labels`."""
    if imbalance == 1 or classes == 1:
        return balanced_labels(count, classes, rng)
    share = imbalance ** (-np.arange(classes) / (classes - 1))
    ends = np.rint(count * np.cumsum(share) / share.sum()).astype(np.int64)
    labels = np.repeat(np.arange(classes, dtype=np.int64), np.diff(ends, prepend=0))
    rng.shuffle(labels)
    return labels


def check_memory(nbytes: int, limit: float, key: str, source: str, remedy: str) -> None:
    """See that ``nbytes`` of samples may be held in memory, or raise InputError."""
    if nbytes > limit:
        rule = f"the samples must fit into {limit / 1e9:.3g} GB of memory"
        refuse(key, rule, f"{nbytes / 1e9:.3g} GB", remedy, source)
