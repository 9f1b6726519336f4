"""A slow disk: a folder seen through a file system (FUSE) that takes its time. It cannot be
written to. Needs Linux, /dev/fuse, libfuse and mfusepy.

    python benchmarks/slow_disk.py FOLDER MOUNT [--open-s S] [--read-s S] [--rate BYTES_PER_S]
                                   [--in-flight N] [--cache BYTES] [--below PART]

Each open and each read waits as `Throttle` says, of files below ``--below`` or of all. The page
cache of the kernel keeps what is read of the ``--cache`` bytes of files that were opened last; with
0 (the default) nothing, and every read comes here. It serves until it is unmounted
(`fusermount3 -u MOUNT`) or interrupted.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes.util import find_library
from pathlib import Path
from shutil import which
from typing import Any

from throttle import Throttle, add_options

PATIENCE = 20.0
"""s until it must be there, or gone."""
THREADS = 64
"""That answer, so that latencies overlap."""


def missing() -> str:
    """What this machine lacks for it, '' if nothing."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no /dev/fuse that may be used"
    if which("fusermount3") is None and which("fusermount") is None:
        return "no fusermount (Debian: apt-get install fuse3)"
    if find_library("fuse") is None and find_library("fuse3") is None:
        return "no libfuse (Debian: apt-get install libfuse3-3)"
    return (
        ""
        if importlib.util.find_spec("mfusepy")
        else "no mfusepy (pip install mfusepy)"
    )


class Cache:
    """Which files the page cache keeps: those used last, of ``nbytes`` together. For many
    threads."""

    def __init__(self, nbytes: float) -> None:
        self.nbytes = nbytes
        self.used = 0
        self.sizes: OrderedDict[str, int] = OrderedDict()
        self.lock = threading.Lock()

    def holds(self, path: str, size: int) -> bool:
        """Whether it held the file; from now on it does."""
        with self.lock:
            held = path in self.sizes
            self.used += size - self.sizes.pop(path, 0)
            self.sizes[path] = size
            while self.used > self.nbytes:
                self.used -= self.sizes.popitem(last=False)[1]
            return held


def serve(folder: Path, mount: Path, options: argparse.Namespace) -> None:
    """Serve it until it is unmounted."""
    import mfusepy  # noqa: PLC0415 - loads libfuse, which not every machine has

    throttle = Throttle(options.rate, options.in_flight)
    cache = Cache(options.cache)
    slow = f"/{options.below}"

    class Files(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def getattr(self, path: str, fh: Any = None) -> dict[str, int]:
            known = os.lstat(f"{folder}{path}")
            names = ("st_mode", "st_size", "st_nlink", "st_uid", "st_gid")
            return {name: getattr(known, name) for name in names}

        def readdir(self, path: str, fh: Any) -> list[str]:
            return [
                ".",
                "..",
                *(entry.name for entry in Path(f"{folder}{path}").iterdir()),
            ]

        def open(self, path: str, info: Any) -> int:
            if info.flags & (os.O_WRONLY | os.O_RDWR):
                raise mfusepy.FuseOSError(30)  # EROFS
            if path.startswith(slow):
                throttle.wait(options.open_s, 0)
            info.fh = os.open(f"{folder}{path}", os.O_RDONLY)
            # without keep_cache, opening it drops what the kernel has of it
            info.keep_cache = cache.holds(path, os.fstat(info.fh).st_size)
            info.direct_io = options.cache == 0
            return 0

        def read(self, path: str, size: int, offset: int, info: Any) -> bytes:
            content = os.pread(info.fh, size, offset)
            if content and path.startswith(
                slow
            ):  # that it has ended is known without asking
                throttle.wait(options.read_s, len(content))
            return content

        def release(self, path: str, info: Any) -> int:
            os.close(info.fh)
            return 0

    kept = dict.fromkeys(("entry_timeout", "attr_timeout"), 3600)
    threads = dict.fromkeys(("max_threads", "max_idle_threads"), THREADS)
    try:
        mfusepy.FUSE(
            Files(),
            str(mount),
            raw_fi=True,
            foreground=True,
            ro=True,
            **kept,
            **threads,
        )
    except RuntimeError as error:
        if error.args != (8,):  # what libfuse's main gives where a signal ended it
            raise


@contextmanager
def slow_disk(folder: Path, mount: Path, *options: str) -> Iterator[Path]:
    """The folder through a slow disk of its own process, at ``mount``, until the block ends."""
    mount.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, str(folder), str(mount), *options]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        limit = time.monotonic() + PATIENCE
        while not mount.is_mount():
            if process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"no slow disk at {mount}: {' '.join(command)}")
            time.sleep(0.02)
        yield mount
    finally:
        unmount = which("fusermount3") or which("fusermount") or "umount"
        subprocess.run(
            [unmount, "-u", "-z", str(mount)], check=False, capture_output=True
        )
        process.terminate()  # it would serve on as long as somebody has a file open
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with suppress(OSError):
            mount.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("mount", type=Path)
    add_options(parser)
    parser.add_argument(
        "--cache", type=float, default=0, help="bytes of files the kernel keeps"
    )
    parser.add_argument(
        "--below", default="", help="folder within FOLDER that is slow alone"
    )
    options = parser.parse_args()
    if why := missing():
        sys.exit(f"slow_disk: {why}")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    serve(options.folder.resolve(), options.mount, options)


if __name__ == "__main__":
    main()
