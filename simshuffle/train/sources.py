"""Sources: where a training gets the inputs and targets of samples by number."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints, Ints64
from simshuffle.train.samples import Samples


class ArraySource:
    """Samples in memory, on the device that trains.

    Attributes:
        targets: the label of every sample, (N,).
        items: the samples as pairs (input, target), as a rank stores and sends them:
            arrays as in ``samples``, bytes not yet standardised.

    Args:
        samples: inputs as float32, or as uint8, of which (x / 255 - mean) / std is
            given out.
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
        self._inputs = (
            inputs.to(device) if self._has_bytes else inputs.to(device, dtype)
        )
        self._labels = torch.from_numpy(np.ascontiguousarray(samples.targets)).to(
            device
        )
        self._dtype = dtype
        # (channels, 1, 1), to broadcast over images
        shape = (-1, *[1] * (inputs.ndim - 2))
        self._mean = torch.tensor(list(mean) or [0.0], dtype=dtype, device=device).view(
            shape
        )
        self._std = torch.tensor(list(std) or [1.0], dtype=dtype, device=device).view(
            shape
        )

    def __len__(self) -> int:
        """Return N, the number of samples."""
        return len(self.targets)

    def batch(self, indices: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs (n, *shape) and targets (n,) int64 of the samples ``indices``
        (n,), on the device.
        """
        # the samples are there already; only their indices travel
        on_device = torch.from_numpy(np.asarray(indices, np.int64)).to(
            self._labels.device
        )
        return self._scale(self._inputs.index_select(0, on_device)), self._labels[
            on_device
        ]

    def collate(self, items: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch, as of `batch`, that is made of ``items``, pairs (input,
        target) as in the attribute ``items``.
        """
        inputs = torch.from_numpy(np.stack([array for array, _ in items]))
        labels = torch.tensor(
            [target for _, target in items], device=self._labels.device
        )
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
        """Return N, the number of samples."""
        return len(self._samples)

    def __getitem__(self, sample: int) -> tuple[NDArray[Any], int]:
        """Return the input, as it is stored, and the label of a sample."""
        return self._samples.inputs[sample], int(self._samples.targets[sample])


class DatasetSource:
    """A map-style torch Dataset of pairs (input, target), read item by item when a
    batch needs them; a TensorDataset, whose items are rows of tensors, batch by batch.

    Attributes:
        targets: the label of every sample, (N,) int64.
        items: the dataset.

    Args:
        dataset: its targets are whole numbers from 0. They are taken from its attribute
            ``targets``, if it has a fitting one, or by reading every item once. The
            first item is read in any case.
        dtype: of floating-point inputs; others keep theirs.
        device: gets the batches.
        name: what errors call it.

    Raises:
        InputError: it is not map-style, it has no samples, or its items are not such
            pairs.
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
        self._length = dataset_length(dataset, name)
        self._dtype = dtype
        self._device = device
        if not self._length:
            self._refuse("must hold samples", "none", "Check its path.")
        # refused at once, not in the first batch, if items are no pairs
        self._item(0)
        self._rows = dataset.tensors[0] if type(dataset) is TensorDataset else None
        self.targets = self._all_targets()

    def __len__(self) -> int:
        """Return N, the number of samples."""
        return self._length

    def batch(self, indices: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets as of `ArraySource.batch`.

        Items are read anew in every call, with their own targets.

        Raises:
            InputError: the inputs cannot be stacked to a tensor, or an item is no pair
                of an input and a whole number from 0.
        """
        if self._rows is not None:
            samples = np.asarray(indices, np.int64)
            return self._to_device(
                self._rows[torch.from_numpy(samples)], self.targets[samples]
            )
        return self._stack([self._item(int(i)) for i in indices])

    def collate(self, items: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batch made of ``items``, as of `ArraySource.collate`; errors as of
        `batch`.
        """
        return self._stack([self._pair(item, "in a batch") for item in items])

    def _stack(
        self, pairs: Sequence[tuple[Any, int]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs (n, *shape) and targets (n,) of pairs (input, target), on the
        device.
        """
        kind = type(pairs[0][0]).__name__
        try:
            inputs = default_collate([array for array, _ in pairs])
        except (TypeError, RuntimeError) as error:
            rule = f"inputs must be tensors or arrays of one shape ({error})"
            self._refuse(
                rule, kind, "Give the dataset a transform, such as ToTensor()."
            )
        if not isinstance(inputs, torch.Tensor):
            self._refuse(
                "inputs must be one tensor or array each", kind, "Wrap the dataset."
            )
        return self._to_device(
            inputs, np.array([target for _, target in pairs], np.int64)
        )

    def _to_device(
        self, inputs: torch.Tensor, targets: Ints64
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets on the device, floating-point inputs in the
        source's type.
        """
        dtype = self._dtype if inputs.is_floating_point() else inputs.dtype
        return inputs.to(self._device, dtype), torch.from_numpy(targets).to(
            self._device
        )

    def _item(self, index: int) -> tuple[Any, int]:
        """Return the checked pair (input, target) of one sample."""
        return self._pair(self.items[index], f"at {index}")

    def _pair(self, item: Any, place: str) -> tuple[Any, int]:
        """Return an item as (input, target), or raise InputError that names its
        ``place``.
        """
        is_sequence = isinstance(item, tuple | list)
        if not is_sequence or len(item) != 2:
            value = f"{len(item)} values" if is_sequence else f"a {type(item).__name__}"
            remedy = "Training needs targets: give each sample its label."
            self._refuse(
                "items must be pairs (input, target)", f"{value} {place}", remedy
            )
        sample_input, target = item
        label = _whole_number(target)
        if label is None or label < 0:
            rule = "targets must be whole numbers from 0"
            self._refuse(rule, f"{target!r} {place}", "Number the classes.")
        return sample_input, label

    def _all_targets(self) -> Ints64:
        """Return the labels (N,): the dataset's attribute ``targets`` if it fits, else
        as read from every item.

        It fits if it is N whole numbers from 0, and no ``target_transform`` is set.
        """
        attribute = getattr(self.items, "targets", None)
        if (
            attribute is not None
            and getattr(self.items, "target_transform", None) is None
        ):
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
    by_number = hasattr(dataset, "__getitem__") and not isinstance(
        dataset, IterableDataset
    )
    if by_number and isinstance(dataset, Sized):
        return len(dataset)
    rule = "must be a map-style dataset, with __getitem__ and __len__"
    refuse(name, rule, type(dataset).__name__, "Wrap the dataset in one.", source)


def _whole_number(target: Any) -> int | None:
    """Return ``target`` as an int if it is a whole number, or a tensor or array of just
    one; else None.

    True and False of Python and torch count as 1 and 0, those of NumPy as none.
    """
    if isinstance(target, torch.Tensor):
        is_whole = not target.is_floating_point() and not target.is_complex()
        return int(target) if is_whole and target.numel() == 1 else None
    if isinstance(target, np.ndarray):
        is_whole = np.issubdtype(target.dtype, np.integer)
        return int(target.item()) if is_whole and target.size == 1 else None
    return int(target) if isinstance(target, int | np.integer) else None
