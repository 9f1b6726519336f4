"""Executors: who does the cells. This process, or processes on all usable cores; a cluster is in
`simshuffle.study.cluster`."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from pickle import PicklingError
from typing import Protocol

from simshuffle.study.attempt import Lost, attempt
from simshuffle.study.calibration import note
from simshuffle.study.cell import Cell
from simshuffle.study.server import MOMENT, News, not_sent
from simshuffle.study.standing import Watch
from simshuffle.study.store import Memory, Store
from simshuffle.study.workers import Gone, Workers

WORTH_PROCESSES = 1.5
"""s that processes must save by the cells' costs: about so long it takes until the first begins."""
SPARE_MEMORY = 0.9
"""Share of the available memory that cells may take at once, by their estimates."""


class Executor(Protocol):
    """Does cells, and keeps their outcomes in a store."""

    def do(self, cells: Mapping[str, Cell], store: Store, watch: Watch) -> Iterator[str]:
        """Do cells, by their digests, in any order.

        Yields:
            The digest of each when its outcome is in the store or it is in ``lost``.
        """

    @property
    def lost(self) -> dict[str, Lost]:
        """Why cells have no outcome, by digest."""


@dataclass
class Here:
    """This process does one cell after the other."""

    lost: dict[str, Lost] = field(default_factory=dict)

    def do(self, cells: Mapping[str, Cell], store: Store, watch: Watch) -> Iterator[str]:
        """As for `Executor`."""
        for digest, cell in cells.items():
            watch.at(digest, 0.0)
            failure = attempt(cell, digest, store, partial(watch.at, digest))
            if failure:
                self.lost[digest] = failure
            watch.end(digest)
            yield digest


@dataclass
class Processes:
    """Processes of this machine, one for each cell, which compute with one thread; costly cells
    first, and no more at once than the memory allows by their estimates.

    A cell whose process dies is done again, alone, for what it lacked may have been taken by
    others; if that process dies too, the cell is lost.

    Attributes:
        count: processes at once.
        memory: bytes that cells may take at once; that of the machine if None.
    """

    count: int
    memory: float | None = None
    lost: dict[str, Lost] = field(default_factory=dict)

    def do(self, cells: Mapping[str, Cell], store: Store, watch: Watch) -> Iterator[str]:
        """As for `Executor`.

        Raises:
            TypeError: the store is in the memory of this process, which the others do not share.
        """
        if isinstance(store, Memory):
            raise TypeError("processes need a store on disk: simshuffle.study.store.Disk")
        watch.at_once = self.count
        waiting = sorted(cells, key=lambda digest: -cells[digest].cost)
        died: dict[str, int] = {}
        yield from self._together(cells, waiting, self.count, store, watch, died)
        for digest in list(died):
            again: dict[str, int] = {}
            yield from self._together(cells, [digest], 1, store, watch, again)
            for status in again.values():
                self._end(digest, Lost(f"its process was killed twice ({_cause(status)})"), watch)
                yield digest

    def _together(
        self,
        cells: Mapping[str, Cell],
        waiting: list[str],
        count: int,
        store: Store,
        watch: Watch,
        died: dict[str, int],
    ) -> Iterator[str]:
        """Do the cells that wait, ``count`` at once; those whose process died go to ``died``, with
        its exit status."""
        budget = SPARE_MEMORY * available_memory() if self.memory is None else self.memory
        running: set[str] = set()
        while waiting or running:
            with suppress(Gone), Workers() as workers:
                while waiting or running:
                    for digest in self._next(cells, waiting, running, count, budget):
                        waiting.remove(digest)
                        running.add(digest)
                        try:
                            workers.begin(digest, cells[digest], store)
                        except (PicklingError, TypeError, AttributeError) as error:
                            running.remove(digest)
                            self._end(digest, Lost(not_sent(_reason(error))), watch)
                            yield digest
                    for news in workers.news(MOMENT):
                        if news.digest in running and self._heard(news, watch, died):
                            running.remove(news.digest)
                            if news.digest not in died:
                                yield news.digest
                    watch.tell()
            for digest in running:  # the server died, and they with it
                watch.drop(digest)
                died[digest] = -signal.SIGKILL
            running.clear()

    def _next(
        self,
        cells: Mapping[str, Cell],
        waiting: Sequence[str],
        running: Collection[str],
        count: int,
        budget: float,
    ) -> list[str]:
        """Those that wait and may begin now: the first ones that fit, or the first one alone."""
        free, chosen = count - len(running), list[str]()
        left = budget - sum(cells[digest].memory for digest in running)
        for digest in waiting:
            if len(chosen) == free:
                break
            if cells[digest].memory <= left:
                left -= cells[digest].memory
                chosen.append(digest)
        return chosen or ([] if running else list(waiting[:1]))

    def _heard(self, news: News, watch: Watch, died: dict[str, int]) -> bool:
        """Note what is heard of a cell; returns whether its process has ended."""
        if news.what == "share":
            watch.at(news.digest, news.value)
            return False
        if news.what == "raised":
            raise news.value
        if news.what == "died":
            watch.drop(news.digest)
            died[news.digest] = news.value
        else:
            self._end(news.digest, news.value, watch)
        return True

    def _end(self, digest: str, failure: Lost | None, watch: Watch) -> None:
        if failure:
            self.lost[digest] = failure
        watch.end(digest)


@dataclass
class Local:
    """This machine: processes where they pay, this process where there is little to do. What the
    cells took is noted, for the next estimates.

    Attributes:
        count: processes at once; None for one on each usable core.
    """

    count: int | None = None
    lost: dict[str, Lost] = field(default_factory=dict)

    def do(self, cells: Mapping[str, Cell], store: Store, watch: Watch) -> Iterator[str]:
        """As for `Executor`."""
        count = min(self.count or usable_cores(), len(cells))
        saved = sum(cell.cost for cell in cells.values()) * (1.0 - 1.0 / count)
        alone = count == 1 or saved < WORTH_PROCESSES
        executor = Here(self.lost) if alone else Processes(count, lost=self.lost)
        yield from executor.do(cells, store, watch)
        note(
            (cells[digest].timed_as, cells[digest].cost, took)
            for digest, took in watch.took.items()
            if digest not in self.lost
        )


def _reason(error: Exception) -> str:
    """The last line of what was raised where the cell was to be sent."""
    return str(error.__cause__ or error).strip('"\n ').splitlines()[-1]


def _cause(status: int) -> str:
    """What the exit status of a process says of its end, shortly."""
    if status == -signal.SIGKILL:
        return "SIGKILL: memory may have run out"
    return f"{signal.Signals(-status).name}" if status < 0 else "it ended by itself"


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> float:
    """Bytes that new processes can take: what the system calls available, within the limit of the
    control group; infinite where neither is told."""
    found = [float("inf")]
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        values = dict(line.split(":") for line in lines)
        found.append(1024 * float(values["MemAvailable"].split()[0]))
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # 'max' where there is no limit
        limit, used = (
            float((group / name).read_text(encoding="utf-8"))
            for name in ("memory.max", "memory.current")
        )
        found.append(limit - used)
    return min(found)
