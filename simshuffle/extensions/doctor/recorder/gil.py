"""Run a thread that asks for the interpreter now and then, measures how long it waits
for that, and looks where other threads are then.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable
from typing import Optional

from .meter import clock, core_wait_ns

PAUSE_SECONDS = 0.02
"""Seconds between two requests for the interpreter."""
_REQUESTS_A_ROW = 50
"""Requests for each row: one row a second."""
PROMPT_SECONDS = 2e-4
"""Seconds after which a fetch gives the interpreter to the thread that looks. With the
usual 5 ms, it would mostly be seen in calls that give the interpreter away themselves.
"""
FEW_THREADS = 4
"""Threads of a process up to which others do not change places for that: of a worker,
its own, the one that sends, the one that hands out shared memory, and the one that looks.
"""
FORCED = 0.8
"""Share of the switch interval, waited for the interpreter, from which the thread that had
it was made to give it up, and did not sleep or wait of its own accord.
"""
Write = Callable[[int, int, int, int], None]
"""Writes a row: its start (clock), the waits for the interpreter and those for a core
(ns, sums over the requests), and the number of requests.
"""
Look = Callable[[bool, bool], bool]
"""Notes where other threads are, and returns whether one fetches, which may last. Its
arguments are whether a fetch, and whether any other thread, is seen where it computes,
not only where it gives the interpreter away.
"""


class _InterpreterProbe:
    """A thread that asks for the interpreter, and begins as it is made.

    The threading module does not know it, so that no script finds it among its own.

    Attributes:
        write: writes a row; None as long as no row is wanted.
        look: notes where other threads are.
        end_request: is held until the thread is to end.
        ended: is held until the thread has ended.
        batch_taken: whether a batch was taken since the last row began.
    """

    def __init__(self, look: Look) -> None:
        self.write: Optional[Write] = None  # noqa: UP045 - Python 3.9
        self.look = look
        self.end_request = _thread.allocate_lock()
        self.end_request.acquire()
        self.ended = _thread.allocate_lock()
        self.ended.acquire()
        self.batch_taken = True
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        """Ask for the interpreter, and look, until no batch is taken or fetched for the
        time of a row. A request to end comes at once: requests without a row are lost.
        """
        try:
            is_fetching = False
            while self.batch_taken or is_fetching:
                self.batch_taken = False  # until the next batch is taken
                begin = clock()
                queued_before = core_wait_ns()
                late = 0
                for _ in range(_REQUESTS_A_ROW):
                    interval = sys.getswitchinterval()
                    are_few = len(sys._current_frames()) <= FEW_THREADS
                    is_prompt = is_fetching and are_few
                    if is_prompt:
                        sys.setswitchinterval(PROMPT_SECONDS)
                    due = clock() + round(PAUSE_SECONDS * 1e9)
                    is_over = self.end_request.acquire(timeout=PAUSE_SECONDS)
                    if is_prompt:
                        sys.setswitchinterval(interval)
                    if is_over:
                        return
                    late_ns = max(clock() - due, 0)
                    late += late_ns
                    is_fetching = self.look(
                        is_prompt or not are_few, late_ns >= FORCED * interval * 1e9
                    )
                queued_ns = max(core_wait_ns() - queued_before, 0)
                if self.write is not None:
                    self.write(
                        begin, max(late - queued_ns, 0), queued_ns, _REQUESTS_A_ROW
                    )
        finally:
            self.ended.release()


_probe: _InterpreterProbe | None = None


def watch(look: Look, write: Optional[Write] = None) -> None:  # noqa: UP045
    """Have a thread ask for the interpreter, and look, 50 times a second while batches
    are taken or fetched; called for each batch.

    Args:
        look: notes where other threads are; a thread that runs keeps the one with which
            it began.
        write: writes a row once a second; None to keep the present one.
    """
    global _probe  # noqa: PLW0603 - of the process
    if _probe is not None and not _probe.ended.locked():
        _probe = None
    if _probe is None:
        _probe = _InterpreterProbe(look)
    _probe.write = write or _probe.write
    _probe.batch_taken = True


def pause() -> None:
    """End the thread until the next batch, and wait until it has ended.

    A process that is forked has one thread fewer then, and Python need not warn of it.
    """
    global _probe  # noqa: PLW0603
    if _probe is not None:
        _probe.end_request.release()
        _probe.ended.acquire()
        _probe = None
