"""Sources: where a training gets the inputs and targets of the samples that it names by number."""

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
