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
from .patching import Patches, Timed

_MODES = {"r": False, "rt": False, "tr": False, "rb": True, "br": True}
"""Those that only read, and whether they give bytes."""
_READINTO = io.FileIO.readinto
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

    def note(self, path: Any, opened: Any, meter: Meter | None = None) -> None:
        """One was opened: where, the file, and whose parts are timed meanwhile."""
        if isinstance(path, int):
            return  # it was open before
        known = os.fstat(opened.fileno())
        if meter and os.major(known.st_dev) == 0:  # its reads count for no device
            meter.opened += known.st_size
            meter.uncached += uncached(opened.fileno(), known.st_size)
        name = path.encode(errors="surrogateescape") if isinstance(path, str) else os.fsencode(path)
        key = binascii.crc32(name)
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
        """As `simshuffle.extensions.doctor.records.collected` adds them up over processes."""
        return {"bound": self.bound, "sizes": self.sizes}


class _File(io.FileIO):
    """A file whose reads are timed."""

    def readinto(self, buffer: Any) -> Any:
        meter = OWN.meter
        if meter is None:
            return _READINTO(self, buffer)
        was = meter.enter(READ)
        try:
            given = _READINTO(self, buffer)
        finally:
            meter.leave(was)
        meter.nbytes += given or 0
        return given

    def readall(self) -> Any:
        meter = OWN.meter
        given = super().readall
        return given() if meter is None else meter.timed(READ, given, (), {})

    def read(self, size: Any = -1) -> Any:
        meter = OWN.meter
        given = super().read
        return given(size) if meter is None else meter.timed(READ, given, (size,), {})


class _Open(Timed):
    """In place of `open`: files that are only read have timed reads, everything else is as it
    was."""

    def __init__(self, function: Callable[..., Any], files: Files) -> None:
        super().__init__(function, OPEN)
        self.files = files

    def __call__(self, file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        """What `open` gives."""
        meter = OWN.meter
        if meter is None and OWN.fetch is not None and not self.files.below:
            opened = self.function(file, mode, *args, **kwargs)
            self.files.note(file, opened)
            return opened
        return self._watched(file, mode, *args, **kwargs)

    def _watched(
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
            self.files.note(path, opened, meter)
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
            patches.replace(os, name, Timed(getattr(os, name), READ))
