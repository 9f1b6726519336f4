"""Measure the cost of a sample on this host, as a fragment that a scenario includes.

Reading, decoding, pickling, encoding and writing are measured on files of a data set.
Images are decoded, other files are copied as arrays are.
"""

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
from simshuffle.spec.arrays import Floats
from simshuffle.spec.fragment import FragmentEntry, fragment_text
from simshuffle.spec.units import Dimension, readable
from simshuffle.version import __version__

Clock = Callable[[], float]
"""Tells the time in s, from whenever on."""
BUFFER_NBYTES = 4 << 20
"""Bytes of the authors' receive buffer of a sample."""
SHUFFLED_RANKS = 2048
"""In the list that is shuffled."""
_DATASET, _SCHEDULE = "workload.dataset", "workload.exchange.schedule"
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm"}
"""Suffixes of files that are decoded."""
MAX_FILES, MIN_FILES = 300, 10
MAX_NBYTES = 600_000_000
"""Of the files that are measured; of larger ones fewer are taken, but not less than
`MIN_FILES`."""
MAX_LISTED_FILES = 200_000
"""Files of a folder that are looked at; there may be millions."""
_UNREADABLE = (OSError, ValueError, SyntaxError, struct.error, EOFError, KeyError)
"""What Pillow raises at a file that is no image or a broken one, or that it cannot
write.
"""


@dataclass(frozen=True)
class SampleFiles:
    """The files of one suffix in a data set, and the ones among them to measure."""

    paths: list[Path]  # a random choice, which is measured
    sizes: list[int]  # bytes of all that were looked at
    from_user: bool  # whether they are a user's, and were not made


@dataclass(frozen=True)
class SampleCost:
    """A measured cost of a sample, or its size."""

    key: str  # dotted key of a scenario
    value: float  # of a duration the median; else the mean, or what it says
    text: str  # the value with its unit
    note: str  # what was measured, and its spread
    # lower and upper quartile of a duration; None of what is no duration, but bytes
    spread: tuple[float, float] | None = None


@dataclass(frozen=True)
class SampleCosts:
    """The measured costs and sizes of a sample, and the files that they were measured
    on.
    """

    costs: list[SampleCost]
    files: SampleFiles

    def to_yaml(self, *, exchange: bool = False) -> str:
        """Return the fragment for a scenario, as YAML.

        The costs of an exchange are comments unless ``exchange``: a scenario that
        compares strategies has no place for them.
        """
        files_text = (
            "files of the folder"
            if self.files.from_user
            else "JPEGs of 500 x 375 pixels made for the probe"
        )
        source = (
            f"simshuffle {__version__} probe, one core of {platform.node() or 'a host'}"
            f" ({platform.machine()}), medians over {len(self.files.paths)} {files_text}"
        )
        included_costs = [
            cost
            for cost in self.costs
            if exchange or not cost.key.startswith(_SCHEDULE)
        ]
        comments = [
            f"{cost.key}: {cost.text}  # {cost.note}"
            for cost in self.costs
            if cost not in included_costs
        ]
        if comments:
            title = (
                "Costs of an exchange, for a scenario that has an exchange and no sweep over"
                " several:"
            )
            comments.insert(0, title)
        entries = [
            FragmentEntry(
                cost.key, cost.text, cost.note, recorded=cost.spread is not None
            )
            for cost in included_costs
        ]
        return fragment_text(source, entries, comments)


def probe(
    folder: Path | None = None, *, clock: Clock = time.perf_counter
) -> SampleCosts:
    """Measure the costs of a sample on this host, on one core and files in the page
    cache.

    Files are only read. What is written goes to the folder for temporary files.

    Args:
        folder: the data set; None for photographs that are made.
        clock: returns the time (s).

    Raises:
        InputError: there are no files, they cannot be read or decoded, or Pillow is
            missing.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        try:
            files = (
                make_photographs(Path(scratch))
                if folder is None
                else choose_files(folder)
            )
            return SampleCosts(
                measure_costs(files, Path(scratch, "written"), clock), files
            )
        except OSError as error:
            rule = f"cannot be used: {error.strerror or error}"
            remedy = "Name a folder of files that can be read."
            refuse_folder(rule, str(error.filename or folder or scratch), remedy)


def measure_costs(files: SampleFiles, target: Path, clock: Clock) -> list[SampleCost]:
    """Measure all costs; those in proportion to the size of a file are scaled to the
    mean size. Sizes are among them only for a user's files.

    The cost of writing includes that of encoding.

    Args:
        files: the files to read.
        target: path of the file to write and remove.
        clock: returns the time (s).

    Raises:
        InputError: a file cannot be decoded or encoded, or Pillow is missing.
    """
    are_images = files.paths[0].suffix.lower() in IMAGE_SUFFIXES
    coder = ARRAY_CODER
    if are_images:
        coder = SampleCoder(decode_image, encode_image, count_image_nbytes)
        import_pillow()

    # into the page cache; and what cannot be used is found
    decoded_nbytes = float(
        np.mean([coder.nbytes(read_sample(coder, path)) for path in files.paths])
    )
    seconds, sizes = time_actions(files, coder, target, clock)

    mean_nbytes = float(np.mean(files.sizes))
    scale = mean_nbytes / np.array(sizes)  # what grows with a file is of the mean one
    size_facts = [
        ("sample_size.mean", mean_nbytes, f"mean of {len(files.sizes)} files"),
        (
            "sample_size.std",
            float(np.std(files.sizes)),
            "standard deviation over these files",
        ),
        ("decoded_size.mean", decoded_nbytes, "mean bytes of the decoded values"),
    ]
    costs = [
        SampleCost(
            f"{_DATASET}.{key}", value, readable(value, Dimension.NBYTES), description
        )
        for key, value, description in (size_facts if files.from_user else [])
    ]
    decode_note = "image to RGB, by Pillow" if are_images else "a copy of the bytes"
    draw_note = f"for one of {SHUFFLED_RANKS} ranks of a shuffle"
    write_seconds = scale * (seconds["encode"] + seconds["write"])
    return [
        *costs,
        duration_cost(f"{_DATASET}.decode", scale * seconds["decode"], decode_note),
        duration_cost(
            f"{_DATASET}.encode", scale * seconds["encode"], "reverse of decode"
        ),
        duration_cost(
            f"{_SCHEDULE}.read", seconds["read"], "open, read and close a cached file"
        ),
        duration_cost(
            f"{_SCHEDULE}.pickle", scale * seconds["pickle"], "a decoded sample"
        ),
        duration_cost(
            f"{_SCHEDULE}.zero_buffer", seconds["zero"], f"{BUFFER_NBYTES >> 20} MiB"
        ),
        duration_cost(
            f"{_SCHEDULE}.write", write_seconds, "encode a sample and write the file"
        ),
        duration_cost(f"{_SCHEDULE}.remove", seconds["remove"], "unlink a file"),
        duration_cost(f"{_SCHEDULE}.draw", seconds["draw"] / SHUFFLED_RANKS, draw_note),
    ]


def time_actions(
    files: SampleFiles, coder: SampleCoder, target: Path, clock: Clock
) -> tuple[dict[str, Floats], list[int]]:
    """Time all actions on each file; return (files,) s by action, and the bytes of each
    file.

    The actions are read, decode, pickle, encode, write, remove, zero and draw; draw
    shuffles `SHUFFLED_RANKS` ranks. ``target`` is written and removed for each file.
    """
    seconds_by_action: dict[str, list[float]] = defaultdict(list)

    def time_action(name: str, action: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``action``, and note its duration (s) under ``name``."""
        begin = clock()
        result = action(*arguments)
        seconds_by_action[name].append(clock() - begin)
        return result

    sizes = []
    shuffled_ranks = list(range(SHUFFLED_RANKS))
    generator = np.random.RandomState(1)
    for path in files.paths:
        data = time_action("read", path.read_bytes)
        sizes.append(len(data))
        sample = time_action("decode", coder.decode, data)
        time_action("pickle", pickle_sample, sample)
        encoded_sample = time_action("encode", coder.encode, sample)
        time_action("write", target.write_bytes, encoded_sample)
        time_action("remove", target.unlink)
        time_action("zero", zero_buffer)
        time_action("draw", generator.shuffle, shuffled_ranks)
    return {name: np.array(values) for name, values in seconds_by_action.items()}, sizes


def duration_cost(key: str, seconds: Floats, description: str) -> SampleCost:
    """Return the median of (files,) s as a cost, with its quartiles."""
    low, median, high = np.percentile(seconds, [25, 50, 75]).tolist()
    quartiles = " and ".join(readable(end, Dimension.SECONDS, 3) for end in (low, high))
    note = f"{description}; quartiles {quartiles}"
    return SampleCost(
        key, median, readable(median, Dimension.SECONDS), note, (low, high)
    )


def pickle_sample(sample: Any) -> bytes:
    """Return the bytes of a message with a sample, a dict with the key 'sample', as
    mpi4py would pickle it.
    """
    return pickle.dumps({"sample": sample}, pickle.HIGHEST_PROTOCOL)


def zero_buffer() -> None:
    """Allocate and zero a receive buffer of `BUFFER_NBYTES`, as the authors do for each
    sample.
    """
    np.zeros(BUFFER_NBYTES, np.uint8).fill(0)


class SampleCoder(NamedTuple):
    """Functions that decode files, encode samples, and count the bytes of their values."""

    decode: Callable[[bytes], Any]  # makes a sample of the bytes of a file
    encode: Callable[[Any], bytes]  # makes the bytes of a file of a sample
    nbytes: Callable[[Any], int]  # counts the bytes of the values of a sample


ARRAY_CODER = SampleCoder(bytearray, bytes, len)
"""Bytes are the values of an array, and are copied."""


def decode_image(data: bytes) -> Any:
    """Return an image in RGB with the format of its file, as the authors' exchange
    decodes it.
    """
    stored_image = import_pillow().open(io.BytesIO(data))
    image = stored_image.convert("RGB")
    image.load()
    image.format = stored_image.format
    return image


def encode_image(image: Any, **options: Any) -> bytes:
    """Return the bytes of an image in its format, with Pillow's defaults but for
    ``options``.
    """
    buffer = io.BytesIO()
    image.save(buffer, image.format, **options)
    return buffer.getvalue()


def count_image_nbytes(image: Any) -> int:
    """Return the bytes of the RGB values of an image."""
    return 3 * int(image.width) * int(image.height)


def import_pillow() -> Any:
    """Import Pillow's module of images.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        remedy = (
            "Run pip install 'simshuffle[train]', or name a folder of files that are not"
            " images."
        )
        refuse_folder("decoding images needs Pillow", "no Pillow", remedy)


def refuse_folder(rule: str, value: str, remedy: str) -> NoReturn:
    """Raise the InputError of a folder whose files cannot be used."""
    refuse("FOLDER", rule, value, remedy, "probe")


def read_sample(coder: SampleCoder, path: Path) -> Any:
    """Return the sample of a file, which can also be encoded.

    Raises:
        InputError: the file cannot be decoded or encoded.
    """
    data = path.read_bytes()
    try:
        sample = coder.decode(data)
        coder.encode(sample)
    except _UNREADABLE as error:
        rule = f"must hold files that can be decoded and encoded ({error})"
        refuse_folder(rule, str(path), "Leave that file out.")
    return sample


def choose_files(folder: Path) -> SampleFiles:
    """Choose files of the commonest suffix below a folder that are not empty.

    At most `MAX_LISTED_FILES` are looked at. Of those at most `MAX_FILES` are drawn at
    random, always with one seed, and not more than `MAX_NBYTES` in the mean unless
    that would be fewer than `MIN_FILES`.

    Raises:
        InputError: there are none, or ``folder`` is no folder.
    """
    if not folder.is_dir():
        refuse_folder(
            "must be a folder of files",
            str(folder),
            "Name the folder of your data set.",
        )
    nbytes_of_path = [
        (path, path.stat().st_size)
        for path in islice(list_paths(folder), MAX_LISTED_FILES)
    ]
    suffixes = Counter(path.suffix.lower() for path, size in nbytes_of_path if size)
    if not suffixes:
        rule = "must hold files that are not empty"
        refuse_folder(rule, str(folder), "Name another folder.")
    suffix = suffixes.most_common(1)[0][0]
    suffix_files = [
        (path, size)
        for path, size in nbytes_of_path
        if size and path.suffix.lower() == suffix
    ]
    sizes = [size for _, size in suffix_files]
    affordable_count = MAX_NBYTES * len(sizes) // sum(sizes)
    count = min(MAX_FILES, max(MIN_FILES, affordable_count), len(suffix_files))
    indices = np.random.default_rng(0).choice(len(suffix_files), count, replace=False)
    return SampleFiles(
        [suffix_files[index][0] for index in indices], sizes, from_user=True
    )


def list_paths(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, sorted by name in each folder."""
    for root, folders, names in os.walk(folder):
        folders.sort()
        yield from (
            path for name in sorted(names) if (path := Path(root, name)).is_file()
        )


def make_photographs(folder: Path) -> SampleFiles:
    """Write `MAX_FILES` JPEGs of 500 x 375 pixels and about 110 kB, smooth noise, to
    ``folder``; all are equal.
    """
    module = import_pillow()
    rng = np.random.default_rng(0)
    noise = module.fromarray(rng.integers(0, 256, (94, 125, 3), np.uint8))
    photograph = noise.resize((500, 375), module.Resampling.BICUBIC)

    photograph.format = "JPEG"
    encodings = (
        encode_image(photograph, quality=quality) for quality in range(60, 100, 2)
    )
    data = min(encodings, key=lambda data: abs(len(data) - 110_000))
    paths = [folder / f"{index}.jpg" for index in range(MAX_FILES)]
    for path in paths:
        path.write_bytes(data)
    return SampleFiles(paths, [len(data)] * len(paths), from_user=False)
