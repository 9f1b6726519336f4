"""What a file system gives one host: files that it opens and bytes that it reads a second, by how
many readers there are, past the page cache of the host. A scenario includes the fragment.

Nothing is touched but a new folder inside the one that is named, which goes away in the end,
whatever happens. Bytes and seconds are bounded.
"""

from __future__ import annotations

import os
import platform
import random
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from simshuffle.errors import refuse
from simshuffle.extensions.calibration.probe.samples import Clock
from simshuffle.spec.fragment import FragmentEntry, fragment_text
from simshuffle.spec.units import Dimension, readable
from simshuffle.study.server import handle_signals, interrupt
from simshuffle.version import __version__

READERS = (1, 2, 4, 8)
"""Threads that read at once."""
ROUNDS = 5
"""Measurements of each number of readers, of which the median counts: the true median lies between
the lowest and the highest with probability 1 - 2^(1-5) = 0.94."""
SMALL, MOST_SMALL = 4096, 4000
"""Bytes of a small file, so few that its latency is all, and how many there are at most."""
BLOCK = 4 << 20
"""Bytes of a read or write of the large file."""
WRITING = 0.2
"""Share of the time that writing small files may take, and the same for the large one."""
LEAST_NBYTES = 64e6
"""Of which the large file has a block for each reader."""
SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "fuse", "cifs", "9p", "panfs", "wekafs")
"""What the names of file systems begin with that many hosts share; others are a host's own."""
CACHED = 0.5
"""Least share of the bytes that must come from the device of a local file system."""
_SOURCE = "probe --storage"


@dataclass(frozen=True)
class StorageRates:
    """What was measured: of each number of readers the rates of all rounds."""

    place: str  # file system and where it is mounted
    shared: bool  # whether it is one that many hosts share
    opened: Mapping[int, Sequence[float]]  # small files opened, read and closed a second
    read: Mapping[int, Sequence[float]]  # bytes/s of the large file
    created: float  # small files created, written and synchronised a second
    written: float  # bytes/s of the large file, synchronised
    counts: tuple[int, float]  # small files, and bytes of the large file
    # share of the bytes that came from the device; None if the kernel does not count it
    from_device: float | None

    def to_yaml(self) -> str:
        """The fragment for a scenario."""
        small, nbytes = self.counts
        host = platform.node() or "a host"
        source = (
            f"simshuffle {__version__} probe --storage on {host}, {self.place}:"
            f" {small} files of 4 KiB and one of {readable(nbytes, Dimension.NBYTES, 3)}, medians"
            f" of {len(self.opened[READERS[0]])} rounds with"
            f" {', '.join(map(str, self.opened))} readers, out of the page cache"
        )
        created = readable(self.created, Dimension.FREQUENCY, 3)
        comments = [f"Measured too: {created} files created, written and synchronised."]
        if self.from_device is not None and self.from_device < CACHED:
            comments.append(
                f"Beware: of what was read {self.from_device:.0%} came from a device, the rest from"
                " a cache or from memory."
            )
        comments.append(
            "Caches of servers and devices may have answered: all was written just now."
        )
        return fragment_text(source, self._entries(), comments)

    def _entries(self) -> list[FragmentEntry]:
        tier = "parallel_file_system" if self.shared else "ssd"
        rate, opens = Dimension.BANDWIDTH, Dimension.FREQUENCY
        best, most = _best(self.read), _best(self.opened)
        of_reads, of_opens = (
            f"the highest, with {n} reader{'s' * (n > 1)}{self._rising(rates)}"
            for n, rates in ((best, self.read), (most, self.opened))
        )
        alone = self.opened[READERS[0]]
        latency = [1 / value for value in alone]
        key = f"cluster.{tier}"
        written = FragmentEntry(
            f"{key}.write_bandwidth", readable(self.written, rate), "of one writer, synchronised"
        )
        entries = [
            _entry(f"{key}.latency", latency, Dimension.SECONDS, "open, read, close; one reader"),
            _entry(f"{key}.read_bandwidth", self.read[best], rate, of_reads, self.read),
            written,
        ]
        if self.shared:
            return [
                _entry(f"{key}.open_rate", self.opened[most], opens, of_opens, self.opened),
                *entries,
                _entry(f"{key}.client_bandwidth", self.read[best], rate, of_reads, self.read),
            ]
        curve = {n: readable(float(np.median(of)), opens) for n, of in self.opened.items()}
        points = {"points": curve}
        over = {"over": _over(self.opened)}
        return [
            *entries,
            FragmentEntry(f"{key}.iops", points, "open, read, close, by readers", over),
        ]

    def _rising(self, rates: Mapping[int, Sequence[float]]) -> str:
        """What to add where more readers, or hosts, might get more."""
        *_, before, last = [float(np.median(of)) for of in rates.values()]
        if last > 1.1 * before:
            return "; it still rises, so a lower bound"
        return "; of one host, so a lower bound" if self.shared else ""


def _best(rates: Mapping[int, Sequence[float]]) -> int:
    return max(rates, key=lambda readers: float(np.median(rates[readers])))


def _over(rates: Mapping[int, object]) -> dict[str, list[int]]:
    return {"hosts": [1, 1], "clients": [min(rates), max(rates)]}


def _entry(
    key: str,
    values: Sequence[float],
    dimension: Dimension,
    note: str,
    rates: Mapping[int, object] | None = None,
) -> FragmentEntry:
    """The median of what was measured, with its ends from three values on."""
    low, middle, high = (readable(float(of), dimension) for of in np.quantile(values, [0, 0.5, 1]))
    known: dict[str, object] = {}
    if len(values) > 2:
        known = {"low": low, "high": high, "confidence": round(1 - 2.0 ** (1 - len(values)), 4)}
    return FragmentEntry(key, middle, note, known | {"over": _over(rates or {1: None})})


def probe_storage(
    folder: Path, nbytes: float = 1e9, seconds: float = 30.0, *, clock: Clock = time.perf_counter
) -> StorageRates:
    """Measure the file system of a folder for about so many ``seconds``, with at most ``nbytes``
    bytes, in a new folder there that is removed in the end. Raises an InputError if it cannot be
    written to, less than twice as many bytes are free, or they are too few."""
    if nbytes < LEAST_NBYTES:
        least, given = (readable(of, Dimension.NBYTES, 3) for of in (LEAST_NBYTES, nbytes))
        refuse("--limit", f"must be at least {least}", given, "For example 1GB.", _SOURCE)
    if not folder.is_dir():
        _refuse("must be a folder", str(folder), "Name one on the file system to be measured.")
    free = shutil.disk_usage(folder).free
    if free < 2 * nbytes:
        value = f"{readable(free, Dimension.NBYTES, 3)} free"
        rule = f"must have twice the {readable(nbytes, Dimension.NBYTES, 3)} of --limit free"
        _refuse(rule, value, "Give a smaller --limit, or another folder.")
    try:
        with (
            handle_signals(interrupt, signal.SIGTERM, signal.SIGHUP),
            tempfile.TemporaryDirectory(prefix="simshuffle-probe-", dir=folder) as scratch,
        ):
            return _measured(Path(scratch), nbytes, seconds, clock)
    except OSError as error:
        rule = f"cannot be measured: {error.strerror or error}"
        _refuse(rule, str(error.filename or folder), "Name a folder that can be written to.")


def _refuse(rule: str, value: str, remedy: str) -> NoReturn:
    refuse("--storage", rule, value, remedy, _SOURCE)


def _measured(scratch: Path, nbytes: float, seconds: float, clock: Clock) -> StorageRates:
    begin = clock()
    data = random.Random(0).randbytes(BLOCK)  # noqa: S311 - so that nothing is compressed
    most = min(MOST_SMALL, int(nbytes / 4 / SMALL))
    files, created = _create(scratch, most, data[:SMALL], begin + WRITING * seconds, clock)
    large = scratch / "large"
    until = clock() + WRITING * seconds
    size, written = _write(large, nbytes - len(files) * SMALL, data, until, clock)
    before, asked = _from_device(), 0.0
    opened: dict[int, list[float]] = defaultdict(list)
    read: dict[int, list[float]] = defaultdict(list)
    each = max(begin + seconds - clock(), 0.0) / (2 * ROUNDS * len(READERS))
    order = random.Random(1)  # noqa: S311
    for _ in range(ROUNDS):
        for readers in READERS:
            order.shuffle(files)
            shares = [files[reader::readers] for reader in range(readers)]
            count, took = _together(shares, _read_small, each, clock)
            opened[readers].append(count / took)
            offsets = range(0, size, BLOCK)
            stripes = [
                [(large, offset) for offset in part] for part in np.array_split(offsets, readers)
            ]
            got, lasted = _together(stripes, _read_block, each, clock)
            read[readers].append(got / lasted)
            asked += count * SMALL + got
    after = _from_device()
    share = None if before is None or after is None else (after - before) / asked
    place, shared = _mounted(scratch)
    return StorageRates(
        place, shared, opened, read, created, written, (len(files), size), None if shared else share
    )


def _create(
    folder: Path, most: int, data: bytes, until: float, clock: Clock
) -> tuple[list[Path], float]:
    """Small files, at least one for each reader and at most so many, and how many were made a
    second; stops at the time ``until``."""
    files: list[Path] = []
    begin = clock()
    while len(files) < most and (len(files) < max(READERS) or clock() < until):
        path = folder / str(len(files))
        descriptor = _open_new(path)
        try:
            os.write(descriptor, data)
            os.fsync(descriptor)
            _forget(descriptor, 0, 0)
        finally:
            os.close(descriptor)
        files.append(path)
    return files, len(files) / (clock() - begin)


def _write(path: Path, nbytes: float, data: bytes, until: float, clock: Clock) -> tuple[int, float]:
    """A large file of at most so many bytes, and the bytes written a second; stops at the time
    ``until``."""
    size, begin = 0, clock()
    descriptor = _open_new(path)
    try:
        while size + BLOCK <= nbytes and (size < BLOCK * max(READERS) or clock() < until):
            size += os.write(descriptor, data)
            if size % (4 * BLOCK) == 0:  # not at the end alone: that might take longer than all
                os.fsync(descriptor)
        os.fsync(descriptor)
        took = clock() - begin
        _forget(descriptor, 0, 0)
    finally:
        os.close(descriptor)
    return size, size / took


def _open_new(path: Path) -> int:
    """Open a file that is not there yet."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def _forget(descriptor: int, offset: int, nbytes: int) -> None:
    """Let the page cache give up what it has of a file (of 0 bytes: all of it)."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, nbytes, os.POSIX_FADV_DONTNEED)


def _read_small(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.read(descriptor, SMALL)
        _forget(descriptor, 0, 0)
    finally:
        os.close(descriptor)
    return 1


def _read_block(place: tuple[Path, int]) -> int:
    path, offset = place
    descriptor = os.open(path, os.O_RDONLY)
    try:
        count = len(os.pread(descriptor, BLOCK, offset))
        _forget(descriptor, offset, BLOCK)
    finally:
        os.close(descriptor)
    return count


def _together(
    shares: Sequence[Sequence[object]], read: Callable[..., int], limit: float, clock: Clock
) -> tuple[int, float]:
    """Let a reader for each of ``shares`` read what is in it, for at most ``limit`` s, but one
    thing in any case; returns what ``read`` returned in sum, and the seconds."""
    begin = clock()

    def one(share: Sequence[object]) -> int:
        got = 0
        for each in share:
            got += read(each)
            if clock() >= begin + limit:
                break
        return got

    if len(shares) == 1:
        return one(shares[0]), clock() - begin
    with ThreadPoolExecutor(len(shares)) as pool:
        got = sum(pool.map(one, shares))
    return got, clock() - begin


def _from_device() -> int | None:
    """Bytes that this process had from devices so far; None if the kernel does not count them."""
    with suppress(OSError):
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes")), None)
    return None


def _mounted(folder: Path) -> tuple[str, bool]:
    """Which file system a folder is on, and whether many hosts share it."""
    found = ("", "")
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, at, kind, *_ = line.split()
            if folder.resolve().is_relative_to(at) and len(at) >= len(found[0]):
                found = at, kind
    at, kind = found
    return f"{kind or 'file system'} at {at or folder.parent}", kind.startswith(SHARED)
