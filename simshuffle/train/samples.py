"""Samples in memory, with their labels; what data sets need to split, scale and label them; and
sources: where a training gets the inputs and targets of the samples that it names by number."""

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


def kept(targets: Ints64, count: int | None, rng: np.random.Generator) -> Ints64:
    """Numbers of the training images to keep, rising: ``count`` of them, of every label its share
    to within one; all if None. Raises InputError if there are not so many."""
    if count is None or count == len(targets):
        return np.arange(len(targets))
    if count > len(targets):
        rule = f"must not exceed the {len(targets)} training images"
        refuse("data.num_samples", rule, str(count), "Lower it, or leave it out.", "data")
    return split(targets, count / len(targets), rng)[1]


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
        self.targets, self.items = samples.targets, _Rows(samples)
        inputs = torch.from_numpy(np.ascontiguousarray(samples.inputs))
        self._raw = inputs.dtype == torch.uint8
        self._inputs = inputs.to(device) if self._raw else inputs.to(device, dtype)
        self._labels = torch.from_numpy(np.ascontiguousarray(samples.targets)).to(device)
        self._dtype = dtype
        by_channel = (-1, *[1] * (inputs.ndim - 2))
        self._mean = torch.tensor(list(mean) or [0.0], dtype=dtype, device=device).view(by_channel)
        self._std = torch.tensor(list(std) or [1.0], dtype=dtype, device=device).view(by_channel)

    def __len__(self) -> int:
        """N."""
        return len(self.targets)

    def batch(self, indices: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs (n, *shape) and targets (n,) int64 of the samples ``indices`` (n,), on the
        device."""
        which = torch.from_numpy(np.asarray(indices, np.int64)).to(self._labels.device)
        return self._given_out(self._inputs.index_select(0, which)), self._labels[which]

    def collate(self, items: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """What `batch` gives, made of ``items``."""
        inputs = torch.from_numpy(np.stack([given for given, _ in items]))
        labels = torch.tensor([target for _, target in items], device=self._labels.device)
        return self._given_out(inputs.to(labels.device)), labels

    def _given_out(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self._raw:
            return inputs.to(self._dtype)
        return inputs.to(self._dtype).div_(255).sub_(self._mean).div_(self._std)


class _Rows(Dataset[tuple[NDArray[Any], int]]):
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
        self._length, self._dtype, self._device = length_of(dataset, name), dtype, device
        if not self._length:
            self._refuse("must hold samples", "none", "Check its path.")
        self._item(0)
        self._rows = dataset.tensors[0] if type(dataset) is TensorDataset else None
        self.targets = self._all_targets()

    def __len__(self) -> int:
        """N."""
        return self._length

    def batch(self, indices: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """As of `ArraySource`; or raise InputError if the inputs cannot be stacked to a tensor."""
        if self._rows is not None:
            which = np.asarray(indices, np.int64)
            return self._given_out(self._rows[torch.from_numpy(which)], self.targets[which])
        return self._stacked([self._item(int(i)) for i in indices])

    def collate(self, items: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """As of `ArraySource`; errors as of `batch`."""
        return self._stacked([self._pair(item, "in a batch") for item in items])

    def _stacked(self, pairs: Sequence[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        kind = type(pairs[0][0]).__name__
        try:
            inputs = default_collate([given for given, _ in pairs])
        except (TypeError, RuntimeError) as error:
            rule = f"inputs must be tensors or arrays of one shape ({error})"
            self._refuse(rule, kind, "Give it a transform, such as ToTensor().")
        if not isinstance(inputs, torch.Tensor):
            self._refuse("inputs must be one tensor or array each", kind, "Wrap the dataset.")
        return self._given_out(inputs, np.array([target for _, target in pairs], np.int64))

    def _given_out(
        self, inputs: torch.Tensor, targets: Ints64
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kind = self._dtype if inputs.is_floating_point() else inputs.dtype
        return inputs.to(self._device, kind), torch.from_numpy(targets).to(self._device)

    def _item(self, index: int) -> tuple[Any, int]:
        return self._pair(self.items[index], f"at {index}")

    def _pair(self, item: Any, place: str) -> tuple[Any, int]:
        several = isinstance(item, tuple | list)
        if not several or len(item) != 2:
            shown = f"{len(item)} values" if several else f"a {type(item).__name__}"
            remedy = "Training needs targets: give each sample its label."
            self._refuse("items must be pairs (input, target)", f"{shown} {place}", remedy)
        given, target = item
        number = _whole_number(target)
        if number is None or number < 0:
            rule = "targets must be whole numbers from 0"
            self._refuse(rule, f"{target!r} {place}", "Number the classes.")
        return given, number

    def _all_targets(self) -> Ints64:
        known = getattr(self.items, "targets", None)
        if known is not None and getattr(self.items, "target_transform", None) is None:
            targets = np.asarray(known)
            whole = np.issubdtype(targets.dtype, np.integer)
            if whole and targets.shape == (self._length,) and targets.min() >= 0:
                return targets.astype(np.int64)
        return np.array([self._item(i)[1] for i in range(self._length)], np.int64)

    def _refuse(self, rule: str, value: str, remedy: str) -> NoReturn:
        refuse(self._name, rule, value, remedy, "training")


Source = ArraySource | DatasetSource
"""Samples by number."""


def length_of(dataset: object, name: str, source: str = "training") -> int:
    """Samples of a map-style dataset, which gives them by number; or raise InputError."""
    by_number = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
    if by_number and isinstance(dataset, Sized):
        return len(dataset)
    rule = "must be a map-style dataset, with __getitem__ and __len__"
    refuse(name, rule, type(dataset).__name__, "Wrap it in one.", source)


def _whole_number(target: Any) -> int | None:
    """``target`` if it is a whole number, or holds just one; else None."""
    if isinstance(target, torch.Tensor):
        whole = not target.is_floating_point() and not target.is_complex()
        return int(target) if whole and target.numel() == 1 else None
    if isinstance(target, np.ndarray):
        whole = np.issubdtype(target.dtype, np.integer)
        return int(target.item()) if whole and target.size == 1 else None
    return int(target) if isinstance(target, int | np.integer) else None
