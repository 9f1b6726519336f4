"""Ask the kernel how much of a file the page cache holds."""

from __future__ import annotations

import ctypes
import os
import sys

_LIBRARY = ctypes.CDLL(None)
_CACHESTAT = 451
"""Number of the call cachestat(2), on all machines that Linux 6.5 and newer runs on but
Alpha.
"""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _FileRange(ctypes.Structure):
    """Structure cachestat_range of the kernel: from which byte on, and how many; 0 for
    all.
    """

    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _CacheCounts(ctypes.Structure):
    """Structure cachestat of the kernel: numbers of pages."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "written", "evicted", "recently")
    )


def uncached_nbytes(descriptor: int, nbytes: int) -> int:
    """Return the bytes of a file that the page cache does not hold, at least 0; 0 also
    if the kernel cannot say.

    The cache counts in pages, so the result is too low by less than a page. File
    systems over a network and in user space do not count their reads as reads from a
    device: this function tells what these had to read.

    Args:
        descriptor: of the open file.
        nbytes: its size.
    """
    entire_file = _FileRange(0, 0)
    counts = _CacheCounts()
    arguments = (descriptor, ctypes.byref(entire_file), ctypes.byref(counts), 0)
    if sys.platform != "linux" or _LIBRARY.syscall(_CACHESTAT, *arguments):
        return 0
    return max(0, nbytes - int(counts.cached) * _PAGE)
