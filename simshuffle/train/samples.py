"""Samples in memory with their labels, the splitting, scaling and labelling that data sets need,
and sources, which give a training the inputs and targets of samples by number.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints, Ints64
from simshuffle.spec.record import whole_as_float

MOST_NBYTES = 8e9
"""Bytes of a set that is made in memory, or read whole; a computer that trains has that much
(estimate)."""
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
    """Divide samples into a training part and a test part; return the sample numbers of both,
    rising.

    Args:
        targets: (n,) labels. test_share: the test part has the whole part of ``test_share`` n
            samples, its share of every label to within one.
        rng: chooses the samples.
    """
    shuffled = rng.permutation(len(targets))
    by_label = shuffled[np.argsort(targets[shuffled], kind="stable")]

    # position k is tested where floor(k share) rises: evenly spread over the sorted labels
    is_tested = np.diff(np.floor(np.arange(len(targets) + 1) * test_share + 1e-9)) > 0
    return np.sort(by_label[~is_tested]), np.sort(by_label[is_tested])


def select_subset(targets: Ints64, count: int | None, rng: np.random.Generator) -> Ints64:
    """Choose ``count`` training images, of every label its share to within one; return their
    numbers, rising.

    None chooses all of them.

    Raises:
        InputError: there are fewer images.
    """
    if count is None or count == len(targets):
        return np.arange(len(targets))
    if count > len(targets):
        rule = f"must not exceed the {len(targets)} training images"
        refuse("data.num_samples", rule, str(count), "Lower it, or leave it out.", "data")
    return split_samples(targets, count / len(targets), rng)[1]


def standardise(
    train: NDArray[Any], test: NDArray[Any], *, by_feature: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return both parts minus the training part's mean, divided by its standard deviation: of all
    values, or of each feature.
    """
    axis = 0 if by_feature else None
    mean = train.mean(axis=axis, dtype=np.float64)
    std = train.std(axis=axis, dtype=np.float64)
    scale = np.where(std > 0, std, 1.0)
    return ((train - mean) / scale).astype(np.float32), ((test - mean) / scale).astype(np.float32)


def channel_statistics(inputs: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of (n, channels, height, width) bytes, as
    fractions of 255.

    The deviation is 1 where a channel has one value. They are computed from a histogram, so they do
    not depend on the order of the images.
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


def replace_labels(targets: Ints64, classes: int, share: float, rng: np.random.Generator) -> Ints64:
    """Return the labels with some replaced by another label.

    Args:
        targets: (n,) labels.
        classes: number of labels.
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
    """Return ``count`` labels in random order, each label as often as any other, to within one."""
    labels = np.arange(count, dtype=np.int64) % classes
    rng.shuffle(labels)
    return labels


def long_tailed_labels(
    count: int, classes: int, imbalance: float, rng: np.random.Generator
) -> Ints64:
    """Return ``count`` labels in random order, whose frequencies fall by one factor from class to
    class, to within one.

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


# ---------------------------------------------------------------------------------------- by number


class ArraySource:
    """Samples in memory, on the device that trains.

    Attributes:
        targets: the label of every sample, (N,).
        items: the samples as pairs (input, target), as a rank stores and sends them.

    Args:
        samples: inputs as float32, or as uint8, of which (x / 255 - mean) / std is given out.
        mean, std: by channel, (channels,); for uint8 inputs. Empty for 0 and 1.
        dtype: of the inputs given out.
        device: holds them.
    """

    def __init__(
        self,
        samples: Samples,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.targets = samples.targets
        self.items = _PairDataset(samples)
        inputs = torch.from_numpy(np.ascontiguousarray(samples.inputs))
        self._has_bytes = inputs.dtype == torch.uint8
        self._inputs = inputs.to(device) if self._has_bytes else inputs.to(device, dtype)
        self._labels = torch.from_numpy(np.ascontiguousarray(samples.targets)).to(device)
        self._dtype = dtype
        # (channels, 1, 1), to broadcast over images
        shape = (-1, *[1] * (inputs.ndim - 2))
        self._mean = torch.tensor(list(mean) or [0.0], dtype=dtype, device=device).view(shape)
        self._std = torch.tensor(list(std) or [1.0], dtype=dtype, device=device).view(shape)

    def __len__(self) -> int:
        """Return N, the number of samples."""
        return len(self.targets)

    def batch(self, indices: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs (n, *shape) and targets (n,) int64 of the samples ``indices`` (n,), on the
        device.
        """
        on_device = torch.from_numpy(np.asarray(indices, np.int64)).to(self._labels.device)
        return self._scale(self._inputs.index_select(0, on_device)), self._labels[on_device]

    def collate(self, items: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch, as of `batch`, that is made of ``items``, pairs (input, target)."""
        inputs = torch.from_numpy(np.stack([array for array, _ in items]))
        labels = torch.tensor([target for _, target in items], device=self._labels.device)
        return self._scale(inputs.to(labels.device)), labels

    def _scale(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs as numbers of the source's type; bytes standardised by channel."""
        if not self._has_bytes:
            return inputs.to(self._dtype)
        return inputs.to(self._dtype).div_(255).sub_(self._mean).div_(self._std)


class _PairDataset(Dataset[tuple[NDArray[Any], int]]):
    """Samples in memory as pairs (input, label)."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, sample: int) -> tuple[NDArray[Any], int]:
        return self._samples.inputs[sample], int(self._samples.targets[sample])


class DatasetSource:
    """A map-style torch Dataset of pairs (input, target), read item by item when a batch needs
    them; a TensorDataset, whose items are rows of tensors, batch by batch.

    Args:
        dataset: its targets are whole numbers from 0. They are taken from its attribute
            ``targets``, if it has a fitting one, or by reading every item once.
        dtype: of inputs that are not whole numbers.
        device: gets the batches.
        name: what errors call it.

    Raises:
        InputError: it is not map-style, it has no samples, or its items are not such pairs.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        name: str = "dataset",
    ) -> None:
        self._name = name
        self.items: Dataset[Any] = dataset
        self._length, self._dtype, self._device = dataset_length(dataset, name), dtype, device
        if not self._length:
            self._refuse("must hold samples", "none", "Check its path.")
        self._item(0)
        self._rows = dataset.tensors[0] if type(dataset) is TensorDataset else None
        self.targets = self._all_targets()

    def __len__(self) -> int:
        """Return N, the number of samples."""
        return self._length

    def batch(self, indices: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets as of `ArraySource.batch`.

        Raises:
            InputError: the inputs cannot be stacked to a tensor.
        """
        if self._rows is not None:
            samples = np.asarray(indices, np.int64)
            return self._to_device(self._rows[torch.from_numpy(samples)], self.targets[samples])
        return self._stack([self._item(int(i)) for i in indices])

    def collate(self, items: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch made of ``items``, as of `ArraySource.collate`; errors as of `batch`."""
        return self._stack([self._pair(item, "in a batch") for item in items])

    def _stack(self, pairs: Sequence[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs (n, *shape) and targets (n,) of pairs (input, target), on the device."""
        kind = type(pairs[0][0]).__name__
        try:
            inputs = default_collate([array for array, _ in pairs])
        except (TypeError, RuntimeError) as error:
            rule = f"inputs must be tensors or arrays of one shape ({error})"
            self._refuse(rule, kind, "Give it a transform, such as ToTensor().")
        if not isinstance(inputs, torch.Tensor):
            self._refuse("inputs must be one tensor or array each", kind, "Wrap the dataset.")
        return self._to_device(inputs, np.array([target for _, target in pairs], np.int64))

    def _to_device(
        self, inputs: torch.Tensor, targets: Ints64
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets on the device, floating-point inputs in the source's type."""
        dtype = self._dtype if inputs.is_floating_point() else inputs.dtype
        return inputs.to(self._device, dtype), torch.from_numpy(targets).to(self._device)

    def _item(self, index: int) -> tuple[Any, int]:
        """Return the checked pair (input, target) of one sample."""
        return self._pair(self.items[index], f"at {index}")

    def _pair(self, item: Any, place: str) -> tuple[Any, int]:
        """Return an item as (input, target), or raise InputError that names its ``place``."""
        is_sequence = isinstance(item, tuple | list)
        if not is_sequence or len(item) != 2:
            value = f"{len(item)} values" if is_sequence else f"a {type(item).__name__}"
            remedy = "Training needs targets: give each sample its label."
            self._refuse("items must be pairs (input, target)", f"{value} {place}", remedy)
        sample_input, target = item
        label = _whole_number(target)
        if label is None or label < 0:
            rule = "targets must be whole numbers from 0"
            self._refuse(rule, f"{target!r} {place}", "Number the classes.")
        return sample_input, label

    def _all_targets(self) -> Ints64:
        """Return the labels (N,): the dataset's attribute ``targets`` if it fits, else as read from
        every item.
        """
        attribute = getattr(self.items, "targets", None)
        if attribute is not None and getattr(self.items, "target_transform", None) is None:
            targets = np.asarray(attribute)
            is_whole = np.issubdtype(targets.dtype, np.integer)
            if is_whole and targets.shape == (self._length,) and targets.min() >= 0:
                return targets.astype(np.int64)
        return np.array([self._item(i)[1] for i in range(self._length)], np.int64)

    def _refuse(self, rule: str, value: str, remedy: str) -> NoReturn:
        """Raise InputError about the dataset, by its name."""
        refuse(self._name, rule, value, remedy, "training")


Source = ArraySource | DatasetSource
"""Gives a training the inputs and targets of samples by number."""


def dataset_length(dataset: object, name: str, source: str = "training") -> int:
    """Return the number of samples of a map-style dataset.

    Args:
        dataset: gives samples by number.
        name: of the dataset, for errors.
        source: file or function, for errors.

    Raises:
        InputError: it is not map-style.
    """
    by_number = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
    if by_number and isinstance(dataset, Sized):
        return len(dataset)
    rule = "must be a map-style dataset, with __getitem__ and __len__"
    refuse(name, rule, type(dataset).__name__, "Wrap it in one.", source)


def _whole_number(target: Any) -> int | None:
    """Return ``target`` as an int if it is a whole number, or holds just one; else None."""
    if isinstance(target, torch.Tensor):
        is_whole = not target.is_floating_point() and not target.is_complex()
        return int(target) if is_whole and target.numel() == 1 else None
    if isinstance(target, np.ndarray):
        is_whole = np.issubdtype(target.dtype, np.integer)
        return int(target.item()) if is_whole and target.size == 1 else None
    return int(target) if isinstance(target, int | np.integer) else None
