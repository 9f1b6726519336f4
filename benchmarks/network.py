"""Time and memory of the network models on explicit flows, beside published figures of other
simulators, and the limits of this machine.

    python benchmarks/network.py [--long] [--only NAME]

Every case is a fresh process; compiling is not counted. CPU seconds and the largest resident set,
with the flows themselves, are the operating system's. The figures beside them are of SimGrid 4.1
(network/model:CM02, network/optim:Full) and of ASTRA-sim (analytical, on a crossbar without
contention), measured on one core of a machine like this one, with the same flows or flows of the
same distribution.

The limit is measured in the same process. "memory": read the arrays of the flows and write the ends
once, as fast as numpy copies them; for cases that symmetry makes small, where the flows need only
be looked at. "heap": take as many events out of a compiled binary heap, and put others in, as there
are starts and ends of flows, or events of the packet network, with nothing else done.

"growth" is one exchange, 62 messages a rank with barriers between, on full-bisection fat trees of
three levels with D-mod-K routes.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from packet import empty_events, machine, megabytes, reset_peak, steps

from simshuffle.fabric.network import Flows, Fluid, Links, Packet
from simshuffle.fabric.network import packet_records as records
from simshuffle.fabric.network.packet_run import run

Ints = NDArray[np.int32]
Case = tuple[Links, Flows]

CAPACITY = 12.5e9  # bytes/s
LATENCY = 5e-7  # s
PER_HOST = 2.0**26  # bytes that a host sends in an all-to-all
STEPS = 62
SAMPLE = 115e3  # bytes
# hosts: arity of each level
GROWTH = {
    2048: (8, 16, 16),
    8192: (16, 16, 32),
    32768: (32, 32, 32),
    131072: (32, 64, 64),
}


@dataclass(frozen=True)
class Work:
    """A case.

    Attributes:
        make: its links and flows.
        pending: events pending at a time, for the limit "heap"; None for the limit "memory".
        peer: what others need for it.
        model: what solves it.
        long: whether it runs with --long only.
    """

    make: Callable[[], Case]
    pending: int | None
    peer: str = ""
    model: Fluid | Packet = field(default_factory=Fluid)
    long: bool = False


# ------------------------------------------------------------------------------- networks and flows


def tree(
    *arity: int, spines: int | None = None
) -> tuple[Links, Callable[[Ints, Ints], Ints]]:
    """Links of a fat tree, and its routes: up to the first common switch by D-mod-K, and down the
    only way.

    Args:
        arity: hosts of a leaf switch, leaf switches below each switch of the next level, and so on.
        spines: links up from a leaf switch of a tree of two levels; None for full bisection.
    """
    hosts = math.prod(arity)
    ups = [1, *arity[:-1]]  # links up from a host, a leaf switch, ...
    if spines is not None:
        ups[1] = spines
    below = np.cumprod([1, *arity])  # hosts below a switch of each level
    planes = np.cumprod(ups)  # links from a subtree of each level to the next
    offsets = np.cumsum(
        [
            0,
            *(
                2 * (hosts // below[level]) * planes[level]
                for level in range(len(arity))
            ),
        ]
    )

    def routes(src: Ints, dst: Ints) -> Ints:
        out = np.full((len(src), 2 * len(arity)), -1, np.int32)
        length = np.zeros(len(src), np.int64)
        rows = np.arange(len(src))
        for upwards in (True, False):
            for level in range(len(arity)) if upwards else reversed(range(len(arity))):
                used = src // below[level] != dst // below[level]
                # digits of the destination, lowest first, choose among the links up
                plane = dst % planes[level]
                subtree = (src if upwards else dst) // below[level]
                side = 0 if upwards else (hosts // below[level]) * planes[level]
                link = offsets[level] + side + subtree * planes[level] + plane
                out[rows[used], length[used]] = link[used]
                length += used
        return out

    return Links(np.full(offsets[-1], CAPACITY), np.full(offsets[-1], LATENCY)), routes


def full(hosts: int) -> tuple[Links, Callable[[Ints, Ints], Ints]]:
    """16 hosts a leaf switch and 16 spines: full bisection."""
    return tree(16, hosts // 16)


def tapered(hosts: int) -> tuple[Links, Callable[[Ints, Ints], Ints]]:
    """32 hosts a leaf switch and 11 spines: about 3 to 1."""
    return tree(32, hosts // 32, spines=11)


def all_pairs(hosts: int) -> tuple[Ints, Ints]:
    """All ordered pairs of different hosts."""
    src = np.repeat(np.arange(hosts, dtype=np.int32), hosts - 1)
    dst = np.tile(np.arange(hosts - 1, dtype=np.int32), hosts)
    return src, dst + (dst >= src)


def all_to_all(hosts: int) -> Case:
    """Equal bytes from every host of a tapered tree to every other."""
    links, routes = tapered(hosts)
    src, dst = all_pairs(hosts)
    return links, Flows(
        routes(src, dst), np.full(len(src), PER_HOST / (hosts - 1)), np.zeros(len(src))
    )


def exponential(hosts: int) -> Case:
    """The same on full bisection with bytes of an exponential distribution: every flow ends at a
    time of its own."""
    links, routes = full(hosts)
    src, dst = all_pairs(hosts)
    return links, Flows(
        routes(src, dst),
        np.random.default_rng(0).exponential(PER_HOST / (hosts - 1), len(src)),
        np.zeros(len(src)),
    )


def random_pairs(count: int) -> Case:
    """Flows between random hosts of 512, of 1 KiB to 64 MiB, that start within 10 ms."""
    links, routes = full(512)
    rng = np.random.default_rng(0)
    src = rng.integers(0, 512, count).astype(np.int32)
    dst = (src + rng.integers(1, 512, count).astype(np.int32)) % 512
    return links, Flows(
        routes(src, dst), 2.0 ** rng.uniform(10, 26, count), rng.uniform(0, 0.01, count)
    )


def exchange(count: int = STEPS) -> Case:
    """An epoch of 2048 ranks that exchange a tenth of ImageNet-1K, on ABCI, with a barrier after
    every sample."""
    links, resources = machine()
    return links, steps(resources, count)


def growth(hosts: int, count: int = STEPS) -> Case:
    """The same exchange on a fat tree made for so many hosts."""
    links, routes = tree(*GROWTH[hosts])
    rng = np.random.default_rng(0)
    ranks = np.arange(hosts, dtype=np.int32)
    each = hosts + 1  # flows of a step: the last one is its barrier
    table = np.full((count * each, 6), -1, np.int32)
    nbytes = np.zeros(count * each)
    after = np.empty((2, (2 * count - 1) * hosts), np.int32)
    for step in range(count):
        flows = step * each + ranks
        table[flows] = routes(ranks, rng.permutation(ranks))
        nbytes[flows] = rng.gamma(4.0, SAMPLE / 4.0, hosts)
        after[:, step * hosts : (step + 1) * hosts] = (
            flows,
            np.full(hosts, step * each + hosts),
        )
        if step:
            at = (count + step - 1) * hosts
            after[:, at : at + hosts] = np.full(hosts, step * each - 1), flows
    return links, Flows(table, nbytes, np.zeros(len(nbytes)), after[0], after[1])


WORKS = {
    "all-to-all, 512 hosts": Work(
        lambda: all_to_all(512), None, "SimGrid 3.5 s, 600 MB"
    ),
    "all-to-all, 2048 hosts": Work(
        lambda: all_to_all(2048),
        None,
        "SimGrid 59.6 s, 9.0 GB; ASTRA-sim 4.9 s, 964 MB",
    ),
    "exponential, 128 hosts": Work(lambda: exponential(128), 16_256, "SimGrid 66-76 s"),
    "exponential, 512 hosts": Work(
        lambda: exponential(512),
        261_632,
        "SimGrid 1.4 days, by its own growth",
        long=True,
    ),
    "2000 random pairs": Work(lambda: random_pairs(2_000), 2_000, "SimGrid 0.014 s"),
    "10000 random pairs": Work(lambda: random_pairs(10_000), 10_000, "SimGrid 14.6 s"),
    "20000 random pairs": Work(lambda: random_pairs(20_000), 20_000, "SimGrid 147 s"),
    "exchange, fluid": Work(exchange, 2_048, "ASTRA-sim 17-18.5 s"),
    "exchange, packets": Work(
        exchange, 2_048, "ASTRA-sim 17-18.5 s, without packets", model=Packet()
    ),
    "growth, 2048 ranks": Work(lambda: growth(2_048), 2_048),
    "growth, 8192 ranks": Work(lambda: growth(8_192), 8_192),
    "growth, 32768 ranks": Work(lambda: growth(32_768), 32_768, long=True),
    "growth, 131072 ranks": Work(lambda: growth(131_072), 131_072, long=True),
}


# ---------------------------------------------------------------------------------------- measuring


def copy_rate() -> float:
    """Bytes/s that numpy reads and writes while it copies: the best of a few times."""
    source = np.ones(1 << 24)
    target = np.empty_like(source)
    best = math.inf
    for _ in range(5):
        begin = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - begin)
    return 2 * source.nbytes / best


def warm_up(model: Fluid | Packet) -> None:
    """Compile, or load what is compiled: through symmetry, flow by flow, and with flows that wait
    for others."""
    links, routes = tree(4, 4)
    src, dst = all_pairs(16)
    same = Flows(routes(src, dst), np.full(len(src), 1e6), np.zeros(len(src)))
    model.finish_times(links, same)
    model.finish_times(
        links,
        Flows(
            same.routes, np.random.default_rng(0).exponential(1e6, len(src)), same.start
        ),
    )
    model.finish_times(*growth(2_048, 1))


def solve(model: Fluid | Packet, links: Links, flows: Flows) -> tuple[float, int]:
    """The makespan (s), and how many events it took."""
    if isinstance(model, Packet):
        done = run(links, flows, model.mtu, model.port_buffer)
        return done.outcome.makespan, done.events
    return model.finish_times(links, flows).makespan, 2 * len(flows)


def measure(name: str) -> dict[str, float]:
    """Run a case here."""
    work = WORKS[name]
    warm_up(work.model)
    links, flows = work.make()
    before = reset_peak()
    begin = time.process_time()
    makespan, events = solve(work.model, links, flows)
    seconds = time.process_time() - begin
    peak = megabytes("VmHWM")
    if work.pending is None:
        arrays = (
            flows.routes,
            flows.nbytes,
            flows.start,
            flows.after_from,
            flows.after_to,
        )
        limit = (sum(array.nbytes for array in arrays) + 8 * len(flows)) / copy_rate()
    else:
        heap = np.zeros(work.pending, records.EVENT)
        empty_events(heap, 10, 5)
        limit = math.inf
        for _ in range(3):
            begin = time.process_time()
            empty_events(heap, events, work.pending)
            limit = min(limit, time.process_time() - begin)
    return {
        "flows": len(flows),
        "cpu_s": seconds,
        "before_MB": before,
        "peak_MB": peak,
        "limit_s": limit,
        "makespan_ms": makespan * 1e3,
    }


def exponents(found: dict[str, dict[str, float]]) -> str:
    """How time grows with flows, from each case of "growth" to the next."""
    runs = [r for name, r in found.items() if name.startswith("growth")]
    slopes = [
        math.log(b["cpu_s"] / a["cpu_s"]) / math.log(b["flows"] / a["flows"])
        for a, b in pairwise(runs)
    ]
    return ", ".join(f"{slope:.2f}" for slope in slopes)


def main(long: bool, only: str | None) -> None:
    """Print a line for every case."""
    names = [
        name
        for name, work in WORKS.items()
        if (only in name if only is not None else long or not work.long)
    ]
    print(
        f"{'case':22s} {'flows':>9s} {'CPU s':>8s} {'us/flow':>7s} {'MB before':>9s}"
        f" {'MB peak':>7s} {'limit':>6s} {'limit s':>8s} {'limits':>6s} {'simulated ms':>12s} "
        " others"
    )
    found = {}
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        child = subprocess.run(
            [sys.executable, __file__, "--child", name],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        r = found[name] = json.loads(child.stdout)
        print(
            f"{name:22s} {r['flows']:9,.0f} {r['cpu_s']:8.3f} {r['cpu_s'] / r['flows'] * 1e6:7.2f}"
            f" {r['before_MB']:9,.0f} {r['peak_MB']:7,.0f}"
            f" {'memory' if WORKS[name].pending is None else 'heap':>6s} {r['limit_s']:8.4f}"
            f" {r['cpu_s'] / r['limit_s']:6.1f} {r['makespan_ms']:12.4f}"
            f"  {WORKS[name].peer}".rstrip(),
            flush=True,
        )
    if exponents(found):
        print(f"growth: CPU s as flows to the power of {exponents(found)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Time and memory of the network models."
    )
    parser.add_argument(
        "--long", action="store_true", help="the cases that take minutes, too"
    )
    parser.add_argument(
        "--only", metavar="NAME", help="the cases whose names contain this"
    )
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.child)))
    else:
        main(args.long, args.only)
