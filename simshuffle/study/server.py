"""The server: a process that loads what cells need, and forks a process for each of them, so that
what they share is loaded once and is in memory once. It has one thread, so that forking is safe.
Where its parent hangs up, or has died, it ends its processes and itself."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from time import monotonic, sleep
from types import FrameType
from typing import Any, Literal

MOMENT = 0.25  # s between two reports of progress, at most that often from one cell
GRACE = 3.0
"""s that processes have to remove what they have half-written when they are stopped."""


def not_sent(why: str) -> str:
    """The sentence for a cell that cannot be pickled, or loaded."""
    return f"it cannot be sent to another process ({why}): use one process"


@dataclass(frozen=True)
class CellOrder:
    """A cell that is to be done."""

    digest: str  # of the cell
    alike: bytes  # the cell, pickled; it makes ready what cells like it compute with
    work: bytes  # the cell and its store, pickled


@dataclass(frozen=True)
class News:
    """What is heard of a cell."""

    digest: str  # of the cell
    # 'share' of it is done; 'ended'; 'raised' what no other cell would survive; or 'died'
    what: Literal["share", "ended", "raised", "died"]
    # that share, from 0 to 1; a `Lost` or None; the exception; the exit status of the process,
    # negative for a signal
    value: Any


_Processes = dict[Connection, tuple[str, int]]  # the cell of each, and the number of the process


def serve(descriptor: int) -> None:
    """Do what is ordered on the connection of that file descriptor, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, and hangs up
    parent, processes = Connection(descriptor), _Processes()
    try:
        while True:
            for ready in wait([parent, *processes]):
                if ready is parent:
                    _begin(parent.recv(), parent, processes)
                else:
                    _hear(ready, parent, processes)  # type: ignore[arg-type]
    except (EOFError, OSError):
        _stop(processes)


def _begin(order: CellOrder, parent: Connection, processes: _Processes) -> None:
    with suppress(Exception):  # what cannot be loaded here cannot be there, which says so
        pickle.loads(order.alike).make_ready()  # noqa: S301 - from the parent alone
    ours, theirs = Pipe(duplex=False)
    gc.freeze()  # so that collecting garbage does not copy what is shared
    with warnings.catch_warnings():
        # of threads: that of jemalloc, in pyarrow, sees to itself
        warnings.simplefilter("ignore", DeprecationWarning)
        number = os.fork()
    if number == 0:
        try:
            parent.close()
            signal.signal(signal.SIGTERM, interrupt)
            _work(order, theirs)
        finally:
            os._exit(1)
    theirs.close()
    processes[ours] = order.digest, number


def _hear(ours: Connection, parent: Connection, processes: _Processes) -> None:
    try:
        parent.send_bytes(ours.recv_bytes())
    except (EOFError, ConnectionResetError):
        ours.close()
        digest, number = processes.pop(ours)
        status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
        if status:
            parent.send(News(digest, "died", status))


def _stop(processes: _Processes) -> None:
    left = {number for _, number in processes.values()}
    for number in left:
        os.kill(number, signal.SIGTERM)
    deadline = monotonic() + GRACE
    while left and monotonic() < deadline:
        sleep(0.01)
        left -= {number for number in left if os.waitpid(number, os.WNOHANG)[0]}
    for number in left:
        os.kill(number, signal.SIGKILL)
    os._exit(0)


def _work(order: CellOrder, server: Connection) -> None:
    """Do a cell, in a process of its own, which ends with it."""
    from simshuffle.study.store import Lost, attempt  # noqa: PLC0415 - where it is needed

    last = [0.0]

    def tell(share: float) -> None:
        now = monotonic()
        if now - last[0] >= MOMENT:
            last[0] = now
            server.send(News(order.digest, "share", share))

    try:
        cell, store = pickle.loads(order.work)  # noqa: S301 - from the parent alone
    except Exception as error:  # noqa: BLE001 - the code of others is loaded
        news = News(order.digest, "ended", Lost(not_sent(str(error))))
    else:
        tell(0.0)
        try:
            news = News(order.digest, "ended", attempt(cell, order.digest, store, tell))
        except OSError as error:
            news = News(order.digest, "raised", error)
    server.send(news)
    os._exit(0)


Handler = Callable[[int, FrameType | None], Any] | signal.Handlers


def interrupt(number: int, frame: FrameType | None) -> None:
    """A handler that raises KeyboardInterrupt, as Ctrl-C does."""
    raise KeyboardInterrupt


@contextmanager
def handled(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Let ``handler`` handle those signals; does nothing but in the main thread, which gets
    them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
