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
from typing import Any, NamedTuple, NoReturn

import numpy as np

from simshuffle.errors import refuse
from simshuffle.spec.fragment import FragmentEntry, fragment_text
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
    own: bool  # whether they are a user's, and were not made


@dataclass(frozen=True)
class SampleCost:
    """Something measured of a sample."""

    key: str  # dotted key of a scenario
    value: float  # of a duration the median; else the mean, or what it says
    text: str  # the value with its unit
    note: str  # what was measured, and its spread
    # lower and upper quartile of a duration; None of what is no duration, but bytes
    spread: tuple[float, float] | None = None


@dataclass(frozen=True)
class SampleCosts:
    """What was measured, and on which files."""

    costs: list[SampleCost]
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
        others = [
            f"{cost.key}: {cost.text}  # {cost.note}" for cost in self.costs if cost not in used
        ]
        if others:
            head = "Of an exchange, for a scenario that has one and no sweep over several:"
            others.insert(0, head)
        entries = [
            FragmentEntry(cost.key, cost.text, cost.note, recorded=cost.spread is not None)
            for cost in used
        ]
        return fragment_text(source, entries, others)


def probe(folder: Path | None = None, *, clock: Clock = time.perf_counter) -> SampleCosts:
    """Measure what a sample costs this host, on one core and files in the page cache: those of
    ``folder``, which are only read, or photographs that are made. What is written goes to the
    folder for temporary files. Raises an InputError if there are no files, they cannot be read or
    decoded, or Pillow is missing."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        try:
            files = photographs(Path(scratch)) if folder is None else files_below(folder)
            return SampleCosts(_costs(files, Path(scratch, "written"), clock), files)
        except OSError as error:
            rule = f"cannot be used: {error.strerror or error}"
            remedy = "Name a folder of files that can be read."
            _refuse(rule, str(error.filename or folder or scratch), remedy)


def _costs(files: SampleFiles, target: Path, clock: Clock) -> list[SampleCost]:
    """All costs, of which those that are in proportion to the size of a file are for the mean
    one."""
    images = files.paths[0].suffix.lower() in IMAGES
    coder = Coder(decoded, encoded, _nbytes) if images else ARRAYS
    if images:
        pillow()
    taken: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, action: Callable[..., Any], *arguments: Any) -> Any:
        begin = clock()
        result = action(*arguments)
        taken[name].append(clock() - begin)
        return result

    # into the page cache; and what cannot be used is found
    pixels = np.mean([coder.nbytes(_sample_of(coder, path)) for path in files.paths])
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
    image = "image to RGB, by Pillow" if images else "a copy of the bytes"
    own = [
        ("sample_size.mean", mean, f"mean of {len(files.sizes)} files"),
        ("sample_size.std", float(np.std(files.sizes)), "and the standard deviation"),
        ("decoded_size.mean", float(pixels), "mean bytes of the decoded values"),
    ]
    written = scale * (seconds["encode"] + seconds["write"])
    found = [
        (f"{_DATASET}.decode", scale * seconds["decode"], image),
        (f"{_DATASET}.encode", scale * seconds["encode"], "and back"),
        (f"{_SCHEDULE}.read", seconds["read"], "open, read and close a cached file"),
        (f"{_SCHEDULE}.pickle", scale * seconds["pickle"], "a decoded sample"),
        (f"{_SCHEDULE}.zero_buffer", seconds["zero"], f"{ZEROED >> 20} MiB"),
        (f"{_SCHEDULE}.write", written, "encode a sample and write the file"),
        (f"{_SCHEDULE}.remove", seconds["remove"], "unlink a file"),
        (f"{_SCHEDULE}.draw", seconds["draw"] / RANKS, f"a rank of {RANKS} in a shuffle"),
    ]
    known = own if files.own else []
    costs = [
        SampleCost(f"{_DATASET}.{key}", value, readable(value, Dimension.NBYTES), what)
        for key, value, what in known
    ]
    for key, values, what in found:
        low, middle, high = np.percentile(values, [25, 50, 75]).tolist()
        ends = " and ".join(readable(end, Dimension.SECONDS, 3) for end in (low, high))
        text = readable(middle, Dimension.SECONDS)
        costs.append(SampleCost(key, middle, text, f"{what}; quartiles {ends}", (low, high)))
    return costs


def _pickled(sample: Any) -> bytes:
    return pickle.dumps({"sample": sample}, pickle.HIGHEST_PROTOCOL)


def _zeroed() -> None:
    np.zeros(ZEROED, np.uint8).fill(0)


class Coder(NamedTuple):
    """What makes a sample of the bytes of a file and bytes of a sample, and counts its values."""

    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    nbytes: Callable[[Any], int]


ARRAYS = Coder(bytearray, bytes, len)
"""Bytes are the values of an array, and are copied."""


def decoded(data: bytes) -> Any:
    """An image, to RGB as the authors' exchange does, which keeps the format of its file."""
    opened = pillow().open(io.BytesIO(data))
    image = opened.convert("RGB")
    image.load()
    image.format = opened.format
    return image


def encoded(image: Any, **options: Any) -> bytes:
    """The bytes of an image in its format, with Pillow's defaults but for ``options``."""
    buffer = io.BytesIO()
    image.save(buffer, image.format, **options)
    return buffer.getvalue()


def _nbytes(image: Any) -> int:
    return 3 * int(image.width) * int(image.height)


def pillow() -> Any:
    """The module of images. Raises an InputError if it is not installed."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        remedy = "pip install 'simshuffle[train]', or name a folder of files that are no images."
        _refuse("decoding images needs Pillow", "no Pillow", remedy)


def _refuse(rule: str, value: str, remedy: str) -> NoReturn:
    refuse("FOLDER", rule, value, remedy, "probe")


def _sample_of(coder: Coder, path: Path) -> Any:
    """The sample of a file, which can also be encoded, or is refused."""
    data = path.read_bytes()
    try:
        sample = coder.decode(data)
        coder.encode(sample)
    except _UNREADABLE as error:
        rule = f"must hold files that can be decoded and encoded ({error})"
        _refuse(rule, str(path), "Leave it out.")
    return sample


def files_below(folder: Path) -> SampleFiles:
    """Files of the commonest suffix below a folder. Raises an InputError if there are none."""
    if not folder.is_dir():
        _refuse("must be a folder of files", str(folder), "Name that of your data set.")
    listed = [(path, path.stat().st_size) for path in islice(_paths(folder), MOST_LISTED)]
    suffixes = Counter(path.suffix.lower() for path, size in listed if size)
    if not suffixes:
        rule = "must hold files that are not empty"
        _refuse(rule, str(folder), "Name another folder.")
    suffix = suffixes.most_common(1)[0][0]
    found = [(path, size) for path, size in listed if size and path.suffix.lower() == suffix]
    sizes = [size for _, size in found]
    count = min(MOST_FILES, max(FEWEST_FILES, MOST_BYTES * len(sizes) // sum(sizes)), len(found))
    places = np.random.default_rng(0).choice(len(found), count, replace=False)
    return SampleFiles([found[i][0] for i in places], sizes, own=True)


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

    photograph.format = "JPEG"
    each = (encoded(photograph, quality=quality) for quality in range(60, 100, 2))
    data = min(each, key=lambda data: abs(len(data) - 110_000))
    paths = [folder / f"{number}.jpg" for number in range(MOST_FILES)]
    for path in paths:
        path.write_bytes(data)
    return SampleFiles(paths, [len(data)] * len(paths), own=False)
