"""Measure what a thread does while it fetches a batch."""

from __future__ import annotations

import os
import resource
import threading
import time
from typing import Any

from .rows import CODES

OPEN, READ, DECODE, LOCK = (CODES[name] for name in ("open", "read", "decode", "lock"))
TRANSFORM = CODES["transform"]
COLLATE = CODES["collate"]
_FIRST, _LAST = min(OPEN, COLLATE), max(OPEN, COLLATE)  # codes of the parts of a fetch
RUSAGE_THREAD = getattr(resource, "RUSAGE_THREAD", None)

clock = time.perf_counter_ns
Marks = tuple[int, int, int]
"""Clock, computing time and queued time of a thread at one moment, ns; the last is -1
if not known.
"""
Task = tuple[int, ...]
"""Loader, epoch, batch and worker of a batch; empty for none."""


class _ThreadState(threading.local):
    """State of the recorder for each thread."""

    meter: Meter | None = None
    """Meter of the batch that the thread fetches now, if its parts are timed."""
    fetch: Meter | None = None
    """Meter of the batch that the thread fetches now."""
    schedstat: int | None = None
    """Descriptor of the thread's file of the scheduler; -1 if there is none."""
    pinning: Task | None = None
    """Batch that the thread pins now, if it is the one that pins batches."""


OWN = _ThreadState()


def core_wait_ns() -> int:
    """Return how long this thread has waited for a core since it began, ns; -1 if not
    known.

    The first call of a thread opens its file of the scheduler, and leaves the file
    open. After a failure, the thread always gets -1.
    """
    if OWN.schedstat is None:
        try:
            OWN.schedstat = os.open(
                "/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC
            )
        except OSError:
            OWN.schedstat = -1
    if OWN.schedstat < 0:
        return -1
    try:
        return int(_pread(OWN.schedstat, 64, 0).split()[1])
    except (OSError, IndexError, ValueError):  # somebody closed it
        OWN.schedstat = -1
        return -1


def thread_cpu_ns(native_id: int) -> int:
    """Return how long a thread of this process has computed, ns; 0 if not known.

    Args:
        native_id: of the thread, as the system numbers it.
    """
    try:
        path = f"/proc/self/task/{native_id}/schedstat"
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # it has ended, or the system has no such file
        return 0
    try:
        return int(_pread(descriptor, 64, 0).split()[0])
    finally:
        os.close(descriptor)


_pread = os.pread  # the original, whoever replaces it


def forget_thread() -> None:
    """Forget, in a process that was forked, what belonged to the thread of the other
    process.
    """
    if OWN.schedstat is not None and OWN.schedstat >= 0:
        os.close(OWN.schedstat)
    OWN.schedstat = OWN.meter = OWN.fetch = OWN.pinning = None


def marks() -> Marks:
    """Return the clock, computing time and queued time of this thread, ns; the queued
    time is -1 if not known.
    """
    return clock(), time.thread_time_ns(), core_wait_ns()


def measure_since(begin: Marks, end: Marks | None = None) -> tuple[int, int, int, int]:
    """Return the start, duration, computing time and queued time of a row, ns.

    The queued time is at most the duration; -1 if one of the marks does not know it.

    Args:
        begin: marks at the start of the operation.
        end: marks at its end; None for now. Then the clock is read last, so that an
            operation is not queued for longer than it takes.
    """
    if end is None:
        queued_ns = core_wait_ns()
        computed_ns = time.thread_time_ns()
        end = clock(), computed_ns, queued_ns
    duration = end[0] - begin[0]
    waited = -1 if begin[2] < 0 or end[2] < 0 else min(end[2] - begin[2], duration)
    return begin[0], duration, end[1] - begin[1], waited


def device_nbytes() -> int:
    """Return the bytes that were read from devices for this thread since it began; -1
    where the system counts none for each thread.

    The kernel counts blocks of 512 bytes (getrusage(2)).
    """
    if RUSAGE_THREAD is None:
        return -1
    return resource.getrusage(RUSAGE_THREAD).ru_inblock * 512


FOLLOWING_FACTOR = 1.2
"""Factor by which a running median follows each value (chosen: it forgets a first step ten
times as long as others within 13 steps).
"""
LONG_FACTOR = 2.0
"""Times the median from which a duration is long (as of the diagnosis' outliers)."""


class RunningMedian:
    """A rough median of durations that come one by one, each of which raises or lowers it
    by `FOLLOWING_FACTOR`.

    Attributes:
        median_ns: it; 0 before any.
    """

    def __init__(self) -> None:
        self.median_ns = 0.0

    def follow(self, duration_ns: int) -> None:
        """Take a further duration into account."""
        is_above = duration_ns > self.median_ns
        factor = FOLLOWING_FACTOR if is_above else 1 / FOLLOWING_FACTOR
        self.median_ns = self.median_ns * factor or float(duration_ns)

    def takes_long(self, duration_ns: int) -> bool:
        """Return whether a duration is `LONG_FACTOR` times the median; False before any."""
        return 0 < LONG_FACTOR * self.median_ns < duration_ns


class Meter:
    """The time of one batch's fetch, by operation; the fetch begins as it is made.

    Time outside of the operations that are entered counts as transform. Time of an
    operation inside another counts for the inner one, so that all of them add up to the
    fetch.

    Attributes:
        start_device_nbytes: `device_nbytes` at the start; -1 if not known.
        start_marks: `marks` at the start.
        entered_at: clock when the current operation was entered or resumed, ns.
        sample_start: clock when the last sample was there, ns.
        current_operation: its code.
        duration_ns: (codes,) ns of each operation.
        counts: (codes,) times that each operation was entered. After `rows`, transform
            and collate have the number of samples.
        nbytes: bytes that were read so far.
        earlier_nbytes: bytes of `nbytes` that were read for earlier samples.
        opened_nbytes: bytes of files opened on file systems without a device.
        uncached_nbytes: bytes of `opened_nbytes` that the page cache did not hold.
        samples: index, start (ns), duration (ns), count and bytes of each sample, or of
            samples that came together; without gaps between them. The index is None for
            several samples.
        in_known_call: whether a call of `known_calls` is under way.
        noted_calls: calls that were noted there; ``repeats`` and ``repeat_ns``, those
            that were made anew, and their time (ns).
    """

    def __init__(self) -> None:
        self.start_device_nbytes = device_nbytes()
        self.start_marks = marks()
        self.entered_at = self.sample_start = self.start_marks[0]
        self.current_operation = TRANSFORM
        self.duration_ns = [0] * (_LAST + 1)
        self.counts = [0] * (_LAST + 1)
        self.nbytes = self.earlier_nbytes = 0
        self.opened_nbytes = self.uncached_nbytes = 0
        self.samples: list[tuple[Any, int, int, int, int]] = []
        self.in_known_call = False
        self.noted_calls = self.repeats = self.repeat_ns = 0

    def enter(self, operation: int) -> int:
        """Begin an operation, and return the code of the previous one, for `leave`."""
        previous = self.current_operation
        now = clock()
        self.duration_ns[previous] += now - self.entered_at
        self.entered_at = now
        self.current_operation = operation
        self.counts[operation] += 1
        return previous

    def leave(self, previous: int) -> None:
        """End the current operation, and resume the previous one, which is not counted
        again.
        """
        now = clock()
        self.duration_ns[self.current_operation] += now - self.entered_at
        self.entered_at = now
        self.current_operation = previous

    def time_call(self, operation: int, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function, timed as an operation, and return its result.

        A read adds its bytes to `nbytes`, unless a read inside it did. An integer that
        a read returns is a number of bytes. A call that fails is timed, too.
        """
        nbytes_before = self.nbytes
        previous = self.enter(operation)
        try:
            result = function(*args, **kwargs)
        finally:
            self.leave(previous)
        if operation == READ and self.nbytes == nbytes_before:
            self.nbytes += result if isinstance(result, int) else nbytes(result)
        return result

    def end_samples(self, index: Any, count: int) -> None:
        """Note that one or several samples are there: the time passed and the bytes
        read since the previous ones are theirs.

        Args:
            index: of a single sample; None for several.
            count: of the samples.
        """
        now = clock()
        sample_nbytes = self.nbytes - self.earlier_nbytes
        self.earlier_nbytes = self.nbytes
        duration = now - self.sample_start
        self.samples.append((index, self.sample_start, duration, count, sample_nbytes))
        self.sample_start = now

    def begin_collate(self) -> None:
        """Note that all samples are there: the time since the last sample counts as
        collating.
        """
        self.duration_ns[self.current_operation] += self.sample_start - self.entered_at
        self.entered_at = self.sample_start
        self.current_operation = COLLATE

    def rows(self, *, samples: bool, parts: bool = True) -> list[tuple[int, ...]]:
        """End the fetch, and return the rows of the batch, each as the operation and
        the fields from start on: the fetch, its parts that occurred, its samples.

        Every part starts with the fetch, and its duration is a sum over the samples.
        Only the row of the fetch has computing and queued time, all others -1. Only the
        rows of the fetch and of reads have bytes from devices (``disk``), all others
        -1. Reads also have a row where no read was seen but devices were read (mmap).

        Args:
            samples: whether each sample gets a row, or only the slowest. The slowest
                needs at least one sample.
            parts: whether the parts of the fetch were timed. If not, collate is the
                only part with a row.
        """
        start, duration, cpu, waited = measure_since(self.start_marks)
        self.duration_ns[self.current_operation] += start + duration - self.entered_at
        disk = -1
        if self.start_device_nbytes >= 0:
            disk = device_nbytes() - self.start_device_nbytes
        if self.uncached_nbytes:
            # of file systems without a device: bytes read x uncached share of opened files
            disk = max(disk, self.nbytes * self.uncached_nbytes // self.opened_nbytes)
        count = sum(sample[3] for sample in self.samples)
        self.counts[TRANSFORM] = self.counts[COLLATE] = count
        rows: list[tuple[int, ...]] = [
            (CODES["fetch"], start, duration, cpu, waited, count, self.nbytes, disk, -1)
        ]
        for operation in range(_FIRST if parts else COLLATE, _LAST + 1):
            part_ns = self.duration_ns[operation]
            part_count = self.counts[operation]
            if operation == READ and (part_count or disk > 0):
                rows.append(
                    (
                        operation,
                        start,
                        part_ns,
                        -1,
                        -1,
                        part_count,
                        self.nbytes,
                        disk,
                        -1,
                    )
                )
            elif operation != READ and part_count:
                rows.append((operation, start, part_ns, -1, -1, part_count, 0, -1, -1))
        if self.repeats:
            values = (start, self.repeat_ns, -1, -1, self.repeats, 0, -1, -1)
            rows.append((CODES["repeat"], *values))
        written = self.samples
        if not samples:
            written = [max(self.samples, key=lambda sample: sample[2])]
        for index, begin, sample_ns, size, sample_nbytes in written:
            number = _to_index(index)
            rows.append(
                (
                    CODES["sample"],
                    begin,
                    sample_ns,
                    -1,
                    -1,
                    size,
                    sample_nbytes,
                    -1,
                    number,
                )
            )
        return rows


def nbytes(data: Any) -> int:
    """Return the bytes of a read, or of the tensors and arrays in a batch; 0 of what
    tells no size, such as strings and objects other than lists, tuples and dicts.
    """
    if isinstance(data, (bytes, bytearray)):
        return len(data)
    if isinstance(data, (list, tuple)):
        return sum(map(nbytes, data))
    if isinstance(data, dict):
        return sum(map(nbytes, data.values()))
    try:
        size = data.nbytes
    except Exception:  # noqa: BLE001 - objects of other packages may fail as they like
        return 0
    return size if isinstance(size, int) else 0


class Budget:
    """Limit of the time that timing the parts of fetches costs."""

    SHARE = 0.01
    """Share of the time that passes which timing may cost."""
    FIRST_BATCHES = 20
    """Batches that are always timed, without which there is nothing to say."""
    COST_OF_CALL = 7
    """Cost of timing one call, over that of a pair of `enter` and `leave`: of the
    opening and decoding of small images, 1.7 us to 0.24 us, measured by
    benchmarks/record_overhead.py.
    """

    def __init__(self) -> None:
        self.batches = 0  # for which `allows` was asked
        self.spent_ns = 0.0
        self.started_at = clock()
        self.call_ns = 0.0  # cost of timing one call

    def allows(self) -> bool:
        """Count a batch, and return whether its parts are timed: of the first
        `FIRST_BATCHES`, and then while timing has cost at most `SHARE` of the time.

        The time passes from the first batch on, at which the cost of timing a call is
        measured.
        """
        self.batches += 1
        if self.batches == 1:
            self._measure()
        return self.batches <= self.FIRST_BATCHES or self.spent_ns <= self.SHARE * (
            clock() - self.started_at
        )

    def _measure(self) -> None:
        """Measure the cost of timing one call, ns, and start the time that passes."""
        meter = Meter()
        self.started_at = clock()
        for _ in range(100):
            meter.leave(meter.enter(READ))
        self.call_ns = self.COST_OF_CALL * (clock() - self.started_at) / 100

    def spend(self, calls: int) -> None:
        """Count the cost of a number of calls that were timed."""
        self.spent_ns += calls * self.call_ns


def _to_index(index: Any) -> int:
    """Return an index as a row holds it; -1 if it is no integer, negative, or at least
    2**63.
    """
    try:
        number = index.__index__()
    except (AttributeError, TypeError):
        return -1
    return number if 0 <= number < 2**63 else -1
