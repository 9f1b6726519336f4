"""Executors: who does the cells. This process, or processes on all usable cores; a cluster is in
`simshuffle.study.cluster`."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from pickle import PicklingError
from time import monotonic, sleep
from typing import Any, Protocol

from loky import get_reusable_executor
from loky.process_executor import BrokenProcessPool

from simshuffle.errors import SimshuffleError
from simshuffle.study.cell import Cell, Tell
from simshuffle.study.standing import Watch
from simshuffle.study.store import Disk, Memory, Store

MOMENT = 0.25
"""s between two reports of progress, at most that often from one cell."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""How the libraries that compute are told the number of their threads, before they are loaded."""
WORTH_PROCESSES = 4.0
"""s of expected work below which this process does it sooner than others could be started."""
SPARE_MEMORY = 0.9
"""Share of the available memory that cells may take at once, by their estimates."""


@dataclass(frozen=True)
class Lost:
    """A cell without an outcome.

    Attributes:
        why: a sentence for people.
        error: what the cell raised; None where its process died.
    """

    why: str
    error: SimshuffleError | None = None


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


def attempt(cell: Cell, digest: str, store: Store, tell: Tell) -> Lost | None:
    """Do a cell and keep its outcome; None, or why there is none."""
    try:
        store.put(digest, cell.run(tell))
    except SimshuffleError as error:
        return Lost(str(error), error)
    except OSError:
        raise  # the disk is full, or the store cannot be written: no other cell would fare better
    except Exception as error:  # noqa: BLE001 - whatever a cell raises, the others go on
        return Lost(f"{type(error).__name__}: {error}")
    return None


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
    """Processes of this machine, each of which computes with one thread; costly cells first, and no
    more at once than the memory allows by their estimates.

    A cell in a process that dies is done again, alone, for it may have been another cell's fault;
    if that process dies too, the cell is lost and the others go on.

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
        waiting = sorted(cells, key=lambda digest: -cells[digest].cost)
        suspects: list[str] = []
        with _reports(watch) as address:
            try:
                yield from self._together(cells, waiting, suspects, store, watch, address)
                for digest in suspects:
                    yield from self._alone(cells, digest, store, watch, address)
            except BaseException:
                self._pool().shutdown(wait=True, kill_workers=True)
                raise

    def _pool(self, count: int | None = None) -> Any:
        environment = dict.fromkeys(ONE_THREAD, "1")
        return get_reusable_executor(
            max_workers=count or self.count,
            timeout=60,
            env=environment,
            initializer=_begin,
            initargs=(os.getpid(),),
        )

    def _together(
        self,
        cells: Mapping[str, Cell],
        waiting: list[str],
        suspects: list[str],
        store: Store,
        watch: Watch,
        address: str,
    ) -> Iterator[str]:
        budget = SPARE_MEMORY * available_memory() if self.memory is None else self.memory
        running: dict[Future[Lost | None], str] = {}
        while waiting or running:
            used = sum(cells[digest].memory for digest in running.values())
            while waiting and len(running) < self.count:
                fitting = (d for d in waiting if used + cells[d].memory <= budget)
                digest = next(fitting, waiting[0] if not running else None)
                if digest is None:
                    break
                try:
                    future = self._pool().submit(_attempt, cells[digest], digest, store, address)
                except BrokenProcessPool:
                    break  # those that ran in it are dealt with below; then there is a new one
                waiting.remove(digest)
                used += cells[digest].memory
                watch.at(digest, 0.0)
                running[future] = digest
            ended, _ = wait(running, timeout=MOMENT, return_when=FIRST_COMPLETED)
            watch.tell()
            for future in ended:
                digest = running.pop(future)
                try:
                    self._note(digest, future.result(), watch)
                except BrokenProcessPool:
                    watch.drop(digest)
                    suspects.append(digest)
                    continue
                except (PicklingError, TypeError, AttributeError) as error:
                    why = (
                        f"it cannot be sent to another process ({_reason(error)}): use one process"
                    )
                    self._note(digest, Lost(why), watch)
                yield digest

    def _alone(
        self, cells: Mapping[str, Cell], digest: str, store: Store, watch: Watch, address: str
    ) -> Iterator[str]:
        """Do a cell again whose process died, or one that stood beside it, in a pool of one."""
        watch.at(digest, 0.0)
        try:
            future = self._pool(1).submit(_attempt, cells[digest], digest, store, address)
            while not future.done():
                wait([future], timeout=MOMENT)
                watch.tell()
            self._note(digest, future.result(), watch)
        except BrokenProcessPool as error:
            why = f"its process was killed twice ({_cause(error)})"
            self._note(digest, Lost(why), watch)
        yield digest

    def _note(self, digest: str, failure: Lost | None, watch: Watch) -> None:
        if failure:
            self.lost[digest] = failure
        watch.end(digest)


@dataclass
class Local:
    """This machine: processes where they pay, this process where there is little to do.

    Attributes:
        count: processes at once; None for one on each usable core.
    """

    count: int | None = None
    lost: dict[str, Lost] = field(default_factory=dict)

    def do(self, cells: Mapping[str, Cell], store: Store, watch: Watch) -> Iterator[str]:
        """As for `Executor`."""
        count = min(self.count or usable_cores(), len(cells))
        little = sum(cell.cost for cell in cells.values()) < WORTH_PROCESSES
        executor = Here(self.lost) if count <= 1 or little else Processes(count, lost=self.lost)
        yield from executor.do(cells, store, watch)


def _reason(error: Exception) -> str:
    """The last line of what was raised where the cell was to be sent."""
    return str(error.__cause__ or error).strip('"\n ').splitlines()[-1]


def _cause(error: BrokenProcessPool) -> str:
    """What loky says of the end of a process, shortly."""
    return "SIGKILL: memory may have run out" if "SIGKILL" in str(error) else "it ended by itself"


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


# ------------------------------------------------------------------------------------ the processes


def _begin(parent: int) -> None:
    """Make a process ready: Ctrl-C reaches all of them, and the first one stops the others; and one
    whose parent was killed ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        sleep(1.0)
    os._exit(1)


def _attempt(cell: Cell, digest: str, store: Disk, address: str) -> Lost | None:
    last = [0.0]

    def tell(share: float) -> None:
        now = monotonic()
        if now - last[0] >= MOMENT:
            last[0] = now
            # a report that cannot be sent is none: the next one says more
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(f"{digest} {share}".encode(), address)

    return attempt(cell, digest, store, tell)


@contextmanager
def _reports(watch: Watch) -> Iterator[str]:
    """A socket on which processes report how far their cells are; yields its address."""
    folder = tempfile.TemporaryDirectory(prefix="simshuffle-", ignore_cleanup_errors=True)
    with folder as place, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        address = str(Path(place) / "progress")
        receiver.bind(address)
        receiver.settimeout(MOMENT)
        ended = threading.Event()

        def listen() -> None:
            while not ended.is_set():
                with suppress(OSError, ValueError):
                    digest, share = receiver.recv(256).decode().split()
                    if digest in watch.cells:
                        watch.shares[digest] = float(share)

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        try:
            yield address
        finally:
            ended.set()
            listener.join()
