"""How long a thread waits for the interpreter, that asks for it now and then."""

from __future__ import annotations

import _thread
from collections.abc import Callable

from .meter import clock, queued

PAUSE_SECONDS = 0.05
_A_ROW = 20
"""Times it asks, for each row: one a second."""
Write = Callable[[int, int, int, int], None]


class _Probe:
    """The thread. It is none of the threading module's, so that nobody finds it among their own."""

    def __init__(self, write: Write) -> None:
        self.write = write
        self.asked_to_end = _thread.allocate_lock()
        self.asked_to_end.acquire()
        self.ended = _thread.allocate_lock()
        self.ended.acquire()
        self.taken = True
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            while self.taken:
                self.taken = False  # until the next batch is
                begin, without_core, late = clock(), queued(), 0
                for _ in range(_A_ROW):
                    due = clock() + round(PAUSE_SECONDS * 1e9)
                    if self.asked_to_end.acquire(timeout=PAUSE_SECONDS):
                        return
                    late += max(clock() - due, 0)
                waited = max(queued() - without_core, 0)
                self.write(begin, max(late - waited, 0), waited, _A_ROW)
        finally:
            self.ended.release()


_probe: _Probe | None = None


def watch(write: Write) -> None:
    """A batch is taken: have a thread ask, and write (start, ns that it waited, ns that it had no
    core, times that it asked) once a second, for as long as batches are taken."""
    global _probe  # noqa: PLW0603 - of the process
    if _probe is not None and not _probe.ended.locked():
        _probe = None
    if _probe is None:
        _probe = _Probe(write)
    _probe.taken = True


def pause() -> None:
    """End the thread until the next batch: a process that is forked has one thread fewer then, and
    Python need not warn of it."""
    global _probe  # noqa: PLW0603
    if _probe is not None:
        _probe.asked_to_end.release()
        _probe.ended.acquire()
        _probe = None
