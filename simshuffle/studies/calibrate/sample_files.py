"""The files whose costs are measured, and how a sample is made of one: images are decoded, others
copied as arrays are."""

from __future__ import annotations

import importlib
import io
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from simshuffle.errors import InputError, Problem

IMAGES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm"}
"""Suffixes of files that are decoded."""
MOST_FILES, FEWEST_FILES = 300, 10
MOST_BYTES = 600_000_000
"""Of the files that are measured; of larger ones fewer are taken, but not less than
`FEWEST_FILES`."""
MOST_LISTED = 200_000
"""Files of a folder that are looked at; there may be millions."""
_UNREADABLE = (OSError, ValueError, SyntaxError, struct.error, EOFError, KeyError)
"""What Pillow raises at a file that is no image or a broken one, or that it cannot write."""


@dataclass(frozen=True)
class SampleFiles:
    """Files of one suffix.

    Attributes:
        paths: a random choice, which is measured.
        sizes: bytes of all that were looked at.
        images: whether they are decoded.
        own: whether they are a user's, and were not made.
    """

    paths: list[Path]
    sizes: list[int]
    images: bool
    own: bool


class Coder(Protocol):
    """Makes a sample of a file's bytes, and bytes of a sample."""

    def decode(self, data: bytes) -> Any:
        """The sample."""

    def encode(self, sample: Any) -> bytes:
        """The bytes of a file of the same kind."""

    def nbytes(self, sample: Any) -> int:
        """Bytes of the decoded values."""


class ArrayCoder:
    """Bytes are the values of an array, and are copied."""

    def decode(self, data: bytes) -> bytearray:
        """A copy."""
        return bytearray(data)

    def encode(self, sample: bytearray) -> bytes:
        """Another copy."""
        return bytes(sample)

    def nbytes(self, sample: bytearray) -> int:
        """As many as in the file."""
        return len(sample)


class ImageCoder:
    """Images by Pillow, decoded to RGB as the authors' exchange does."""

    def __init__(self) -> None:
        self._image = pillow()
        self._format = "JPEG"

    def decode(self, data: bytes) -> Any:
        """The image."""
        opened = self._image.open(io.BytesIO(data))
        self._format = opened.format
        image = opened.convert("RGB")
        image.load()
        return image

    def encode(self, sample: Any) -> bytes:
        """The bytes in the format of the image that was decoded last, with Pillow's defaults."""
        buffer = io.BytesIO()
        sample.save(buffer, self._format)
        return buffer.getvalue()

    def nbytes(self, sample: Any) -> int:
        """A byte for each colour of a pixel."""
        return 3 * int(sample.width) * int(sample.height)


def pillow() -> Any:
    """The module of images.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        remedy = "pip install 'simshuffle[train]', or name a folder of files that are no images."
        raise refused("decoding images needs Pillow", "no Pillow", remedy) from None


def refused(rule: str, value: str, remedy: str) -> InputError:
    """The error about the folder."""
    return InputError(Problem("FOLDER", rule, value, remedy), "probe")


def decoded(coder: Coder, data: bytes, path: Path) -> Any:
    """The sample of a file, which can also be encoded.

    Raises:
        InputError: it cannot.
    """
    try:
        sample = coder.decode(data)
        coder.encode(sample)
    except _UNREADABLE as error:
        rule = f"must hold files that can be decoded and encoded ({error})"
        raise refused(rule, str(path), "Leave it out.") from None
    return sample


def chosen(folder: Path) -> SampleFiles:
    """Files of the commonest suffix below a folder.

    Raises:
        InputError: there are none.
    """
    if not folder.is_dir():
        raise refused("must be a folder of files", str(folder), "Name that of your data set.")
    by_suffix: dict[str, list[tuple[Path, int]]] = {}
    for count, path in enumerate(_below(folder)):
        if count == MOST_LISTED:
            break
        if size := path.stat().st_size:
            by_suffix.setdefault(path.suffix.lower(), []).append((path, size))
    if not by_suffix:
        raise refused("must hold files that are not empty", str(folder), "Name another folder.")
    suffix, found = max(by_suffix.items(), key=lambda item: len(item[1]))
    sizes = [size for _, size in found]
    count = min(MOST_FILES, max(FEWEST_FILES, MOST_BYTES * len(sizes) // sum(sizes)), len(found))
    places = np.random.default_rng(0).choice(len(found), count, replace=False)
    return SampleFiles([found[i][0] for i in places], sizes, suffix in IMAGES, own=True)


def _below(folder: Path) -> Iterator[Path]:
    """All files below a folder, in the same order every time."""
    for root, folders, names in os.walk(folder):
        folders.sort()
        yield from (path for name in sorted(names) if (path := Path(root, name)).is_file())


def made(folder: Path) -> SampleFiles:
    """Photographs of 500 x 375 pixels, imitated by smooth noise, as JPEGs of about 110 kB that are
    written to ``folder``."""
    image = pillow()
    rng = np.random.default_rng(0)
    coarse = image.fromarray(rng.integers(0, 256, (94, 125, 3), np.uint8))
    photograph = coarse.resize((500, 375), image.Resampling.BICUBIC)

    def jpeg(quality: int) -> bytes:
        buffer = io.BytesIO()
        photograph.save(buffer, "JPEG", quality=quality)
        return buffer.getvalue()

    data = min(map(jpeg, range(60, 100, 2)), key=lambda data: abs(len(data) - 110_000))
    paths = [folder / f"{number}.jpg" for number in range(MOST_FILES)]
    for path in paths:
        path.write_bytes(data)
    return SampleFiles(paths, [len(data)] * len(paths), images=True, own=False)
