"""Time the files that are opened and read while samples are fetched, and count them."""

from __future__ import annotations

import binascii
import builtins
import functools
import io
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .caching import uncached_nbytes
from .known_calls import HANDLE, CallLog
from .meter import OPEN, OWN, READ, Meter
from .patching import Patches, TimedCallable

_MODES = {"r": False, "rt": False, "tr": False, "rb": True, "br": True}
"""Modes that only read, and whether reads give bytes."""
_READINTO = io.FileIO.readinto
_MAX_FILES = 1024
"""Different files that are kept by name: with more, their number is known to 3 %
(1/sqrt(1024)).
"""


class Files:
    """The files that were opened.

    Attributes:
        sizes: bytes of the files whose key is below ``bound``, by the key, a checksum
            of the path.
        bound: at first above all keys; halved as often as there are too many files.
        moved_folders: for a folder in which files are requested, the one where they are
            opened.
        moved: number of files that were opened there.
        missing: number of files that were not there.
    """

    def __init__(self, moved_folders: Mapping[str, str]) -> None:
        self.sizes: dict[int, int] = {}
        self.bound = 2**32
        self.moved_folders = {
            folder.rstrip("/") + "/": target.rstrip("/") + "/"
            for folder, target in moved_folders.items()
        }
        self.moved = self.missing = 0

    def note(self, path: Any, file: Any, meter: Meter | None = None) -> None:
        """Note a file that was opened, by its path; descriptors are left out.

        On a file system without a device, a meter counts the file's bytes as opened,
        and those of them outside the page cache as uncached.

        Args:
            path: at which it was opened.
            file: open.
            meter: of the fetch, if its parts are timed.
        """
        if isinstance(path, int):
            return  # a descriptor: the file was open before
        name = (
            path.encode("utf-8", "surrogateescape")
            if isinstance(path, str)
            else os.fsencode(path)
        )
        key = binascii.crc32(name)
        is_counted = key < self.bound and key not in self.sizes
        if meter is None and not is_counted:
            return  # most files: asking for their size would take the most time here
        status = os.fstat(file.fileno())
        if meter and os.major(status.st_dev) == 0:  # its reads count for no device
            meter.opened_nbytes += status.st_size
            meter.uncached_nbytes += uncached_nbytes(file.fileno(), status.st_size)
        if is_counted:
            self.sizes[key] = status.st_size
            while len(self.sizes) > _MAX_FILES:
                self.bound //= 2
                self.sizes = {
                    key: size for key, size in self.sizes.items() if key < self.bound
                }

    def move(self, path: Any) -> Any:
        """Return the path at which a file is opened that was requested at ``path``: in
        the other folder if it can be read there, else ``path``; both cases are counted.

        A path that is no str, or in none of the folders, is returned uncounted.
        """
        if self.moved_folders and isinstance(path, str):
            for folder, target in self.moved_folders.items():
                if path.startswith(folder):
                    moved_path = target + path[len(folder) :]
                    if os.access(moved_path, os.R_OK):
                        self.moved += 1
                        return moved_path
                    self.missing += 1
        return path

    def facts(self) -> dict[str, Any]:
        """Return ``bound`` and ``sizes``, by these names.

        `simshuffle.extensions.doctor.records.collected` adds them up over processes.
        """
        return {"bound": self.bound, "sizes": self.sizes}


class _TimedFile(io.FileIO):
    """A file whose reads are timed while the thread fetches a batch, if parts of its
    fetch are timed at all.
    """

    def readinto(self, buffer: Any) -> Any:
        """Read into ``buffer`` and return the number of bytes, as `io.FileIO` does.

        The bytes of a timed read are added to those of the thread's meter.
        """
        meter = OWN.meter
        if meter is None:
            return _READINTO(self, buffer)
        previous = meter.enter(READ)
        try:
            nbytes = _READINTO(self, buffer)
        finally:
            meter.leave(previous)
        meter.nbytes += nbytes or 0
        return nbytes

    def readall(self) -> Any:
        meter = OWN.meter
        readall = super().readall
        return readall() if meter is None else meter.time_call(READ, readall, (), {})

    def read(self, size: Any = -1) -> Any:
        meter = OWN.meter
        read = super().read
        return read(size) if meter is None else meter.time_call(READ, read, (size,), {})


class _TimedOpen(TimedCallable):
    """Stand-in for `open` that gives files with timed reads where they are only read."""

    def __init__(
        self, function: Callable[..., Any], files: Files, call_log: CallLog
    ) -> None:
        super().__init__(function, OPEN)
        self.files = files
        self.call_log = call_log

    def __call__(self, file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        """Return what `open` does, and note the file if it is opened within a fetch.

        Where the fetch's parts are timed, only files with timed reads are noted; where
        they are not, but folders are moved, none is.
        """
        meter = OWN.meter
        if meter is None and OWN.fetch is not None and not self.files.moved_folders:
            opened_file = self.function(file, mode, *args, **kwargs)
            self.files.note(file, opened_file)
            return opened_file
        return self._open_file(file, mode, *args, **kwargs)

    def _open_file(
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
        """Open a file; takes the arguments of `open`.

        A file that is only read, by its path and with a buffer (``buffering`` neither 0
        nor 1), is opened where `Files.move` says and has timed reads. Within a fetch
        whose parts are timed, its opening is timed and it is noted. `open` itself opens
        all others.
        """
        text_options = (encoding, errors, newline)
        is_binary = _MODES.get(mode) if isinstance(mode, str) else None
        path = os.fspath(file) if hasattr(file, "__fspath__") else file
        # one that the original would refuse, or that does not read by itself, is left to it
        if (
            is_binary is None
            or not isinstance(path, (str, bytes))
            or (is_binary and text_options != (None, None, None))
            or buffering in {0, 1}
            or not isinstance(buffering, int)
        ):
            return self.function(file, mode, buffering, *text_options, closefd, opener)
        path = self.files.move(path)
        meter = OWN.meter
        previous = -1 if meter is None else meter.enter(OPEN)
        begin = 0 if meter is None else meter.entered_at
        try:
            opened_file = _open_raw(
                path,
                mode=mode,
                is_binary=is_binary,
                buffering=buffering,
                text_options=text_options,
                closefd=closefd,
                opener=opener,
            )
            if meter is not None:
                self.files.note(path, opened_file, meter)
            return opened_file
        finally:
            if meter is not None:
                meter.leave(previous)
                if not meter.in_known_call:
                    duration = meter.entered_at - begin
                    self.call_log.note(meter, "open", HANDLE, path, duration)


def _open_raw(
    path: str | bytes,
    *,
    mode: str,
    is_binary: bool,
    buffering: int,
    text_options: tuple[Any, Any, Any],
    closefd: bool,
    opener: Any,
) -> Any:
    """Return what `io.open` does, made of the same parts, with timed reads.

    Args:
        path: of the file.
        mode: that only reads.
        is_binary: whether reads give bytes.
        buffering: bytes of the buffer; below 0 for the block size of the file.
        text_options: encoding, errors and newline.
        closefd: as of `open`.
        opener: as of `open`.
    """
    raw = _TimedFile(path, "r", closefd, opener)
    try:
        if buffering < 0:
            buffering = max(raw._blksize, 1)  # type: ignore[attr-defined]
            if sys.version_info >= (3, 14):
                buffering = max(min(buffering, 8 << 20), io.DEFAULT_BUFFER_SIZE)
        buffer = io.BufferedReader(raw, buffering)
        if is_binary:
            return buffer
        wrapper = io.TextIOWrapper(buffer, *text_options)
        wrapper.mode = mode  # type: ignore[misc]
        return wrapper
    except BaseException:
        raw.close()
        raise


def watch_files(patches: Patches, files: Files, call_log: CallLog) -> None:
    """Time opening and reading by Python's functions from now on, within fetches.

    The functions are `open`, `io.open`, `os.open`, and `os.read`, ``pread``, ``readv``
    and ``preadv``. The three that open take files from ``files.moved_folders``, outside
    fetches, too; ``files`` notes what the first two open.
    """
    opening = _TimedOpen(io.open, files, call_log)
    patches.replace(builtins, "open", opening)
    patches.replace(io, "open", opening)
    original_open = os.open

    @functools.wraps(original_open)
    def os_open(path: Any, *args: Any, **kwargs: Any) -> int:
        return original_open(files.move(path), *args, **kwargs)

    patches.replace(os, "open", TimedCallable(os_open, OPEN))
    for name in ("read", "pread", "readv", "preadv"):
        if hasattr(os, name):
            patches.replace(os, name, TimedCallable(getattr(os, name), READ))
