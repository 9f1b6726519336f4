"""Data sets in files: CIFAR-10 and CIFAR-100 in the published binary form (Krizhevsky
2009, "Learning Multiple Layers of Features"); a tree of image files, one folder for
each class.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from pydantic import Field

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.spec.record import Count, PositiveNBytes, Spec
from simshuffle.spec.rng import stream
from simshuffle.train.samples import (
    Samples,
    TestShare,
    TrainingSet,
    channel_statistics,
    check_memory,
    select_subset,
    split_samples,
)

SIDE = 32
CHANNELS = 3
PIXELS = CHANNELS * SIDE * SIDE
"""Bytes of an image: the red plane, then the green, then the blue, each row by row
(www.cs.toronto.edu/~kriz/cifar.html)."""
PAGE = "www.cs.toronto.edu/~kriz/cifar.html"
TRAIN_TO_TEST = 5
"""Training images for each test image: 50,000 to 10,000 in both published sets."""


class _Cifar(Spec):
    """A published set: rows of label bytes and 3,072 pixels."""

    label: ClassVar[str]
    folder: ClassVar[str]  # in the archive
    files: ClassVar[tuple[str, ...]]  # of training images, and of the test images
    classes: ClassVar[tuple[int, ...]]  # of each label byte
    kind: str
    path: str
    num_samples: Count | None = None
    seed: Annotated[int, Field(ge=0)] = 0

    @property
    def column(self) -> int:
        """The index of the label byte that is learnt."""
        return 0

    def load(self) -> TrainingSet:
        """Return the images as bytes, (n, 3, 32, 32), with mean and standard deviation
        of the selected training images by channel, as fractions of 255.

        Raises:
            InputError: if a file is missing, or not what it should be; or there are
                fewer training images than ``num_samples``.
        """
        folder = self._folder()
        *parts, test = (_rows(folder / name, self.classes) for name in self.files)
        expected = TRAIN_TO_TEST // len(parts) * len(test)
        for name, part in zip(self.files, parts, strict=False):
            if (
                len(part) != expected
            ):  # a file cut at the end of a row shows only beside the others
                rule = f"{name} must have {expected} rows, to match the test file"
                remedy = f"The file is truncated; take it from {PAGE} again."
                refuse(
                    "data.path", rule, f"{len(part)} rows", remedy, str(folder / name)
                )
        return self._training_set(np.concatenate(parts), test)

    def _folder(self) -> Path:
        """Return the folder that holds the files; raise InputError if one is missing.

        It is `folder` in ``path`` if that is there, else ``path`` itself.
        """
        root = Path(self.path).expanduser()
        remedy = (
            f"Give the folder of the unpacked binary version of {self.label} ({PAGE}), or unpack"
            " the"
            " archive again."
        )
        if not root.is_dir():
            refuse("data.path", "must be a folder", str(root), remedy, "data")
        folder = root / self.folder if (root / self.folder).is_dir() else root
        missing = [name for name in self.files if not (folder / name).is_file()]
        if missing:
            refuse(
                "data.path",
                f"must hold {', '.join(missing)}",
                str(folder),
                remedy,
                "data",
            )
        return folder

    def _training_set(
        self, train: NDArray[np.uint8], test: NDArray[np.uint8]
    ) -> TrainingSet:
        """Return images and labels of the rows, ``num_samples`` of ``train`` and all of
        ``test``, with statistics of the selected training images.
        """
        column = self.column
        if self.num_samples is not None:
            rng = stream(self.seed, "cifar subset")
            train = train[
                select_subset(train[:, column].astype(np.int64), self.num_samples, rng)
            ]
        parts = [
            Samples(_images(rows), rows[:, column].astype(np.int64))
            for rows in (train, test)
        ]
        mean, std = channel_statistics(parts[0].inputs)
        return TrainingSet(
            self.label, parts[0], parts[1], self.classes[column], mean, std
        )


class Cifar10(_Cifar):
    """CIFAR-10: 10 labels. Files data_batch_1.bin to data_batch_5.bin and
    test_batch.bin; a row is the label and 3,072 pixels.

    Attributes:
        path: the folder with the files, or the one that holds ``cifar-10-batches-bin``.
        num_samples: training images to keep, drawn with equal shares of each label;
            None for all.
        seed: of that draw.
    """

    label = "CIFAR-10"
    folder = "cifar-10-batches-bin"
    files = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
    classes = (10,)
    kind: Literal["cifar10"]


class Cifar100(_Cifar):
    """CIFAR-100: 100 fine or 20 coarse labels. Files train.bin and test.bin; a row is
    both labels and 3,072 pixels.

    Attributes:
        path: the folder with the files, or the one that holds ``cifar-100-binary``.
        labels: 'fine' (100) or 'coarse' (20).
        num_samples: training images to keep, drawn with equal shares of each label;
            None for all.
        seed: of that draw.
    """

    label = "CIFAR-100"
    folder = "cifar-100-binary"
    files = ("train.bin", "test.bin")
    classes = (20, 100)
    kind: Literal["cifar100"]
    labels: Literal["fine", "coarse"] = "fine"

    @property
    def column(self) -> int:
        """The index of the label byte that is learnt: coarse labels come first."""
        return 1 if self.labels == "fine" else 0


def _rows(path: Path, classes: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read the rows of a file: (n, labels + 3,072) bytes, of labels below ``classes``.

    Raises:
        InputError: the file is empty or unreadable, has no whole rows, or a label that
            is too large.
    """
    width = len(classes) + PIXELS
    remedy = f"The file is truncated or has another format; take it from {PAGE} again."
    try:
        raw = np.fromfile(path, np.uint8)
    except OSError as error:
        rule = f"{path.name} must be readable"
        remedy = "Check its permissions."
        refuse("data.path", rule, str(error), remedy, str(path))
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


def _images(rows: NDArray[np.uint8]) -> NDArray[Any]:
    """Return the images of rows, (n, 3, 32, 32) bytes, as a copy without labels."""
    return np.ascontiguousarray(rows[:, -PIXELS:]).reshape(-1, CHANNELS, SIDE, SIDE)


# ---------------------------------------------------------------------------------- trees of images


ENDINGS = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"}
)
UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    struct.error,
    EOFError,
    Image.DecompressionBombError,
)
"""The errors that Pillow raises at a file that is no image, or a broken one."""
Files = list[tuple[Path, str]]
"""Image files, each with the name of its class."""


class ImageFolder(Spec):
    """Images in ``path``/train/CLASS/..., and in ``path``/test/CLASS/... or
    ``path``/val/CLASS/... if there is one.

    Without a folder ``train`` the classes are the folders in ``path``. Without a folder
    for testing a share of the images is kept for that. Classes are numbered by name in
    the order of Unicode code points. Files that do not end as images do are left out.

    Attributes:
        path: the tree.
        image_size: pixels along a side; an image is scaled (bilinear) and cut around
            its centre to that square.
        channels: 3 (RGB) or 1 (luminance).
        test_share: part of the images of each class kept for testing, where there is no
            folder for it.
        memory_limit: bytes that the images may take; more are refused before any is
            read.
        seed: of the split.
    """

    kind: Literal["image_folder"]
    path: str
    image_size: Annotated[int, Field(ge=1, le=4096)] = 32
    channels: Literal[1, 3] = 3
    test_share: TestShare = 0.2
    memory_limit: PositiveNBytes = 8e9
    seed: Annotated[int, Field(ge=0)] = 0

    @property
    def label(self) -> str:
        """The name in words."""
        return f"images of {Path(self.path).name}"

    def load(self) -> TrainingSet:
        """Return the images as bytes, with mean and standard deviation of the training
        images by channel, as fractions of 255.

        They are (n, channels, image_size, image_size).

        Raises:
            InputError: if the tree is not as it should be, an image cannot be read, all
                take more than ``memory_limit``, or no image is left for testing.
        """
        train, test = self._files()
        nbytes = (len(train) + len(test)) * self.channels * self.image_size**2
        remedy = (
            "Lower image_size, take fewer images, or raise memory_limit"
            " if the memory suffices."
        )
        check_memory(nbytes, self.memory_limit, "data.memory_limit", "data", remedy)
        names = sorted({name for _, name in train})
        self._check_classes(names, train, test)
        images = self._images(train)
        labels = _labels(train, names)
        if test:
            parts = [
                Samples(images, labels),
                Samples(self._images(test), _labels(test, names)),
            ]
        else:
            shares = split_samples(
                labels, self.test_share, stream(self.seed, "image folder split")
            )
            if not len(shares[1]):
                rule = "must leave at least one test image"
                remedy = "Raise test_share, or add images."
                refuse(
                    "data.test_share", rule, f"{len(labels)} images", remedy, self.path
                )
            parts = [Samples(images[part], labels[part]) for part in shares]
        mean, std = channel_statistics(parts[0].inputs)
        return TrainingSet(
            Path(self.path).name, parts[0], parts[1], len(names), mean, std
        )

    def _files(self) -> tuple[Files, Files]:
        """Return the files to train on, and those to test with: of folder ``test``, or
        else ``val``, beside ``train``. The second list is empty if there is neither.

        Raises:
            InputError: ``path`` is no folder, or a class has no images.
        """
        root = Path(self.path).expanduser()
        if not root.is_dir():
            rule = "must be a folder"
            remedy = "Give the folder that holds train/CLASS/IMAGE."
            refuse("data.path", rule, str(root), remedy, "data")
        if not (root / "train").is_dir():
            return _tree(root), []
        test_folders = (
            root / name for name in ("test", "val") if (root / name).is_dir()
        )
        test_folder = next(test_folders, None)
        return _tree(root / "train"), _tree(test_folder) if test_folder else []

    def _check_classes(self, names: list[str], train: Files, test: Files) -> None:
        """Raise an InputError for fewer than two classes, or a tested class that is not
        trained.
        """
        if len(names) < 2:
            rule = "must hold images of at least two classes, as CLASS/IMAGE"
            remedy = "Put each class into a folder."
            refuse(
                "data.path", rule, ", ".join(names) or "no images", remedy, self.path
            )
        foreign = sorted({name for _, name in test} - set(names))
        if foreign:
            rule = "classes of the test part must be among those of the training part"
            refuse(
                "data.path",
                rule,
                ", ".join(foreign),
                "Rename or remove these classes.",
                self.path,
            )

    def _images(self, files: Files) -> NDArray[np.uint8]:
        """Decode all images: (n, channels, image_size, image_size)."""
        images = np.empty(
            (len(files), self.channels, self.image_size, self.image_size), np.uint8
        )
        for index, (path, _) in enumerate(files):
            images[index] = self._image(path)
        return images

    def _image(self, path: Path) -> NDArray[np.uint8]:
        """Decode an image: (channels, image_size, image_size) bytes, scaled and cut.

        Transparency, an EXIF orientation and frames after the first are ignored.

        Raises:
            InputError: the file is no image that can be read.
        """
        try:
            with Image.open(path) as image:
                converted = convert_image(image, "RGB" if self.channels == 3 else "L")
        except UNREADABLE as error:
            rule = "every image must be readable"
            value = f"{type(error).__name__}: {error}"
            refuse("data.path", rule, value, "Repair or remove the file.", str(path))
        size = (self.image_size, self.image_size)
        square = ImageOps.fit(converted, size, Image.Resampling.BILINEAR)
        pixels = np.asarray(square, np.uint8).reshape(*size, self.channels)
        return pixels.transpose(2, 0, 1)


def convert_image(image: Image.Image, mode: str) -> Image.Image:
    """Return the image in ``mode``, 'RGB' or 'L', without its transparency.

    16-bit grey becomes its upper byte: Pillow would cut it off at 255.

    Raises:
        ValueError: the mode is I or F, of values without a known range.
    """
    if image.mode.startswith("I;16"):
        image = Image.fromarray(
            (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
        )
    if image.mode in {"I", "F"}:
        raise ValueError(
            f"pixels of mode {image.mode} have no known range; save the image with 8 or 16 bits a"
            " channel"
        )
    # by way of RGBA, because a palette with transparency cannot become RGB at once
    return image.convert("RGBA").convert(mode)


def images_by_class(folder: Path) -> dict[str, list[Path]]:
    """Return the image files at any depth below each folder in ``folder``, sorted, by
    the folder's name, in the order of names; [] for a class without images.

    Class folders whose names begin with a dot, and files that do not end as images do,
    are left out.
    """
    class_folders = sorted(
        path
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(".")
    )
    return {
        class_folder.name: [
            path
            for path in sorted(class_folder.rglob("*"))
            if path.suffix.lower() in ENDINGS and path.is_file()
        ]
        for class_folder in class_folders
    }


def _tree(folder: Path) -> Files:
    """Return the files of `images_by_class`, each with the name of its class.

    Raises:
        InputError: if a class folder has no images.
    """
    images = images_by_class(folder)
    if empty := [name for name, paths in images.items() if not paths]:
        rule = f"every class must have images (files ending in {', '.join(sorted(ENDINGS))})"
        remedy = "Add images, or remove the folder."
        refuse("data.path", rule, ", ".join(empty), remedy, str(folder))
    return [(path, name) for name, paths in images.items() for path in paths]


def _labels(files: Files, names: list[str]) -> Ints64:
    """Return the label of each file, (n,): the index of its class in ``names``."""
    label_of_class = {name: label for label, name in enumerate(names)}
    return np.array([label_of_class[name] for _, name in files], np.int64)
