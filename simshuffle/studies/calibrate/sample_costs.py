"""What this host pays for a sample: reading, decoding, pickling, encoding and writing it, measured
on files of a data set, as a fragment that a scenario includes."""

from __future__ import annotations

import pickle
import platform
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.calibrate.sample_files import (
    ArrayCoder,
    Coder,
    ImageCoder,
    SampleFiles,
    chosen,
    decoded,
    made,
    refused,
)
from simshuffle.version import __version__

Clock = Callable[[], float]
"""Tells the time in s, from whenever on."""
ZEROED = 4 << 20
"""Bytes of the authors' receive buffer of a sample."""
RANKS = 2048
"""In the list that is shuffled."""
_DATASET, _SCHEDULE = "workload.dataset", "workload.exchange.schedule"


@dataclass(frozen=True)
class Cost:
    """Something measured of a sample.

    Attributes:
        key: dotted key of a scenario.
        value: of a duration the median; else the mean, or what it says.
        spread: lower and upper quartile of a duration; None of what is no duration.
        dimension: of all of them, in SI units.
        what: was measured.
    """

    key: str
    value: float
    spread: tuple[float, float] | None
    dimension: Dimension
    what: str

    @property
    def text(self) -> str:
        """The value with its unit."""
        return readable(self.value, self.dimension)

    @property
    def note(self) -> str:
        """What was measured, and its spread."""
        if self.spread is None:
            return self.what
        low, high = (readable(end, self.dimension, 3) for end in self.spread)
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
            files = made(Path(scratch)) if folder is None else chosen(folder)
            return SampleCosts(_measured(files, Path(scratch, "written"), clock), files)
        except OSError as error:
            rule = f"cannot be used: {error.strerror or error}"
            remedy = "Name a folder of files that can be read."
            raise refused(rule, str(error.filename or folder or scratch), remedy) from None


class _Stopwatch:
    """Durations in s by name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[str, list[float]] = defaultdict(list)

    def time(self, name: str, action: Callable[..., Any], *arguments: Any) -> Any:
        """What the action returns."""
        begin = self._clock()
        result = action(*arguments)
        self._seconds[name].append(self._clock() - begin)
        return result

    def seconds(self, *names: str) -> NDArray[np.float64]:
        """Durations of actions that belong together: (n,) their sums."""
        together: NDArray[np.float64] = np.sum([self._seconds[name] for name in names], axis=0)
        return together


def _measured(files: SampleFiles, target: Path, clock: Clock) -> list[Cost]:
    """All costs, of which those that are in proportion to the size of a file are for the mean
    one."""
    coder: Coder = ImageCoder() if files.images else ArrayCoder()
    watch, sizes, values = _Stopwatch(clock), [], []
    for path in files.paths:  # into the page cache; and what cannot be used is found
        values.append(coder.nbytes(decoded(coder, path.read_bytes(), path)))
    shuffled, state = list(range(RANKS)), np.random.RandomState(1)
    for path in files.paths:
        data = watch.time("read", path.read_bytes)
        sizes.append(len(data))
        sample = watch.time("decode", coder.decode, data)
        watch.time("pickle", _pickled, sample)
        again = watch.time("encode", coder.encode, sample)
        watch.time("write", target.write_bytes, again)
        watch.time("remove", target.unlink)
        watch.time("zero", _zeroed)
        watch.time("draw", state.shuffle, shuffled)
    mean = float(np.mean(files.sizes))
    scale = mean / np.array(sizes)
    pixels = float(np.mean(values))

    def cost(key: str, seconds: NDArray[np.float64], what: str) -> Cost:
        low, middle, high = np.percentile(seconds, [25, 50, 75])
        return Cost(key, float(middle), (float(low), float(high)), Dimension.SECONDS, what)

    image = "image to RGB, by Pillow" if files.images else "a copy of the bytes"
    sizes_of = [
        ("sample_size.mean", mean, f"mean of {len(files.sizes)} files"),
        ("sample_size.std", float(np.std(files.sizes)), "and the standard deviation"),
        ("decoded_size.mean", pixels, "mean bytes of the decoded values"),
    ]
    return [
        *(
            Cost(f"{_DATASET}.{key}", value, None, Dimension.NBYTES, what)
            for key, value, what in sizes_of
            if files.own
        ),
        cost(f"{_DATASET}.decode", scale * watch.seconds("decode"), image),
        cost(f"{_DATASET}.encode", scale * watch.seconds("encode"), "and back"),
        cost(f"{_SCHEDULE}.read", watch.seconds("read"), "open, read and close a cached file"),
        cost(f"{_SCHEDULE}.pickle", scale * watch.seconds("pickle"), "a decoded sample"),
        cost(f"{_SCHEDULE}.zero_buffer", watch.seconds("zero"), f"{ZEROED >> 20} MiB"),
        cost(
            f"{_SCHEDULE}.write",
            scale * watch.seconds("encode", "write"),
            "encode a sample and write the file",
        ),
        cost(f"{_SCHEDULE}.remove", watch.seconds("remove"), "unlink a file"),
        cost(f"{_SCHEDULE}.draw", watch.seconds("draw") / RANKS, f"a rank of {RANKS} in a shuffle"),
    ]


def _pickled(sample: Any) -> bytes:
    return pickle.dumps({"sample": sample}, pickle.HIGHEST_PROTOCOL)


def _zeroed() -> None:
    np.zeros(ZEROED, np.uint8).fill(0)
