"""What asks this process to stop is Ctrl-C, or has no effect, for as long as something lasts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | signal.Handlers


def interrupt(number: int, frame: FrameType | None) -> None:
    """A handler that does what Ctrl-C does.

    Raises:
        KeyboardInterrupt: always.
    """
    raise KeyboardInterrupt


@contextmanager
def handled(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Let ``handler`` handle those signals; only the main thread, which gets them, may ask for
    that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
