"""How busy cores are, and how much of that is our own."""

from __future__ import annotations

import os
import time

from .meter import clock

_FIELDS = (1, 2, 3, 6, 7, 8)
"""Of a core's line in /proc/stat: user, nice, system, irq, softirq, and what others of a virtual
machine's host had (proc(5))."""
Use = tuple[int, int, int]
"""The clock, how long the cores that this process may use were busy, -1 if not known, and how long
this process has computed: ns."""


def use() -> Use:
    """Of now."""
    return clock(), _busy(), time.process_time_ns()


def _busy() -> int:
    try:
        own = {b"cpu%d" % core for core in os.sched_getaffinity(0)}
        descriptor = os.open("/proc/stat", os.O_RDONLY)
        try:
            lines = os.read(descriptor, 1 << 20).splitlines()
        finally:
            os.close(descriptor)
        parts = [words for line in lines if (words := line.split())[:1] and words[0] in own]
        ticks = sum(int(words[field]) for words in parts for field in _FIELDS)
        return ticks * 10**9 // os.sysconf("SC_CLK_TCK") if parts else -1
    except (AttributeError, OSError, IndexError, ValueError):
        return -1
