"""A thread that asks for the interpreter now and then: how long it waits for that, and where other
threads are then."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Optional

from .meter import clock, queued

PAUSE_SECONDS = 0.05
_A_ROW = 20
"""Times it asks, for each row: one a second."""
Write = Callable[[int, int, int, int], None]
Look = Callable[[], bool]
"""Sees where other threads are; says whether any does what may last."""


class _Probe:
    """The thread. It is none of the threading module's, so that nobody finds it among their own."""

    def __init__(self, look: Look) -> None:
        self.write: Optional[Write] = None  # noqa: UP045 - Python 3.9
        self.look = look
        self.asked_to_end = _thread.allocate_lock()
        self.asked_to_end.acquire()
        self.ended = _thread.allocate_lock()
        self.ended.acquire()
        self.taken = True
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            lasting = False
            while self.taken or lasting:
                self.taken = False  # until the next batch is
                begin, without_core, late = clock(), queued(), 0
                for _ in range(_A_ROW):
                    due = clock() + round(PAUSE_SECONDS * 1e9)
                    if self.asked_to_end.acquire(timeout=PAUSE_SECONDS):
                        return
                    late += max(clock() - due, 0)
                    lasting = self.look()
                waited = max(queued() - without_core, 0)
                if self.write is not None:
                    self.write(begin, max(late - waited, 0), waited, _A_ROW)
        finally:
            self.ended.release()


_probe: _Probe | None = None


def watch(look: Look, write: Optional[Write] = None) -> None:  # noqa: UP045
    """A batch is taken or fetched: have a thread ask, and look, 20 times a second for as long as
    that goes on; and ``write`` (start, ns that it waited, ns that it had no core, times that it
    asked) once a second."""
    global _probe  # noqa: PLW0603 - of the process
    if _probe is not None and not _probe.ended.locked():
        _probe = None
    if _probe is None:
        _probe = _Probe(look)
    _probe.write = write or _probe.write
    _probe.taken = True


def pause() -> None:
    """End the thread until the next batch: a process that is forked has one thread fewer then, and
    Python need not warn of it."""
    global _probe  # noqa: PLW0603
    if _probe is not None:
        _probe.asked_to_end.release()
        _probe.ended.acquire()
        _probe = None
