"""What this host pays for a sample: reading, decoding, pickling, encoding and writing it, measured
on files of a data set, as a fragment that a scenario includes. Images are decoded, other files are
copied as arrays are."""

from __future__ import annotations

import importlib
import io
import os
import pickle
import platform
import struct
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from simshuffle.errors import InputError, Problem
from simshuffle.spec.units import Dimension, readable
from simshuffle.version import __version__

Clock = Callable[[], float]
"""Tells the time in s, from whenever on."""
ZEROED = 4 << 20
"""Bytes of the authors' receive buffer of a sample."""
RANKS = 2048
"""In the list that is shuffled."""
_DATASET, _SCHEDULE = "workload.dataset", "workload.exchange.schedule"
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
    """Files of one suffix."""

    paths: list[Path]  # a random choice, which is measured
    sizes: list[int]  # bytes of all that were looked at
    images: bool  # whether they are decoded
    own: bool  # whether they are a user's, and were not made


@dataclass(frozen=True)
class Cost:
    """Something measured of a sample."""

    key: str  # dotted key of a scenario
    value: float  # of a duration the median; else the mean, or what it says
    # lower and upper quartile of a duration; None of what is no duration, but bytes
    spread: tuple[float, float] | None
    what: str  # was measured

    @property
    def text(self) -> str:
        """The value with its unit."""
        return readable(self.value, Dimension.SECONDS if self.spread else Dimension.NBYTES)

    @property
    def note(self) -> str:
        """What was measured, and its spread."""
        if self.spread is None:
            return self.what
        low, high = (readable(end, Dimension.SECONDS, 3) for end in self.spread)
        return f"{self.what}; quartiles {low} and {high}"


@dataclass(frozen=True)
class SampleCosts:
    """What was measured, and on which files."""

    costs: list[Cost]
    files: SampleFiles

    def to_yaml(self, *, exchange: bool = False) -> str:
        """The fragment for a scenario. The costs of an exchange are comments unless ``exchange``: a
        scenario that compares strategies has no place for them."""
        own = "files of the folder" if self.files.own else "made JPEGs of 500 x 375 pixels"
        source = (
            f"simshuffle {__version__} probe, one core of {platform.node() or 'a host'}"
            f" ({platform.machine()}), medians over {len(self.files.paths)} {own}"
        )
        used = [cost for cost in self.costs if exchange or not cost.key.startswith(_SCHEDULE)]
        others = [cost for cost in self.costs if cost not in used]
        lines = [
            f"# {source}.",
            "# A scenario takes this in by 'include: FILE' (docs/calibrate.md).",
            "values:",
            *(f"  {cost.key}: {cost.text}  # {cost.note}" for cost in used),
        ]
        if others:
            lines.append(
                "  # Of an exchange, for a scenario that has one and no sweep over several:"
            )
            lines += [f"  # {cost.key}: {cost.text}  # {cost.note}" for cost in others]
        records = [
            {"key": cost.key, "value": cost.text, "source": source, "note": cost.note}
            for cost in used
            if cost.spread is not None
        ]
        known = {"calibrated": records}
        return "\n".join(lines) + "\n" + yaml.safe_dump(known, sort_keys=False, width=130)


def probe(folder: Path | None = None, *, clock: Clock = time.perf_counter) -> SampleCosts:
    """Measure what a sample costs this host, on one core and files in the page cache.

    Args:
        folder: of the files, which are only read; None makes photographs. What is written goes to
            the folder for temporary files.
        clock: tells the time.

    Raises:
        InputError: there are no files, they cannot be read or decoded, or Pillow is missing.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        try:
            files = photographs(Path(scratch)) if folder is None else files_below(folder)
            return SampleCosts(_costs(files, Path(scratch, "written"), clock), files)
        except OSError as error:
            rule = f"cannot be used: {error.strerror or error}"
            remedy = "Name a folder of files that can be read."
            raise folder_error(rule, str(error.filename or folder or scratch), remedy) from None


def _costs(files: SampleFiles, target: Path, clock: Clock) -> list[Cost]:
    """All costs, of which those that are in proportion to the size of a file are for the mean
    one."""
    coder = ImageCoder() if files.images else ArrayCoder()
    taken: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, action: Callable[..., Any], *arguments: Any) -> Any:
        begin = clock()
        result = action(*arguments)
        taken[name].append(clock() - begin)
        return result

    # into the page cache; and what cannot be used is found
    pixels = np.mean([coder.nbytes(sample_of(coder, path)) for path in files.paths])
    sizes, shuffled, state = [], list(range(RANKS)), np.random.RandomState(1)
    for path in files.paths:
        data = timed("read", path.read_bytes)
        sizes.append(len(data))
        sample = timed("decode", coder.decode, data)
        timed("pickle", _pickled, sample)
        again = timed("encode", coder.encode, sample)
        timed("write", target.write_bytes, again)
        timed("remove", target.unlink)
        timed("zero", _zeroed)
        timed("draw", state.shuffle, shuffled)
    seconds = {name: np.array(values) for name, values in taken.items()}
    mean = float(np.mean(files.sizes))
    scale = mean / np.array(sizes)  # what grows with a file is of the mean one
    image = "image to RGB, by Pillow" if files.images else "a copy of the bytes"
    own = [
        ("sample_size.mean", mean, f"mean of {len(files.sizes)} files"),
        ("sample_size.std", float(np.std(files.sizes)), "and the standard deviation"),
        ("decoded_size.mean", float(pixels), "mean bytes of the decoded values"),
    ]
    found = [
        (f"{_DATASET}.decode", scale * seconds["decode"], image),
        (f"{_DATASET}.encode", scale * seconds["encode"], "and back"),
        (f"{_SCHEDULE}.read", seconds["read"], "open, read and close a cached file"),
        (f"{_SCHEDULE}.pickle", scale * seconds["pickle"], "a decoded sample"),
        (f"{_SCHEDULE}.zero_buffer", seconds["zero"], f"{ZEROED >> 20} MiB"),
        (
            f"{_SCHEDULE}.write",
            scale * (seconds["encode"] + seconds["write"]),
            "encode a sample and write the file",
        ),
        (f"{_SCHEDULE}.remove", seconds["remove"], "unlink a file"),
        (f"{_SCHEDULE}.draw", seconds["draw"] / RANKS, f"a rank of {RANKS} in a shuffle"),
    ]
    sizes_found = [Cost(f"{_DATASET}.{key}", value, None, what) for key, value, what in own]
    return [*(sizes_found if files.own else []), *(_duration(*of) for of in found)]


def _duration(key: str, seconds: NDArray[np.float64], what: str) -> Cost:
    low, middle, high = np.percentile(seconds, [25, 50, 75]).tolist()
    return Cost(key, middle, (low, high), what)


def _pickled(sample: Any) -> bytes:
    return pickle.dumps({"sample": sample}, pickle.HIGHEST_PROTOCOL)


def _zeroed() -> None:
    np.zeros(ZEROED, np.uint8).fill(0)


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
        return _saved(sample, self._format)

    def nbytes(self, sample: Any) -> int:
        """A byte for each colour of a pixel."""
        return 3 * int(sample.width) * int(sample.height)


def _saved(image: Any, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pillow() -> Any:
    """The module of images.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        remedy = "pip install 'simshuffle[train]', or name a folder of files that are no images."
        raise folder_error("decoding images needs Pillow", "no Pillow", remedy) from None


def folder_error(rule: str, value: str, remedy: str) -> InputError:
    """The error about the folder."""
    return InputError(Problem("FOLDER", rule, value, remedy), "probe")


def sample_of(coder: ImageCoder | ArrayCoder, path: Path) -> Any:
    """The sample of a file, which can also be encoded.

    Raises:
        InputError: it cannot.
    """
    data = path.read_bytes()
    try:
        sample = coder.decode(data)
        coder.encode(sample)
    except _UNREADABLE as error:
        rule = f"must hold files that can be decoded and encoded ({error})"
        raise folder_error(rule, str(path), "Leave it out.") from None
    return sample


def files_below(folder: Path) -> SampleFiles:
    """Files of the commonest suffix below a folder.

    Raises:
        InputError: there are none.
    """
    if not folder.is_dir():
        raise folder_error("must be a folder of files", str(folder), "Name that of your data set.")
    listed = [(path, path.stat().st_size) for path in islice(_paths(folder), MOST_LISTED)]
    suffixes = Counter(path.suffix.lower() for path, size in listed if size)
    if not suffixes:
        rule = "must hold files that are not empty"
        raise folder_error(rule, str(folder), "Name another folder.")
    suffix = suffixes.most_common(1)[0][0]
    found = [(path, size) for path, size in listed if size and path.suffix.lower() == suffix]
    sizes = [size for _, size in found]
    count = min(MOST_FILES, max(FEWEST_FILES, MOST_BYTES * len(sizes) // sum(sizes)), len(found))
    places = np.random.default_rng(0).choice(len(found), count, replace=False)
    return SampleFiles([found[i][0] for i in places], sizes, suffix in IMAGES, own=True)


def _paths(folder: Path) -> Iterator[Path]:
    """All files below a folder, in the same order every time."""
    for root, folders, names in os.walk(folder):
        folders.sort()
        yield from (path for name in sorted(names) if (path := Path(root, name)).is_file())


def photographs(folder: Path) -> SampleFiles:
    """Photographs of 500 x 375 pixels, imitated by smooth noise, as JPEGs of about 110 kB that are
    written to ``folder``."""
    image = pillow()
    rng = np.random.default_rng(0)
    coarse = image.fromarray(rng.integers(0, 256, (94, 125, 3), np.uint8))
    photograph = coarse.resize((500, 375), image.Resampling.BICUBIC)

    each = (_saved(photograph, "JPEG", quality=quality) for quality in range(60, 100, 2))
    data = min(each, key=lambda data: abs(len(data) - 110_000))
    paths = [folder / f"{number}.jpg" for number in range(MOST_FILES)]
    for path in paths:
        path.write_bytes(data)
    return SampleFiles(paths, [len(data)] * len(paths), images=True, own=False)
