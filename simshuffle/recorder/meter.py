"""What a thread does while a batch is fetched, and the clocks that say how long."""

from __future__ import annotations

import os
import resource
import threading
import time
from typing import Any

from .rows import CODES

OPEN, READ, DECODE, LOCK = (CODES[name] for name in ("open", "read", "decode", "lock"))
TRANSFORM, COLLATE = CODES["transform"], CODES["collate"]
_FIRST, _LAST = min(OPEN, COLLATE), max(OPEN, COLLATE)
RUSAGE_THREAD = getattr(resource, "RUSAGE_THREAD", None)

clock = time.perf_counter_ns
Marks = tuple[int, int, int]
Task = tuple[int, ...]
"""Loader, epoch, batch and worker of what is done; empty for none."""


class _Own(threading.local):
    """Of each thread."""

    meter: Meter | None = None
    """Of the batch that it fetches now."""
    schedstat: int | None = None
    """Descriptor of its file of the scheduler; -1 if there is none."""
    pinning: Task | None = None
    """Of the thread that pins batches: loader, epoch, batch and worker of the one in hand."""


OWN = _Own()


def queued() -> int:
    """How long this thread has had no core to compute on since it began, in ns; -1 if not known."""
    if OWN.schedstat is None:
        try:
            OWN.schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            OWN.schedstat = -1
    if OWN.schedstat < 0:
        return -1
    try:
        return int(_pread(OWN.schedstat, 64, 0).split()[1])
    except (OSError, IndexError, ValueError):  # somebody closed it
        OWN.schedstat = -1
        return -1


_pread = os.pread  # the original, whoever replaces it


def forget_thread() -> None:
    """In a process that was forked: what belonged to the thread of the other process is not of
    this one."""
    if OWN.schedstat is not None and OWN.schedstat >= 0:
        os.close(OWN.schedstat)
    OWN.schedstat = OWN.meter = OWN.pinning = None


def marks() -> Marks:
    """Clock, computing time and queued time of this thread, in ns, where something begins."""
    return clock(), time.thread_time_ns(), queued()


def between(begin: Marks, end: Marks | None = None) -> tuple[int, int, int, int]:
    """Start, duration, cpu and queued of a row, from the marks at its begin and end; or until now,
    with the clock read last, so that it is not queued for longer than it takes."""
    if end is None:
        without_core, computed = queued(), time.thread_time_ns()
        end = clock(), computed, without_core
    duration = end[0] - begin[0]
    waited = -1 if begin[2] < 0 or end[2] < 0 else min(end[2] - begin[2], duration)
    return begin[0], duration, end[1] - begin[1], waited


def from_device() -> int:
    """Bytes that were read from devices for this thread since it began; -1 if not known. The
    kernel counts blocks of 512 bytes (getrusage(2))."""
    if RUSAGE_THREAD is None:
        return -1
    return resource.getrusage(RUSAGE_THREAD).ru_inblock * 512


class Meter:
    """Where the time of one batch's fetch goes. Whatever is not one of the operations that are
    entered is of the transform. An operation does not hold those that are entered inside it, so
    that all of them add up to the whole.

    Attributes:
        seconds: ns by operation.
        counts: how often each was entered.
        nbytes: that were read so far, ``before`` in earlier samples.
        opened: bytes of files opened on file systems without a device, and ``uncached``: those of
            them that the page cache did not hold.
        samples: of each, index, start, duration, count and nbytes, without gaps between them.
    """

    def __init__(self) -> None:
        self.disk = from_device()
        self.begin = marks()
        self.since = self.last = self.begin[0]
        self.now = TRANSFORM
        self.seconds = [0] * (_LAST + 1)
        self.counts = [0] * (_LAST + 1)
        self.nbytes = self.before = self.opened = self.uncached = 0
        self.samples: list[tuple[Any, int, int, int, int]] = []

    def enter(self, operation: int) -> int:
        """Begin an operation; returns what to hand to `leave`."""
        was, now = self.now, clock()
        self.seconds[was] += now - self.since
        self.since = now
        self.now = operation
        self.counts[operation] += 1
        return was

    def leave(self, was: int) -> None:
        """End it."""
        now = clock()
        self.seconds[self.now] += now - self.since
        self.since = now
        self.now = was

    def sample(self, index: Any, count: int) -> None:
        """A sample, or several, are there: theirs is the time since the one before."""
        now = clock()
        nbytes, self.before = self.nbytes - self.before, self.nbytes
        self.samples.append((index, self.last, now - self.last, count, nbytes))
        self.last = now

    def collate(self) -> None:
        """All samples are there: from the last of them on, they are put together."""
        self.seconds[self.now] += self.last - self.since
        self.since = self.last
        self.now = COLLATE

    def rows(self, *, samples: bool) -> list[tuple[int, ...]]:
        """What the batch took, as pairs of an operation and the fields from start on.

        Args:
            samples: whether each of them gets a row, or only the slowest.
        """
        start, duration, cpu, waited = between(self.begin)
        self.seconds[self.now] += start + duration - self.since
        disk = -1 if self.disk < 0 else from_device() - self.disk
        if self.uncached:
            disk = max(disk, self.nbytes * self.uncached // self.opened)
        count = sum(sample[3] for sample in self.samples)
        self.counts[TRANSFORM] = self.counts[COLLATE] = count
        rows: list[tuple[int, ...]] = [
            (CODES["fetch"], start, duration, cpu, waited, count, self.nbytes, disk, -1)
        ]
        for operation in range(_FIRST, _LAST + 1):
            seconds = self.seconds[operation]
            if operation == READ and (self.counts[READ] or disk > 0):
                of_read = (self.counts[READ], self.nbytes, disk)
                rows.append((operation, start, seconds, -1, -1, *of_read, -1))
            elif operation != READ and self.counts[operation]:
                rows.append((operation, start, seconds, -1, -1, self.counts[operation], 0, -1, -1))
        shown = self.samples if samples else sorted(self.samples, key=lambda each: each[2])[-1:]
        for index, begin, took, several, nbytes in shown:
            number = _number(index)
            rows.append((CODES["sample"], begin, took, -1, -1, several, nbytes, -1, number))
        return rows


def _number(index: Any) -> int:
    """An index as a row holds it; -1 if it is none, or too large."""
    try:
        number = index.__index__()
    except (AttributeError, TypeError):
        return -1
    return number if 0 <= number < 2**63 else -1
