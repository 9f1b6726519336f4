"""The processes on the hosts of a testbed, and one measured run of a pattern by them."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from simshuffle.errors import SimshuffleError
from simshuffle.extensions.calibration.validation.testbed_patterns import (
    NamespacePattern,
)
from simshuffle.workload.exchange import ExchangePlan
from simshuffle_testbed import commands
from simshuffle_testbed.namespaces import in_namespace, uninterrupted

FOLDER = Path(__file__).parent
"""Where the programs on the hosts are."""
TICK = 0.005  # s between looks at how late this process is woken
LEAD = (
    0.1  # s from the order to the common start: enough for the order to reach everyone
)


@dataclass(frozen=True)
class Measured:
    """One run of a pattern."""

    finish: list[
        float
    ]  # (flows,) s from the common start to the last byte of each flow
    # the longest time (s) that the process of a host stood in the queue for a processor, in all
    waited: float
    # the longest time (s) by which a process here got a processor too late after a short sleep
    late: float
    # busy, steal: shares of the time of all processors in which they worked, for anyone, or
    # belonged to another machine
    busy: float
    steal: float

    @property
    def makespan(self) -> float:
        """When the last flow ended (s)."""
        return max(self.finish)


@dataclass(frozen=True)
class Processors:
    """Ticks of all processors together, since the machine was started."""

    idle: int
    steal: int
    total: int

    @classmethod
    def now(cls) -> Processors:
        """As the kernel counts them at this moment."""
        ticks = list(map(int, Path("/proc/stat").read_text().split()[1:9]))
        *_, idle, iowait, _, _, steal = ticks
        return cls(idle + iowait, steal, sum(ticks))

    def shares(self, later: Processors) -> tuple[float, float]:
        """Shares of the time until ``later`` in which they worked, and in which they
        were taken away.
        """
        total = max(later.total - self.total, 1)
        steal = (later.steal - self.steal) / total
        idle = (later.idle - self.idle) / total
        # the kernel's count of waiting for I/O may go back a little
        return min(max(1.0 - idle - steal, 0.0), 1.0), min(max(steal, 0.0), 1.0)


class Crew:
    """A process on every host, in their order, spoken to by lines of JSON over pipes."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        # the longest time (s) by which this process was woken too late since it was last set to 0
        self.late = 0.0
        self._processes = processes
        self._selector = selectors.DefaultSelector()
        self._rest = [b""] * len(processes)
        for host, process in enumerate(processes):
            self._selector.register(_pipe(process.stdout), selectors.EVENT_READ, host)

    def __len__(self) -> int:
        return len(self._processes)

    def tell(self, host: int, **message: Any) -> None:
        """Send a message to one host."""
        pipe = _pipe(self._processes[host].stdin)
        try:
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()
        except OSError:
            raise SimshuffleError(self._dead(host)) from None

    def hear(self, deadline: float) -> Iterator[dict[str, Any]]:
        """Messages from all hosts, for as long as they are asked for.

        Raises:
            SimshuffleError: a host died, or nothing more came before the monotonic time
                ``deadline``.
        """
        while True:
            begun = time.monotonic()
            ready = self._selector.select(TICK)
            if not ready:
                self.late = max(self.late, time.monotonic() - begun - TICK)
                if begun < deadline:
                    continue
                raise SimshuffleError(
                    "the hosts of the testbed did not finish in time; give fewer bytes or a higher"
                    " rate"
                )
            for key, _ in ready:
                host: int = key.data
                piece = _pipe(self._processes[host].stdout).read1()  # type: ignore[attr-defined]
                if not piece:
                    raise SimshuffleError(self._dead(host))
                *lines, self._rest[host] = (self._rest[host] + piece).split(b"\n")
                yield from map(json.loads, lines)

    def gather(self, key: str, count: int, deadline: float) -> None:
        """Wait for ``count`` messages with ``key``."""
        for message in self.hear(deadline):
            count -= key in message
            if not count:
                return

    def _dead(self, host: int) -> str:
        process = self._processes[host]
        process.kill()
        process.wait()
        said = (
            _pipe(process.stderr).read().decode(errors="replace").strip().splitlines()
        )
        last = said[-1] if said else "it said nothing"
        return (
            f"host {host} of the testbed ended with status {process.returncode}: {last}"
        )


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise AssertionError("a pipe is missing")
    return pipe


@contextmanager
def started(
    testbed: commands.NamespaceNetwork,
    run: str,
    command: Callable[[int], list[str]],
    environment: Callable[[int], dict[str, str]],
) -> Iterator[Crew]:
    """A process on every host of the testbed called ``run``, with its ``command`` and
    environment variables; ended in the end, whatever happens.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for host, name in enumerate(testbed.host_names):
            full = in_namespace(commands.namespace(run, name), *command(host))
            pipe = subprocess.PIPE
            known = environment(host)
            # a session of its own: Ctrl-C on the terminal reaches the one who cleans up, and not
            # the hosts
            process = subprocess.Popen(  # noqa: S603
                full,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=known,
                start_new_session=True,
            )
            processes.append(process)
        yield Crew(processes)
    finally:
        with uninterrupted():
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()
                for end in (process.stdin, process.stdout, process.stderr):
                    with suppress(OSError):  # what was not yet written can no longer be
                        _pipe(end).close()


@contextmanager
def gloo_hosts(
    testbed: commands.NamespaceNetwork, run: str, limit: float, meeting: Path
) -> Iterator[Crew]:
    """Hosts with torch.distributed, one rank each; they meet at the file ``meeting``
    and end by themselves after ``limit`` s.
    """

    def command(host: int) -> list[str]:
        arguments = (host, len(testbed.host_names), meeting, int(limit) + 10)
        return [sys.executable, f"{FOLDER / 'gloo_worker.py'}", *map(str, arguments)]

    def environment(host: int) -> dict[str, str]:
        device = commands.data_device(testbed.leaving(testbed.host_names[host])[0])
        return os.environ | {"GLOO_SOCKET_IFNAME": device, "OMP_NUM_THREADS": "1"}

    with started(testbed, run, command, environment) as crew:
        # eight processes import torch on perhaps two processors
        crew.gather("ready", len(crew), time.monotonic() + 120.0)
        yield crew


def gloo_order(
    pattern: NamespacePattern, plan: ExchangePlan, host: int
) -> dict[str, Any]:
    """What a host of `gloo_hosts` has to do for the ``pattern`` of a ``plan``: a
    message out and one in for each step, or none; each as flow, peer and sample.
    """
    number = {
        start: flow
        for flow, start in enumerate(zip(pattern.step, pattern.src, strict=True))
    }
    messages = []
    steps = zip(plan.target.tolist(), plan.sample.tolist(), strict=True)
    for step, (target, sample) in enumerate(steps):
        source = target.index(host)
        out = (
            [number[step, host], target[host], sample[host]]
            if target[host] != host
            else []
        )
        into = [number[step, source], source, sample[source]] if source != host else []
        messages.append([out, into])
    return {
        "barrier": pattern.barrier,
        "nbytes": pattern.nbytes[0],
        "messages": messages,
    }


@contextmanager
def tcp_hosts(
    testbed: commands.NamespaceNetwork, run: str, limit: float
) -> Iterator[Crew]:
    """Hosts with a TCP connection from each to each other; they end by themselves after
    ``limit`` s.
    """

    def command(host: int) -> list[str]:
        arguments = (f"{host}", commands.address(host), f"{int(limit) + 10}")
        return [sys.executable, "-I", "-S", f"{FOLDER / 'worker.py'}", *arguments]

    path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    with started(testbed, run, command, lambda _: path) as crew:
        deadline = time.monotonic() + 30.0
        crew.gather("ready", len(crew), deadline)
        for host in range(len(crew)):
            peers = [peer for peer in range(len(crew)) if peer != host]
            crew.tell(host, connect=[[peer, commands.address(peer)] for peer in peers])
        crew.gather("accepted", len(crew) * (len(crew) - 1), deadline)
        yield crew


def tcp_order(pattern: NamespacePattern, host: int) -> dict[str, Any]:
    """What a host of `tcp_hosts` has to do for ``pattern``."""
    p = pattern
    flows = range(len(p))
    send = [
        [f, p.dst[f], p.nbytes[f], p.step[f], p.predecessors[f]]
        for f in flows
        if p.src[f] == host
    ]
    receive = [[f, p.src[f], p.nbytes[f]] for f in flows if p.dst[f] == host]
    return {"barrier": pattern.barrier, "send": send, "receive": receive}


def measure(
    crew: Crew,
    pattern: NamespacePattern,
    limit: float,
    order: Callable[[int], dict[str, Any]],
) -> Measured:
    """Run ``pattern`` once on the hosts of ``crew``, each of which gets its ``order``.

    Raises:
        SimshuffleError: it took longer than ``limit`` s, or a host died.
    """
    orders = [order(host) for host in range(len(crew))]
    before = Processors.now()
    at = time.monotonic() + LEAD
    for host, what in enumerate(orders):
        crew.tell(host, run={"at": at, **what})
    finish = [0.0] * len(pattern)
    left = [pattern.step.count(step) for step in range(max(pattern.step) + 1)]
    crew.late, waited, missing = 0.0, 0.0, len(crew)
    for message in crew.hear(at + limit):
        if "got" in message:
            step = pattern.step[message["got"]]
            left[step] -= 1
            if not left[step] and step + 1 < len(left):
                for host in range(len(crew)):
                    crew.tell(host, go=step + 1)
        if "done" in message:
            for flow, when in message["done"]:
                finish[flow] = when - at
            waited = max(waited, message["waited"])
            missing -= 1
            if not missing:
                break
    busy, steal = before.shares(Processors.now())
    return Measured(finish, waited, crew.late, busy, steal)
