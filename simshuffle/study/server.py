"""A server process that loads the modules that cells need, and forks a process for each
cell.

Shared modules are loaded once and are in memory once. The server has one thread, so
that forking is safe. When its parent closes the connection, or has died, it ends its
processes and itself.
"""

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


def not_sent(reason: str) -> str:
    """Return the sentence for a cell that cannot be pickled, or loaded."""
    return f"it cannot be sent to another process ({reason}): use one process"


@dataclass(frozen=True)
class CellOrder:
    """An order to run a cell."""

    digest: str  # of the cell
    template: bytes  # the cell, pickled; it makes ready what cells like it compute with
    work: bytes  # the cell and its store, pickled


@dataclass(frozen=True)
class News:
    """News of a running cell: a share is done, or its process has ended."""

    digest: str  # of the cell
    # 'share' of it is done; 'ended'; 'raised' what no other cell would survive; or 'died'
    what: Literal["share", "ended", "raised", "died"]
    # that share, from 0 to 1; a `Lost` or None; the exception; the exit status of the process,
    # negative for a signal
    value: Any


_Processes = dict[
    Connection, tuple[str, int]
]  # the cell of each, and the number of the process


def serve(descriptor: int) -> None:
    """Run the cells that are ordered on a connection, until it is closed.

    It then ends this process, with those that it has forked, and does not return.

    Args:
        descriptor: file descriptor of the connection.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, and hangs up
    gc.disable()  # here modules are loaded, which stay: the search for garbage finds none
    parent = Connection(descriptor)
    processes = _Processes()
    try:
        while True:
            for ready in wait([parent, *processes]):
                if ready is parent:
                    _fork_process(parent.recv(), parent, processes)
                else:
                    _forward_news(ready, parent, processes)  # type: ignore[arg-type]
    except (EOFError, OSError):
        _stop_processes(processes)


def _fork_process(order: CellOrder, parent: Connection, processes: _Processes) -> None:
    """Fork a process that runs the ordered cell, and add it to ``processes``.

    What the cell needs is loaded here before, once for all processes. A cell that
    cannot be loaded is forked all the same: its process tells the error.
    """
    with suppress(
        Exception
    ):  # what cannot be loaded here cannot be there, which says so
        pickle.loads(order.template).make_ready()  # noqa: S301 - from the parent alone
    news_connection, process_connection = Pipe(duplex=False)
    gc.freeze()  # so that collecting garbage does not copy what is shared
    with warnings.catch_warnings():
        # of threads: that of jemalloc, in pyarrow, sees to itself
        warnings.simplefilter("ignore", DeprecationWarning)
        process_id = os.fork()
    if process_id == 0:
        try:
            parent.close()
            signal.signal(signal.SIGTERM, interrupt)
            gc.enable()
            _run_cell(order, process_connection)
        finally:
            os._exit(1)
    process_connection.close()
    processes[news_connection] = order.digest, process_id


def _forward_news(
    news_connection: Connection, parent: Connection, processes: _Processes
) -> None:
    """Forward news of a cell to the parent.

    If its process has ended, it is taken out of ``processes``; a status other than 0 is
    reported as 'died'.
    """
    try:
        parent.send_bytes(news_connection.recv_bytes())
    except (EOFError, ConnectionResetError):
        news_connection.close()
        digest, process_id = processes.pop(news_connection)
        status = os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])
        if status:
            parent.send(News(digest, "died", status))


def _stop_processes(processes: _Processes) -> None:
    """End all processes, SIGTERM first and SIGKILL after `GRACE` s, and this one.

    Does not return.
    """
    remaining = {process_id for _, process_id in processes.values()}
    for process_id in remaining:
        os.kill(process_id, signal.SIGTERM)
    deadline = monotonic() + GRACE
    while remaining and monotonic() < deadline:
        sleep(0.01)
        remaining -= {
            process_id
            for process_id in remaining
            if os.waitpid(process_id, os.WNOHANG)[0]
        }
    for process_id in remaining:
        os.kill(process_id, signal.SIGKILL)
    os._exit(0)


def _run_cell(order: CellOrder, server: Connection) -> None:
    """Run a cell in a process of its own, which ends with it; does not return.

    Its outcome goes to the store; news of it go to ``server``. A cell that is
    interrupted sends no last news, and the exit status is 1.
    """
    from simshuffle.study.store import Lost, run_and_store  # noqa: PLC0415 - where it is needed

    last_report = [0.0]

    def tell(share: float) -> None:
        """Send the share that is done; one within `MOMENT` s of the last is dropped."""
        now = monotonic()
        if now - last_report[0] >= MOMENT:
            last_report[0] = now
            server.send(News(order.digest, "share", share))

    try:
        cell, store = pickle.loads(order.work)  # noqa: S301 - from the parent alone
    except Exception as error:  # noqa: BLE001 - the code of others is loaded
        news = News(order.digest, "ended", Lost(not_sent(str(error))))
    else:
        tell(0.0)
        try:
            news = News(
                order.digest, "ended", run_and_store(cell, order.digest, store, tell)
            )
        except OSError as error:
            news = News(order.digest, "raised", error)
    server.send(news)
    os._exit(0)


Handler = Callable[[int, FrameType | None], Any] | signal.Handlers


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, as Ctrl-C does (a signal handler)."""
    raise KeyboardInterrupt


@contextmanager
def handle_signals(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals by ``handler`` within the context, then as before.

    Outside the main thread, which alone gets signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handlers = {
        signal_number: signal.signal(signal_number, handler)
        for signal_number in numbers
    }
    try:
        yield
    finally:
        for signal_number, previous_handler in previous_handlers.items():
            signal.signal(signal_number, previous_handler)
