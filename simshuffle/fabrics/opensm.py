"""Tables of OpenSM beside those of a routing: OpenSM runs on a fabric that ibsim simulates, and
entries are compared one by one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simshuffle.errors import SimulationError
from simshuffle.fabrics.imported import ImportedFabric
from simshuffle.routing.base import RoutingRule
from simshuffle.routing.fabric import Fabric, Ints
from simshuffle.routing.forwarding_tables import TableRouter, Tables
from simshuffle.routing.router import HopByHop, Step

PROGRAMS = ("opensm", "ibsim", "ibsim-run")
"""Of the packages opensm and ibsim-utils of Debian."""
PATIENCE = 120
"""Seconds for one run."""
DUMP = "opensm-lfts.dump"


def missing_programs() -> list[str]:
    """Those of `PROGRAMS` that are not there."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


def dumped(net: Path, engine: str) -> str:
    """The forwarding tables that OpenSM's routing engine ``engine`` computes for a net file, as it
    dumps them.

    Raises:
        SimulationError: a program fails, or the engine falls back to another one.
    """
    with tempfile.TemporaryDirectory(prefix="opensm-") as folder, _simulated(net, folder) as known:
        known |= {"OSM_TMP_DIR": folder, "OSM_CACHE_DIR": folder}
        log = Path(folder, "log")
        words = ["ibsim-run", "opensm", "-R", engine, "-D", "0x43", "-e", "-o", "-f", str(log)]
        try:
            done = subprocess.run(  # noqa: S603 - fixed words
                words, env=known, capture_output=True, timeout=PATIENCE, check=False, cwd=folder
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SimulationError(f"OpenSM did not end: {error}. Run {' '.join(words)}.") from None
        told = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        if done.returncode or f"{engine} tables configured" not in told:
            last = (done.stderr.decode(errors="replace") + told)[-600:]
            raise SimulationError(f"OpenSM made no tables with {engine}: {last}")
        return Path(folder, DUMP).read_text(encoding="utf-8", errors="replace")


@contextmanager
def _simulated(net: Path, folder: str) -> Iterator[dict[str, str]]:
    """The environment in which programs find the fabric of a net file."""
    known = os.environ | {"IBSIM_SOCKNAME": f"simshuffle-{os.getpid()}"}
    sizes = ["-N", "4096", "-S", "2048", "-P", "131072", "-L", "49151"]
    words = ["ibsim", "-s", "-n", *sizes, str(net.resolve())]
    with Path(folder, "ibsim.log").open("w", encoding="utf-8") as log:
        server = subprocess.Popen(  # noqa: S603 - fixed words
            words, env=known, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _wait(server, Path(folder, "ibsim.log"))
            yield known
        finally:
            server.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(10)
            if server.stdin is not None:
                server.stdin.close()


def _wait(server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        told = log.read_text(encoding="utf-8", errors="replace")
        if "simulator ready" in told:
            time.sleep(0.2)  # it opens its socket after that line
            return
        if server.poll() is not None:
            raise SimulationError(f"ibsim ended: {told[-300:]}")
        time.sleep(0.05)
    raise SimulationError(f"ibsim is not ready: {told[-300:]}")


@dataclass(frozen=True)
class Agreement:
    """How far two sets of tables are the same.

    Attributes:
        entries: that both have, those of a destination's own switch left out.
        equal: of these.
        upward: entries that lead up a level.
        renumbered: of these, equal ones if the switches above each switch are numbered alike.
    """

    entries: int
    equal: int
    upward: int
    renumbered: int

    def __str__(self) -> str:
        share = self.equal / max(1, self.entries)
        same = self.renumbered / max(1, self.upward)
        return (
            f"{self.entries} entries, {share:.2%} equal; of {self.upward} upward ones {same:.2%} up"
            " to the numbers of the switches above"
        )


def agreement(imported: ImportedFabric, tables: Tables, rule: RoutingRule) -> Agreement:
    """How far ``tables`` of a fabric are those of a routing.

    Raises:
        TopologyError: the tables do not fit the fabric, or the routing is not for it.
    """
    fabric = Fabric(imported.sketch())
    router = rule.router(fabric, 0)
    if not isinstance(router, HopByHop) or not router.by_destination:
        raise ValueError(f"{rule.describe()} has no forwarding tables")
    own, other = table_of(router), TableRouter(fabric, tables, tables.source).table
    both = (own >= 0) & (other >= 0)
    both[fabric.at, np.arange(len(fabric.at))] = False
    level = fabric.switches.depth
    upward = renumbered = 0
    for switch in range(len(own)):
        columns = np.flatnonzero(both[switch])
        a, b = fabric.entered[own[switch, columns]], fabric.entered[other[switch, columns]]
        up = (level[a] > level[switch]) & (level[b] > level[switch])
        upward += int(up.sum())
        renumbered += _matched(a[up], b[up])
    return Agreement(int(both.sum()), int((own == other)[both].sum()), upward, renumbered)


def _matched(a: Ints, b: Ints) -> int:
    """How many of ``a`` (n,) are equal to ``b`` (n,) if the numbers in ``a`` are called by the
    numbers in ``b`` with which they stand most often, each once."""
    found = 0
    called: set[int] = set()
    taken: set[int] = set()
    for (x, y), count in Counter(zip(a.tolist(), b.tolist(), strict=True)).most_common():
        if x not in called and y not in taken:
            called.add(x)
            taken.add(y)
            found += count
    return found


def table_of(router: HopByHop) -> Ints:
    """(switches, ports) the link by which each switch sends to each port; -1 where no choice is
    needed or there is none. The router must look at the destination alone."""
    fabric = router.fabric
    goal = fabric.goal_of
    choice = router.choices.of[:, goal]
    here, port = (each.astype(np.int32) for each in np.nonzero(choice >= 0))
    step = Step(1, here, goal[port], choice[here, port], port, port, np.arange(len(port)))
    table = np.full(choice.shape, -1, np.int32)
    table[here, port] = router.choose(step)
    return table
