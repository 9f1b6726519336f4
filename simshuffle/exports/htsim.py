"""The exchange of an iteration for htsim (github.com/Broadcom/csg-htsim): a connection matrix, and
the fat tree on which it runs, where htsim can have it.

The grammar of the matrix is that of ``ConnectionMatrix::load`` in
sim/datacenter/connection_matrix.cpp, commit 20b2297: starts in ps, sizes in bytes below 2**31, of
which 0 would be without end, and comments before the first connection alone. That of the network is
``FatTreeTopology::load`` in sim/datacenter/fat_tree_topology.cpp, commit f661b2f: trees of two or
three tiers with one link to each host.

A node is a host, with the number that it has in the tree; without a tree, in the order in which
ranks fill hosts. A connection is a message that crosses a cable. No rank waits for a message before
it sends another one, so that work and barriers are in the starts, which count from the sum of the
gradients. Only messages of the same two ranks wait for each other, by a trigger. Barriers of htsim
wait for messages, and are not needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simshuffle.errors import InputError, Problem
from simshuffle.exports.export import Options, Tell
from simshuffle.exports.program import Program, Step, program
from simshuffle.exports.source import Source
from simshuffle.plan.wiring import names_of, placed, wiring
from simshuffle.scenario.scenario import Scenario
from simshuffle.spec.units import Dimension, readable
from simshuffle.topology import Topology
from simshuffle.topology.fat_tree import FatTree

MATRIX, NETWORK = "exchange.cm", "network.topo"
"""Names of the files."""
LARGEST = 2**31 - 1
"""Bytes of a connection at most: its size is an int."""
MOST_PORTS = (96, 64, 64)
"""Of a switch of each tier; htsim ends where there are more."""


@dataclass
class Connection:
    """A message."""

    # source, target: numbers of hosts
    source: int
    target: int
    ready: float  # s after the sum of the gradients at which it can be sent
    nbytes: int  # its size
    waits_for: int = 0  # the trigger that starts it, from 1; 0 for its start
    releases: int = 0  # the trigger that its end sets off; 0 for none


def write(source: Source, path: Path, options: Options, tell: Tell) -> Sequence[str]:
    """See `Writer.write`."""
    made = program(source.scenario, source.epoch, source.iteration)
    topology, faults = source.scenario.cluster.topology, source.scenario.cluster.faults
    why = "it has faults" if faults else obstacle(topology)
    host = made.host_of if why else host_numbers(source.scenario, made)
    messages, inside = connections(made, host)
    if not messages:
        rule, remedy = "must have messages that cross a cable", "Use more hosts."
        raise InputError(Problem("--to htsim", rule, f"{inside} inside", remedy), source.reference)
    path.mkdir()
    nodes = int(host.max()) + 1 if why else topology.num_hosts
    (path / MATRIX).write_text(matrix(made, nodes, messages), encoding="utf-8")
    waiting = sum(1 for message in messages if message.waits_for)
    said = [
        f"Iteration {made.iteration} of epoch {made.epoch}: {len(messages)} messages,"
        f" {waiting} of them after another one of the same ranks"
        f"{f'; left out: {inside} that cross no cable' if inside else ''}."
    ]
    given = f"htsim takes it as -tm {path.name}/{MATRIX}"
    if why:
        return [*said, f"Without {NETWORK}, as htsim cannot have this network: {why}.", given]
    assert isinstance(topology, FatTree)  # noqa: S101 - all others are an obstacle
    (path / NETWORK).write_text(network(topology), encoding="utf-8")
    return [*said, f"{given} -topo {path.name}/{NETWORK}"]


# ------------------------------------------------------------------------------------------ matrix


def host_numbers(scenario: Scenario, made: Program) -> NDArray[np.int64]:
    """(M,) number in the network of each rank's host."""
    cluster = scenario.cluster
    wires = wiring(cluster)
    count = cluster.hosts_for(made.world_size)
    used = placed(cluster, wires.fabric, count, scenario.rng("placement"))
    number = {name: place for place, name in enumerate(names_of(wires.fabric, "host"))}
    return np.array([number[name] for name in used])[made.host_of]


def connections(made: Program, host: NDArray[np.integer]) -> tuple[list[Connection], int]:
    """The messages that cross a cable, in the order of the steps and then of the ranks; and how
    many others there are. ``host``: see `host_numbers`.

    Raises:
        InputError: a message is too large for htsim.
    """
    out: list[Connection] = []
    inside = triggers = 0
    # of each pair of ranks its last message, and when that arrives if the network is empty
    before: dict[tuple[int, int], tuple[Connection, float]] = {}
    for step, ready in zip(made.steps, ready_times(made), strict=True):
        sends = step.sends & (step.nbytes >= 1)
        far = sends & (made.links.cable[step.route] & (step.route >= 0)).any(axis=1)
        inside += int((sends & ~far).sum())
        alone = _seconds_alone(made, step)
        for rank in np.flatnonzero(far).tolist():
            pair = rank, int(step.target[rank])
            message = Connection(
                int(host[rank]), int(host[pair[1]]), float(ready[rank]), _size(step, rank)
            )
            last, arrives = before.get(pair, (None, 0.0))
            if made.serial_pairs and last is not None and arrives > message.ready:
                triggers += 1
                message.waits_for = last.releases = triggers
            before[pair] = message, max(message.ready, arrives) + alone[rank]
            out.append(message)
    return out, inside


def ready_times(made: Program) -> list[NDArray[np.float64]]:
    """Of each step (M,) s from the sum of the gradients until a rank's message is handed over."""
    done = np.full(made.world_size, made.gradients.update_s)
    out = []
    for step, barrier in zip(made.steps, made.barrier_before, strict=True):
        if barrier:
            done = np.full(made.world_size, done.max() + made.barrier_s)
        done = done + step.before_s
        out.append(done + made.latency_s)
    return out


def _seconds_alone(made: Program, step: Step) -> NDArray[np.float64]:
    """(M,) s of each message on its route if nothing else is there."""
    rate = np.where(step.route >= 0, made.links.capacity[step.route], np.inf).min(axis=1)
    return np.asarray(step.nbytes / np.minimum(rate, made.stream_bandwidth))


def _size(step: Step, rank: int) -> int:
    size = round(float(step.nbytes[rank]))
    if size > LARGEST:
        rule = f"messages must be at most {readable(LARGEST, Dimension.NBYTES)} for htsim"
        shown = readable(size, Dimension.NBYTES)
        remedy = "Set samples_per_message of the exchange to less."
        raise InputError(Problem("--to htsim", rule, shown, remedy), "export")
    return size


def matrix(made: Program, hosts: int, messages: Sequence[Connection]) -> str:
    """The connection matrix of messages between so many hosts."""
    triggers = sum(1 for message in messages if message.waits_for)
    about = " ".join(made.name.split())
    lines = [
        f"# {about}: iteration {made.iteration} of epoch {made.epoch}, written by simshuffle",
        f"Nodes {hosts}",
        f"Connections {len(messages)}",
        f"Triggers {triggers}",
    ]
    for number, message in enumerate(messages, 1):
        begin = f"start {round(message.ready * 1e12)}"
        if message.waits_for:
            begin = f"trigger {message.waits_for}"
        end = f" send_done_trigger {message.releases}" if message.releases else ""
        ends = f"{message.source}->{message.target}"
        lines.append(f"{ends} id {number} {begin} size {message.nbytes}{end}")
    lines += [f"trigger id {number} oneshot" for number in range(1, triggers + 1)]
    return "\n".join(lines) + "\n"


# ----------------------------------------------------------------------------------------- network


def obstacle(topology: Topology) -> str:
    """Why htsim cannot have a network; '' if it can."""
    if not isinstance(topology, FatTree):
        return f"it is of kind {topology.kind}, and no fat tree"
    return next(_obstacles(topology), "")


def _obstacles(tree: FatTree) -> Iterator[str]:
    if tree.num_levels not in {2, 3}:
        yield f"its tree has {tree.num_levels} levels, and not 2 or 3"
    if tree.rails > 1:
        yield f"its hosts have {tree.rails} links, and not one"
    if tree.directors:
        yield "its topmost switches are directors"
    if tree.num_levels > 1 and tree.hosts_per_leaf % tree.uplinks:
        yield f"its taper is {tree.hosts_per_leaf}:{tree.uplinks}, and not whole"
    if tree.link_bandwidth * 8 % 1e9:
        rate = readable(tree.link_bandwidth, Dimension.BANDWIDTH)
        yield f"its links have {rate}, which is not whole in Gbit/s"
    room = math.prod(links.children for links in tree.links())
    if room != tree.num_hosts:
        yield f"it has {tree.num_hosts} hosts, and room for {room}"
    for (down, up), most in zip(_radices(tree), MOST_PORTS, strict=False):
        if down + up > most:
            yield f"it has switches of {down + up} ports, and not of at most {most}"


def _radices(tree: FatTree) -> list[tuple[int, int]]:
    """Of a switch of each tier the ports down and up."""
    links = tree.links()
    up = [above.parents * above.parallel for above in links[1:]]
    down = [links[0].children, *(below.children * below.parallel for below in links[1:])]
    return list(zip(down, [*up, 0], strict=True))


def network(tree: FatTree) -> str:
    """The file of a tree without `obstacle`. Latencies are whole ns there, those of cables at least
    one."""
    links = tree.links()
    pod = tree.num_hosts // (links[2].children if len(links) == 3 else 1)
    lines = [f"Nodes {tree.num_hosts}", f"Tiers {len(links)}", f"Podsize {pod}"]
    for tier, (down, up) in enumerate(_radices(tree)):
        lines += [
            "",
            f"Tier {tier}",
            f"Downlink_speed_Gbps {round(tree.link_bandwidth * 8 / 1e9)}",
            f"Radix_Down {down}",
            *([f"Radix_Up {up}", f"Oversubscribed {down // up}"] if up else []),
            f"Downlink_Latency_ns {max(round(tree.cable_latency * 1e9), 1)}",
            f"Switch_Latency_ns {round(tree.switch_latency * 1e9)}",
            *([f"Bundle {links[tier].parallel}"] if tier else []),
        ]
    return "\n".join(lines) + "\n"
