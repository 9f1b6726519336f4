"""Measure what a file system gives one host, as a fragment that a scenario includes.

It counts the files that the host opens and the bytes that it reads in a second, by the
number of readers, past the page cache of the host. Nothing is touched but a new folder
inside the one that is named, which goes away in the end, whatever happens. Bytes and
seconds are bounded.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np

from simshuffle.errors import refuse
from simshuffle.extensions.calibration.probe.samples import Clock
from simshuffle.extensions.calibration.probe.storage_rates import READERS, StorageRates
from simshuffle.spec.units import Dimension, readable
from simshuffle.study.server import handle_signals, interrupt

ROUNDS = 5
"""Measurements of each number of readers, of which the median counts: the true median
lies between the lowest and the highest with probability 1 - 2^(1-5) = 0.94.
"""
SMALL_NBYTES, MAX_SMALL_FILES = 4096, 4000
"""Bytes of a small file, so few that its latency is all, and how many there are at
most.
"""
BLOCK_NBYTES = 4 << 20
"""Bytes of a read or write of the large file."""
WRITING_SHARE = 0.2
"""Share of the time that writing small files may take, and the same for the large one."""
MIN_NBYTES = 64e6
"""Of which the large file has a block for each reader."""
SHARED_FILE_SYSTEMS = (
    "nfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "fuse",
    "cifs",
    "9p",
    "panfs",
    "wekafs",
)
"""What the names of file systems begin with that many hosts share; others are a host's
own.
"""
_SOURCE = "probe --storage"


def probe_storage(
    folder: Path,
    nbytes: float = 1e9,
    seconds: float = 30.0,
    *,
    clock: Clock = time.perf_counter,
) -> StorageRates:
    """Measure the file system of a folder, in a new folder there that is removed in the
    end, also when SIGTERM or SIGHUP interrupts it.

    Args:
        folder: a folder on the file system.
        nbytes: bytes written at most.
        seconds: about how long to measure (s).
        clock: returns the time (s).

    Raises:
        InputError: ``nbytes`` is below `MIN_NBYTES`, ``folder`` is no folder, less than
            twice ``nbytes`` is free, or the system refuses a read or write.
    """
    if nbytes < MIN_NBYTES:
        rule = f"must be at least {readable(MIN_NBYTES, Dimension.NBYTES, 3)}"
        size = readable(nbytes, Dimension.NBYTES, 3)
        refuse("--limit", rule, size, "For example 1GB.", _SOURCE)
    if not folder.is_dir():
        remedy = "Name a folder on the file system to be measured."
        refuse_folder("must be a folder", str(folder), remedy)
    free_nbytes = shutil.disk_usage(folder).free
    if free_nbytes < 2 * nbytes:
        value = f"{readable(free_nbytes, Dimension.NBYTES, 3)} free"
        rule = f"must have twice the {readable(nbytes, Dimension.NBYTES, 3)} of --limit free"
        refuse_folder(rule, value, "Give a smaller --limit, or another folder.")
    try:
        with (
            handle_signals(interrupt, signal.SIGTERM, signal.SIGHUP),
            tempfile.TemporaryDirectory(
                prefix="simshuffle-probe-", dir=folder
            ) as scratch,
        ):
            return measure_rates(Path(scratch), nbytes, seconds, clock)
    except OSError as error:
        rule = f"cannot be measured: {error.strerror or error}"
        refuse_folder(
            rule, str(error.filename or folder), "Name a folder that can be written to."
        )


def refuse_folder(rule: str, value: str, remedy: str) -> NoReturn:
    """Raise the InputError of a folder that cannot be measured."""
    refuse("--storage", rule, value, remedy, _SOURCE)


def measure_rates(
    scratch: Path, nbytes: float, seconds: float, clock: Clock
) -> StorageRates:
    """Write a large file and small ones, and read them by each number of readers.

    Small files take at most a quarter of ``nbytes``. Writing may take `WRITING_SHARE`
    of the time twice; the rest is divided equally among the rounds, `ROUNDS` for each
    number of readers. The share of the device is None for a file system that many hosts
    share, or if the kernel does not count. Files stay in ``scratch``.

    Args:
        scratch: an empty folder on the file system to be measured.
        nbytes: bytes written at most.
        seconds: about how long to measure (s).
        clock: returns the time (s).
    """
    begin = clock()
    data = random.Random(0).randbytes(BLOCK_NBYTES)  # noqa: S311 - so that nothing is compressed
    max_files = min(MAX_SMALL_FILES, int(nbytes / 4 / SMALL_NBYTES))
    files, create_rate = create_files(
        scratch, max_files, data[:SMALL_NBYTES], begin + WRITING_SHARE * seconds, clock
    )
    large_file = scratch / "large"
    write_deadline = clock() + WRITING_SHARE * seconds
    file_nbytes, write_bandwidth = write_file(
        large_file, nbytes - len(files) * SMALL_NBYTES, data, write_deadline, clock
    )
    device_nbytes_before = count_device_nbytes()
    read_nbytes = 0.0
    open_rates: dict[int, list[float]] = defaultdict(list)
    read_bandwidths: dict[int, list[float]] = defaultdict(list)
    seconds_of_round = max(begin + seconds - clock(), 0.0) / (2 * ROUNDS * len(READERS))
    order = random.Random(1)  # noqa: S311
    for _ in range(ROUNDS):
        for readers in READERS:
            order.shuffle(files)
            shares = [files[reader::readers] for reader in range(readers)]
            count, open_seconds = read_concurrently(
                shares, read_small_file, seconds_of_round, clock
            )
            open_rates[readers].append(count / open_seconds)

            offsets = range(0, file_nbytes, BLOCK_NBYTES)
            stripes = [
                [(large_file, offset) for offset in offsets_of_reader]
                for offsets_of_reader in np.array_split(offsets, readers)
            ]
            nbytes_of_round, read_seconds = read_concurrently(
                stripes, read_block, seconds_of_round, clock
            )
            read_bandwidths[readers].append(nbytes_of_round / read_seconds)
            read_nbytes += count * SMALL_NBYTES + nbytes_of_round

    device_nbytes_after = count_device_nbytes()
    mount, is_shared = find_mount(scratch)
    device_share = None
    if not (is_shared or device_nbytes_before is None or device_nbytes_after is None):
        device_share = (device_nbytes_after - device_nbytes_before) / read_nbytes
    return StorageRates(
        mount=mount,
        is_shared=is_shared,
        open_rates=open_rates,
        read_bandwidths=read_bandwidths,
        create_rate=create_rate,
        write_bandwidth=write_bandwidth,
        counts=(len(files), file_nbytes),
        device_share=device_share,
    )


def create_files(
    folder: Path, max_files: int, data: bytes, deadline: float, clock: Clock
) -> tuple[list[Path], float]:
    """Create small files until ``deadline``; return their paths, and the files made in
    a second.

    At least one is made for each reader, and at most ``max_files``. Each is
    synchronised, and dropped from the page cache.
    """
    files: list[Path] = []
    begin = clock()
    while len(files) < max_files and (len(files) < max(READERS) or clock() < deadline):
        path = folder / str(len(files))
        descriptor = open_new_file(path)
        try:
            os.write(descriptor, data)
            os.fsync(descriptor)
            drop_from_cache(descriptor, 0, 0)
        finally:
            os.close(descriptor)
        files.append(path)
    return files, len(files) / (clock() - begin)


def write_file(
    path: Path, nbytes: float, data: bytes, deadline: float, clock: Clock
) -> tuple[int, float]:
    """Write a large file until ``deadline``; return its bytes, and the bytes written in
    a second.

    It has whole blocks ``data``, at least one for each reader, and at most ``nbytes``
    bytes. It is synchronised, and dropped from the page cache.
    """
    size = 0
    min_nbytes = BLOCK_NBYTES * max(READERS)
    begin = clock()
    descriptor = open_new_file(path)
    try:
        while size + BLOCK_NBYTES <= nbytes and (
            size < min_nbytes or clock() < deadline
        ):
            size += os.write(descriptor, data)
            # not at the end alone: that might take longer than all
            if size % (4 * BLOCK_NBYTES) == 0:
                os.fsync(descriptor)
        os.fsync(descriptor)
        seconds = clock() - begin
        drop_from_cache(descriptor, 0, 0)
    finally:
        os.close(descriptor)
    return size, size / seconds


def open_new_file(path: Path) -> int:
    """Create and open a file for writing; return its descriptor. It must not exist yet."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def drop_from_cache(descriptor: int, offset: int, nbytes: int) -> None:
    """Drop ``nbytes`` of a file from the page cache, from ``offset`` on; 0 stands for
    all bytes. Nothing is done where the system cannot.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, nbytes, os.POSIX_FADV_DONTNEED)


def read_small_file(path: Path) -> int:
    """Open and read a small file, and drop it from the page cache; return 1, for one
    file.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.read(descriptor, SMALL_NBYTES)
        drop_from_cache(descriptor, 0, 0)
    finally:
        os.close(descriptor)
    return 1


def read_block(block: tuple[Path, int]) -> int:
    """Open a file, read a block, and drop this block from the page cache; return the
    bytes that were read.

    Args:
        block: path of the file, and offset of the block.
    """
    path, offset = block
    descriptor = os.open(path, os.O_RDONLY)
    try:
        count = len(os.pread(descriptor, BLOCK_NBYTES, offset))
        drop_from_cache(descriptor, offset, BLOCK_NBYTES)
    finally:
        os.close(descriptor)
    return count


def read_concurrently(
    shares: Sequence[Sequence[object]],
    read: Callable[..., int],
    limit: float,
    clock: Clock,
) -> tuple[int, float]:
    """Read each share with a thread of its own; return the sum of what ``read``
    returned, and the seconds until the last thread has ended.

    Args:
        shares: for each reader the things to read.
        read: reads one thing; returns files or bytes.
        limit: s after which a reader stops; it reads at least one thing.
        clock: returns the time (s).
    """
    begin = clock()

    def read_share(share: Sequence[object]) -> int:
        """Read a share until it ends or the limit is over; return the sum of what
        ``read`` returned.
        """
        total = 0
        for target in share:
            total += read(target)
            if clock() >= begin + limit:
                break
        return total

    if len(shares) == 1:
        return read_share(shares[0]), clock() - begin
    with ThreadPoolExecutor(len(shares)) as pool:
        total = sum(pool.map(read_share, shares))
    return total, clock() - begin


def count_device_nbytes() -> int | None:
    """Return the bytes that this process read from devices; None if the kernel does not
    count them.
    """
    with suppress(OSError):
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        return next(
            (int(line.split()[1]) for line in lines if line.startswith("read_bytes")),
            None,
        )
    return None


def find_mount(folder: Path) -> tuple[str, bool]:
    """Return the file system and mount point of a folder as a text, 'ext4 at /home',
    and whether many hosts share it, by `SHARED_FILE_SYSTEMS`.

    Without a list of mounts, it is 'file system at' the folder's parent, not shared.
    """
    mount = ("", "")
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, mount_point, kind, *_ = line.split()
            if folder.resolve().is_relative_to(mount_point) and len(mount_point) >= len(
                mount[0]
            ):
                mount = mount_point, kind
    mount_point, kind = mount
    return (
        f"{kind or 'file system'} at {mount_point or folder.parent}",
        kind.startswith(SHARED_FILE_SYSTEMS),
    )
