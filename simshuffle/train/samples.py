"""Samples in memory with their labels, and the splitting, scaling and labelling of data
sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.spec.record import whole_as_float

MOST_NBYTES = 8e9
"""Bytes of a set that is made in memory, or read whole; a computer that trains has that
much (estimate).
"""
TestShare = Annotated[float, BeforeValidator(whole_as_float), Field(ge=0.001, le=0.9)]


@dataclass(frozen=True)
class Samples:
    """Samples in memory."""

    # (n, *shape) float32, ready for the network; or uint8, of which the network gets (x / 255 -
    # mean) / std by channel
    inputs: NDArray[Any]
    targets: Ints64  # (n,) int64, labels from 0

    def __len__(self) -> int:
        """Return n, the number of samples."""
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one sample: (features,) or (channels, height, width)."""
        return tuple(self.inputs.shape[1:])


@dataclass(frozen=True)
class Augmentation:
    """Random changes that make a view of a sample: shift, contrast and added noise."""

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


def split_samples(
    targets: Ints64, test_share: float, rng: np.random.Generator
) -> tuple[Ints64, Ints64]:
    """Divide samples into a training part and a test part; return the sample numbers of
    both, rising.

    Args:
        targets: (n,) labels.
        test_share: the test part has ``test_share`` n samples, rounded down, of every
            label its share to within one.
        rng: chooses the samples.
    """
    shuffled = rng.permutation(len(targets))
    by_label = shuffled[np.argsort(targets[shuffled], kind="stable")]

    # position k is tested where floor(k share) rises: evenly spread over the sorted labels
    is_tested = np.diff(np.floor(np.arange(len(targets) + 1) * test_share + 1e-9)) > 0
    return np.sort(by_label[~is_tested]), np.sort(by_label[is_tested])


def select_subset(
    targets: Ints64, count: int | None, rng: np.random.Generator
) -> Ints64:
    """Choose ``count`` training images, of every label its share to within one; return
    their numbers, rising.

    None chooses all of them.

    Raises:
        InputError: there are fewer images.
    """
    if count is None or count == len(targets):
        return np.arange(len(targets))
    if count > len(targets):
        rule = f"must not exceed the {len(targets)} training images"
        refuse(
            "data.num_samples",
            rule,
            str(count),
            "Lower num_samples, or leave it out.",
            "data",
        )
    return split_samples(targets, count / len(targets), rng)[1]


def standardise(
    train: NDArray[Any], test: NDArray[Any], *, by_feature: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return both parts minus the training part's mean, divided by its standard
    deviation: of all values, or of each feature (place in the sample) with
    ``by_feature``; by 1 where that is 0. Both are float32.
    """
    axis = 0 if by_feature else None
    mean = train.mean(axis=axis, dtype=np.float64)
    std = train.std(axis=axis, dtype=np.float64)
    scale = np.where(std > 0, std, 1.0)
    return ((train - mean) / scale).astype(np.float32), ((test - mean) / scale).astype(
        np.float32
    )


def channel_statistics(
    inputs: NDArray[np.uint8],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of (n, channels, height,
    width) bytes, as fractions of 255.

    The deviation is 1 where a channel has one value. They are computed from a
    histogram, so they do not depend on the order of the images.
    """
    means = []
    stds = []
    values = np.arange(256) / 255
    for channel in range(inputs.shape[1]):
        histogram = np.zeros(256, np.int64)
        # 4096 images at a time, because bincount makes eight bytes of each value
        for first in range(0, len(inputs), 4096):
            images = inputs[first : first + 4096, channel]
            histogram += np.bincount(images.ravel(), minlength=256)
        mean = float((histogram * values).sum() / histogram.sum())
        variance = (histogram * (values - mean) ** 2).sum() / histogram.sum()
        std = float(np.sqrt(variance))
        means.append(mean)
        stds.append(std if std > 0 else 1.0)
    return tuple(means), tuple(stds)


def replace_labels(
    targets: Ints64, classes: int, share: float, rng: np.random.Generator
) -> Ints64:
    """Return the labels with some replaced by another label.

    Args:
        targets: (n,) labels.
        classes: number of labels; with one, no label is replaced.
        share: round(``share`` n) samples, chosen at random, get a wrong label.
        rng: draws samples and labels; each wrong label is equally likely.
    """
    wrong = rng.permutation(len(targets))[: round(share * len(targets))]
    labels = targets.copy()
    if classes > 1:
        # a label plus 1 to classes - 1, modulo classes, is another label
        labels[wrong] = (labels[wrong] + rng.integers(1, classes, len(wrong))) % classes
    return labels


def balanced_labels(count: int, classes: int, rng: np.random.Generator) -> Ints64:
    """Return ``count`` labels in random order, each label as often as any other, to
    within one.
    """
    labels = np.arange(count, dtype=np.int64) % classes
    rng.shuffle(labels)
    return labels


def long_tailed_labels(
    count: int, classes: int, imbalance: float, rng: np.random.Generator
) -> Ints64:
    """Return ``count`` labels in random order, whose frequencies fall by one factor
    from class to class, to within one; rare classes may have no sample.

    Args:
        count: of samples.
        classes: number of labels.
        imbalance: how many times as often as the last class the first one occurs; 1 is
            `balanced_labels`.
        rng: draws the order.
    """
    if imbalance == 1 or classes == 1:
        return balanced_labels(count, classes, rng)
    frequency = imbalance ** (-np.arange(classes) / (classes - 1))
    end = np.rint(count * np.cumsum(frequency) / frequency.sum()).astype(np.int64)
    labels = np.repeat(np.arange(classes, dtype=np.int64), np.diff(end, prepend=0))
    rng.shuffle(labels)
    return labels


def check_memory(nbytes: int, limit: float, key: str, source: str, remedy: str) -> None:
    """Raise InputError if samples are too large for the memory.

    Args:
        nbytes: bytes of the samples.
        limit: the most bytes.
        key: of the data, which the error names.
        source: file or function, which the error names.
        remedy: what to do, for the error.
    """
    if nbytes > limit:
        rule = f"the samples must fit into {limit / 1e9:.3g} GB of memory"
        refuse(key, rule, f"{nbytes / 1e9:.3g} GB", remedy, source)
