"""Read how busy the cores are, and how much of that is this process."""

from __future__ import annotations

import os
import time

from .meter import clock

_FIELDS = (1, 2, 3, 6, 7, 8)
"""Columns of a core's line in /proc/stat: user, nice, system, irq, softirq, and what
others of a virtual machine's host had (proc(5)).
"""
Use = tuple[int, int, int]
"""The clock (`time.perf_counter_ns`); how long the cores that this process may use were
busy since the host started, summed over them, -1 if not known; and how long this
process has computed; ns each.
"""


def read_use() -> Use:
    """Return the present use of the cores: clock, busy time, own time, ns."""
    return clock(), _busy_ns(), time.process_time_ns()


def _busy_ns() -> int:
    """Return how long the cores that this process may use were busy since the host
    started, with all programs and summed over the cores, ns; -1 if not known.
    """
    try:
        allowed = {b"cpu%d" % core for core in os.sched_getaffinity(0)}
        descriptor = os.open("/proc/stat", os.O_RDONLY)
        try:
            lines = os.read(descriptor, 1 << 20).splitlines()
        finally:
            os.close(descriptor)
        columns_of_cores = [
            columns
            for line in lines
            if (columns := line.split())[:1] and columns[0] in allowed
        ]
        ticks = sum(
            int(columns[field]) for columns in columns_of_cores for field in _FIELDS
        )
        return ticks * 10**9 // os.sysconf("SC_CLK_TCK") if columns_of_cores else -1
    except (AttributeError, OSError, IndexError, ValueError):
        return -1
