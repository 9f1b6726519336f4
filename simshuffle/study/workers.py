"""Workers: processes of this machine that do cells, as their parent sees them; they are forked by
`simshuffle.study.server`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Pipe

import cloudpickle

from simshuffle.study.cell import Cell
from simshuffle.study.server import GRACE, News, Order
from simshuffle.study.store import Store

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
        """Begin a cell.

        Raises:
            Exception: the cell cannot be pickled; what, is up to its parts.
            Gone: there is no server any more.
        """
        kind, work = cloudpickle.dumps(type(cell)), cloudpickle.dumps((cell, store))
        try:
            self._connection.send(Order(digest, kind, work))
        except OSError as error:
            raise Gone from error

    def news(self, seconds: float) -> Iterator[News]:
        """What is heard within that time: nothing, or all that there is by then.

        Raises:
            Gone: there is no server any more.
        """
        try:
            while self._connection.poll(seconds):
                yield self._connection.recv()
                seconds = 0.0
        except (EOFError, OSError) as error:
            with suppress(ProcessLookupError):  # what it has forked
                os.killpg(self._server.pid, 9)
            raise Gone from error
