"""A host of the testbed: sends and receives what it is told to, and says when the last
byte of each flow arrived.

Run as a script inside a network namespace, with the standard library alone. Told what
to do by lines of JSON on standard input; answers on standard output. Its end of
standard input is its end.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

PORT = 7077
# bytes of a connection that may be under way: all of it that can ever queue in the network
IN_FLIGHT = 16 * 1448
CHUNK = memoryview(bytes(65536))


class Host:
    """The host of a number and IPv4 address: its connections, its queues of flows, and
    what has arrived.
    """

    def __init__(self, own: int, address: str) -> None:
        self.own = own
        self.selector = selectors.DefaultSelector()
        self.listener = socket.create_server((address, PORT), backlog=64)
        # not by a smaller buffer: that would stop the sender whenever this process has to wait for
        # a processor
        self.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, IN_FLIGHT)
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, ("accept", 0))
        os.set_blocking(0, False)
        self.selector.register(0, selectors.EVENT_READ, ("control", 0))
        self.text = b""
        self.out: dict[int, socket.socket] = {}
        self.sources: dict[int, socket.socket] = {}
        self.room = bytearray(262144)
        self.clear()

    def clear(self) -> None:
        """Forget the flows of the last run."""
        self.at = 0.0
        self.running = False
        # by destination: [flow, bytes left, step, after]
        self.queues: dict[int, list[list[Any]]] = {}
        self.expected: dict[int, list[list[int]]] = {}  # by source: [flow, bytes left]
        self.arrived: dict[int, float] = {}
        self.due = 0
        self.step = 0
        self.barrier = False
        self.armed: set[int] = set()

    def say(self, **message: Any) -> None:
        """One line of JSON to whoever started this."""
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    def control(self) -> None:
        """Read what there is on standard input and obey."""
        piece = os.read(0, 1 << 20)
        if not piece:
            sys.exit(0)
        self.text += piece
        *lines, self.text = self.text.split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "connect" in message:
                self.connect(message["connect"])
            elif "run" in message:
                self.start(message["run"])
            elif "go" in message:
                self.step = message["go"]

    def connect(self, peers: list[list[Any]]) -> None:
        """Open a connection to every peer: [number, address]."""
        for number, address in peers:
            link = socket.create_connection((address, PORT), timeout=20)
            link.sendall(bytes([self.own]))
            link.setblocking(False)
            self.out[number] = link
        self.say(connected=len(self.out))

    def accept(self) -> None:
        """Take a connection; its first byte is the number of the host it comes from."""
        link, _ = self.listener.accept()
        link.settimeout(20)
        source = link.recv(1)[0]
        link.setblocking(False)
        self.sources[source] = link
        self.selector.register(link, selectors.EVENT_READ, ("receive", source))
        self.say(accepted=source)

    def start(self, run: dict[str, Any]) -> None:
        """Take the flows of a run, which begins at the monotonic time ``at``."""
        self.clear()
        self.at, self.barrier = run["at"], run["barrier"]
        for flow, dst, nbytes, step, after in run["send"]:
            self.queues.setdefault(dst, []).append([flow, nbytes, step, after])
        for flow, src, nbytes in run["receive"]:
            self.expected.setdefault(src, []).append([flow, nbytes])
        self.due = len(run["receive"])
        self.running = True
        self.waited = scheduling_delay()

    def ready(self, entry: list[Any]) -> bool:
        """Whether a flow may start."""
        _, _, step, after = entry
        return (step <= self.step or not self.barrier) and self.arrived.keys() >= set(
            after
        )

    def arm(self) -> None:
        """Watch for room on every connection whose first flow may start."""
        for dst, queue in self.queues.items():
            wanted = bool(queue) and self.ready(queue[0])
            if wanted and dst not in self.armed:
                self.armed.add(dst)
                self.selector.register(
                    self.out[dst], selectors.EVENT_WRITE, ("send", dst)
                )
            elif not wanted and dst in self.armed:
                self.armed.discard(dst)
                self.selector.unregister(self.out[dst])

    def send(self, dst: int) -> None:
        """Hand the kernel as much as it takes."""
        queue = self.queues[dst]
        while queue and self.ready(queue[0]):
            try:
                queue[0][1] -= self.out[dst].send(CHUNK[: min(queue[0][1], len(CHUNK))])
            except BlockingIOError:
                return
            if queue[0][1] == 0:
                queue.pop(0)

    def receive(self, source: int) -> None:
        """Read what has arrived; note the flows that are complete."""
        try:
            count = self.sources[source].recv_into(self.room)
        except BlockingIOError:
            return
        now = time.monotonic()
        if count == 0:
            sys.exit(1)
        queue = self.expected[source]
        while count:
            part = min(count, queue[0][1])
            queue[0][1] -= part
            count -= part
            if queue[0][1] == 0:
                flow = queue.pop(0)[0]
                self.arrived[flow] = now
                if self.barrier:
                    self.say(got=flow)
        if len(self.arrived) == self.due:
            self.finish()

    def finish(self) -> None:
        """Say when everything arrived, and how long this process stood in the queue for
        a processor meanwhile.
        """
        self.due = -1
        self.say(
            done=sorted(self.arrived.items()), waited=scheduling_delay() - self.waited
        )

    def serve(self) -> None:
        """Until standard input ends."""
        while True:
            timeout = None
            if self.running and (left := self.at - time.monotonic()) > 0:
                timeout = left
            elif self.running:
                if self.due == 0:
                    self.finish()
                self.arm()
            for key, _ in self.selector.select(timeout):
                what, number = key.data
                if what in {"control", "accept"}:
                    getattr(self, what)()
                elif what == "send" and number in self.armed:
                    self.send(number)
                elif what == "receive":
                    self.receive(number)


def scheduling_delay() -> float:
    """Seconds that this process has waited for a processor so far (0 where the kernel
    does not count it).
    """
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def main() -> None:
    """Serve as host ``argv[1]`` with the address ``argv[2]``, for at most ``argv[3]``
    seconds.
    """
    # the one who started this decides what Ctrl-C means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.alarm(int(sys.argv[3]))
    host = Host(int(sys.argv[1]), sys.argv[2])
    host.say(ready=host.own)
    host.serve()


if __name__ == "__main__":
    main()
