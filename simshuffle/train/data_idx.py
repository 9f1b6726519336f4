"""Grey images in IDX files: Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, arXiv 1708.07747), and
sets of the same form, such as MNIST, KMNIST and EMNIST.

IDX (yann.lecun.com/exdb/mnist): two bytes 0, a byte for the type of the values (8: bytes), a byte
for the number of dimensions, their sizes as big-endian 32-bit integers, the values row by row.
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
    kept,
)

DIMENSIONS = {"images": 3, "labels": 1}
"""Of the two kinds of files: (n, height, width) and (n,)."""
BYTES = 0x0800
"""First four bytes of a file of bytes, as one number, less its dimensions."""
PARTS = {"train": "train", "test": "t10k|test"}
"""What the names of the files of each part begin with; EMNIST calls the second one 'test'."""
FILES = ", ".join(
    f"{part}-{what}-idx{count}-ubyte"
    for part in ("train", "t10k")
    for what, count in DIMENSIONS.items()
)
PACKAGED = Path("/usr/share/datasets/fashion-mnist")
"""Where the Debian package dataset-fashion-mnist puts them."""
Content = tuple[NDArray[np.uint8], str]  # the values, and the SHA-256 of the whole file


class _Idx(Spec):
    """A set in four files."""

    again: ClassVar[str]  # what helps against a broken file
    digests: ClassVar[Mapping[tuple[str, str], str]] = {}
    kind: str
    path: str | None = None
    num_samples: Count | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    flat: bool = False

    @property
    def name(self) -> str:
        """For captions."""
        raise NotImplementedError

    def folder(self) -> Path:
        """Where the files are."""
        raise NotImplementedError

    def load(self) -> TrainingSet:
        """The images as bytes, (n, 1, height, width), or (n, height width) if ``flat``, with mean
        and standard deviation of the training images that are kept. Labels are numbered by the
        rising values that the training images have. Raises InputError if a file is missing, or not
        what it should be."""
        folder = self.folder()
        files = _found(folder, self.again)
        read = {key: self._read(path, *key) for key, path in files.items()}
        images = {part: read[part, "images"] for part in PARTS}
        values = {part: read[part, "labels"] for part in PARTS}
        for part in PARTS:
            if len(images[part]) != len(values[part]):
                rule = f"{files[part, 'labels'].name} must have a label for each image"
                shown = f"{len(values[part])} labels of {len(images[part])} images"
                refuse("data.path", rule, shown, self.again, str(folder))
        one, other = (images[part].shape[1:] for part in PARTS)
        if one != other:
            rule = "images of both parts must have the same size"
            shown = f"{one[0]} x {one[1]} and {other[0]} x {other[1]} pixels"
            refuse("data.path", rule, shown, self.again, str(folder))
        known = _classes(values, str(folder), self.again)
        return self._training_set(images, values, known)

    def _training_set(
        self,
        images: Mapping[str, NDArray[np.uint8]],
        values: Mapping[str, NDArray[np.uint8]],
        known: NDArray[np.uint8],
    ) -> TrainingSet:
        labels = {part: _numbered(values[part], known) for part in PARTS}
        chosen = kept(labels["train"], self.num_samples, stream(self.seed, "idx subset"))
        # without a copy where all are kept
        few = len(chosen) < len(labels["train"])
        train = images["train"][chosen] if few else images["train"]
        mean, std = channel_statistics(train[:, None])
        return TrainingSet(
            self.name,
            Samples(self._shaped(train), labels["train"][chosen]),
            Samples(self._shaped(images["test"]), labels["test"]),
            len(known),
            mean,
            std,
        )

    def _shaped(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return images.reshape(len(images), -1) if self.flat else images[:, None]

    def _read(self, path: Path, part: str, what: str) -> NDArray[np.uint8]:
        """The values of one file, checked."""
        try:
            values, digest = _content(path, what, self.again)
        except (OSError, EOFError, zlib.error) as error:  # BadGzipFile is an OSError
            rule = f"{path.name} must be readable, and whole if it is compressed"
            refuse("data.path", rule, str(error), f"Check its permissions. {self.again}", str(path))
        expected = self.digests.get((part, what), digest)
        if digest != expected:
            rule = f"{path.name}, not compressed, must have SHA-256 {expected}, as published"
            remedy = f"{self.again} If this is another set, take kind: idx."
            refuse("data.path", rule, digest, remedy, str(path))
        return values


class FashionMnist(_Idx):
    """Fashion-MNIST: 60,000 training images and 10,000 test images of clothes, 28 x 28 grey pixels,
    10 labels. Files train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
    t10k-labels-idx1-ubyte, each plain or compressed with gzip; they must be the published ones.

    Attributes:
        path: the folder with the files; None for that of the Debian package
            dataset-fashion-mnist.
        num_samples: training images to keep, drawn with equal shares of each label; None for all.
        seed: of that draw.
        flat: vectors of 784 values; otherwise images of shape (1, 28, 28).
    """

    label: ClassVar[str] = "Fashion-MNIST"
    again = "Take it from github.com/zalandoresearch/fashion-mnist again."
    # of what gunzip makes of them: another gzip is the same set. Computed from the files of
    # Debian's dataset-fashion-mnist 0.0~git20200523.55506a9-1; with name and time in their headers,
    # which Debian takes out, these have the MD5 in the README of zalandoresearch/fashion-mnist
    digests: ClassVar = {
        ("train", "images"): "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ("train", "labels"): "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ("test", "images"): "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ("test", "labels"): "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    }
    kind: Literal["fashion_mnist"]

    @property
    def name(self) -> str:
        """For captions."""
        return self.label

    def folder(self) -> Path:
        """Where the files are, or raise InputError if nobody says so."""
        if self.path is None and not PACKAGED.is_dir():
            rule = f"is needed where {PACKAGED} is not there"
            remedy = (
                "Run apt install dataset-fashion-mnist, or give the folder with the files of"
                " github.com/zalandoresearch/fashion-mnist."
            )
            refuse("data.path", rule, "none", remedy, "data")
        return PACKAGED if self.path is None else Path(self.path).expanduser()


class Idx(_Idx):
    """Grey images in IDX files as those of `FashionMnist`, whatever they show: MNIST, KMNIST,
    EMNIST, or a set of one's own. Names may have something before, as
    emnist-letters-train-images-idx3-ubyte, and 'test' in place of 't10k'. Labels are numbered by
    their rising values.

    Attributes:
        path: the folder with the files of one set.
        num_samples: training images to keep, of each label its share; None for all.
        seed: of that draw.
        flat: vectors of height times width values; otherwise images of shape (1, height, width).
    """

    again = "Take or make it again."
    kind: Literal["idx"]
    path: str

    @property
    def name(self) -> str:
        """For captions."""
        return Path(self.path).name

    @property
    def label(self) -> str:
        """In words."""
        return f"images of {self.name}"

    def folder(self) -> Path:
        """Where the files are."""
        return Path(self.path).expanduser()


def _found(folder: Path, again: str) -> dict[tuple[str, str], Path]:
    """The four files by part and what they hold; a plain one rather than a compressed one of the
    same name."""
    remedy = f"Give the folder with {FILES}, plain or .gz."
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        refuse("data.path", "must be a folder that can be read", str(error), remedy, "data")
    files, missing = dict[tuple[str, str], Path](), []
    for part, start in PARTS.items():
        for what, count in DIMENSIONS.items():
            pattern = rf"((.+[-_.])?({start})-{what}[-.]idx{count}-ubyte)(\.gz)?"
            found = [match for match in (re.fullmatch(pattern, name) for name in names) if match]
            if len({match[1] for match in found}) > 1:
                rule = f"must hold one set; of {part} {what} there are several files"
                shown, apart = ", ".join(match[0] for match in found), "Give each set a folder."
                refuse("data.path", rule, shown, apart, str(folder))
            if found:
                files[part, what] = folder / found[0][0]
            else:
                missing.append(f"{start.partition('|')[0]}-{what}-idx{count}-ubyte")
    if missing:
        rule = f"must hold {', '.join(missing)}, plain or .gz"
        refuse("data.path", rule, str(folder), remedy, "data")
    return files


def _content(path: Path, what: str, again: str) -> Content:
    """What one file holds. Raises InputError if it is no IDX file of ``what``; OSError, EOFError or
    zlib.error if it cannot be read or unpacked."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"  # by content: some browsers unpack what they load
        raw.seek(0)
        with closing(cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw) as file:
            count = DIMENSIONS[what]
            head = file.read(4 + 4 * count)
            _check_magic(head[:4], path, what, again)
            sizes = [int.from_bytes(head[at : at + 4], "big") for at in range(4, len(head), 4)]
            if len(head) < 4 + 4 * count or not all(sizes):
                rule = f"{path.name} must name {count} sizes above 0 after its first four bytes"
                refuse("data.path", rule, f"the bytes {head.hex(' ')}", again, str(path))
            nbytes = int(np.prod(np.array(sizes, object)))
            check_memory(nbytes, MOST_NBYTES, "data.path", str(path), "Take a part of the set.")
            values = np.empty(nbytes, np.uint8)
            filled = cast(Any, file).readinto(values)
            rest = file.read(1)  # at the end gzip checks its sum
            if filled < nbytes or rest:
                shown = "more" if rest else f"{filled:,}"
                rule = f"{path.name} must hold the {nbytes:,} values that it announces"
                refuse("data.path", rule, shown, again, str(path))
    digest = hashlib.sha256(head)
    digest.update(values.data)
    return values.reshape(sizes), digest.hexdigest()


def _check_magic(first: bytes, path: Path, what: str, again: str) -> None:
    """See that a file of ``what`` begins with these four bytes, or raise InputError."""
    magic = int.from_bytes(first, "big") - BYTES
    if len(first) == 4 and magic == DIMENSIONS[what]:
        return
    rule = f"{path.name} must be an IDX file of {what}: bytes in {DIMENSIONS[what]} dimensions"
    shown, remedy = f"first bytes {first.hex(' ') or 'none'}", again
    if len(first) == 4 and magic in DIMENSIONS.values():
        other = next(name for name, count in DIMENSIONS.items() if count == magic)
        shown, remedy = f"{other} ({shown})", "Exchange the names of images and labels."
    elif len(first) == 4 and first[:2] == b"\0\0":
        shown = f"type 0x{first[2]:02x} in {first[3]} dimensions"
    refuse("data.path", rule, shown, remedy, str(path))


def _classes(values: Mapping[str, NDArray[np.uint8]], source: str, again: str) -> NDArray[np.uint8]:
    """The values of the labels, rising; at least two, and no others in the test part."""
    known = np.unique(values["train"])
    if len(known) < 2:
        rule = "training images must have at least two labels"
        refuse("data.path", rule, f"{known[0]} alone", again, source)
    foreign = np.setdiff1d(values["test"], known)
    if len(foreign):
        rule = "labels of the test part must be among those of the training part"
        shown = ", ".join(map(str, foreign))
        refuse("data.path", rule, shown, f"Leave such test images out. {again}", source)
    return known


def _numbered(values: NDArray[np.uint8], known: NDArray[np.uint8]) -> Ints64:
    return np.searchsorted(known, values).astype(np.int64)
