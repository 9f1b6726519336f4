"""How much of a file the page cache holds."""

from __future__ import annotations

import ctypes
import os
import sys

_LIBRARY = ctypes.CDLL(None)
_CACHESTAT = 451
"""Number of the call cachestat(2), on all machines that Linux 6.5 and newer runs on but Alpha."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Cached(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "written", "evicted", "recently")
    )


def uncached(descriptor: int, nbytes: int) -> int:
    """Bytes of a file of so many that the page cache does not hold; 0 if the kernel cannot say.

    File systems over a network and in user space do not count what they read as read from a
    device; this is how it is known of them.
    """
    whole, found = _Range(0, 0), _Cached()
    arguments = descriptor, ctypes.byref(whole), ctypes.byref(found), 0
    if sys.platform != "linux" or _LIBRARY.syscall(_CACHESTAT, *arguments):
        return 0
    return max(0, nbytes - int(found.cached) * _PAGE)
