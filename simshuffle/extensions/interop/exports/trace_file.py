"""Write a file in the Chrome trace-event format, with what links carried as its
counters.

The file is written event by event: of a million events only a piece is in memory.
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import heapq
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import ArrayLike

from simshuffle.job.plan.resources import Resources
from simshuffle.job.sim.recorder import EpochRecord
from simshuffle.spec.arrays import Flags, Floats, Ints64

GZIP_LEVEL = 4
"""Of gzip: higher ones take longer, and make it little smaller."""
EVENTS_PER_PIECE = 1 << 15
"""Events that are written at once."""


def nanoseconds(seconds: ArrayLike) -> Ints64:
    """Return seconds as whole nanoseconds, the smallest step that viewers tell apart.

    Each moment is rounded by itself, so that an end that is another begin stays so.
    """
    return np.rint(np.asarray(seconds, float) * 1e9).astype(np.int64)


def quote_texts(texts: Sequence[str]) -> list[str]:
    """Return texts as JSON; of equal texts only the first is escaped."""
    json_of_text = {text: json.dumps(text) for text in dict.fromkeys(texts)}
    return [json_of_text[text] for text in texts]


class TraceFile:
    """Writes events to a file; open it with `open_trace_file`.

    Times are nanoseconds here, and microseconds with three digits in the file.
    ``events`` counts all events written so far, of all kinds.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._is_empty = True
        self.events = 0

    def _write(self, lines: Iterator[str], count: int) -> None:
        """Write ``count`` events, each a line, in pieces of `EVENTS_PER_PIECE`."""
        for begin in range(0, count, EVENTS_PER_PIECE):
            piece = [next(lines) for _ in range(min(EVENTS_PER_PIECE, count - begin))]
            self._file.write("\n" if self._is_empty else ",\n")
            self._file.write(",\n".join(piece))
            self._is_empty = False
        self.events += count

    def add_metadata(self, kind: str, pid: int, tid: int, **args: Any) -> None:
        """Name a process or thread, or set its position.

        Args:
            kind: 'process_name', 'thread_sort_index' and so on.
            pid: the process.
            tid: the thread.
            args: the name or the position, as the format calls it.
        """
        event = {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args}
        self._write(iter([json.dumps(event)]), 1)

    def add_slices(
        self,
        pid: ArrayLike,
        tid: ArrayLike,
        begin: Ints64,
        end: Ints64,
        *,
        names: Sequence[str],
        category: Sequence[str],
        args: Sequence[str],
    ) -> None:
        """Add n slices.

        In a thread a slice lies inside another one or beside it, and outer slices come
        before inner ones.

        Args:
            pid: (n,) processes, or one for all slices.
            tid: (n,) threads, or one for all slices.
            begin: (n,) ns.
            end: (n,) ns.
            names: (n,) JSON texts.
            category: (n,) JSON texts.
            args: (n,) JSON objects, as text.
        """
        count = len(begin)
        rows = zip(
            np.broadcast_to(pid, count).tolist(),
            np.broadcast_to(tid, count).tolist(),
            (begin / 1e3).tolist(),
            ((end - begin) / 1e3).tolist(),
            names,
            category,
            args,
            strict=True,
        )
        format_event = (
            '{"ph":"X","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"name":%s,"cat":%s,"args":%s}'
        ).__mod__
        self._write(map(format_event, rows), count)

    def add_arrows(
        self,
        ids: Ints64,
        ends: Sequence[tuple[ArrayLike, ArrayLike, Ints64]],
        name: str,
    ) -> None:
        """Add n arrows, each from one slice to another.

        Args:
            ids: (n,) numbers of the arrows, each once in a file.
            ends: process, thread and moment in ns, of the beginnings and then of the
                ends; each (n,), a process or thread also one for all. Each end lies
                inside a slice.
            name: name of all arrows.
        """
        count = len(ids)
        name_json = json.dumps(name)
        for phase, (pid, tid, moments) in zip(
            ('"s"', '"f","bp":"e"'), ends, strict=True
        ):
            format_event = (
                '{"ph":%s,"id":%d,"pid":%d,"tid":%d,"ts":%.3f,"name":%s,"cat":"message"}'
            ).__mod__
            rows = zip(
                repeat(phase, count),
                ids.tolist(),
                np.broadcast_to(pid, count).tolist(),
                np.broadcast_to(tid, count).tolist(),
                (moments / 1e3).tolist(),
                repeat(name_json, count),
                strict=True,
            )
            self._write(map(format_event, rows), count)

    def add_counter(
        self, pid: int, name: str, moments: Ints64, series: Mapping[str, Floats]
    ) -> None:
        """Add values of a counter of a process, with six significant digits.

        Args:
            pid: the process.
            name: name of the counter.
            moments: (n,) ns; a value holds from its moment to the next one.
            series: (n,) values of each series.
        """
        values = ",".join(
            f"{json.dumps(key).replace('%', '%%')}:%.6g" for key in series
        )
        label = json.dumps(name).replace("%", "%%")
        format_event = (
            f'{{"ph":"C","pid":{pid},"tid":{pid},"ts":%.3f,"name":{label},"args":{{{values}}}}}'
        ).__mod__
        columns = [
            (moments / 1e3).tolist(),
            *(numbers.tolist() for numbers in series.values()),
        ]
        self._write(map(format_event, zip(*columns, strict=True)), len(moments))

    def finish(self, facts: Mapping[str, Any]) -> None:
        """End the list of events, and write ``facts`` beside it as 'otherData'.

        The file stays open.

        Raises:
            ValueError: ``facts`` hold NaN or an infinity.
        """
        tail = json.dumps(
            {"displayTimeUnit": "ms", "otherData": facts}, allow_nan=False
        )
        self._file.write(f"\n],\n{tail[1:]}\n")


@contextmanager
def open_trace_file(path: Path) -> Iterator[TraceFile]:
    """Open a new trace file, compressed if its name ends in '.gz'; an old one is
    replaced.

    The caller calls `TraceFile.finish`. Equal events give equal bytes. After an error
    an unfinished file stays at ``path``.
    """
    with ExitStack() as stack:
        binary: Any = stack.enter_context(path.open("wb"))
        if path.suffix == ".gz":
            binary = stack.enter_context(
                gzip.GzipFile("", "wb", GZIP_LEVEL, binary, mtime=0)
            )
        file = io.TextIOWrapper(binary, encoding="ascii", newline="\n")
        file.write('{"traceEvents":[')
        yield TraceFile(file)
        file.flush()
        file.detach()


def assign_lanes(begin: Ints64, end: Ints64) -> Ints64:
    """Return (n,) the lane of each slice, from 0: the lowest that is free when the
    slice begins.

    A lane is free from the moment at which its slice ends. Of slices that begin
    together the shorter ones choose first.

    Args:
        begin: (n,) ns at which each slice begins.
        end: (n,) ns at which each slice ends.
    """
    lane_of_slice = np.zeros(len(begin), np.int64)
    free_lanes: list[int] = []
    busy_lanes: list[tuple[int, int]] = []  # end of the slice, and its lane
    num_lanes = 0
    # by begin, shorter ones first where that is equal
    for index in np.lexsort((end, begin)).tolist():
        moment = int(begin[index])
        while busy_lanes and busy_lanes[0][0] <= moment:
            heapq.heappush(free_lanes, heapq.heappop(busy_lanes)[1])
        if free_lanes:
            lane = heapq.heappop(free_lanes)
        else:
            lane = num_lanes
            num_lanes += 1
        lane_of_slice[index] = lane
        heapq.heappush(busy_lanes, (int(end[index]), lane))
    return lane_of_slice


def write_counters(
    file: TraceFile,
    record: EpochRecord,
    offset: int,
    cluster: int,
    processes: Mapping[int, int],
    *,
    is_last: bool,
) -> None:
    """Write the counters of an epoch: link tiers, the file system, and hosts of some
    ranks.

    A tier has its mean and its most loaded link, a host its SSD, cores and adapters.
    Each value is a mean over the time to the next one. Links that carried nothing in
    the epoch are left out.

    Args:
        file: the trace file.
        record: what the simulation recorded of the epoch.
        offset: ns at which the epoch begins in the file.
        cluster: the process of tiers and file system.
        processes: the process of each rank whose host is shown.
        is_last: True if no other epoch begins where this one ends. The counters then
            end with 0.
    """
    sampled_at = record.sampled_at if is_last else record.sampled_at[:-1]
    counters = EpochCounters(
        file=file,
        resources=record.resources,
        moments=offset + nanoseconds(sampled_at),
        utilisation=record.utilisation(),
        is_used=record.work[-1] > 0,
    )
    counters.write_tiers(cluster)
    counters.write_shared_storage(cluster)
    counters.write_hosts(processes)


@dataclass(frozen=True)
class EpochCounters:
    """Counters of the use of links in an epoch, and the file that gets the counters."""

    file: TraceFile
    resources: Resources
    # (n,) ns in the file of the values of a counter; the end of the epoch is among them only
    # where no other epoch follows
    moments: Ints64
    # (n, links), or (n - 1, links) with the end of the epoch: mean share of the capacity in use
    # until the next moment, from 0 to 1
    utilisation: Floats
    is_used: Flags  # (links,) True for links that carried something

    def add_counter(self, pid: int, name: str, series: Mapping[str, Floats]) -> None:
        """Add a counter that is 0 at the end of the epoch, if ``moments`` has the end.

        Each series has a value for each row of ``utilisation``.
        """
        extended = {key: np.append(values, 0.0) for key, values in series.items()}
        cut = {key: values[: len(self.moments)] for key, values in extended.items()}
        self.file.add_counter(pid, name, self.moments, cut)

    def write_tiers(self, cluster: int) -> None:
        """Write the mean and the most loaded link (%) of each tier, of the links that
        carried anything.

        The mean weighs all links alike. The tiers of file system and object store are
        left out, and so are tiers that carried nothing.

        Args:
            cluster: the process of tiers and file system.
        """
        tier_of_link = np.array(self.resources.links.tiers, object)
        for tier in dict.fromkeys(self.resources.links.tiers):
            tier_links = np.flatnonzero((tier_of_link == tier) & self.is_used)
            if len(tier_links) and not tier.startswith(("pfs.", "object_store.")):
                share = 100.0 * self.utilisation[:, tier_links]
                series = {"mean %": share.mean(axis=1), "max %": share.max(axis=1)}
                self.add_counter(cluster, f"{tier} use", series)

    def write_shared_storage(self, cluster: int) -> None:
        """Write the bandwidth (GB/s) and requests (1/s) that the file system and the
        object store served, each if it was used.

        Args:
            cluster: the process of tiers and file system.
        """
        resources = self.resources
        capacity_of_link = resources.links.capacity
        shared_links = [
            (resources.pfs_bandwidth, "PFS bandwidth", "GB/s", 1e9),
            (resources.pfs_open, "PFS opens", "1/s", 1.0),
        ]
        if resources.cluster.object_store is not None:
            shared_links += [
                (resources.store_bandwidth, "object store bandwidth", "GB/s", 1e9),
                (resources.store_requests, "object store requests", "1/s", 1.0),
            ]
        for link, name, unit, size in shared_links:
            if self.is_used[link]:
                rate = self.utilisation[:, link] * capacity_of_link[link] / size
                self.add_counter(cluster, name, {unit: rate})

    def write_hosts(self, processes: Mapping[int, int]) -> None:
        """Write SSD and cores (%) and adapters (GB/s) of the hosts of some ranks, each
        if it was used.

        Adapters are the sum over all cables of the host, out and in by themselves.

        Args:
            processes: the process of each rank whose host is shown.
        """
        resources = self.resources
        links = resources.links
        cables = np.flatnonzero(links.cable)
        # 'a>b', and '#0' behind it where there are several
        cable_ends = [
            links.names[link].partition("#")[0].partition(">")[::2]
            for link in cables.tolist()
        ]
        # (2, cables) names of the nodes from which and to which each link leads
        nodes_of_direction = np.array(cable_ends, object).reshape(-1, 2).T
        for rank, pid in processes.items():
            host = int(resources.host_of[rank])
            for name, device in (("SSD", resources.ssd), ("cores", resources.cores)):
                if self.is_used[device[host]]:
                    share = 100.0 * self.utilisation[:, device[host]]
                    self.add_counter(pid, f"{name} use", {"%": share})
            for direction, nodes in zip(("out", "in"), nodes_of_direction, strict=True):
                host_links = cables[nodes == resources.hosts[host]]
                if self.is_used[host_links].any():
                    capacities = links.capacity[host_links]
                    rate = self.utilisation[:, host_links] @ capacities
                    self.add_counter(pid, f"HCAs {direction}", {"GB/s": rate / 1e9})
