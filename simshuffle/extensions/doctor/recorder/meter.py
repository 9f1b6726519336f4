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
    """Of the batch that it fetches now, where its parts are timed."""
    fetch: Meter | None = None
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
    OWN.schedstat = OWN.meter = OWN.fetch = OWN.pinning = None


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

    def timed(self, operation: int, function: Any, args: Any, kwargs: Any) -> Any:
        """What a function gives, timed. What a read gives is counted, if no read inside it was."""
        before = self.nbytes
        was = self.enter(operation)
        try:
            given = function(*args, **kwargs)
        finally:
            self.leave(was)
        if operation == READ and self.nbytes == before:
            self.nbytes += given if isinstance(given, int) else nbytes(given)
        return given

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

    def rows(self, *, samples: bool, parts: bool = True) -> list[tuple[int, ...]]:
        """What the batch took, as pairs of an operation and the fields from start on.

        Args:
            samples: whether each of them gets a row, or only the slowest.
            parts: whether they were timed.
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
        for operation in range(_FIRST if parts else COLLATE, _LAST + 1):
            seconds = self.seconds[operation]
            if operation == READ and (self.counts[READ] or disk > 0):
                of_read = (self.counts[READ], self.nbytes, disk)
                rows.append((operation, start, seconds, -1, -1, *of_read, -1))
            elif operation != READ and self.counts[operation]:
                rows.append((operation, start, seconds, -1, -1, self.counts[operation], 0, -1, -1))
        shown = self.samples if samples else [max(self.samples, key=lambda each: each[2])]
        for index, begin, took, several, nbytes in shown:
            number = _number(index)
            rows.append((CODES["sample"], begin, took, -1, -1, several, nbytes, -1, number))
        return rows


def nbytes(data: Any) -> int:
    """Bytes of what was read, or of the tensors and arrays in a batch."""
    if isinstance(data, (bytes, bytearray)):
        return len(data)
    if isinstance(data, (list, tuple)):
        return sum(map(nbytes, data))
    if isinstance(data, dict):
        return sum(map(nbytes, data.values()))
    try:
        size = data.nbytes
    except Exception:  # noqa: BLE001 - it is another's, who need not know
        return 0
    return size if isinstance(size, int) else 0


class Budget:
    """Times the parts of as many fetches as cost no more than a share of the time that passes."""

    SHARE = 0.01
    ALWAYS = 20
    """Batches at first, without which there is nothing to say."""
    OF_A_PAIR = 7
    """What timing one call takes, with all that comes with it, for each time that a pair of `enter`
    and `leave` takes: of the opening and decoding of small images, 1.7 us to 0.24 us, measured by
    benchmarks/record_overhead.py."""

    def __init__(self) -> None:
        self.batches = 0
        self.spent = 0.0
        self.since = clock()
        self.cost = 0.0

    def allows(self) -> bool:
        """Whether the parts of the next batch are timed."""
        self.batches += 1
        if self.batches == 1:
            self._measure()
        return self.batches <= self.ALWAYS or self.spent <= self.SHARE * (clock() - self.since)

    def _measure(self) -> None:
        meter = Meter()
        self.since = clock()
        for _ in range(100):
            meter.leave(meter.enter(READ))
        self.cost = self.OF_A_PAIR * (clock() - self.since) / 100

    def spend(self, calls: int) -> None:
        """So many calls were timed."""
        self.spent += calls * self.cost


def _number(index: Any) -> int:
    """An index as a row holds it; -1 if it is none, or too large."""
    try:
        number = index.__index__()
    except (AttributeError, TypeError):
        return -1
    return number if 0 <= number < 2**63 else -1
