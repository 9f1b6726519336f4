"""A file in the Chrome trace-event format, written event by event: of a million events only a piece
is in memory; and what links carried from moment to moment as its counters.
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU"""

from __future__ import annotations

import gzip
import heapq
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike

from simshuffle.job.sim.recorder import EpochRecord
from simshuffle.spec.arrays import Floats, Ints64

LEVEL = 4
"""Of gzip: higher ones take longer, and make it little smaller."""
AT_ONCE = 1 << 15
"""Events in a piece."""


def nanoseconds(seconds: ArrayLike) -> Ints64:
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
        begin: Ints64,
        end: Ints64,
        names: Sequence[str],
        category: Sequence[str],
        args: Sequence[str],
    ) -> None:
        """Slices, from ``begin`` to ``end`` (n,) ns, of a process and thread each, or one of all.
        In a thread a slice is inside another one or beside it, and those around others come before
        them. Names and categories are (n,) texts, escaped; ``args`` (n,) JSON objects."""
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
        self, ids: Ints64, ends: Sequence[tuple[ArrayLike, ArrayLike, Ints64]], name: str
    ) -> None:
        """Arrows with the numbers ``ids`` (n,), each once in a file, and one name, from a slice to
        another: ``ends`` are process, thread and ns (n,) of their beginnings, and of their ends;
        each lies inside a slice."""
        count = len(ids)
        text = json.dumps(name)
        for phase, (pid, tid, when) in zip(('"s"', '"f","bp":"e"'), ends, strict=True):
            of, on = (np.broadcast_to(each, count).tolist() for each in (pid, tid))
            line = (
                '{"ph":%s,"id":%d,"pid":%d,"tid":%d,"ts":%.3f,"name":%s,"cat":"message"}'
            ).__mod__
            columns = repeat(phase, count), ids.tolist(), of, on, (when / 1e3).tolist()
            self._write(map(line, zip(*columns, repeat(text, count), strict=True)), count)

    def counter(self, pid: int, name: str, when: Ints64, series: Mapping[str, Floats]) -> None:
        """A counter of a process: (n,) values of each series from the moments ``when``, (n,) ns,
        on, which hold until the next ones."""
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
    with ExitStack() as opened:
        binary: Any = opened.enter_context(path.open("wb"))
        if path.suffix == ".gz":
            binary = opened.enter_context(gzip.GzipFile("", "wb", LEVEL, binary, mtime=0))
        file = io.TextIOWrapper(binary, encoding="ascii", newline="\n")
        file.write('{"traceEvents":[')
        yield TraceFile(file)
        file.flush()
        file.detach()


def lanes(begin: Ints64, end: Ints64) -> Ints64:
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


def write_counters(
    file: TraceFile,
    record: EpochRecord,
    offset: int,
    cluster: int,
    processes: Mapping[int, int],
    *,
    last: bool,
) -> None:
    """Write the counters of an epoch that begins at ``offset`` ns: for every tier of links its mean
    and its most loaded link, what the file system gives, and the SSD, the cores and the adapters of
    the hosts of some ranks. Each value is a mean over the time to the next one. ``cluster`` is the
    process of tiers and file system, ``processes`` those of the ranks whose hosts are shown;
    ``last`` says that no other epoch begins where this one ends."""
    used, resources = record.utilisation(), record.resources
    when = offset + nanoseconds(record.sampled_at if last else record.sampled_at[:-1])
    table = resources.links

    def write(pid: int, name: str, series: Mapping[str, Floats]) -> None:
        file.counter(
            pid, name, when, {key: np.append(of, 0.0)[: len(when)] for key, of in series.items()}
        )

    carried = record.work[-1] > 0
    tiers = np.array(table.tiers, object)
    for tier in dict.fromkeys(table.tiers):
        links = np.flatnonzero((tiers == tier) & carried)
        if len(links) and not tier.startswith(("pfs.", "object_store.")):
            share = 100.0 * used[:, links]
            of = {"mean %": share.mean(axis=1), "max %": share.max(axis=1)}
            write(cluster, f"{tier} use", of)
    shared = [
        (resources.pfs_bandwidth, "PFS bandwidth", "GB/s", 1e9),
        (resources.pfs_open, "PFS opens", "1/s", 1.0),
    ]
    if resources.cluster.object_store is not None:
        shared += [
            (resources.store_bandwidth, "object store bandwidth", "GB/s", 1e9),
            (resources.store_requests, "object store requests", "1/s", 1.0),
        ]
    for link, name, unit, size in shared:
        if carried[link]:
            write(cluster, name, {unit: used[:, link] * table.capacity[link] / size})
    cables = np.flatnonzero(table.cable)
    # 'a>b', and '#0' behind it where there are several
    ends = [table.names[link].partition("#")[0].partition(">")[::2] for link in cables.tolist()]
    sides = np.array(ends, object).reshape(-1, 2).T
    for rank, pid in processes.items():
        host = int(resources.host_of[rank])
        for name, device in (("SSD", resources.ssd), ("cores", resources.cores)):
            if carried[device[host]]:
                write(pid, f"{name} use", {"%": 100.0 * used[:, device[host]]})
        for name, side in zip(("out", "in"), sides, strict=True):
            links = cables[side == resources.hosts[host]]
            if carried[links].any():
                rate = used[:, links] @ table.capacity[links]
                write(pid, f"HCAs {name}", {"GB/s": rate / 1e9})
