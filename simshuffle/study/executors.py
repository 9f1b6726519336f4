"""Executors run cells: in this process, or in processes on all usable cores.

Processes are forked by `simshuffle.study.server`. The executor for a cluster is in
`simshuffle.study.cluster`.
"""

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
from simshuffle.study.cell_times import note_cell_times
from simshuffle.study.server import GRACE, MOMENT, CellOrder, News, not_sent
from simshuffle.study.size import Resources, available_memory
from simshuffle.study.standing import StageWatch
from simshuffle.study.store import Lost, Memory, Store, run_and_store

WORTH_PROCESSES = 1.5
"""s that processes must save by the cells' costs: about so long it takes until the
first begins.
"""
SPARE_MEMORY = 0.9
"""Share of the available memory that cells may take at once, by their estimates."""


class Executor(Protocol):
    """Runs cells, and puts their outcomes into a store."""

    def do(
        self, cells: Mapping[str, Cell], store: Store, watch: StageWatch
    ) -> Iterator[str]:
        """Run cells, by their digests, in any order; yield each digest when it is done
        or lost.

        Nothing begins before the iterator is read. All of ``cells`` are run, stored
        ones too.
        """

    @property
    def lost(self) -> dict[str, Lost]:
        """The reason why a cell has no outcome, by the digest of the cell.

        It grows over all calls of `do`.
        """

    def resources(self) -> Resources:
        """Return the memory (bytes) and the number of processes that cells may use."""


@dataclass
class SerialExecutor:
    """Runs one cell after the other in this process."""

    lost: dict[str, Lost] = field(default_factory=dict)

    def resources(self) -> Resources:
        """Return the free memory of this machine, and one process."""
        return Resources(available_memory(), 1)

    def do(
        self, cells: Mapping[str, Cell], store: Store, watch: StageWatch
    ) -> Iterator[str]:
        """Run the cells in their order; yield each digest when its cell is done or
        lost.

        Raises:
            OSError: an outcome cannot be written.
        """
        for digest, cell in cells.items():
            watch.advance(digest, 0.0)
            if failure := run_and_store(
                cell, digest, store, partial(watch.advance, digest)
            ):
                self.lost[digest] = failure
            watch.end(digest)
            yield digest


@dataclass
class ProcessExecutor:
    """Runs each cell in a process of this machine, which computes with one thread.

    Costly cells begin first, and no more run at once than fit the memory by their
    estimates. A cell whose process dies is run again, alone, because others may have
    taken the memory it lacked; the second time it is lost.
    """

    count: int  # processes at once
    # bytes that cells may take at once; if None `SPARE_MEMORY` of what is free on the machine
    memory: float | None = None
    lost: dict[str, Lost] = field(default_factory=dict)

    def resources(self) -> Resources:
        """Return the memory that one cell may take (all that is free, if none is
        named), and the number of processes at once.
        """
        return Resources(
            available_memory() if self.memory is None else self.memory, self.count
        )

    def do(
        self, cells: Mapping[str, Cell], store: Store, watch: StageWatch
    ) -> Iterator[str]:
        """Run the cells in processes; yield each digest when its cell is done or lost.

        ``at_once`` of ``watch`` is set. Cells that cannot be pickled are lost.

        Raises:
            TypeError: the store is in memory, which processes do not share.
            OSError: an outcome cannot be written.
        """
        if isinstance(store, Memory):
            raise TypeError(
                "processes need a store on disk: simshuffle.study.store.Disk"
            )
        watch.at_once = self.count
        waiting = sorted(cells, key=lambda digest: -cells[digest].cost)
        exit_status_of_dead: dict[str, int] = {}
        yield from self._run_at_once(
            cells,
            waiting,
            self.count,
            store,
            watch,
            exit_status_of_dead=exit_status_of_dead,
        )
        for digest in list(exit_status_of_dead):
            exit_status_of_retry: dict[str, int] = {}
            yield from self._run_at_once(
                cells,
                [digest],
                1,
                store,
                watch,
                exit_status_of_dead=exit_status_of_retry,
            )
            for status in exit_status_of_retry.values():
                cause = (
                    f"{signal.Signals(-status).name}"
                    if status < 0
                    else "it ended by itself"
                )
                if status == -signal.SIGKILL:
                    cause = "SIGKILL: memory may have run out"
                self._end(digest, Lost(f"its process died twice ({cause})"), watch)
                yield digest

    def _run_at_once(
        self,
        cells: Mapping[str, Cell],
        waiting: list[str],
        count: int,
        store: Store,
        watch: StageWatch,
        *,
        exit_status_of_dead: dict[str, int],
    ) -> Iterator[str]:
        """Run the waiting cells, ``count`` at once; yield digests of those that end.

        ``waiting`` is emptied. Cells whose process died are not yielded: its exit
        status, negative for a signal, is put into ``exit_status_of_dead`` by digest.
        Where the server dies, all running cells count as killed by SIGKILL, and a new
        server goes on with those that wait.
        """
        budget = (
            SPARE_MEMORY * available_memory() if self.memory is None else self.memory
        )
        running: set[str] = set()
        while waiting or running:
            # a new server goes on where one has died, with what is still waiting
            with suppress(ServerDied), Workers() as workers:
                while waiting or running:
                    for digest in self._choose_next(
                        cells, waiting, running, count, budget
                    ):
                        waiting.remove(digest)
                        running.add(digest)
                        try:
                            workers.begin(digest, cells[digest], store)
                        except (PicklingError, TypeError, AttributeError) as error:
                            running.remove(digest)
                            # the last line of what was raised where it was to be sent
                            reason = (
                                str(error.__cause__ or error)
                                .strip('"\n ')
                                .splitlines()[-1]
                            )
                            self._end(digest, Lost(not_sent(reason)), watch)
                            yield digest
                    for news in workers.receive_news(MOMENT):
                        if news.digest in running and self._note_news(
                            news, watch, exit_status_of_dead
                        ):
                            running.remove(news.digest)
                            if news.digest not in exit_status_of_dead:
                                yield news.digest
                    watch.tell()
            for digest in running:  # the server died, and they with it
                watch.drop(digest)
                exit_status_of_dead[digest] = -signal.SIGKILL
            running.clear()

    def _choose_next(
        self,
        cells: Mapping[str, Cell],
        waiting: Sequence[str],
        running: Collection[str],
        count: int,
        budget: float,
    ) -> list[str]:
        """Choose the waiting cells that may begin now, in their order.

        They fit the free processes and the bytes of ``budget``; a cell that does not
        fit is passed over. If none fits and nothing runs, it is the first, however
        large. [] if none may begin before another ends.
        """
        chosen: list[str] = []
        free_processes = count - len(running)
        free_memory = budget - sum(cells[digest].memory for digest in running)
        for digest in waiting:
            if len(chosen) == free_processes:
                break
            if cells[digest].memory <= free_memory:
                free_memory -= cells[digest].memory
                chosen.append(digest)
        return chosen or ([] if running else list(waiting[:1]))

    def _note_news(
        self, news: News, watch: StageWatch, exit_status_of_dead: dict[str, int]
    ) -> bool:
        """Note news of a cell; return whether its process has ended.

        Raises:
            OSError: the outcome could not be written, as the process has told.
        """
        if news.what == "share":
            watch.advance(news.digest, news.value)
            return False
        if news.what == "raised":
            raise news.value
        if news.what == "died":
            watch.drop(news.digest)
            exit_status_of_dead[news.digest] = news.value
        else:
            self._end(news.digest, news.value, watch)
        return True

    def _end(self, digest: str, failure: Lost | None, watch: StageWatch) -> None:
        """Note that a cell has ended, and why it is lost if it is."""
        if failure:
            self.lost[digest] = failure
        watch.end(digest)


@dataclass
class LocalExecutor:
    """Runs cells on this machine: in processes where they save time, else in this
    process.

    The times that cells took are remembered for later estimates.
    """

    count: int | None = None  # processes at once; None for one on each usable core
    lost: dict[str, Lost] = field(default_factory=dict)

    def resources(self) -> Resources:
        """Return the bytes that are free on this machine, and the number of processes
        at once.
        """
        return Resources(available_memory(), self.count or usable_cores())

    def do(
        self, cells: Mapping[str, Cell], store: Store, watch: StageWatch
    ) -> Iterator[str]:
        """Run the cells, at least one; yield each digest when its cell is done or lost.

        Processes are used where they save `WORTH_PROCESSES` s or more by the cells'
        costs, and their store must be on disk. At the end the times of the cells that
        are not lost, over `crowding_of_cores`, are written to the user's cache folder;
        not if the iterator is stopped before.

        Raises:
            TypeError: processes are worth it, but the store is in memory.
            OSError: an outcome cannot be written.
        """
        count = min(self.count or usable_cores(), len(cells))
        # s of one core, less what is left if all processes share it equally
        saved_seconds = sum(cell.cost for cell in cells.values()) * (1.0 - 1.0 / count)
        is_serial = count == 1 or saved_seconds < WORTH_PROCESSES
        executor = (
            SerialExecutor(self.lost)
            if is_serial
            else ProcessExecutor(count, lost=self.lost)
        )
        yield from executor.do(cells, store, watch)
        crowding = crowding_of_cores()
        note_cell_times(
            (cells[digest].timed_as, cells[digest].cost, took / crowding)
            for digest, took in watch.took.items()
            if digest not in self.lost
        )


def usable_cores() -> int:
    """Return the number of cores that this process may use, by its affinity.

    A limit of CPU time (control groups) does not count.
    """
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )


def crowding_of_cores() -> float:
    """Return how many processes a core has had on average in the last minute, at least
    1.

    Cells take as many times longer, and will not where the others are gone. It is 1
    where the system does not tell.
    """
    if not hasattr(os, "getloadavg"):
        return 1.0
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
"""How the libraries that compute are told the number of their threads, before they are
loaded.
"""
SERVE = """
import sys
sys.path[:] = sys.argv[2:]
from simshuffle.study.server import serve
serve(int(sys.argv[1]))
"""


class ServerDied(Exception):
    """The server has died, and all processes that it had forked with it."""


class Workers:
    """A process for each cell, which computes with one thread; use it in ``with``.

    The server that forks them is started at once.
    """

    def __init__(self) -> None:
        """Start the server, a process of its own; each of its libraries has one thread."""
        self._connection, server_connection = Pipe()
        with server_connection:
            descriptor = server_connection.fileno()
            self._server = subprocess.Popen(  # noqa: S603 - Python itself
                [sys.executable, "-c", SERVE, str(descriptor), *sys.path],
                env={**os.environ, **dict.fromkeys(ONE_THREAD, "1")},
                stdin=subprocess.DEVNULL,
                pass_fds=[descriptor],
                start_new_session=True,  # a terminal's Ctrl-C is for the parent
            )

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all processes, and wait until they have ended."""
        self._connection.close()
        try:
            self._server.wait(2 * GRACE)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def begin(self, digest: str, cell: Cell, store: Store) -> None:
        """Start a process for a cell; it is not waited for.

        Raises:
            ServerDied: there is no server any more.
            PicklingError, TypeError, AttributeError: the cell cannot be pickled.
        """
        cell_template = cloudpickle.dumps(cell)
        work = cloudpickle.dumps((cell, store))
        try:
            self._connection.send(CellOrder(digest, cell_template, work))
        except OSError as error:
            raise ServerDied from error

    def receive_news(self, seconds: float) -> Iterator[News]:
        """Wait up to ``seconds`` for news; yield all that are there then, if any.

        Raises:
            ServerDied: there is no server any more; the processes that it forked are
                killed.
        """
        try:
            while self._connection.poll(seconds):
                yield self._connection.recv()
                seconds = 0.0
        except (EOFError, OSError) as error:
            with suppress(ProcessLookupError):  # what it has forked
                os.killpg(self._server.pid, 9)
            raise ServerDied from error
