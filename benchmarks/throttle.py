"""How long a slow device takes: what slow_disk.py and slow_server.py have in common."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from math import inf


class Throttle:
    """A device that answers requests of many threads.

    A request waits for one of ``in_flight`` slots, then for its bytes to pass, one request after
    another at ``rate`` bytes/s, and for its latency (s), which those of others overlap.
    """

    def __init__(
        self,
        rate: float = inf,
        in_flight: int = 64,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.rate = rate
        self.now = now
        self.sleep = sleep
        self.slots = threading.BoundedSemaphore(in_flight)
        self.lock = threading.Lock()
        self.free = -inf  # s of the clock at which all bytes asked for have passed

    def wait(self, latency_s: float, nbytes: int) -> None:
        """Return when a request is answered."""
        with self.slots:
            with self.lock:
                self.free = max(self.free, self.now()) + nbytes / self.rate
                answered = self.free + latency_s
            if (left := answered - self.now()) > 0:
                self.sleep(left)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What a slow device is told."""
    parser.add_argument("--open-s", type=float, default=0.0, help="s for each open")
    parser.add_argument("--read-s", type=float, default=0.0, help="s for each read")
    parser.add_argument(
        "--rate", type=float, default=inf, help="bytes/s, of all together"
    )
    parser.add_argument(
        "--in-flight", type=int, default=64, help="requests at the same time"
    )
