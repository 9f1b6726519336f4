"""Grey images in IDX files: Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, arXiv
1708.07747), and sets of the same form, such as MNIST, KMNIST and EMNIST.

IDX (yann.lecun.com/exdb/mnist): two bytes 0, a byte for the type of the values (8:
bytes), a byte for the number of dimensions, their sizes as big-endian 32-bit integers,
the values row by row.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.spec.record import Count, Spec
from simshuffle.spec.rng import stream
from simshuffle.train.samples import (
    MOST_NBYTES,
    Samples,
    TrainingSet,
    channel_statistics,
    check_memory,
    select_subset,
)

DIMENSIONS = {"images": 3, "labels": 1}
"""Dimensions of the two kinds of files: (n, height, width) and (n,)."""
BYTES = 0x0800
"""First four bytes of a file of bytes, as one number, less its dimensions."""
PARTS = {"train": "train", "test": "t10k|test"}
"""The beginning of the names of files of each part; EMNIST calls the second part
'test'.
"""
FILES = ", ".join(
    f"{part}-{content}-idx{count}-ubyte"
    for part in ("train", "t10k")
    for content, count in DIMENSIONS.items()
)
PACKAGED = Path("/usr/share/datasets/fashion-mnist")
"""The folder of the Debian package dataset-fashion-mnist."""
# the values in the shape of the header, and the SHA-256 of the unpacked file
Content = tuple[NDArray[np.uint8], str]


class _Idx(Spec):
    """A set in four files."""

    remedy: ClassVar[str]  # against a broken file
    # SHA-256 of unpacked files by part and content; a file that is not named may be any
    digests: ClassVar[Mapping[tuple[str, str], str]] = {}
    kind: str
    path: str | None = None
    num_samples: Count | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    flat: bool = False

    @property
    def name(self) -> str:
        """The name for captions."""
        raise NotImplementedError

    def folder(self) -> Path:
        """Return the folder of the files."""
        raise NotImplementedError

    def load(self) -> TrainingSet:
        """Return the images as bytes, with mean and standard deviation of the selected
        training images, as fractions of 255.

        They are (n, 1, height, width), or (n, height width) if ``flat``. Labels are
        numbered by the rising values that all training images have.

        Raises:
            InputError: if a file is missing, or not what it should be; or there are
                fewer training images than ``num_samples``.
        """
        folder = self.folder()
        files = _find_files(folder)
        arrays = {key: self._read(path, *key) for key, path in files.items()}
        images = {part: arrays[part, "images"] for part in PARTS}
        values = {part: arrays[part, "labels"] for part in PARTS}
        for part in PARTS:
            if len(images[part]) != len(values[part]):
                rule = f"{files[part, 'labels'].name} must have a label for each image"
                value = f"{len(values[part])} labels of {len(images[part])} images"
                refuse("data.path", rule, value, self.remedy, str(folder))
        train_size, test_size = (images[part].shape[1:] for part in PARTS)
        if train_size != test_size:
            rule = "images of both parts must have the same size"
            value = f"{train_size[0]} x {train_size[1]} and {test_size[0]} x {test_size[1]} pixels"
            refuse("data.path", rule, value, self.remedy, str(folder))
        label_values = _classes(values, str(folder), self.remedy)
        return self._training_set(images, values, label_values)

    def _training_set(
        self,
        images: Mapping[str, NDArray[np.uint8]],
        values: Mapping[str, NDArray[np.uint8]],
        label_values: NDArray[np.uint8],
    ) -> TrainingSet:
        """Return images and numbered labels of both parts.

        Args:
            images: (n, height, width) by part.
            values: (n,) of the labels, by part.
            label_values: all values of training labels, rising.
        """
        labels = {part: _number_labels(values[part], label_values) for part in PARTS}
        selected = select_subset(
            labels["train"], self.num_samples, stream(self.seed, "idx subset")
        )
        # without a copy where all are selected
        is_subset = len(selected) < len(labels["train"])
        train = images["train"][selected] if is_subset else images["train"]
        mean, std = channel_statistics(train[:, None])
        return TrainingSet(
            self.name,
            Samples(self._shape_inputs(train), labels["train"][selected]),
            Samples(self._shape_inputs(images["test"]), labels["test"]),
            len(label_values),
            mean,
            std,
        )

    def _shape_inputs(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return images as vectors if ``flat``, else with an axis of one channel."""
        return images.reshape(len(images), -1) if self.flat else images[:, None]

    def _read(self, path: Path, part: str, content: str) -> NDArray[np.uint8]:
        """Return the values of a file of ``content``, 'images' or 'labels'.

        Raises:
            InputError: the file cannot be read, is no IDX file of this content, or not
                the one that was published.
        """
        try:
            values, digest = _read_content(path, content, self.remedy)
        except (OSError, EOFError, zlib.error) as error:  # BadGzipFile is an OSError
            rule = f"{path.name} must be readable, and complete if compressed"
            remedy = f"Check its permissions. {self.remedy}"
            refuse("data.path", rule, str(error), remedy, str(path))
        expected = self.digests.get((part, content), digest)
        if digest != expected:
            rule = f"{path.name}, uncompressed, must have the published SHA-256, {expected}"
            remedy = f"{self.remedy} If this is another data set, use kind: idx."
            refuse("data.path", rule, digest, remedy, str(path))
        return values


class FashionMnist(_Idx):
    """Fashion-MNIST: 60,000 training images and 10,000 test images of clothes, 28 x 28
    grey pixels, 10 labels. Files train-images-idx3-ubyte, train-labels-idx1-ubyte,
    t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each plain or compressed with
    gzip; they must be the published ones.

    Attributes:
        path: the folder with the files; None for that of the Debian package
            dataset-fashion-mnist.
        num_samples: training images to keep, drawn with equal shares of each label;
            None for all.
        seed: of that draw.
        flat: vectors of 784 values; otherwise images of shape (1, 28, 28).
    """

    label: ClassVar[str] = "Fashion-MNIST"
    remedy = "Take the file from github.com/zalandoresearch/fashion-mnist again."
    # of what gunzip makes of them: another gzip is the same set. Computed from the files of
    # Debian's dataset-fashion-mnist 0.0~git20200523.55506a9-1; with name and time in their headers,
    # which Debian takes out, these have the MD5 in the README of zalandoresearch/fashion-mnist
    digests: ClassVar = {
        (
            "train",
            "images",
        ): "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        (
            "train",
            "labels",
        ): "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        (
            "test",
            "images",
        ): "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        (
            "test",
            "labels",
        ): "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    }
    kind: Literal["fashion_mnist"]

    @property
    def name(self) -> str:
        """The name for captions."""
        return self.label

    def folder(self) -> Path:
        """Return the folder of the files, or raise InputError if no folder is known."""
        if self.path is None and not PACKAGED.is_dir():
            rule = f"is needed, since {PACKAGED} does not exist"
            remedy = (
                "Run apt install dataset-fashion-mnist, or give the folder with the files of"
                " github.com/zalandoresearch/fashion-mnist."
            )
            refuse("data.path", rule, "none", remedy, "data")
        return PACKAGED if self.path is None else Path(self.path).expanduser()


class Idx(_Idx):
    """Grey images in IDX files, in the format of `FashionMnist`: MNIST, KMNIST, EMNIST,
    or a set of one's own. Names may have something before, as
    emnist-letters-train-images-idx3-ubyte, and 'test' in place of 't10k'. Labels are
    numbered by their rising values.

    Attributes:
        path: the folder with the files of one set.
        num_samples: training images to keep, of each label its share; None for all.
        seed: of that draw.
        flat: vectors of height times width values; otherwise images of shape (1,
            height, width).
    """

    remedy = "Take or make the file again."
    kind: Literal["idx"]
    path: str

    @property
    def name(self) -> str:
        """The name for captions."""
        return Path(self.path).name

    @property
    def label(self) -> str:
        """The name in words."""
        return f"images of {self.name}"

    def folder(self) -> Path:
        """Return the folder of the files."""
        return Path(self.path).expanduser()


def _find_files(folder: Path) -> dict[tuple[str, str], Path]:
    """Return the four files by part ('train', 'test') and content ('images', 'labels');
    a plain file before a compressed one.

    Raises:
        InputError: if files are missing, or there are several of a kind.
    """
    remedy = f"Give the folder with {FILES}, plain or .gz."
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        refuse(
            "data.path", "must be a folder that can be read", str(error), remedy, "data"
        )
    files = dict[tuple[str, str], Path]()
    missing = []
    for part, beginning in PARTS.items():
        for content, count in DIMENSIONS.items():
            pattern = rf"((.+[-_.])?({beginning})-{content}[-.]idx{count}-ubyte)(\.gz)?"
            matches = [
                match for name in names if (match := re.fullmatch(pattern, name))
            ]
            if len({match[1] for match in matches}) > 1:
                rule = (
                    f"must hold one data set, but has several files of {part} {content}"
                )
                listed = ", ".join(match[0] for match in matches)
                refuse(
                    "data.path",
                    rule,
                    listed,
                    "Give each data set its own folder.",
                    str(folder),
                )
            if matches:
                files[part, content] = folder / matches[0][0]
            else:
                missing.append(
                    f"{beginning.partition('|')[0]}-{content}-idx{count}-ubyte"
                )
    if missing:
        rule = f"must hold {', '.join(missing)}, plain or .gz"
        refuse("data.path", rule, str(folder), remedy, "data")
    return files


def _read_content(path: Path, content: str, remedy: str) -> Content:
    """Read the values of a file, packed by gzip or not, whatever its name.

    Args:
        path: of the file.
        content: 'images' or 'labels'.
        remedy: against a broken file.

    Raises:
        InputError: if it is no IDX file of this content, has more or fewer values than
            its header says, or more than 8 GB of them.
        OSError, EOFError, zlib.error: if it cannot be read or unpacked.
    """
    with path.open("rb") as raw:
        is_packed = (
            raw.read(2) == b"\x1f\x8b"
        )  # by content: some browsers unpack what they load
        raw.seek(0)
        unpacked = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if is_packed else raw
        with closing(unpacked) as file:
            dimensions = DIMENSIONS[content]
            head = file.read(4 + 4 * dimensions)
            _check_magic(head[:4], path, content, remedy)
            sizes = [
                int.from_bytes(head[offset : offset + 4], "big")
                for offset in range(4, len(head), 4)
            ]
            if len(head) < 4 + 4 * dimensions or not all(sizes):
                rule = (
                    f"{path.name} must name {dimensions} sizes above 0 after its"
                    " first four bytes"
                )
                refuse(
                    "data.path", rule, f"the bytes {head.hex(' ')}", remedy, str(path)
                )
            nbytes = int(np.prod(np.array(sizes, object)))
            check_memory(
                nbytes,
                MOST_NBYTES,
                "data.path",
                str(path),
                "Use a part of the data set.",
            )
            values = np.empty(nbytes, np.uint8)
            filled = cast(Any, file).readinto(values)
            surplus = file.read(1)  # at the end gzip checks its sum
            if filled < nbytes or surplus:
                found_size = "more" if surplus else f"{filled:,}"
                rule = f"{path.name} must hold the {nbytes:,} values that it announces"
                refuse("data.path", rule, found_size, remedy, str(path))
    digest = hashlib.sha256(head)
    digest.update(values.data)
    return values.reshape(sizes), digest.hexdigest()


def _check_magic(first_bytes: bytes, path: Path, content: str, remedy: str) -> None:
    """Raise an InputError unless a file of ``content`` begins with these four bytes."""
    dimensions = int.from_bytes(first_bytes, "big") - BYTES
    if len(first_bytes) == 4 and dimensions == DIMENSIONS[content]:
        return
    rule = (
        f"{path.name} must be an IDX file of {content}: bytes in"
        f" {DIMENSIONS[content]} dimensions"
    )
    value = f"first bytes {first_bytes.hex(' ') or 'none'}"
    if len(first_bytes) == 4 and dimensions in DIMENSIONS.values():
        actual_content = next(
            name for name, count in DIMENSIONS.items() if count == dimensions
        )
        value = f"{actual_content} ({value})"
        remedy = "Exchange the names of images and labels."
    elif len(first_bytes) == 4 and first_bytes[:2] == b"\0\0":
        value = f"type 0x{first_bytes[2]:02x} in {first_bytes[3]} dimensions"
    refuse("data.path", rule, value, remedy, str(path))


def _classes(
    values: Mapping[str, NDArray[np.uint8]], source: str, remedy: str
) -> NDArray[np.uint8]:
    """Return the values of the training labels, rising.

    Raises:
        InputError: if there are fewer than two, or others in the test part.
    """
    label_values = np.unique(values["train"])
    if len(label_values) < 2:
        rule = "training images must have at least two labels"
        refuse("data.path", rule, f"only {label_values[0]}", remedy, source)
    foreign = np.setdiff1d(values["test"], label_values)
    if len(foreign):
        rule = "labels of the test part must be among those of the training part"
        listed = ", ".join(map(str, foreign))
        refuse(
            "data.path",
            rule,
            listed,
            f"Leave test images with these labels out. {remedy}",
            source,
        )
    return label_values


def _number_labels(
    values: NDArray[np.uint8], label_values: NDArray[np.uint8]
) -> Ints64:
    """Return the index of each value in ``label_values``, which rise."""
    return np.searchsorted(label_values, values).astype(np.int64)
