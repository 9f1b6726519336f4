"""A file in the Chrome trace-event format, written event by event: of a million events only a piece
is in memory. https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU"""

from __future__ import annotations

import gzip
import heapq
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]

LEVEL = 4
"""Of gzip: higher ones take longer, and make it little smaller."""
AT_ONCE = 1 << 15
"""Events in a piece."""


def nanoseconds(seconds: ArrayLike) -> Ints:
    """Whole nanoseconds: the smallest step that viewers tell apart. Each moment is rounded by
    itself, so what ends where another begins still does."""
    return np.rint(np.asarray(seconds, float) * 1e9).astype(np.int64)


def quoted(texts: Sequence[str]) -> list[str]:
    """Texts as JSON; of equal ones only the first is escaped."""
    known = {text: json.dumps(text) for text in dict.fromkeys(texts)}
    return [known[text] for text in texts]


class TraceFile:
    """Events on their way into a file; open it with `trace_file`. Times are nanoseconds, those of
    the file microseconds with three digits."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._first = True
        self.events = 0

    def _write(self, lines: Iterator[str], count: int) -> None:
        for begin in range(0, count, AT_ONCE):
            piece = [next(lines) for _ in range(min(AT_ONCE, count - begin))]
            self._file.write("\n" if self._first else ",\n")
            self._file.write(",\n".join(piece))
            self._first = False
        self.events += count

    def name(self, kind: str, pid: int, tid: int, **about: Any) -> None:
        """Name a process or thread, or say its place: ``kind`` is 'process_name',
        'thread_sort_index', ..."""
        event = {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": about}
        self._write(iter([json.dumps(event)]), 1)

    def slices(
        self,
        pid: ArrayLike,
        tid: ArrayLike,
        begin: Ints,
        end: Ints,
        names: Sequence[str],
        category: Sequence[str],
        args: Sequence[str],
    ) -> None:
        """Slices, from ``begin`` to ``end``.

        Args:
            pid, tid: of each, or of all.
            begin, end: (n,) ns. In a thread a slice is inside another one or beside it, and those
                around others come before them.
            names, category: (n,) texts, escaped.
            args: (n,) JSON objects.
        """
        count = len(begin)
        of, on = (np.broadcast_to(each, count).tolist() for each in (pid, tid))
        rows = zip(
            of,
            on,
            (begin / 1e3).tolist(),
            ((end - begin) / 1e3).tolist(),
            names,
            category,
            args,
            strict=True,
        )
        line = (
            '{"ph":"X","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"name":%s,"cat":%s,"args":%s}'
        ).__mod__
        self._write(map(line, rows), count)

    def arrows(
        self, ids: Ints, ends: Sequence[tuple[ArrayLike, ArrayLike, Ints]], name: str
    ) -> None:
        """Arrows, each from a slice to another.

        Args:
            ids: (n,) numbers, each once in a file.
            ends: process, thread and ns (n,) of their beginnings, and of their ends; each lies
                inside a slice.
            name: of all.
        """
        count = len(ids)
        text = json.dumps(name)
        for phase, (pid, tid, when) in zip(('"s"', '"f","bp":"e"'), ends, strict=True):
            of, on = (np.broadcast_to(each, count).tolist() for each in (pid, tid))
            line = (
                '{"ph":%s,"id":%d,"pid":%d,"tid":%d,"ts":%.3f,"name":%s,"cat":"message"}'
            ).__mod__
            columns = repeat(phase, count), ids.tolist(), of, on, (when / 1e3).tolist()
            self._write(map(line, zip(*columns, repeat(text, count), strict=True)), count)

    def counter(
        self, pid: int, name: str, when: Ints, series: Mapping[str, NDArray[np.float64]]
    ) -> None:
        """A counter, whose values hold until the next ones.

        Args:
            pid: the process.
            name: of the counter.
            when: (n,) ns.
            series: (n,) values by name.
        """
        values = ",".join(f"{json.dumps(key).replace('%', '%%')}:%.6g" for key in series)
        label = json.dumps(name).replace("%", "%%")
        line = (
            f'{{"ph":"C","pid":{pid},"tid":{pid},"ts":%.3f,"name":{label},"args":{{{values}}}}}'
        ).__mod__
        columns = [(when / 1e3).tolist(), *(each.tolist() for each in series.values())]
        self._write(map(line, zip(*columns, strict=True)), len(when))

    def finish(self, about: Mapping[str, Any]) -> None:
        """Close the list of events; ``about`` is said beside it."""
        rest = json.dumps({"displayTimeUnit": "ms", "otherData": about}, allow_nan=False)
        self._file.write(f"\n],\n{rest[1:]}\n")


@contextmanager
def trace_file(path: Path) -> Iterator[TraceFile]:
    """A new file, compressed if its name ends in '.gz'; the caller calls `TraceFile.finish`. The
    same events give the same bytes."""
    with path.open("wb") as raw:
        if path.suffix != ".gz":
            yield from _into(raw)
            return
        with gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as packed:
            yield from _into(packed)


def _into(binary: Any) -> Iterator[TraceFile]:
    file = io.TextIOWrapper(binary, encoding="ascii", newline="\n", write_through=False)
    file.write('{"traceEvents":[')
    yield TraceFile(file)
    file.flush()
    file.detach()


def lanes(begin: Ints, end: Ints) -> Ints:
    """(n,) the lane of each slice from ``begin`` to ``end``, from 0: the first that is free, so
    that those of a lane follow one another."""
    out = np.zeros(len(begin), np.int64)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    opened = 0
    for place in np.lexsort((end, begin)).tolist():
        at = int(begin[place])
        while busy and busy[0][0] <= at:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, opened = opened, opened + 1
        out[place] = lane
        heapq.heappush(busy, (int(end[place]), lane))
    return out
