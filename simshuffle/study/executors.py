"""Executors: who does the cells. This process, or processes on all usable cores, forked by
`simshuffle.study.server`; a cluster is in `simshuffle.study.cluster`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Pipe
from pickle import PicklingError
from typing import Protocol

import cloudpickle

from simshuffle.study.cell import Cell
from simshuffle.study.server import GRACE, MOMENT, CellOrder, News, not_sent
from simshuffle.study.size import Room, available_memory
from simshuffle.study.standing import StageWatch, note
from simshuffle.study.store import Lost, Memory, Store, attempt

WORTH_PROCESSES = 1.5
"""s that processes must save by the cells' costs: about so long it takes until the first begins."""
SPARE_MEMORY = 0.9
"""Share of the available memory that cells may take at once, by their estimates."""


class Executor(Protocol):
    """Does cells, and keeps their outcomes in a store."""

    def do(self, cells: Mapping[str, Cell], store: Store, watch: StageWatch) -> Iterator[str]:
        """Do cells, by their digests, in any order; yields each digest when it is done or lost."""

    @property
    def lost(self) -> dict[str, Lost]:
        """Why cells have no outcome, by digest."""

    def room(self) -> Room:
        """What cells may take."""


@dataclass
class Here:
    """This process does one cell after the other."""

    lost: dict[str, Lost] = field(default_factory=dict)

    def room(self) -> Room:
        """As for `Executor`."""
        return Room(available_memory(), 1)

    def do(self, cells: Mapping[str, Cell], store: Store, watch: StageWatch) -> Iterator[str]:
        """As for `Executor`."""
        for digest, cell in cells.items():
            watch.at(digest, 0.0)
            if failure := attempt(cell, digest, store, partial(watch.at, digest)):
                self.lost[digest] = failure
            watch.end(digest)
            yield digest


@dataclass
class Processes:
    """Processes of this machine, one for each cell, which compute with one thread; costly cells
    first, and no more at once than the memory allows by their estimates. A cell whose process dies
    is done again, alone, for others may have taken what it lacked; the second time it is lost."""

    count: int  # processes at once
    memory: float | None = None  # bytes that cells may take at once; that of the machine if None
    lost: dict[str, Lost] = field(default_factory=dict)

    def room(self) -> Room:
        """As for `Executor`."""
        return Room(available_memory() if self.memory is None else self.memory, self.count)

    def do(self, cells: Mapping[str, Cell], store: Store, watch: StageWatch) -> Iterator[str]:
        """As for `Executor`; a TypeError if the store is in memory, which processes do not
        share."""
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
                cause = f"{signal.Signals(-status).name}" if status < 0 else "it ended by itself"
                if status == -signal.SIGKILL:
                    cause = "SIGKILL: memory may have run out"
                self._end(digest, Lost(f"its process was killed twice ({cause})"), watch)
                yield digest

    def _together(
        self,
        cells: Mapping[str, Cell],
        waiting: list[str],
        count: int,
        store: Store,
        watch: StageWatch,
        died: dict[str, int],
    ) -> Iterator[str]:
        """Do the cells that wait, ``count`` at once; exit statuses of those that died: ``died``."""
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
                            # the last line of what was raised where it was to be sent
                            why = str(error.__cause__ or error).strip('"\n ').splitlines()[-1]
                            self._end(digest, Lost(not_sent(why)), watch)
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

    def _heard(self, news: News, watch: StageWatch, died: dict[str, int]) -> bool:
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

    def _end(self, digest: str, failure: Lost | None, watch: StageWatch) -> None:
        if failure:
            self.lost[digest] = failure
        watch.end(digest)


@dataclass
class Local:
    """This machine: processes where they pay, this process where there is little to do. What the
    cells took is noted, for the next estimates."""

    count: int | None = None  # processes at once; None for one on each usable core
    lost: dict[str, Lost] = field(default_factory=dict)

    def room(self) -> Room:
        """As for `Executor`."""
        return Room(available_memory(), self.count or usable_cores())

    def do(self, cells: Mapping[str, Cell], store: Store, watch: StageWatch) -> Iterator[str]:
        """As for `Executor`."""
        count = min(self.count or usable_cores(), len(cells))
        saved = sum(cell.cost for cell in cells.values()) * (1.0 - 1.0 / count)
        alone = count == 1 or saved < WORTH_PROCESSES
        executor = Here(self.lost) if alone else Processes(count, lost=self.lost)
        yield from executor.do(cells, store, watch)
        crowding = crowding_of_cores()
        note(
            (cells[digest].timed_as, cells[digest].cost, took / crowding)
            for digest, took in watch.took.items()
            if digest not in self.lost
        )


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def crowding_of_cores() -> float:
    """Return how many processes a core has had in the last minute, at least 1. Cells take as many
    times longer, and will not where the others are gone."""
    if not hasattr(os, "getloadavg"):
        return 1.0
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""How the libraries that compute are told the number of their threads, before they are loaded."""
SERVE = """
import sys
sys.path[:] = sys.argv[2:]
from simshuffle.study.server import serve
serve(int(sys.argv[1]))
"""


class Gone(Exception):
    """The server has died, and all that it did with it."""


class Workers:
    """A process for each cell, which computes with one thread; use it in ``with``."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            number = theirs.fileno()
            self._server = subprocess.Popen(  # noqa: S603 - Python itself
                [sys.executable, "-c", SERVE, str(number), *sys.path],
                env={**os.environ, **dict.fromkeys(ONE_THREAD, "1")},
                stdin=subprocess.DEVNULL,
                pass_fds=[number],
                start_new_session=True,  # a terminal's Ctrl-C is for the parent
            )

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all of them, and wait until they have ended."""
        self._connection.close()
        try:
            self._server.wait(2 * GRACE)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def begin(self, digest: str, cell: Cell, store: Store) -> None:
        """Begin a cell; `Gone` without a server, and whatever is raised if it cannot be pickled."""
        alike, work = cloudpickle.dumps(cell), cloudpickle.dumps((cell, store))
        try:
            self._connection.send(CellOrder(digest, alike, work))
        except OSError as error:
            raise Gone from error

    def news(self, seconds: float) -> Iterator[News]:
        """What is heard within that time, if anything; `Gone` if there is no server any more."""
        try:
            while self._connection.poll(seconds):
                yield self._connection.recv()
                seconds = 0.0
        except (EOFError, OSError) as error:
            with suppress(ProcessLookupError):  # what it has forked
                os.killpg(self._server.pid, 9)
            raise Gone from error
