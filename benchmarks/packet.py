"""Time and memory of the packet network: an epoch of exchange at 2048 ranks on ABCI, and an
all-to-all of small messages.

    python benchmarks/packet.py [CASE ...]

Every case is a fresh process. CPU seconds and the largest resident set are the operating system's;
compiling is not counted. The limit beside them, measured in the same process, is the queue of
events alone: as many events taken out and put in again, with nothing done. "epoch, step by step"
posts from outside as a clock of the caller's would; its events and its limit are those of the
epoch.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from simshuffle import load_scenario
from simshuffle.fabric.network import Flows, Links, Packet
from simshuffle.fabric.network import packet_records as records
from simshuffle.fabric.network.packet import PacketNetwork
from simshuffle.fabric.network.packet_run import run
from simshuffle.job.plan.resources import Resources
from simshuffle.spec.compiling import entry

RANKS = 2048
STEPS = 62
SAMPLE = 115e3  # bytes
CASES = (
    "one step",
    "epoch",
    "epoch, 8 KiB buffers",
    "epoch, step by step",
    "all-to-all",
)


@entry
def empty_events(heap: records.Records, count: int, pending: int) -> None:
    """Take out and put in ``count`` events of a heap, of which ``pending`` are in it at a time."""
    state = np.uint64(88172645463325252)
    for event in range(count):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        at = np.int64(state >> np.uint64(44))
        if event >= pending:
            at += heap[0].at
            records.pop_event(heap, pending - 1)
        records.push_event(heap, min(event, pending - 1), at, event)


def machine() -> tuple[Links, Resources]:
    """The links of ABCI that 2048 ranks use."""
    scenario = load_scenario("abci-imagenet1k")
    resources = Resources(scenario.cluster, RANKS, scenario.rng("placement"))
    latency = np.zeros(len(resources.links.names))
    latency[: len(resources.forwarding.links.latency)] = (
        resources.forwarding.links.latency
    )
    return Links(resources.links.capacity, latency, resources.links.names), resources


def steps(resources: Resources, count: int) -> Flows:
    """Every rank sends one sample to the next of a random permutation, again and again, with a
    barrier between."""
    rng = np.random.default_rng(1)
    ranks = np.arange(RANKS)
    routes = []
    nbytes = []
    edges = []
    for step in range(count):
        base = step * (RANKS + 1)
        table, _ = resources.message(ranks, rng.permutation(RANKS))
        routes += [table, np.full((1, table.shape[1]), -1, np.int32)]
        nbytes += [rng.gamma(4.0, SAMPLE / 4.0, RANKS), np.zeros(1)]
        flows = base + ranks
        edges.append(np.stack([flows, np.full(RANKS, base + RANKS)]))
        if step:
            edges.append(np.stack([np.full(RANKS, base - 1), flows]))
    after = np.concatenate(edges, axis=1)
    sizes = np.concatenate(nbytes)
    return Flows(
        np.concatenate(routes), sizes, np.zeros(len(sizes)), after[0], after[1]
    )


def all_to_all(resources: Resources, nbytes: float) -> Flows:
    """Every rank sends to every other at once."""
    src = np.repeat(np.arange(RANKS, dtype=np.int32), RANKS - 1)
    dst = (src + np.tile(np.arange(1, RANKS, dtype=np.int32), RANKS)) % RANKS
    routes, _ = resources.message(src, dst)
    return Flows(routes, np.full(len(src), nbytes), np.zeros(len(src)))


def step_by_step(links: Links, flows: Flows) -> None:
    """Post the flows of `steps` from outside, when the step before has ended; one call for every
    message that ends."""
    network = PacketNetwork(links, mtu=4096, port_buffer=65536)
    now = 0.0
    for first in range(0, len(flows), RANKS + 1):
        step = slice(first, first + RANKS)
        network.inject(now, flows.routes[step], flows.nbytes[step])
        while network.alive:
            _, ended = network.advance(math.inf)
            now = ended[-1][1]


def megabytes(field: str) -> float:
    """Resident set now ("VmRSS") or at most so far ("VmHWM"), as Linux tells it."""
    lines = dict(
        line.split(":") for line in Path("/proc/self/status").read_text().splitlines()
    )
    return float(lines[field].split()[0]) / 1e3


def reset_peak() -> float:
    """Forget the largest resident set so far; returns the present one."""
    Path("/proc/self/clear_refs").write_text("5")
    return megabytes("VmRSS")


def measure(case: str) -> dict[str, float]:
    """Run a case here."""
    links, resources = machine()
    network = (
        Packet.model_validate({"port_buffer": "8 KiB"}) if "8 KiB" in case else Packet()
    )
    step_by_step(links, steps(resources, 1))
    run(links, steps(resources, 1), network.mtu, network.port_buffer)
    heap = np.zeros(RANKS, records.EVENT)
    empty_events(heap, 10, 5)
    flows = (
        all_to_all(resources, 512.0)
        if case == "all-to-all"
        else steps(resources, 1 if case == "one step" else STEPS)
    )
    before = reset_peak()
    begin = time.process_time()
    done = run(links, flows, network.mtu, network.port_buffer)
    if case == "epoch, step by step":
        begin = time.process_time()
        step_by_step(links, flows)
    seconds = time.process_time() - begin
    peak = megabytes("VmHWM")
    begin = time.process_time()
    empty_events(heap, done.events, RANKS)
    limit = time.process_time() - begin
    first = flows.routes[:, 0]
    packets = float(np.ceil(flows.nbytes[first >= 0] / network.mtu).sum())
    return {
        "cpu_s": seconds,
        "flows": len(flows),
        "packets": packets,
        "sent": float(done.statistics.packets.sum()),
        "events": done.events,
        "limit_s": limit,
        "makespan_ms": done.outcome.makespan * 1e3,
        "before_MB": before,
        "peak_MB": peak,
    }


def main(cases: list[str]) -> None:
    """Print a line for every case."""
    print(
        f"{'case':22s} {'flows':>9s} {'packets':>9s} {'sent on links':>13s} {'events':>11s}"
        f" {'CPU s':>7s} {'events/us':>9s} {'limits':>6s} {'MB before':>9s} {'MB peak':>8s}"
        f" {'simulated ms':>12s}"
    )
    for case in cases:
        child = subprocess.run(
            [sys.executable, __file__, "--child", case],
            check=True,
            capture_output=True,
            text=True,
        )
        r = json.loads(child.stdout)
        print(
            f"{case:22s} {r['flows']:9,.0f} {r['packets']:9,.0f} {r['sent']:13,.0f}"
            f" {r['events']:11,.0f} {r['cpu_s']:7.2f} {r['events'] / r['cpu_s'] / 1e6:9.2f}"
            f" {r['cpu_s'] / r['limit_s']:6.1f} {r['before_MB']:9.0f} {r['peak_MB']:8.0f}"
            f" {r['makespan_ms']:12.3f}",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(sys.argv[1:] or list(CASES))
