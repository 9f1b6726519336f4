"""Files that are opened and read while samples are fetched."""

from __future__ import annotations

import binascii
import builtins
import functools
import io
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .caching import uncached
from .meter import OPEN, OWN, READ, Meter
from .patching import Patches, Timed, size

_MODES = {"r": False, "rt": False, "tr": False, "rb": True, "br": True}
"""Those that only read, and whether they give bytes."""
_KEPT = 1024
"""Different files that are kept by name: with more, their number is known to 3 % (1/sqrt(1024))."""


class Files:
    """Which files were opened.

    Attributes:
        sizes: in bytes, by a number made of the path, of those whose number is below ``bound``.
        bound: at first above all numbers; halved as often as there are too many.
        below: by the folder they are asked for in, where files are opened instead.
        moved: how many were, and ``missing``: how many were not there.
    """

    def __init__(self, below: Mapping[str, str]) -> None:
        self.sizes: dict[int, int] = {}
        self.bound = 2**32
        self.below = {
            folder.rstrip("/") + "/": to.rstrip("/") + "/" for folder, to in below.items()
        }
        self.moved = self.missing = 0

    def note(self, path: str | bytes, descriptor: int, meter: Meter) -> None:
        """One was opened, for a batch."""
        known = os.fstat(descriptor)
        if os.major(known.st_dev) == 0:  # what it reads does not count as read from a device
            meter.opened += known.st_size
            meter.uncached += uncached(descriptor, known.st_size)
        key = binascii.crc32(path.encode(errors="replace") if isinstance(path, str) else path)
        if key < self.bound and key not in self.sizes:
            self.sizes[key] = known.st_size
            while len(self.sizes) > _KEPT:
                self.bound //= 2
                self.sizes = {key: size for key, size in self.sizes.items() if key < self.bound}

    def elsewhere(self, path: Any) -> Any:
        """Where a file is opened that is asked for at ``path``."""
        if self.below and isinstance(path, str):
            for folder, to in self.below.items():
                if path.startswith(folder):
                    moved = to + path[len(folder) :]
                    if os.access(moved, os.R_OK):
                        self.moved += 1
                        return moved
                    self.missing += 1
        return path

    def facts(self) -> dict[str, Any]:
        """As `simshuffle.records.collected` adds them up over processes."""
        return {"bound": self.bound, "sizes": self.sizes}


class _File(io.FileIO):
    """A file whose reads are timed."""

    def readinto(self, buffer: Any) -> Any:
        return _read(super().readinto, buffer)

    def readall(self) -> Any:
        return _read(super().readall)

    def read(self, size: Any = -1) -> Any:
        return _read(super().read, size)


def _read(read: Callable[..., Any], *args: Any) -> Any:
    """What a read gives, timed, with its bytes."""
    meter = OWN.meter
    if meter is None:
        return read(*args)
    was = meter.enter(READ)
    try:
        given = read(*args)
    finally:
        meter.leave(was)
    meter.nbytes += size(given)
    return given


class _Open(Timed):
    """In place of `open`: files that are only read have timed reads, everything else is as it
    was."""

    def __init__(self, function: Callable[..., Any], files: Files) -> None:
        super().__init__(function, OPEN)
        self.files = files

    def __call__(
        self,
        file: Any,
        mode: Any = "r",
        buffering: Any = -1,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        closefd: Any = True,
        opener: Any = None,
    ) -> Any:
        text = (encoding, errors, newline)
        binary = _MODES.get(mode) if isinstance(mode, str) else None
        path = os.fspath(file) if hasattr(file, "__fspath__") else file
        # one that the original would refuse, or that does not read by itself, is left to it
        if (
            binary is None
            or not isinstance(path, (str, bytes))
            or (binary and text != (None, None, None))
            or buffering in {0, 1}
            or not isinstance(buffering, int)
        ):
            return self.function(file, mode, buffering, *text, closefd, opener)
        path = self.files.elsewhere(path)
        meter = OWN.meter
        if meter is None:
            return _opened(path, mode, binary, buffering, text, closefd, opener)
        was = meter.enter(OPEN)
        try:
            opened = _opened(path, mode, binary, buffering, text, closefd, opener)
            self.files.note(path, opened.fileno(), meter)
            return opened
        finally:
            meter.leave(was)


def _opened(
    path: str | bytes,
    mode: str,
    binary: bool,
    buffering: int,
    text: tuple[Any, Any, Any],
    closefd: bool,
    opener: Any,
) -> Any:
    """What `io.open` gives, made of the same parts."""
    raw = _File(path, "r", closefd, opener)
    try:
        if buffering < 0:
            buffering = max(raw._blksize, 1)  # type: ignore[attr-defined]
            if sys.version_info >= (3, 14):
                buffering = max(min(buffering, 8 << 20), io.DEFAULT_BUFFER_SIZE)
        buffer = io.BufferedReader(raw, buffering)
        if binary:
            return buffer
        wrapper = io.TextIOWrapper(buffer, *text)
        wrapper.mode = mode  # type: ignore[misc]
        return wrapper
    except BaseException:
        raw.close()
        raise


def watch_files(patches: Patches, files: Files) -> None:
    """Time opening and reading from now on."""
    opening = _Open(io.open, files)
    patches.replace(builtins, "open", opening)
    patches.replace(io, "open", opening)
    plain = os.open

    @functools.wraps(plain)
    def os_open(path: Any, *args: Any, **kwargs: Any) -> int:
        return plain(files.elsewhere(path), *args, **kwargs)

    patches.replace(os, "open", Timed(os_open, OPEN))
    for name in ("read", "pread", "readv", "preadv"):
        if hasattr(os, name):
            patches.replace(os, name, _Read(getattr(os, name), READ))


class _Read(Timed):
    """In place of `os.read` and the like."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _read(functools.partial(self.function, **kwargs) if kwargs else self.function, *args)
