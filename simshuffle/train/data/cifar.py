"""CIFAR-10 and CIFAR-100, from files in the published binary form (Krizhevsky 2009, "Learning
Multiple Layers of Features")."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.spec.record import Count, Spec
from simshuffle.spec.rng import stream
from simshuffle.train.data.base import Samples, TrainingSet, channel_statistics, split

SIDE, CHANNELS = 32, 3
PIXELS = CHANNELS * SIDE * SIDE
"""Bytes of an image: the red plane, then the green, then the blue, each row by row
(www.cs.toronto.edu/~kriz/cifar.html)."""
PAGE = "www.cs.toronto.edu/~kriz/cifar.html"
TRAIN_TO_TEST = 5
"""Training images for each test image: 50,000 to 10,000 in both published sets."""


class Cifar10(Spec):
    """CIFAR-10: 10 labels. Files data_batch_1.bin to data_batch_5.bin and test_batch.bin; a row is
    the label and 3,072 pixels.

    Attributes:
        path: the folder with the files, or the one that holds ``cifar-10-batches-bin``.
        num_samples: training images to keep, drawn with equal shares of each label; None for all.
        seed: of that draw.
    """

    label: ClassVar[str] = "CIFAR-10"
    kind: Literal["cifar10"]
    path: str
    num_samples: Count | None = None
    seed: Annotated[int, Field(ge=0)] = 0

    def load(self) -> TrainingSet:
        """The images as bytes, (n, 3, 32, 32), with mean and standard deviation of the training
        images.

        Raises:
            InputError: a file is missing, or not what it should be.
        """
        names = [f"data_batch_{number}.bin" for number in range(1, 6)]
        folder = _folder(
            self.path, "cifar-10-batches-bin", [*names, "test_batch.bin"], "CIFAR-10 binary version"
        )
        parts = [_rows(folder / name, 1, 10) for name in names]
        test = _rows(folder / "test_batch.bin", 1, 10)
        for name, part in zip(names, parts, strict=True):
            _check_count(folder / name, len(part), len(test))
        return _training_set(
            "CIFAR-10", np.concatenate(parts), test, 0, 10, self.num_samples, self.seed
        )


class Cifar100(Spec):
    """CIFAR-100: 100 fine or 20 coarse labels. Files train.bin and test.bin; a row is both labels
    and 3,072 pixels.

    Attributes:
        path: the folder with the files, or the one that holds ``cifar-100-binary``.
        labels: 'fine' (100) or 'coarse' (20).
        num_samples: training images to keep, drawn with equal shares of each label; None for all.
        seed: of that draw.
    """

    label: ClassVar[str] = "CIFAR-100"
    kind: Literal["cifar100"]
    path: str
    labels: Literal["fine", "coarse"] = "fine"
    num_samples: Count | None = None
    seed: Annotated[int, Field(ge=0)] = 0

    def load(self) -> TrainingSet:
        """The images as bytes, (n, 3, 32, 32), with mean and standard deviation of the training
        images.

        Raises:
            InputError: a file is missing, or not what it should be.
        """
        folder = _folder(
            self.path, "cifar-100-binary", ["train.bin", "test.bin"], "CIFAR-100 binary version"
        )
        train, test = (
            _rows(folder / "train.bin", 2, 20, 100),
            _rows(folder / "test.bin", 2, 20, 100),
        )
        _check_count(folder / "train.bin", len(train), TRAIN_TO_TEST * len(test))
        column, classes = (1, 100) if self.labels == "fine" else (0, 20)
        return _training_set("CIFAR-100", train, test, column, classes, self.num_samples, self.seed)


def _folder(path: str, inner: str, names: list[str], version: str) -> Path:
    """The folder that holds the files."""
    given = Path(path).expanduser()
    remedy = f"Give the folder of the {version} ({PAGE}), unpacked; or unpack that archive again."
    if not given.is_dir():
        refuse("data.path", "must be a folder", str(given), remedy, "data")
    folder = given / inner if (given / inner).is_dir() else given
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        refuse("data.path", f"must hold {', '.join(missing)}", str(folder), remedy, "data")
    return folder


def _rows(path: Path, label_bytes: int, *classes: int) -> NDArray[np.uint8]:
    """The rows of one file: (n, label_bytes + 3,072) bytes, of labels below ``classes`` (one number
    for each label byte)."""
    width = label_bytes + PIXELS
    remedy = f"The file is truncated, or of another form; take it from {PAGE} again."
    try:
        raw = np.fromfile(path, np.uint8)
    except OSError as error:
        raise InputError(
            Problem(
                "data.path", f"{path.name} must be readable", str(error), "Check its permissions."
            ),
            str(path),
        ) from None
    if not len(raw) or len(raw) % width:
        rule = f"{path.name} must be whole rows of {width} bytes"
        refuse("data.path", rule, f"{len(raw)} bytes", remedy, str(path))
    rows = raw.reshape(-1, width)
    for column, count in enumerate(classes):
        wrong = np.flatnonzero(rows[:, column] >= count)
        if len(wrong):
            value = f"{rows[wrong[0], column]} in row {wrong[0]}"
            rule = f"labels of {path.name} must be below {count}"
            refuse("data.path", rule, value, remedy, str(path))
    return rows


def _check_count(path: Path, rows: int, expected: int) -> None:
    """A file cut at the end of a row shows only beside the other files."""
    if rows != expected:
        rule = f"{path.name} must have {expected} rows, as the test file demands"
        remedy = f"The file is truncated; take it from {PAGE} again."
        refuse("data.path", rule, f"{rows} rows", remedy, str(path))


def _training_set(
    name: str,
    train: NDArray[np.uint8],
    test: NDArray[np.uint8],
    column: int,
    classes: int,
    keep: int | None,
    seed: int,
) -> TrainingSet:
    """Images and labels of the rows, with the statistics of the training images that are kept."""
    if keep is not None and keep > len(train):
        rule = f"must not exceed the {len(train)} training images"
        refuse("data.num_samples", rule, str(keep), "Lower it, or leave it out.", "data")
    if keep is not None and keep < len(train):
        labels = train[:, column].astype(np.int64)
        train = train[split(labels, keep / len(train), stream(seed, "cifar subset"))[1]]
    parts = [Samples(_images(rows), rows[:, column].astype(np.int64)) for rows in (train, test)]
    mean, std = channel_statistics(parts[0].inputs)
    return TrainingSet(name, parts[0], parts[1], classes, mean, std)


def _images(rows: NDArray[np.uint8]) -> NDArray[Any]:
    return np.ascontiguousarray(rows[:, -PIXELS:]).reshape(-1, CHANNELS, SIDE, SIDE)
